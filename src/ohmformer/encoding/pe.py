"""``LinearTransformerPE``: a positional encoding that is learned with the task (section 6 and appendix E of the paper)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from ohmformer.encoding import saving
from ohmformer.encoding.dynamics import Layer
from ohmformer.encoding.engines import Problem, encode
from ohmformer.encoding.inputs import Pairs, read_pairs

Function = TypeVar("Function", bound=Callable)

STARTS = ("diagonal", "features", "random", "index")


def _untraced(function: Function) -> Function:
    """Keep torch.compile out of a function: how a batch is cut into blocks depends on its sizes, so no trace fits all."""
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType, reportCallIssue, reportArgumentType]


def _linear(width: int, out: int) -> nn.Linear:
    """Make a linear map whose weights are not drawn yet: torch would draw them from the global generator."""
    return cast(nn.Linear, nn.utils.skip_init(nn.Linear, width, out))


class LinearTransformerPE(nn.Module):
    """Encode nodes by ``M Phi_L``, where ``Phi_L`` are the features of a linear Transformer that sees the incidences B.

    One layer is ``Phi <- (1 + w_R) Phi + (beta_3 alpha N + beta_4 Phi W_Q W_K Phi^T) Phi W_V`` with ``N = D^-1/2 B B^T
    D^-1/2``, then every column over its norm; ``evolve=True`` moves B likewise (:mod:`ohmformer.encoding.dynamics`). Each of
    ``groups`` sets of weights is applied ``loops`` times in a row; ``loops`` may be changed after training.

    What the answer depends on is the choice of ``phi0``:

    - ``"diagonal"``: every node is its own demand and reads its own answer, the diagonal of a learned function of L.
      Deterministic, moves with the nodes when they are renumbered, and needs no node features; for graphs of up to 8,000
      nodes.
    - ``"features"``: a linear map of ``x``. Deterministic, moves with the nodes.
    - ``"random"``: Gaussian columns. In training fresh ones in every call and process; in evaluation those of ``seed``, by
      the node's place in its graph; with ``generator=`` whatever it draws. The mean of ``draws`` answers is returned.
    - ``"index"``: a trained table by the node's place in its graph, as in the authors' experiments. It reads the numbering
      of the nodes: for reproduction only. Places beyond the table wrap around.

    Args:
        dim: numbers per node that come out.
        hidden: channels k of Phi.
        groups: sets of weights.
        loops: how often each is applied in a row.
        phi0: where Phi starts, one of the above.
        evolve: whether layers move B too; for graphs of up to 8,000 nodes.
        degrees: ``"gram"``, D the diagonal of ``B B^T``; or ``"l1"``, the paper's ``sum_j |B_ij|``.
        in_features: width of ``x``, for ``phi0="features"``.
        max_nodes: rows of the table, for ``phi0="index"``.
        draws: answers to average, for ``phi0="random"``.
        seed: of the initial weights and of random starts.

    >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> LinearTransformerPE(dim=4)(edges, num_nodes=3).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: int = 8,
        groups: int = 3,
        loops: int = 3,
        phi0: str = "diagonal",
        evolve: bool = False,
        degrees: str = "gram",
        in_features: int | None = None,
        max_nodes: int | None = None,
        draws: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in {"dim": dim, "hidden": hidden, "groups": groups, "loops": loops, "draws": draws}.items():
            if value < 1:
                raise ValueError(f"expected {name} >= 1, got {value}")
        if phi0 not in STARTS:
            raise ValueError(f"expected phi0 among {', '.join(STARTS)}, got {phi0!r}")
        if degrees not in ("gram", "l1"):
            raise ValueError(f"expected degrees='gram' or 'l1', got {degrees!r}")
        if (phi0 == "features") != (in_features is not None):
            raise ValueError(f"expected in_features= with phi0='features' and only there, got {in_features} with {phi0!r}")
        if (phi0 == "index") != (max_nodes is not None):
            raise ValueError(f"expected max_nodes= with phi0='index' and only there, got {max_nodes} with {phi0!r}")
        self.dim, self.hidden, self.groups, self.loops = dim, hidden, groups, loops
        self.phi0, self.evolve, self.degrees = phi0, evolve, degrees
        self.in_features, self.max_nodes, self.draws, self.seed = in_features, max_nodes, draws, seed
        self.scalars = nn.Parameter(torch.empty(groups, 8))
        """alpha_V, alpha_QK, alpha_R, w_R, beta_1, beta_2, beta_3, beta_4 of each group."""
        self.value = nn.Parameter(torch.empty(groups, hidden))
        self.query = nn.Parameter(torch.empty(groups, hidden))
        self.key = nn.Parameter(torch.empty(groups, hidden))
        self.readout = nn.Parameter(torch.empty(dim, hidden))
        self.table = nn.Parameter(torch.empty(max_nodes, hidden)) if max_nodes is not None else None
        self.embed = _linear(in_features, hidden) if in_features is not None else None
        if phi0 == "random":
            self.calls: Tensor  # random starts drawn in training, part of the state so that a resumed run draws new ones
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
            self.register_load_state_dict_pre_hook(_add_missing_calls)
        self.reset_parameters()

    @classmethod
    def paper(cls, dataset: str = "zinc") -> LinearTransformerPE:
        """Make the paper's model: index table, l1 degrees, B evolving, three groups looped three times, eight channels.

        >>> [sum(p.numel() for p in LinearTransformerPE.paper(name).parameters()) for name in ("zinc", "qm9")]
        [440, 192]
        >>> {k: v for k, v in paper_parameters("zinc").items()}
        {'index table': 296, 'read-out M': 48, 'layers': 96, 'factors of other scalars': 12, 'never used': 36}
        """
        if dataset not in _PAPER:
            raise ValueError(f"expected dataset 'zinc' or 'qm9', got {dataset!r}")
        dim, nodes = _PAPER[dataset]
        return cls(dim, phi0="index", evolve=True, degrees="l1", max_nodes=nodes)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of ``__init__`` that make a model of this shape."""
        names = (
            "dim", "hidden", "groups", "loops", "phi0", "evolve", "degrees", "in_features", "max_nodes", "draws", "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def reset_parameters(self) -> None:
        """Draw initial weights: channels are diffusions of different speed, ``Phi <- Phi - t N Phi``, that weakly repel."""
        draw = torch.Generator().manual_seed(self.seed)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw)

        with torch.no_grad():
            self.scalars.copy_(torch.tensor([0.1, 1.0, 0.0, 0.0, -1.0, -0.1, 1.0, 1.0]) + 0.02 * noise(self.groups, 8))
            self.value.copy_(-torch.linspace(0.1, 0.9, self.hidden) + 0.02 * noise(self.groups, self.hidden))
            for weight in (self.query, self.key):
                weight.copy_(0.3 + 0.02 * noise(self.groups, self.hidden))
            self.readout.copy_(noise(self.dim, self.hidden) / math.sqrt(self.hidden))
            if self.table is not None:
                self.table.copy_(nn.functional.normalize(noise(len(self.table), self.hidden), dim=0))
            if self.embed is not None:
                self.embed.weight.copy_(noise(*self.embed.weight.shape) / math.sqrt(self.embed.in_features))
                self.embed.bias.zero_()

    # ------------------------------------------------------------------------------------------------ forward

    @_untraced
    def forward(
        self,
        edge_index: Int[Tensor, "2 edges"] | Any,
        edge_weight: Tensor | None = None,
        batch: Int[Tensor, " nodes"] | None = None,
        num_nodes: int | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "nodes dim"]:
        """Return the encoding of every node, ``(num_nodes, dim)``.

        Args:
            edge_index: PyG's, every edge in both directions or every edge once, in any order; or a whole PyG ``Data`` or
                ``Batch``, of which the arguments that are not given are then read.
            edge_weight: conductances, ones unless given; where both directions are listed they must agree.
            batch: the graph of every node, ascending; one graph unless given.
            num_nodes: how many; otherwise the length of ``batch``, of ``x``, or the largest node number plus one.
            x: node features, for ``phi0="features"``.
            generator: draws random starts.

        >>> from torch_geometric.data import Data
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> LinearTransformerPE(dim=4)(path).shape
        torch.Size([3, 4])
        """
        if hasattr(edge_index, "edge_index"):
            data: Any = edge_index
            edge_index = data.edge_index
            edge_weight = data.edge_weight if edge_weight is None and "edge_weight" in data else edge_weight
            batch = getattr(data, "batch", None) if batch is None else batch
            num_nodes = data.num_nodes if num_nodes is None else num_nodes
            x = data.x if x is None and self.phi0 == "features" else x
        if num_nodes is None and batch is None and x is not None:
            num_nodes = len(x)
        pairs = read_pairs(edge_index, edge_weight, batch, num_nodes, l1=self.degrees == "l1", dtype=self.scalars.dtype)
        if pairs.graph.device != self.scalars.device:
            raise ValueError(
                f"expected edge_index and the encoding on one device, got {pairs.graph.device} and {self.scalars.device}"
            )
        with torch.autocast(self.scalars.device.type, enabled=False):
            layers = self._layers()
            draws = self.draws if self.phi0 == "random" else 1
            phi = self._encode(pairs, layers, self._start(pairs, x, generator, 0))
            for draw in range(1, draws):
                phi = phi + self._encode(pairs, layers, self._start(pairs, x, generator, draw))
            return (phi if draws == 1 else phi / draws) @ self.readout.mT

    def _encode(self, pairs: Pairs, layers: list[Layer], start: Tensor | None) -> Float[Tensor, "nodes hidden"]:
        """Run the layers from one start."""
        return encode(Problem(pairs, start, layers, self.evolve, normalize_start=self.phi0 != "index"))

    def _start(
        self, pairs: Pairs, x: Tensor | None, generator: torch.Generator | None, draw: int
    ) -> Float[Tensor, "nodes columns"] | None:
        """Return Phi_0, or None for the diagonal start, which needs none."""
        graph = pairs.graph
        if self.phi0 == "diagonal":
            return None
        if self.embed is not None:
            if x is None or tuple(x.shape) != (graph.num_nodes, self.embed.in_features):
                got = "none" if x is None else tuple(x.shape)
                raise ValueError(f"expected x of shape ({graph.num_nodes}, {self.embed.in_features}), got {got}")
            return self.embed(x.to(self.scalars.dtype))
        place = torch.arange(graph.num_nodes, device=graph.device) - graph.graph_offsets.index_select(0, graph.batch)
        if self.table is not None:
            return self.table.index_select(0, place % len(self.table))
        if generator is None and self.training:
            self.calls += 1
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
            generator = torch.Generator().manual_seed(1_000_003 * int(self.calls) + 2_654_435_761 * rank + self.seed)
        if generator is not None:
            shape = graph.num_nodes, self.hidden
            return torch.randn(shape, generator=generator, device=generator.device).to(self.scalars)
        return _rows_of_seed(self.seed + 7919 * draw, graph.width, self.hidden).to(self.scalars).index_select(0, place)

    def _layers(self) -> list[Layer]:
        """Return the weights of every layer, scalars multiplied out; plain numbers where no gradient is wanted."""
        watched = torch.is_grad_enabled() and any(p.requires_grad for p in (self.scalars, self.value, self.query, self.key))
        alpha_v, alpha_qk, alpha_r, w_r, beta_1, beta_2, beta_3, beta_4 = self.scalars.unbind(1)
        scalars = torch.stack(
            [1 + alpha_r, alpha_v * beta_1 * alpha_qk, alpha_v * beta_2, 1 + w_r, beta_3 * alpha_qk, beta_4]
        )
        rows = [x.unbind() if watched else x.tolist() for x in scalars.unbind(1)]
        of_channels = zip(self.value.unbind(), (self.query * self.key).unbind(), strict=True)
        layers = []
        for (b_skip, b_gram, b_phi, skip, gram, phi), (value, product) in zip(rows, of_channels, strict=True):
            layers += [Layer(b_skip, b_gram, b_phi, skip, gram, phi, value, product)] * self.loops
        return layers

    # ------------------------------------------------------------------------------------------------ files

    def save_pretrained(self, save_directory: str | Path, *, push_to_hub: bool = False, **options: Any) -> str | None:
        """Write ``config.json`` and ``model.safetensors`` into a folder; an interrupted run leaves no half of a file.

        With ``push_to_hub=True`` also upload them; ``options`` are then those of :meth:`push_to_hub`.
        """
        saving.save(self, Path(save_directory))
        return self.push_to_hub(**options) if push_to_hub else None

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the files of :meth:`save_pretrained` to a repository on the Hugging Face hub; return the commit's address.

        Args:
            repo_id: ``owner/name``; made if it is not there.
            options: ``private=`` and ``token=``, and what ``huggingface_hub.HfApi.upload_folder`` takes.
        """
        return saving.push(self, repo_id, **options)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> LinearTransformerPE:
        """Load a model: one that ships with the package (``"zinc"``), a folder, or a repository on the Hugging Face hub.

        ``options`` are those of ``huggingface_hub.snapshot_download``.
        """
        return saving.load(cls, name, **options)

    def extra_repr(self) -> str:
        """Return the arguments that are not None, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items() if value is not None)


_PAPER = {"zinc": (6, 37), "qm9": (3, 9)}


def paper_parameters(dataset: str = "zinc") -> Mapping[str, int]:
    """Explain the published parameter counts, 488 for ZINC and 240 for QM9, by their parts.

    Each of three groups holds 3 x 8 diagonals, alpha_V, alpha_Q alpha_K, alpha_R, w_R and four betas, 32 in all. Their
    code has 16 more in every group, for the choice among several edge and node features, of which there is one: 4 of them
    multiply scalars that are there anyway, 12 are never read. Neither are part of :meth:`LinearTransformerPE.paper`.

    >>> [sum(paper_parameters(name).values()) for name in ("zinc", "qm9")]
    [488, 240]
    """
    dim, nodes = _PAPER[dataset]
    return {
        "index table": 8 * nodes, "read-out M": 8 * dim, "layers": 3 * 32, "factors of other scalars": 3 * 4,
        "never used": 3 * 12,
    }  # fmt: skip


def _add_missing_calls(model: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Start counting at zero for a state that was saved without the count."""
    state.setdefault(f"{prefix}calls", torch.zeros((), dtype=torch.int64))


def _rows_of_seed(seed: int, rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Draw Gaussian rows of which row i is the same whatever the number of rows: torch fills blocks of numbers in order."""
    whole = -(-rows // 256) * 256
    return torch.randn(whole, columns, generator=torch.Generator().manual_seed(seed))[:rows]
