"""All positional encodings of the experiment, by name.

``keep`` precomputes, for all molecules of a split, what does not change in training. An ``Encoding`` maps a batch to columns
per atom and optionally per edge and per pair of atoms, with mean 0 and standard deviation 1: by fixed factors measured
before training, or by the norm of ``LinearTransformerPE`` itself.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.encoding.inputs import read_pairs
from ohmformer.encoding.pe import LinearTransformerPE
from ohmformer.encoding.pretrain import GraphTable, Settings, node_targets, pretrain
from ohmformer.encoding.spectra import Spectra, every_pair
from ohmformer.experiments.molecules.batches import MoleculeBatch, Split, no_rows
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.table import MoleculeTable
from ohmformer.graph.ragged import Spans

PART = 1000
"""Molecules per batch of ``keep``."""

Encoded = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Columns per atom, per edge, and per pair of atoms."""


class Encoding(nn.Module):
    """Base class: maps a batch to columns per atom, edge and pair of atoms. This one returns none."""

    node_columns = 0
    edge_columns = 0
    pair_columns = 0

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Encoded:
        """Return columns per atom, edge and pair of atoms (dense-batched), or None; ``draw`` is for random parts."""
        return None, None, None

    def calibrate(self, split: Split) -> None:
        """Measure mean and standard deviation on training molecules, if the encoding is standardised by fixed factors."""


class Standardize(nn.Module):
    """Compute ``(x - center) / spread`` with factors that are measured once."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.center: Tensor
        self.spread: Tensor
        self.register_buffer("center", torch.zeros(columns))
        self.register_buffer("spread", torch.ones(columns))

    def measure(self, x: Float[Tensor, "rows columns"]) -> None:
        """Set ``center`` and ``spread`` from x."""
        self.center.copy_(x.mean(0))
        self.spread.copy_(x.std(0).clamp(min=1e-4))

    def forward(self, x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        """Standardise x."""
        return (x - self.center) / self.spread


class _Standardized(Encoding):
    """An encoding whose raw columns are standardised by fixed factors."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.node_columns = columns
        self.scale = Standardize(columns)

    def raw(self, batch: MoleculeBatch, draw: torch.Generator) -> Tensor:
        raise NotImplementedError

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Encoded:
        return self.scale(self.raw(batch, draw)), None, None

    @torch.no_grad()
    def calibrate(self, split: Split) -> None:
        batch = split.take(torch.arange(min(len(split), 2 * PART)))
        self.scale.measure(self.raw(batch, torch.Generator().manual_seed(0)))


class Kept(_Standardized):
    """Precomputed columns; ``signs`` flips them at random in training, per molecule."""

    def __init__(self, columns: int, *, signs: bool = False) -> None:
        super().__init__(columns)
        self.signs = signs

    def raw(self, batch: MoleculeBatch, draw: torch.Generator) -> Tensor:
        """Return the columns, with random signs if ``signs`` is set."""
        x = batch.per_node["columns"]
        if self.signs and self.training:
            sign = 2 * torch.randint(0, 2, (len(batch.sizes), x.shape[1]), generator=draw) - 1
            x = x * sign.to(x)[batch.owner]
        return x


class Learned(_Standardized):
    """A linear Transformer that is run on the graphs of the batch in every step."""

    def __init__(self, model: LinearTransformerPE) -> None:
        super().__init__(model.dim)
        self.model = model

    def raw(self, batch: MoleculeBatch, draw: torch.Generator) -> Tensor:
        """Run the layers of appendix E."""
        if not len(batch.sizes):
            return no_rows(self.model, self.node_columns)
        edges = torch.stack([batch.source, batch.target])
        features = None if self.model.in_features is None else _one_hot(batch.atom, self.model.in_features)
        fresh = draw if self.model.phi0 == "random" and self.training else None
        return self.model(edges, batch=batch.owner, num_nodes=len(batch.atom), x=features, generator=fresh)


class LearnedSpectral(Encoding):
    """``LinearTransformerPE`` with its default start, on precomputed spectra."""

    def __init__(self, model: LinearTransformerPE) -> None:
        super().__init__()
        self.node_columns = model.dim
        self.edge_columns, self.pair_columns = (model.dim * (what in model.reads) for what in ("edges", "pairs"))
        self.model = model

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Encoded:
        """Read the learned functions of N at nodes, edges and pairs."""
        found = self.model.on(_kept_spectra(batch), torch.stack([batch.source, batch.target]))
        read = dict(zip(self.model.reads, found if isinstance(found, tuple) else (found,), strict=True))
        return read.get("nodes"), read.get("edges"), read.get("pairs")


