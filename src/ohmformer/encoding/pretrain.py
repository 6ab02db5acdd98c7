"""Pretrain the encoding on eigenvectors up to sign (appendix E of the paper), or on several functions of L at once.

- ``"eigenvectors"``: column i of the encoding is to be eigenvector i + 1 of ``N = D^-1/2 L D^-1/2``. The loss of a column p
  of norm one is ``min(|v - p|^2, |v + p|^2) = 2 - 2 |v^T p|``: 0 is perfect, 2 is orthogonal. What is minimised is its mean.
- ``"multi"``: a linear map of the encoding, trained with it and thrown away afterwards, is to give several numbers of every
  node: the diagonals of ``N^+``, of its square root and of heat kernels, and the squares of the eigenvectors, none of which
  has a sign to choose. The loss is one minus the explained part of the variance, on average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.graph.edges import read_edges
from ohmformer.graph.files import whole_file
from ohmformer.graph.ragged import Spans

TARGETS = ("eigenvectors", "multi")
TIMES = (0.5, 2.0, 8.0)
"""The times of the heat kernels among the targets."""
PROGRESS = "pretraining.safetensors"
"""The file beside the model from which an interrupted run continues; removed when it is finished."""


@dataclass(frozen=True)
class GraphTable:
    """Many unweighted graphs with targets, in flat tensors, from which batches are taken by the numbers of graphs."""

    edges: Int[Tensor, "2 edges"]
    """Node numbers within each graph, every edge once."""
    edge_spans: Spans
    """Which edges belong to which graph."""
    node_spans: Spans
    """Which nodes belong to which graph."""
    targets: Float[Tensor, "nodes targets"]

    @classmethod
    def of(cls, graphs: Iterable[tuple[int, Sequence[tuple[int, int]]]], targets: str, k: int) -> GraphTable:
        """Put graphs, each given as its number of nodes and its edges, side by side and compute their targets."""
        sizes, counts, pairs = [], [], []
        for nodes, edges in graphs:
            sizes.append(nodes)
            counts.append(len(edges))
            pairs += edges
        if not sizes:
            raise ValueError("expected at least one graph to train on, got none")
        flat = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous()
        nodes, edges = Spans.of(torch.tensor(sizes)), Spans.of(torch.tensor(counts))
        table = cls(flat, edges, nodes, torch.zeros(nodes.total, 0))
        every = [node_targets(*table.take(part)[:2], targets, k) for part in torch.arange(len(table)).split(2000)]
        return replace(table, targets=torch.cat(every))

    def __len__(self) -> int:
        return len(self.node_spans)

    def take(self, which: Int[Tensor, " chosen"]) -> tuple[Int[Tensor, "2 pairs"], Int[Tensor, " nodes"], Tensor]:
        """Return a batch of some graphs: edges, the graph of every node, targets."""
        nodes, edges = self.node_spans.select(which), self.edge_spans.select(which)
        index = self.edges[:, self.edge_spans.rows(which)] + nodes.first[edges.owner]
        return index, nodes.owner, self.targets[self.node_spans.rows(which)]


def edges_once(data: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of nodes of PyG data and each of its edges once, as :meth:`GraphTable.of` takes them."""
    if "edge_weight" in data:
        raise ValueError("expected graphs without edge_weight to pretrain on, got one with it")
    index = data.edge_index
    once = read_edges(index, torch.ones(index.shape[1]))[0]
    return data.num_nodes or 0, [(u, v) for u, v in once.t().tolist() if u != v]


def node_targets(edges: Tensor, batch: Tensor, targets: str, k: int) -> Float[Tensor, "nodes targets"]:
    """Return eigenvectors 2 to k + 1 of N, zero where a graph has fewer; for ``"multi"`` their squares and the diagonals."""
    pairs = read_pairs(edges, None, batch, len(batch))
    graphs = SmallGraphs.of(pairs)
    rows, nodes = [], []
    for block in graphs.layout.blocks:
        real = (block.node >= 0).double()
        # padding goes above the spectrum, which ends at 2
        values, vectors = torch.linalg.eigh(block.of(graphs.buffer) + torch.diag_embed(3 * (1 - real)))
        kept = torch.arange(values.shape[1]) < real.sum(1, keepdim=True)
        chosen = nn.functional.pad(vectors * kept[:, None, :], (0, max(0, k + 1 - values.shape[1])))[:, :, 1 : k + 1]
        if targets == "multi":
            nonzero = kept & (values > 1e-9)
            inverse = torch.where(nonzero, 1 / torch.where(nonzero, values, 1.0), 0.0)
            functions = torch.stack([inverse, inverse.sqrt(), *((-s * values).exp() * kept for s in TIMES)], dim=-1)
            chosen = torch.cat([vectors.square() @ functions, chosen.square()], dim=-1)
        rows.append(chosen.flatten(0, 1))
        nodes.append(block.node.flatten())
    node = torch.cat(nodes)
    out = torch.zeros(len(batch), rows[0].shape[1], dtype=torch.float64)
    return out.index_put((node[node >= 0],), torch.cat(rows)[node >= 0]).float()


