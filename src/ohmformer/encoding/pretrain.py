"""Pretraining: the encoding learns eigenvectors up to sign (appendix E of the paper), or several functions of L at once.

- ``"eigenvectors"``: column i of the encoding is to be eigenvector i + 1 of ``N = D^-1/2 L D^-1/2``. The loss of a column p
  of norm one is ``min(|v - p|^2, |v + p|^2) = 2 - 2 |v^T p|``: 0 is perfect, 2 is orthogonal. What is made small is a
  power mean of the columns' mean losses that lies near the largest of them (:data:`POWER`).
- ``"multi"``: a linear map of the encoding, trained along and thrown away, is to give what is known of every node: the
  diagonals of ``N^+``, of its square root and of heat kernels, and the squares of the eigenvectors, all free of signs. The
  loss is one minus the explained part of the variance, on average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ohmformer.encoding.inputs import SmallGraphs, read_pairs
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.graph.files import whole_file

TARGETS = ("eigenvectors", "multi")
TIMES = (0.5, 2.0, 8.0)
"""Of the heat kernels among the targets."""
POWER = 32
"""Of the mean over columns, so high that the eigenvector that is learned worst counts nearly alone; with a low one the
others are learned at its cost."""
PROGRESS = "pretraining.safetensors"
"""What a run goes on from, beside the model, until it is finished."""


@dataclass(frozen=True)
class GraphTable:
    """Many graphs in flat tensors, from which batches are taken by number."""

    edges: Int[Tensor, "2 edges"]
    """Node numbers within each graph, every edge once."""
    edge_start: Int[Tensor, " graphs_and_end"]
    node_start: Int[Tensor, " graphs_and_end"]
    targets: Float[Tensor, "nodes targets"]

    @classmethod
    def of(cls, graphs: Iterable[tuple[int, Sequence[tuple[int, int]]]], targets: str, k: int) -> GraphTable:
        """Graphs as (nodes, edges), with their targets."""
        sizes, counts, pairs = [0], [0], []
        for nodes, edges in graphs:
            sizes.append(nodes)
            counts.append(len(edges))
            pairs += edges
        if len(sizes) == 1:
            raise ValueError("expected at least one graph to train on, got none")
        flat = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous()
        table = cls(flat, torch.tensor(counts).cumsum(0), torch.tensor(sizes).cumsum(0), torch.zeros(sum(sizes), 0))
        every = [node_targets(*table.take(part)[:2], targets, k) for part in torch.arange(len(table)).split(2000)]
        return cls(table.edges, table.edge_start, table.node_start, torch.cat(every))

    def __len__(self) -> int:
        return len(self.node_start) - 1

    def take(self, which: Int[Tensor, " chosen"]) -> tuple[Int[Tensor, "2 pairs"], Int[Tensor, " nodes"], Tensor]:
        """A batch: edges, the graph of every node, targets."""
        sizes, counts = self.node_start.diff()[which], self.edge_start.diff()[which]
        first = sizes.cumsum(0) - sizes
        node = torch.repeat_interleave(self.node_start[which] - first, sizes) + torch.arange(int(sizes.sum()))
        edge = torch.repeat_interleave(self.edge_start[which] - (counts.cumsum(0) - counts), counts)
        edge = edge + torch.arange(len(edge))
        batch = torch.repeat_interleave(torch.arange(len(which)), sizes)
        return self.edges[:, edge] + torch.repeat_interleave(first, counts), batch, self.targets[node]


def node_targets(edges: Tensor, batch: Tensor, targets: str, k: int) -> Float[Tensor, "nodes targets"]:
    """Eigenvectors 2 to k + 1 of N, zero where a graph has fewer; for ``"multi"`` their squares and the diagonals."""
    pairs = read_pairs(edges, None, batch, len(batch), l1=False, dtype=torch.float64)
    graphs = SmallGraphs.of(pairs)
    rows, nodes = [], []
    for block in graphs.buckets.blocks:
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
    """``2 - 2 |v^T p| / |p|`` of every eigenvector of every graph, and one where there is an eigenvector, zero where not."""
    graphs = int(batch[-1]) + 1

    def summed(x: Tensor) -> Tensor:
        return x.new_zeros(graphs, x.shape[1]).index_add(0, batch, x)

    there = (summed(vectors.square()) > 0.5).to(encoding.dtype)
    overlap = summed(encoding * vectors).abs() * (summed(encoding.square()) + 1e-12).rsqrt()
    return (2 - 2 * overlap) * there, there


def power_mean(losses: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """``(mean of losses^POWER)^(1 / POWER)``, taken relative to the largest, so that small losses do not underflow."""
    largest = losses.detach().max().clamp(min=1e-12)
    return largest * (losses / largest).pow(POWER).mean().pow(1 / POWER)


@dataclass
class Settings:
    """One pretraining run."""

    targets: str = "eigenvectors"
    epochs: int = 40
    batch: int = 200
    lr: float = 0.03
    seed: int = 0


def pretrain(
    model: LinearTransformerPE,
    train: GraphTable,
    settings: Settings,
    *,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: Path | None = None,
) -> float:
    """Train in place with AdamW and a cosine; the mean loss of the last epoch. A step that is not finite is left out.

    With ``checkpoint`` the model is saved to that folder after every epoch, with all that a run that was killed needs to go
    on from there when it is started again, to the same bits.
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
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.99), weight_decay=1e-4)
    run = _Run(parameters, optimizer, draw, {"settings": asdict(settings), "model": model.config, "graphs": len(train)})
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
                loss = power_mean(loss.sum(0) / there.sum(0).clamp(min=1))
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
    """What a run that was killed goes on from."""

    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    draw: torch.Generator
    about: dict[str, Any]
    """What has to be the same."""

    def save(self, path: Path, epoch: int) -> None:
        """Everything after ``epoch`` epochs, in one file."""
        from safetensors.torch import save

        tensors = {f"weights.{i}": x.detach() for i, x in enumerate(self.parameters)}
        for i, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{name}": x for name, x in moments.items()}
        header = {"ohmformer": json.dumps({"about": self.about, "epoch": epoch})}
        with whole_file(path) as temporary:
            temporary.write_bytes(save({**tensors, "draw": self.draw.get_state()}, header))

    def load(self, path: Path) -> int:
        """The epochs that are done already, none if there is no such file; a ValueError if it is that of another run."""
        from safetensors import SafetensorError, safe_open

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
    """A short rise, then half a cosine down to nothing."""
    warm = max(1, steps // 20)
    return (step + 1) / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


@torch.no_grad()
def evaluate(model: Callable[..., Tensor], table: GraphTable, *, seed: int = 0, batch: int = 500) -> Float[Tensor, " k"]:
    """The mean sign-free loss of every eigenvector over all graphs that have it; random starts are drawn from ``seed``."""
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
    """What the encoding is compared with: ``Phi <- QR((2 I - N) Phi)``, one step a layer, columns 2 to k + 1 of Phi.

    Corollary 7 with mu = 2, where an exact orthogonalisation costs no layer.
    """
    pairs = read_pairs(edges, None, batch, num_nodes, l1=False, dtype=torch.float64)
    graphs = SmallGraphs.of(pairs)
    start = torch.randn(num_nodes + 1, columns, generator=generator, dtype=torch.float64)
    out = torch.zeros(num_nodes + 1, columns, dtype=torch.float64)
    for block in graphs.buckets.blocks:
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