class RelativeWalks(Encoding):
    """RRWP: ``(D^-1 A)^k`` at pairs of atoms for k = 0 .. steps, at edges and atoms from k = 1 on, standardised."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.node_columns, self.edge_columns, self.pair_columns = steps, steps, steps + 1
        self.scale = nn.ModuleList(Standardize(columns) for columns in (steps, steps, steps + 1))

    def rows(self, batch: MoleculeBatch) -> tuple[list[Tensor], Tensor, tuple[int, int, int]]:
        """Return walks at atoms, edges and pairs, the positions of pairs in a dense batch, and its shape without columns."""
        spectra = _kept_spectra(batch)
        root = torch.bincount(batch.source, minlength=len(batch.atom)).to(spectra.values).sqrt()
        powers = (1 - spectra.values)[:, None] ** torch.arange(1, self.node_columns + 1, device=batch.atom.device)
        u, v, place, shape = every_pair(spectra.start, batch.owner)
        node = torch.arange(len(batch.atom), device=batch.atom.device)
        read = [
            spectra.read(powers, a, b) * (root[b] / root[a])[:, None]
            for a, b in ((node, node), (batch.source, batch.target), (u, v))
        ]
        read[2] = torch.cat([(u == v).to(read[2])[:, None], read[2]], dim=1)
        return read, place, shape

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Encoded:
        """Standardise the output of :meth:`rows`; arrange pairs densely."""
        read, place, shape = self.rows(batch)
        node, edge, pair = (scale(x) for scale, x in zip(self.scale, read, strict=True))
        dense = pair.new_zeros(math.prod(shape), self.pair_columns).index_copy(0, place, pair)
        return node, edge, dense.view(*shape, self.pair_columns)

    @torch.no_grad()
    def calibrate(self, split: Split) -> None:
        """Measure mean and standard deviation on training molecules."""
        read = self.rows(split.take(torch.arange(min(len(split), PART))))[0]
        for scale, x in zip(self.scale, read, strict=True):
            cast(Standardize, scale).measure(x)


def _kept_spectra(batch: MoleculeBatch) -> Spectra:
    """Arrange the precomputed spectra."""
    nodes, rows = Spans.of(batch.sizes), batch.per_node["vectors"]
    values = batch.per_molecule["values"][batch.owner, nodes.within]
    return Spectra.arrange(values, rows.flatten(), nodes.start, batch.owner, rows.shape[1])


class SignNet(Encoding):
    """Make eigenvectors sign-invariant by a network, ``rho(phi(v_1) + phi(-v_1), ...)``; phi is a GIN of two layers."""

    def __init__(self, vectors: int, columns: int, width: int = 16) -> None:
        super().__init__()
        self.node_columns = columns
        self.phi = nn.ModuleList(nn.Sequential(nn.Linear(i, width), nn.ReLU(), nn.Linear(width, width)) for i in (1, width))
        self.rho = nn.Sequential(nn.Linear(vectors * width, 64), nn.ReLU(), nn.Linear(64, columns))

    def forward(self, batch: MoleculeBatch, draw: torch.Generator) -> Encoded:
        """Run phi on every eigenvector with both signs, then rho on the sums."""
        v = batch.per_node["columns"]
        x = torch.cat([v, -v], dim=1)[:, :, None]
        for layer in self.phi:
            summed = torch.zeros_like(x).index_add(0, batch.target, x.index_select(0, batch.source))
            x = layer(x + summed)
        x = x[:, : v.shape[1]] + x[:, v.shape[1] :]
        return self.rho(x.flatten(1)), None, None


def _one_hot(atom: Tensor, labels: int) -> Tensor:
    return nn.functional.one_hot(atom, labels + 1)[:, :labels].float()


# ---------------------------------------------------------------------------------------------------- by name

READS = {"diagonal": "nodes", "pairs": ("nodes", "edges"), "all-pairs": ("nodes", "edges", "pairs")}
"""What ``lt-diagonal``, ``lt-pairs`` and ``lt-all-pairs`` read from the public encoder."""


def build(config: RunConfig, atoms: int, most_nodes: int) -> Encoding:
    """Build the encoding of a run."""
    if config.encoding == "none":
        return Encoding()
    if config.encoding == "lappe":
        return Kept(config.columns, signs=True)
    if config.encoding == "signnet":
        return SignNet(config.columns, config.channels)
    if config.encoding == "rrwp":
        return RelativeWalks(config.walk)
    if not config.encoding.startswith("lt-"):
        columns = {"rwse": config.walk, "resistance": 2, "resistive-embedding": config.columns, "heat": 6}
        return Kept(columns[config.encoding])
    start = config.encoding.removeprefix("lt-")
    shape: dict[str, Any] = {"groups": config.groups, "loops": config.loops, "seed": config.seed}
    if start in READS:
        shape |= {"read": READS[start], "hidden": config.channels}
        return LearnedSpectral(LinearTransformerPE(config.channels, **shape))
    if start == "index":
        paper: dict[str, Any] = {"phi0": "index", "evolve": True, "degrees": "l1", "max_nodes": most_nodes}
        return Learned(LinearTransformerPE(config.columns, norm=None, **paper, **shape))
    features = atoms if start == "features" else None
    return Learned(LinearTransformerPE(config.columns, norm=None, phi0=start, in_features=features, **shape))


def keep(config: RunConfig, table: MoleculeTable) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Precompute inputs of a run's encoding: tensors per atom and tensors per molecule, by name."""
    if config.encoding in ("none", "lt-index", "lt-random", "lt-features"):
        return {}, {}
    parts = [_keep_part(config, *_graphs(table, which)) for which in torch.arange(len(table)).split(PART)]
    if "values" in parts[0]:
        width = max(part["values"].shape[1] for part in parts)
        values, vectors = (
            torch.cat([nn.functional.pad(part[name], (0, width - part[name].shape[1])) for part in parts])
            for name in ("values", "vectors")
        )
        return {"vectors": vectors}, {"values": values}
    return {"columns": torch.cat([part["columns"] for part in parts])}, {}


