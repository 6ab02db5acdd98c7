"""Molecules as the models read them: bonds in both directions, sorted by where they point, and batches taken by number."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.experiments.molecules.table import MoleculeTable, spans


@dataclass(frozen=True)
class Batch:
    """Some molecules side by side. Edge e runs from ``source[e]`` to ``target[e]``; edges are sorted by target."""

    atom: Int[Tensor, " nodes"]
    bond: Int[Tensor, " edges"]
    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    back: Int[Tensor, " edges"]
    """The place of every edge's opposite."""
    first_edge: Int[Tensor, " nodes"]
    """Where the edges to every node begin."""
    owner: Int[Tensor, " nodes"]
    """The molecule of every node, ascending."""
    sizes: Int[Tensor, " molecules"]
    y: Float[Tensor, " molecules"]
    per_node: dict[str, Tensor] = field(default_factory=dict)
    """What an encoding knows of every node, by name."""
    per_molecule: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        if device.type == self.atom.device.type == "cpu":
            return self
        flat = {f.name: getattr(self, f.name).to(device) for f in fields(self) if not f.name.startswith("per_")}
        kept = [{k: v.to(device) for k, v in x.items()} for x in (self.per_node, self.per_molecule)]
        return Batch(**flat, per_node=kept[0], per_molecule=kept[1])


class Split:
    """All molecules of a split with their targets, ready to be taken by number."""

    def __init__(
        self,
        table: MoleculeTable,
        y: Float[Tensor, " molecules"],
        per_node: dict[str, Tensor] | None = None,
        per_molecule: dict[str, Tensor] | None = None,
    ) -> None:
        bonds = table.bond_start.diff()
        owner = torch.repeat_interleave(torch.arange(len(table)), bonds)
        first = table.node_start[owner]
        u, v = table.ends.long() + first
        source, target = torch.cat([u, v]), torch.cat([v, u])
        order = torch.argsort(target * len(table.atom) + source)
        place = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
        # an edge and its opposite are half the list apart before sorting
        back = place[(order + len(u)) % max(1, len(order))]
        self.atom, self.bond = table.atom.long(), table.bond.long().repeat(2)[order]
        self.edge_start = 2 * table.bond_start
        self.node_start, self.sizes, self.y = table.node_start, table.sizes, y
        molecule = torch.repeat_interleave(torch.arange(len(table)), 2 * bonds)
        self.source, self.target = (x[order] - self.node_start[molecule] for x in (source, target))
        self.back = back - self.edge_start[molecule]
        degree = torch.bincount(target, minlength=len(self.atom))
        node_owner = torch.repeat_interleave(torch.arange(len(table)), self.sizes)
        self.first_edge = degree.cumsum(0) - degree - self.edge_start[node_owner]
        self.per_node, self.per_molecule = per_node or {}, per_molecule or {}

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: Int[Tensor, " chosen"]) -> Batch:
        """A batch of molecules, in the order given."""
        sizes = self.sizes[which]
        edges = (self.edge_start[which + 1] - self.edge_start[which]).long()
        nodes, edge_rows = spans(self.node_start, which), spans(self.edge_start, which)
        first_node, first_edge = sizes.cumsum(0) - sizes, edges.cumsum(0) - edges
        by_node, by_edge = torch.arange(len(which)).repeat_interleave(sizes), first_node.repeat_interleave(edges)
        return Batch(
            atom=self.atom[nodes], bond=self.bond[edge_rows],
            source=self.source[edge_rows] + by_edge, target=self.target[edge_rows] + by_edge,
            back=self.back[edge_rows] + first_edge.repeat_interleave(edges),
            first_edge=self.first_edge[nodes] + first_edge[by_node], owner=by_node, sizes=sizes, y=self.y[which],
            per_node={name: x[nodes] for name, x in self.per_node.items()},
            per_molecule={name: x[which] for name, x in self.per_molecule.items()},
        )  # fmt: skip