def sign_free_loss(
    encoding: Float[Tensor, "nodes k"], vectors: Float[Tensor, "nodes k"], batch: Int[Tensor, " nodes"]
) -> tuple[Float[Tensor, "graphs k"], Float[Tensor, "graphs k"]]:
    """Return ``2 - 2 |v^T p| / |p|`` of every eigenvector of every graph; also 1 where there is one, else 0."""
    graphs = int(batch[-1]) + 1

    def summed(x: Tensor) -> Tensor:
        return x.new_zeros(graphs, x.shape[1]).index_add(0, batch, x)

    there = (summed(vectors.square()) > 0.5).to(encoding.dtype)
    overlap = summed(encoding * vectors).abs() * (summed(encoding.square()) + 1e-12).rsqrt()
    return (2 - 2 * overlap) * there, there


@torch.no_grad()
def start_as_subspace_iteration(model: LinearTransformerPE, last: LinearTransformerPE | None = None) -> None:
    """Start a model at Corollary 7: layers ``Phi <- (2 I - N) Phi``, less a little of what channels share.

    B hardly moves, and column i is read from channel i + 1. The last layers and the readout are those of
    ``last``, if given.
    """
    draw = torch.Generator().manual_seed(model.seed)
    usual = torch.tensor([0.1, 1.0, 0.0, 1.0, -0.3, -0.03, 1.0, 0.5])
    model.scalars.copy_(usual + 0.01 * torch.randn(model.groups, 8, generator=draw))
    model.value.copy_(-1 + 0.02 * torch.randn(model.groups, model.hidden, generator=draw))
    model.query.copy_(torch.linspace(1, 0.1, model.hidden).expand(model.groups, -1))
    model.key.fill_(0.5)
    model.readout.copy_(torch.eye(model.dim, model.hidden).roll(1, 1))
    if last is None:
        return
    if (last.dim, last.hidden) != (model.dim, model.hidden) or last.groups > model.groups or last.loops != model.loops:
        shape = f"dim={model.dim}, hidden={model.hidden}, loops={model.loops} and at most {model.groups} groups"
        raise ValueError(f"expected last layers with {shape}, got {last}")
    for name in ("scalars", "value", "query", "key"):
        getattr(model, name)[model.groups - last.groups :] = getattr(last, name)
    model.readout.copy_(last.readout)


@dataclass
class Settings:
    """The settings of one pretraining run."""

    targets: str = "eigenvectors"
    epochs: int = 40
    batch: int = 200
    lr: float = 0.01
    seed: int = 0


