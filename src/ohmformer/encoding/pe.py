"""``LinearTransformerPE``: a positional encoding that is learned with the task (section 6 and appendix E of the paper)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ohmformer.encoding import saving
from ohmformer.encoding.arguments import SPECTRAL, check_choices, check_counts, check_together, read_pace
from ohmformer.encoding.dynamics import Layer
from ohmformer.encoding.engines import Problem, Read, Turn, encode, error_of, functions_of, on_spectra
from ohmformer.encoding.initial import draw_weights, empty_linear, start_of
from ohmformer.encoding.inputs import Arguments, Pairs, plain_index, read_pairs
from ohmformer.encoding.norm import RunningNorm
from ohmformer.encoding.on_spectrum import weights_of
from ohmformer.encoding.paper import sizes_of
from ohmformer.encoding.small_graphs import at_nodes_and_edges, conductances, spectrum
from ohmformer.encoding.spectra import Spectra, every_pair, kept_spectra

Function = TypeVar("Function", bound=Callable)

UNTRACED = (
    "expected kept spectra to export, or to compile as one graph: what is computed depends on the sizes of graphs, so no "
    "trace fits all; use AddSpectrum"
)
_is_exporting = getattr(torch.compiler, "is_exporting", bool)  # since torch 2.7


def _untraced(function: Function) -> Function:
    """Disable torch.compile for a function: how a batch is split into blocks depends on its sizes, so no trace fits all."""
    known = inspect.signature(torch.compiler.disable).parameters
    told = {"reason": UNTRACED} if "reason" in known else {}  # since torch 2.7
    return torch.compiler.disable(function, **told)  # pyright: ignore[reportReturnType, reportCallIssue, reportArgumentType]


class LinearTransformerPE(saving.Saved, nn.Module):
    """Encode nodes by ``M Phi_L``, where ``Phi_L`` is the output of a linear Transformer applied to the incidence matrix B.

    One layer is ``Phi <- (1 + w_R) Phi + (beta_3 alpha N + beta_4 Phi W_Q W_K Phi^T) Phi W_V`` with ``N = D^-1/2 B B^T
    D^-1/2``, then every column is divided by its norm; ``evolve=True`` updates B likewise (``dynamics.py``). Each of
    ``groups`` sets of weights is applied ``loops`` times in a row; ``loops`` may be changed after training.

    The start ``phi0`` determines what the encoding depends on:

    - ``"walks"``, the default and the best we know: Phi_0 is the identity (one unit demand per node), so that a channel is a
      learned function of N, ``p_c(N)``, read at nodes, edges or pairs of nodes. Channel c starts as a walk of c steps,
      and the norms are multiplied back at the end. Deterministic, equivariant to node permutations. 16 channels, 16 groups.
    - ``"diagonal"``: the same with channels initialised as diffusions, of norm one. Here and below the default is 8 channels
      and three groups looped three times, as in the paper.
    - ``"features"``: a linear map of ``x``. Deterministic, equivariant to node permutations.
    - ``"random"``: Gaussian columns, in training new ones in every call and process, in evaluation those of ``seed`` by the
      node's index in its graph; with ``generator=`` always drawn from it. The mean of ``draws`` results is returned.
    - ``"index"``: a trained table by the node's index in its graph, as in the authors' experiments. It depends on the node
      numbering: for reproduction only, see :meth:`paper`. Indices beyond the table wrap around.

    Args:
        dim: output dimension per node (edge, pair).
        read: what to encode, ``"nodes"``, ``"edges"`` or ``"pairs"``, or several of them, which are then returned as a
            tuple; edges and pairs only for ``walks`` and ``diagonal``.
        norm: ``"running"``, normalise channels by running means and standard deviations before M; None for no norm.
        laplacian: ``"normalized"``, N as above; or ``"combinatorial"``, L over the largest degree of its graph.
        hidden: number of channels k of Phi.
        groups: number of sets of weights.
        loops: how often each set is applied in a row.
        phi0: the start, one of the above.
        evolve: whether layers update B too; for graphs of up to 8,000 nodes.
        degrees: ``"gram"``, D the diagonal of ``B B^T``; or ``"l1"``, the paper's ``sum_j |B_ij|``.
        in_features: width of ``x``, for ``phi0="features"``.
        max_nodes: rows of the table, for ``phi0="index"``.
        draws: number of results to average, for ``phi0="random"``.
        pace: for ``walks``, 0.1 by default: the weights of layers are ``pace`` times their parameters, so that an optimiser
            with one learning rate changes them a tenth as fast. Normalised channels change many times more than weights.
        seed: of the initial weights and of random starts.

    >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> LinearTransformerPE(dim=16)(edges, num_nodes=3).shape
    torch.Size([3, 16])
    """

    def __init__(
        self,
        dim: int,
        *,
        read: str | Sequence[str] = "nodes",
        norm: str | None = "running",
        laplacian: str = "normalized",
        hidden: int | None = None,
        groups: int | None = None,
        loops: int | None = None,
        phi0: str = "walks",
        evolve: bool = False,
        degrees: str = "gram",
        in_features: int | None = None,
        max_nodes: int | None = None,
        draws: int = 1,
        pace: int | float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.reads = (read,) if isinstance(read, str) else tuple(read)
        self.functions = phi0 in SPECTRAL and not evolve
        """Whether channels are functions of N."""
        usual = (16, 16, 1) if phi0 == "walks" else (8, 3, 3)
        hidden, groups, loops = (y if x is None else x for x, y in zip((hidden, groups, loops), usual, strict=True))
        check_counts(dim=dim, hidden=hidden, groups=groups, loops=loops, draws=draws)
        check_choices(phi0=phi0, degrees=degrees, norm=norm, laplacian=laplacian)
        check_together(self.reads, phi0, evolve, laplacian, in_features, max_nodes)
        self.pace = read_pace(pace, phi0)
        self.dim, self.hidden, self.groups, self.loops = dim, hidden, groups, loops
        self.read, self.norm, self.laplacian = read if isinstance(read, str) else self.reads, norm, laplacian
        self.phi0, self.evolve, self.degrees = phi0, evolve, degrees
        self.in_features, self.max_nodes, self.draws, self.seed = in_features, max_nodes, draws, seed
        self.scalars = nn.Parameter(torch.empty(groups, 8))
        """alpha_V, alpha_QK, alpha_R, w_R, beta_1, beta_2, beta_3, beta_4 of each group."""
        self.value = nn.Parameter(torch.empty(groups, hidden))
        self.query = nn.Parameter(torch.empty(groups, hidden))
        self.key = nn.Parameter(torch.empty(groups, hidden))
        self.readout: Any = nn.Parameter(torch.empty(dim, hidden)) if "nodes" in self.reads else None
        self.edge_readout = nn.Parameter(torch.empty(dim, hidden)) if "edges" in self.reads else None
        self.pair_readout = nn.Parameter(torch.empty(dim, hidden)) if "pairs" in self.reads else None
        self.norms = nn.ModuleDict({name: RunningNorm(hidden) for name in self.reads} if norm else {})
        self.table = nn.Parameter(torch.empty(max_nodes, hidden)) if max_nodes is not None else None
        self.embed = empty_linear(in_features, hidden) if in_features is not None else None
        if phi0 == "random":
            self.calls: Tensor  # random starts drawn in training, part of the state so that a resumed run draws new ones
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_load_state_dict_pre_hook(saving.check_state)
        self.reset_parameters()

    @classmethod
    def paper(cls, dataset: str = "zinc") -> LinearTransformerPE:
        """Create the paper's model: index table, l1 degrees, B evolving, three groups looped three times, eight channels.

        >>> [sum(p.numel() for p in LinearTransformerPE.paper(name).parameters()) for name in ("zinc", "qm9")]
        [440, 192]
        """
        dim, nodes = sizes_of(dataset)
        return cls(dim, norm=None, phi0="index", evolve=True, degrees="l1", max_nodes=nodes)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of ``__init__`` that create a model of this shape."""
        names = (
            "dim", "read", "norm", "laplacian", "hidden", "groups", "loops", "phi0", "evolve", "degrees", "in_features",
            "max_nodes", "draws", "pace", "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def reset_parameters(self) -> None:
        """Draw initial weights.

        Channels start as diffusions of different speed, ``Phi <- Phi - t N Phi``, that weakly repel each other. With
        ``walks`` their functions of N are not random: channel c takes the step ``Phi <- Phi - N Phi`` in its share of the
        groups and rests in the others, so that it is ``(I - N)^c`` if there are as many groups as channels; channels do not
        interact yet. M is the identity if it is square.
        """
        draw_weights(self)

    # ------------------------------------------------------------------------------------------------ forward

    def forward(
        self,
        edge_index: Int[Tensor, "2 edges"] | Any,
        edge_weight: Tensor | None = None,
        batch: Int[Tensor, " nodes"] | None = None,
        num_nodes: int | None = None,
        x: Tensor | None = None,
        generator: torch.Generator | None = None,
        spectrum: tuple[Tensor, Tensor, Tensor] | None = None,
        width: int | None = None,
    ) -> Any:
        """Return the encoding of nodes, edges or pairs, as set by ``read``.

        The shape is ``(num_nodes, dim)`` for nodes, ``(edges, dim)`` for the columns of ``edge_index``, and ``(graphs,
        width, width, dim)`` for all pairs of nodes of each graph, with zeros on padding.

        Args:
            edge_index: as in PyG, every edge in both directions or every edge once, in any order; or a whole PyG ``Data`` or
                ``Batch``, which then supplies the arguments that are not given.
            edge_weight: conductances, ones by default; if both directions are listed they must agree.
            batch: the graph of every node, ascending; a single graph by default.
            num_nodes: number of nodes; by default the length of ``batch``, of ``x``, or the largest node number plus one.
            x: node features, for ``phi0="features"``.
            generator: draws random starts.
            spectrum: what ``AddSpectrum`` stores in the data, ``(spectrum_values, spectrum_vectors, spectrum_check)``.
            width: number of nodes that pairs are padded to; by default that of the largest graph, read from the device.

        >>> from torch_geometric.data import Data
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> [x.shape for x in LinearTransformerPE(dim=4, read=("nodes", "edges"))(path)]
        [torch.Size([3, 4]), torch.Size([4, 4])]
        """
        given = Arguments.of(edge_index, edge_weight, batch, num_nodes, x, spectrum, features=self.phi0 == "features")
        edge_index, edge_weight, batch, spectrum = given.edge_index, given.edge_weight, given.batch, given.spectrum
        if spectrum is None and _is_exporting():
            raise ValueError(UNTRACED)
        if spectrum is None or not self.functions or (edge_weight is not None and edge_weight.requires_grad):
            return self._compute(edge_index, edge_weight, batch, given.num_nodes, given.x, generator, width, given.graphs)
        nodes = len(spectrum[0])
        if given.num_nodes not in (None, nodes):
            raise ValueError(f"expected the spectra of {given.num_nodes} nodes, got those of {nodes}: use AddSpectrum again")
        kept = spectrum[2], edge_weight, self.laplacian
        found = self._small(spectrum[:2], edge_index, batch, len(spectrum[2]), kept) if self.degrees == "gram" else None
        if found is not None:
            return found
        batch = torch.zeros(nodes, dtype=torch.long, device=spectrum[0].device) if batch is None else batch
        return self.on(
            kept_spectra(spectrum, edge_index, edge_weight, batch, self.laplacian, self.degrees), edge_index, width
        )

    def on(self, spectra: Spectra, edge_index: Int[Tensor, "2 edges"], width: int | None = None) -> Any:
        """Return the result of :meth:`forward` for graphs whose spectra are known."""
        edge_index, spectra = plain_index(edge_index), spectra.to(self._dtype)
        if not spectra.padded:
            known = spectra.values, spectra.vectors
            found = self._small(known, edge_index, spectra.owner, len(spectra.start) - 1)
            if found is not None:
                return found
        with torch.autocast(self.scalars.device.type, enabled=False):
            read = on_spectra(spectra, self._weights(), None, restore=self.phi0 == "walks")
        total = None if spectra.padded else len(spectra.vectors)
        return self._read(read, edge_index, spectra.start, spectra.owner, width, total)

    def _small(
        self, spectra: tuple[Tensor, Tensor], edge_index: Tensor, batch: Tensor | None, graphs: int, check: Any = None
    ) -> Any:
        """Return the result of :meth:`on` by one kernel, or None if it does not support the input."""
        if "pairs" in self.reads or torch.compiler.is_compiling():
            return None
        turns = [] if torch.is_grad_enabled() else [self._turn(what) for what in self.reads]
        known: Any = turns if turns and None not in turns else None
        run = partial(at_nodes_and_edges, restore=self.phi0 == "walks", graphs=graphs, check=check)
        found = run(spectra, batch, edge_index, self._weights(), self.reads, known)
        if found is None:
            return None
        for i, what in enumerate(self.reads):
            found[i] = found[i].to(self.scalars.dtype) if known else self._out(what, partial(_turned, found[i]))
        return found[0] if isinstance(self.read, str) else tuple(found)

    @_untraced
    def _compute(
        self, edge_index: Any, edge_weight: Tensor | None, batch: Tensor | None, num_nodes: int | None, x: Tensor | None,
        generator: torch.Generator | None, width: int | None, graphs: int | None,
    ) -> Any:  # fmt: skip
        """Encode graphs without stored spectra."""
        if num_nodes is None and batch is None and x is not None:
            num_nodes = len(x)
        if self.functions and batch is None and self.degrees == "gram" and self.scalars.device.type == "cpu":
            matrix = conductances(edge_index, edge_weight, num_nodes)
            found = None if matrix is None else self._small(spectrum(matrix, self.laplacian)[:2], edge_index, None, 1)
            if found is not None:
                return found
        pairs = self._pairs(edge_index, edge_weight, batch, num_nodes, graphs)
        with torch.autocast(self.scalars.device.type, enabled=False):
            if self.functions:
                found = functions_of(pairs, self._weights(), self.reads, restore=self.phi0 == "walks", seed=self.seed)
                return self._read(found, edge_index, pairs.graph.nodes.start, pairs.graph.batch, width)
            layers = self._layers()
            draws = self.draws if self.phi0 == "random" else 1
            starts = [start_of(self, pairs, x, generator, draw) for draw in range(draws)]
            phis = [encode(Problem(pairs, start, layers, self.evolve, self.phi0 != "index")) for start in starts]
            phi = sum(phis[1:], phis[0]) / draws
            return self._out("nodes", partial(_turned, phi))

    def _pairs(
        self, edge_index: Any, edge_weight: Tensor | None, batch: Tensor | None, nodes: int | None, graphs: int | None = None
    ) -> Pairs:
        """Read and check edges, in the dtype in which the layers' N is computed."""
        kind = torch.float64 if self.functions and self.scalars.device.type != "mps" else self._dtype
        pairs = read_pairs(
            edge_index, edge_weight, batch, nodes, l1=self.degrees == "l1", dtype=kind,
            combinatorial=self.laplacian == "combinatorial", graphs=graphs,
        )  # fmt: skip
        if pairs.graph.device != self.scalars.device:
            raise ValueError(
                f"expected edge_index and the encoding on one device, got {pairs.graph.device} and {self.scalars.device}"
            )
        return pairs

    @torch.no_grad()
    def standard_error(self, data: Any) -> Float[Tensor, " dim"]:
        """Return the standard error of the node encoding of one graph, a root mean square over its nodes.

        It is zero if the encoding is exact; if it is estimated (large graphs where walks get far), it is computed from the
        spread among the random signs.
        """
        weight = data.edge_weight if "edge_weight" in data else None
        pairs = self._pairs(data.edge_index, weight, None, data.num_nodes)
        rows = error_of(pairs, self._weights(), self.reads, restore=self.phi0 == "walks", seed=self.seed)
        norm = self._norm("nodes")
        return torch.linalg.vector_norm(
            (rows if norm is None else rows * norm.scale(rows.dtype)) @ self.readout.mT.to(rows), dim=0
        )

    @property
    def _dtype(self) -> torch.dtype:
        """The dtype of the layers: that of the weights, but at least float32."""
        return torch.promote_types(self.scalars.dtype, torch.float32)

    def _read(
        self, read: Read, edge_index: Tensor, start: Tensor, batch: Tensor, width: int | None, total: int | None = None
    ) -> Any:
        """Return normalised functions of N at nodes, edges and pairs, as ``read`` names."""
        answers = []
        for what in self.reads:
            if what == "nodes":
                node = torch.arange(len(batch), device=batch.device)
                answers.append(self._out(what, partial(read, node, node)))
            elif what == "edges":
                answers.append(self._out(what, partial(read, edge_index[0], edge_index[1])))
            else:
                u, v, place, shape = every_pair(start, batch, width, total)
                rows = self._out(what, partial(read, u, v))
                dense = rows.new_zeros(math.prod(shape), self.dim).index_copy(0, place, rows)
                answers.append(dense.view(*shape, self.dim))
        return answers[0] if isinstance(self.read, str) else tuple(answers)

    def _out(self, what: str, read: Callable[[Turn], Tensor]) -> Float[Tensor, "rows dim"]:
        """Read channels, normalise them and map them by M, or map them before reading if that is possible and less work."""
        readout, norm, turn = self._readout(what), self._norm(what), self._turn(what)
        with torch.autocast(readout.device.type, enabled=False):
            found = read(turn)
            if turn is None:
                found = (found if norm is None else norm(found)) @ readout.mT.to(self._dtype)
            return found.to(readout.dtype)

    def _turn(self, what: str) -> Turn:
        """Return the norm and M as one matrix and a shift; None if the norm or a wide M is applied after reading."""
        readout, norm = self._readout(what), self._norm(what)
        if self.dim > self.hidden or (norm is not None and norm.training):
            return None
        with torch.autocast(readout.device.type, enabled=False):
            turn = readout.mT.to(self._dtype)
            if norm is None:
                return turn, turn.new_zeros(self.dim)
            turn = norm.scale(turn.dtype)[:, None] * turn
            return turn, -(norm.mean.to(turn.dtype) @ turn)

    def _readout(self, what: str) -> Tensor:
        """Return M for nodes, edges or pairs."""
        found = {"nodes": self.readout, "edges": self.edge_readout, "pairs": self.pair_readout}[what]
        assert found is not None
        return found

    def _norm(self, what: str) -> RunningNorm | None:
        """Return the norm for nodes, edges or pairs, or None."""
        return cast(RunningNorm, self.norms[what]) if self.norm else None

    def _weights(self) -> Float[Tensor, "layers rows hidden"]:
        """Return the weights of all layers as :func:`weights_of` arranges them."""
        scalars, value, query, key = self._paced(self._dtype)
        _, alpha_qk, _, w_r, _, _, beta_3, beta_4 = scalars.unbind(1)
        weights = weights_of(value, query * key, beta_3 * alpha_qk, beta_4, 1 + w_r)
        return weights if self.loops == 1 else weights.repeat_interleave(self.loops, dim=0)

    def _paced(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return all scalar, value, query and key weights, times the pace."""
        weights = tuple(x.to(dtype) for x in (self.scalars, self.value, self.query, self.key))
        return weights if self.pace == 1 else tuple(self.pace * x for x in weights)

    def _layers(self) -> list[Layer]:
        """Return the weights of every layer, scalars multiplied out; plain numbers if no gradient is needed."""
        watched = torch.is_grad_enabled() and any(p.requires_grad for p in (self.scalars, self.value, self.query, self.key))
        scalars, values, query, key = self._paced(self.scalars.dtype)
        alpha_v, alpha_qk, alpha_r, w_r, beta_1, beta_2, beta_3, beta_4 = scalars.unbind(1)
        scalars = torch.stack(
            [1 + alpha_r, alpha_v * beta_1 * alpha_qk, alpha_v * beta_2, 1 + w_r, beta_3 * alpha_qk, beta_4]
        )
        rows = [x.unbind() if watched else x.tolist() for x in scalars.unbind(1)]
        of_channels = zip(values.unbind(), (query * key).unbind(), strict=True)
        layers = []
        for (b_skip, b_gram, b_phi, skip, gram, phi), (value, product) in zip(rows, of_channels, strict=True):
            layers += [Layer(b_skip, b_gram, b_phi, skip, gram, phi, value, product)] * self.loops
        return layers

    def extra_repr(self) -> str:
        """Return the arguments that are not None, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config.items() if value is not None)


def _turned(x: Tensor, turn: Turn) -> Tensor:
    """Return channels times the matrix of ``turn`` plus its shift."""
    return x if turn is None else torch.addmm(turn[1], x, turn[0])
