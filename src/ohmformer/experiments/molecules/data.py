"""The three splits of a run, from tables of molecules: targets computed, atoms renumbered where a run asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ohmformer.experiments.molecules.batches import Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.csl import SKIPS
from ohmformer.experiments.molecules.encodings import keep
from ohmformer.experiments.molecules.sources import Tables
from ohmformer.experiments.molecules.table import ACCESSIBILITY, LOGP, NETWORKX_RING, RING, MoleculeTable


@dataclass(frozen=True)
class Target:
    """Computes the target from the parts of a table: a sum of standardised columns, in units of ``unit``."""

    center: Float[Tensor, " parts"]
    spread: Float[Tensor, " parts"]
    ring: int | None
    """The column of ring sizes for a penalised logP; None if the target is a column of numbers."""
    outputs = 1

    @classmethod
    def of(cls, train: MoleculeTable, ring: int | None) -> Target:
        """Measure mean and standard deviation of the parts on training molecules; constant parts contribute nothing."""
        parts = _parts(train, ring)
        if not bool(parts.isfinite().all()):
            raise ValueError("expected finite targets, got some that are not")
        spread = parts.std(0, correction=0)
        return cls(parts.mean(0), torch.where(spread > 1e-12, spread, torch.inf), ring)

    @property
    def unit(self) -> float:
        """The size of an error of 1 in the target's own units."""
        return 1.0 if self.ring is not None else float(self.spread[0])

    def values(self, table: MoleculeTable, ring: int | None = None) -> Float[Tensor, " molecules"]:
        """Compute the targets of molecules; ``ring`` selects another column of ring sizes."""
        return ((_parts(table, ring or self.ring) - self.center) / self.spread).sum(1).float()

    def loss(self, predicted: Float[Tensor, " molecules"], y: Float[Tensor, " molecules"]) -> Float[Tensor, " molecules"]:
        """Return the absolute errors, the training loss."""
        return (predicted - y).abs()

    error = loss
    """The error for validation and test."""


@dataclass(frozen=True)
class Classes:
    """A class as target: the loss is the cross-entropy, the error is the share of misclassified graphs."""

    outputs: int
    unit = 1.0
    ring = None

    def values(self, table: MoleculeTable, ring: int | None = None) -> Float[Tensor, " molecules"]:
        """Return the class of every graph."""
        return table.parts[:, 0].float()

    def loss(
        self, predicted: Float[Tensor, "molecules classes"], y: Float[Tensor, " molecules"]
    ) -> Float[Tensor, " molecules"]:
        """Return the cross-entropy."""
        return cross_entropy(predicted, y.long(), reduction="none")

    def error(
        self, predicted: Float[Tensor, "molecules classes"], y: Float[Tensor, " molecules"]
    ) -> Float[Tensor, " molecules"]:
        """Return 1 for misclassified graphs, else 0."""
        return (predicted.argmax(1) != y).float()


def _parts(table: MoleculeTable, ring: int | None) -> Float[Tensor, "molecules parts"]:
    parts = table.parts.double()
    if ring is None:
        return parts
    return torch.stack([parts[:, LOGP], -parts[:, ACCESSIBILITY], -(parts[:, ring] - 6).clamp(min=0)], dim=1)


ZINC12K = Target(
    torch.tensor([2.45712, -3.05330, -0.04879], dtype=torch.float64),
    torch.tensor([1.43433, 0.83490, 0.28797], dtype=torch.float64),
    NETWORKX_RING,
)
"""The benchmark's target: parts standardised over all 249,456 molecules of ZINC, rings of networkx's cycle basis."""


class RunData:
    """The splits of a run, each created on first use, so that the test molecules are read once, at the end."""

    def __init__(self, config: RunConfig, tables: Tables) -> None:
        self.config = config
        ring = {"smallest": RING, "networkx": NETWORKX_RING}[config.rings] if tables.train.parts.shape[1] > 1 else None
        used = tables.train.atom.long().unique().tolist()
        self.labels = [tables.train.labels[i] for i in used]
        fixed = {"zinc12k": ZINC12K, "csl": Classes(len(SKIPS))}.get(config.data)
        self.target: Target | Classes = fixed or Target.of(tables.train, ring)
        self.unseen: dict[str, list[str]] = {}
        """Atom labels that do not occur in training molecules, by split."""
        self._tables = {"train": tables.train, "valid": tables.valid, "test": tables.test}

    @property
    def most_nodes(self) -> int:
        """The number of atoms of the largest molecule in any split."""
        return max(int(table.sizes.max()) for table in self._tables.values())

    def table(self, part: str) -> MoleculeTable:
        """Return the molecules of a split, with atoms in the order of the run, labelled as in the training molecules."""
        table, missing = self._tables[part].relabelled(self.labels)
        if missing:
            self.unseen[part] = missing
        if self.config.order == "shuffled":
            table = table.renumbered(depth_first(table, torch.Generator().manual_seed(len(table))))
        return table

    @cached_property
    def train_table(self) -> MoleculeTable:
        """The training molecules as a table."""
        return self.table("train")

    @cached_property
    def train(self) -> Split:
        """The training molecules with targets."""
        return self.split(self.train_table)

    @cached_property
    def valid(self) -> Split:
        """The validation molecules with targets."""
        return self.split(self.table("valid"))

    def split(self, table: MoleculeTable) -> Split:
        """Return a split of a table, with targets and the precomputed inputs of the encoding."""
        return Split(table, self.target.values(table), *keep(self.config, table))

    def relabelled(self, table: MoleculeTable, draw: torch.Generator, kept: Split | None = None) -> Split:
        """Renumber every molecule's atoms at random; ``kept`` is the table's own split, if its encoding can be permuted."""
        permutation = uniform(table, draw)
        renumbered = table.renumbered(permutation)
        if kept is None:
            return self.split(renumbered)
        to = table.nodes.first[table.nodes.owner] + permutation
        moved = {name: torch.empty_like(x).index_copy_(0, to, x) for name, x in kept.per_node.items()}
        return Split(renumbered, kept.y, moved, kept.per_molecule)


def uniform(table: MoleculeTable, draw: torch.Generator) -> Int[Tensor, " nodes"]:
    """Draw a random permutation of every molecule's atoms."""
    owner = table.nodes.owner
    order = torch.argsort(owner + torch.rand(len(owner), generator=draw, dtype=torch.float64))
    rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
    return rank - table.node_start[owner]


def depth_first(table: MoleculeTable, draw: torch.Generator) -> Int[Tensor, " nodes"]:
    """Number every molecule's atoms as a SMILES from a random atom would: depth first, branches in random order."""
    shuffle = uniform(table, draw).tolist()
    permutation: list[int] = []
    starts, bonds, ends = table.node_start.tolist(), table.bond_start.tolist(), table.ends.t().tolist()
    for m in range(len(table)):
        size, rank = starts[m + 1] - starts[m], shuffle[starts[m] : starts[m + 1]]
        neighbours: list[list[int]] = [[] for _ in range(size)]
        for u, v in ends[bonds[m] : bonds[m + 1]]:
            neighbours[u].append(v)
            neighbours[v].append(u)
        number: dict[int, int] = {}
        for start in sorted(range(size), key=rank.__getitem__):
            stack = [start]
            while stack:
                node = stack.pop()
                if node not in number:
                    number[node] = len(number)
                    stack += sorted(neighbours[node], key=rank.__getitem__)
        permutation += [number[node] for node in range(size)]
    return torch.tensor(permutation, dtype=torch.int64)