def pretrain(
    model: LinearTransformerPE,
    train: GraphTable,
    settings: Settings,
    *,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: Path | None = None,
) -> float:
    """Train a model in place by AdamW with a cosine schedule; return the mean loss of the last epoch.

    Steps whose gradient is not finite are left out. With ``checkpoint`` the model is saved to that folder after every epoch,
    together with what an interrupted run needs to continue when it is started again, to the same bits.
    """
    if settings.targets not in TARGETS:
        raise ValueError(f"expected targets among {', '.join(TARGETS)}, got {settings.targets!r}")
    draw = torch.Generator().manual_seed(settings.seed)
    wanted = train.targets
    head, center, spread = None, wanted.mean(0), wanted.std(0).clamp(min=1e-6)
    if settings.targets == "multi":
        head = nn.Linear(model.dim, wanted.shape[1])
        with torch.no_grad():
            head.weight.copy_(torch.randn(head.weight.shape, generator=draw) / math.sqrt(model.dim))
            head.bias.zero_()
    parameters = [*model.parameters(), *(head.parameters() if head else ())]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.999), weight_decay=1e-4)
    about = {"settings": asdict(settings), "model": model.config, "graphs": len(train)}
    run = _Run([*parameters, *model.norms.buffers()], optimizer, draw, about)
    begun = run.load(checkpoint / PROGRESS) if checkpoint else 0
    each = -(-len(train) // settings.batch)
    steps, done, mean = each * settings.epochs, each * begun, math.nan
    model.train()
    for epoch in range(begun, settings.epochs):
        losses = []
        for which in torch.randperm(len(train), generator=draw).split(settings.batch):
            edges, batch, targets = train.take(which)
            encoding = model(edges, batch=batch, num_nodes=len(batch), generator=draw if model.phi0 == "random" else None)
            if head is None:
                loss, there = sign_free_loss(encoding, targets, batch)
                loss = (loss.sum(0) / there.sum(0).clamp(min=1)).mean()
            else:
                loss = (head(encoding) - (targets - center) / spread).square().mean()
            optimizer.zero_grad()
            loss.backward()
            size = nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.param_groups[0]["lr"] = settings.lr * _cosine(done, steps)
            if bool(size.isfinite()):
                optimizer.step()
            losses.append(loss.item())
            done += 1
            if progress:
                progress(done, steps, losses[-1])
        mean = sum(losses) / len(losses)
        if checkpoint:
            model.save_pretrained(checkpoint)
            run.save(checkpoint / PROGRESS, epoch + 1)
    if checkpoint:
        (checkpoint / PROGRESS).unlink(missing_ok=True)
    model.eval()
    return mean


@dataclass(frozen=True)
class _Run:
    """The state of a run, from which it continues after an interruption."""

    parameters: list[Tensor]
    """Weights, and running statistics."""
    optimizer: torch.optim.Optimizer
    draw: torch.Generator
    about: dict[str, Any]
    """Settings that must be the same when the run continues."""

    def save(self, path: Path, epoch: int) -> None:
        """Write the state after ``epoch`` epochs to one file."""
        tensors = {f"weights.{i}": x.detach() for i, x in enumerate(self.parameters)}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{name}": x for name, x in moments.items()}
        header = {"ohmformer": json.dumps({"about": self.about, "epoch": epoch})}
        with whole_file(path) as temporary:
            temporary.write_bytes(save({**tensors, "draw": self.draw.get_state()}, header))

    def load(self, path: Path) -> int:
        """Restore the state and return the epochs done, 0 if there is no file; a file of another run is a ValueError."""
        if not path.exists():
            return 0
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["ohmformer"])
                found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"expected a pretraining run in {path}, got another file ({error})") from error
        if header["about"] != self.about:
            raise ValueError(f"expected the run that {path} was left by, got other settings; remove it to begin anew")
        moments: dict[int, dict[str, Tensor]] = {}
        for name in found:
            if name.startswith("adam."):
                _, i, moment = name.split(".")
                moments.setdefault(int(i), {})[moment] = found[name]
        with torch.no_grad():
            for i, x in enumerate(self.parameters):
                x.copy_(found[f"weights.{i}"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self.draw.set_state(found["draw"])
        return int(header["epoch"])


def _cosine(step: int, steps: int) -> float:
    """Return the factor of the learning rate: a short rise, then half a cosine down to zero."""
    warm = max(1, steps // 20)
    return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


@torch.no_grad()
def evaluate(model: Callable[..., Tensor], table: GraphTable, *, seed: int = 0, batch: int = 500) -> Float[Tensor, " k"]:
    """Return the mean sign-free loss of every eigenvector over all graphs that have it; ``seed`` draws random starts."""
    draw = torch.Generator().manual_seed(seed)
    total, count = torch.zeros(table.targets.shape[1]), torch.zeros(table.targets.shape[1])
    for which in torch.arange(len(table)).split(batch):
        edges, owner, targets = table.take(which)
        loss, there = sign_free_loss(model(edges, batch=owner, num_nodes=len(owner), generator=draw), targets, owner)
        total, count = total + loss.sum(0), count + there.sum(0)
    return total / count.clamp(min=1)


@torch.no_grad()
def subspace_iteration(
    edges: Tensor, *, batch: Tensor, num_nodes: int, generator: torch.Generator, layers: int, k: int, columns: int
) -> Float[Tensor, "nodes k"]:
    """Run ``Phi <- QR((2 I - N) Phi)``, one step a layer, and return columns 2 to k + 1: a baseline for the encoding.

    This is Corollary 7 with mu = 2, except that an exact orthogonalisation costs no layer.
    """
    pairs = read_pairs(edges, None, batch, num_nodes)
    graphs = SmallGraphs.of(pairs)
    start = torch.randn(num_nodes + 1, columns, generator=generator, dtype=torch.float64)
    out = torch.zeros(num_nodes + 1, columns, dtype=torch.float64)
    for block in graphs.layout.blocks:
        real = (block.node >= 0).double()
        step = 2 * torch.diag_embed(real) - block.of(graphs.buffer)
        phi = start[block.node] * real[:, :, None]
        for _ in range(layers):
            phi = step @ phi
            phi, _ = torch.linalg.qr(
                phi if phi.shape[1] >= columns else nn.functional.pad(phi, (0, 0, 0, columns - phi.shape[1]))
            )
            phi = phi[:, : block.node.shape[1]] * real[:, :, None]
        out[block.node] = phi
    return out[:-1, 1 : k + 1].float()