def _graphs(table: MoleculeTable, which: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of some molecules, concatenated, and the molecule of every node."""
    nodes, bonds = table.nodes.select(which), table.bonds.select(which)
    return table.ends[:, table.bonds.rows(which)].long() + nodes.first[bonds.owner], nodes.owner


def _spectra(ends: Tensor, owner: Tensor) -> tuple[Float[Tensor, "molecules width"], Float[Tensor, "nodes width"]]:
    """Return eigenvalues of every molecule and eigenvector rows of every atom, zero-padded to the largest molecule."""
    found = Spectra.of(read_pairs(ends, None, owner, len(owner)), torch.float32)
    width = int(found.size.max())
    within = torch.arange(width)
    real = within < found.size[:, None]
    rows = torch.zeros(len(owner), width)
    rows[real] = found.vectors
    values = torch.zeros(len(found.start) - 1, width)
    values[owner, torch.arange(len(owner)) - found.first] = found.values
    return values, rows


def _keep_part(config: RunConfig, ends: Tensor, owner: Tensor) -> dict[str, Tensor]:
    if config.encoding == "rrwp" or config.encoding.removeprefix("lt-") in READS:
        values, vectors = _spectra(ends, owner)
        return {"values": values, "vectors": vectors}
    if config.encoding in ("lappe", "signnet"):
        return {"columns": node_targets(ends, owner, "eigenvectors", config.columns)}
    if config.encoding == "rwse":
        values, vectors = _spectra(ends, owner)
        steps = torch.arange(1, config.walk + 1)
        returned = (1 - values)[:, :, None] ** steps
        return {"columns": torch.einsum("nw,nwk->nk", vectors.square(), returned[owner])}
    from torch_geometric.data import Batch as PyGBatch
    from torch_geometric.data import Data

    from ohmformer.encoding import transforms

    transform = {
        "resistance": lambda: transforms.AddResistancePE("pe"),
        "resistive-embedding": lambda: transforms.AddResistiveEmbeddingPE(config.columns, "pe", config.seed),
        "heat": lambda: transforms.AddHeatDiagonalPE(attr_name="pe"),
    }[config.encoding]()
    graphs = PyGBatch(edge_index=torch.cat([ends, ends.flip(0)], dim=1), batch=owner, num_nodes=len(owner))
    graphs.ptr = torch.cat([owner.new_zeros(1), torch.bincount(owner).cumsum(0)])
    assert isinstance(graphs, Data)
    return {"columns": transform(graphs).pe}


def pretrained(encoding: Encoding, config: RunConfig, table: MoleculeTable) -> None:
    """Pretrain a linear Transformer in place, on eigenvectors or diagonals of the training molecules."""
    if not config.pretrain or not isinstance(encoding, Learned | LearnedSpectral):
        return
    model = encoding.model
    if model.phi0 == "features" or model.read != "nodes":
        raise ValueError(
            f"expected pretrain=0 with {config.encoding}, which is more than the nodes of a graph, got {config.pretrain}"
        )
    targets = "multi" if model.phi0 == "walks" else "eigenvectors"
    sizes, counts = table.sizes.tolist(), table.bond_start.tolist()
    ends = table.ends.t().tolist()
    graphs = ((n, [(u, v) for u, v in ends[a:b]]) for n, a, b in zip(sizes, counts, counts[1:], strict=False))
    pretrain(model, GraphTable.of(graphs, targets, model.dim), Settings(targets, epochs=config.pretrain, seed=config.seed))
