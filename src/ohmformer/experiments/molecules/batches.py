"""Molecules as the models read them: bonds in both directions, sorted by where they point, and batches taken by number."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ohmformer.experiments.molecules.backbone import Edges
from ohmformer.experiments.molecules.table import MoleculeTable
from ohmformer.graph.ragged import Spans


@dataclass(frozen=True)
class MoleculeBatch:
    """A batch of molecules; edge e runs from ``source[e]`` to ``target[e]``, and edges are sorted by target."""

    atom: Int[Tensor, " nodes"]
    bond: Int[Tensor, " edges"]
    source: Int[Tensor, " edges"]
    target: Int[Tensor, " edges"]
    back: Int[Tensor, " edges"]
    """The index of the reverse of every edge."""
    first_edge: Int[Tensor, " nodes"]
    """The index of the first edge to every node."""
    owner: Int[Tensor, " nodes"]
    """The molecule of every node, ascending."""
    sizes: Int[Tensor, " molecules"]
    y: Float[Tensor, " molecules"]
    per_node: dict[str, Tensor] = field(default_factory=dict)
    """Precomputed inputs of the encoding for every node, by name."""
    per_molecule: dict[str, Tensor] = field(default_factory=dict)
    """Precomputed inputs of the encoding for every molecule, by name."""

    @property
    def edges(self) -> Edges:
        """The edges in the format of backbones; those that leave a node are the reverses of those that enter it."""
        return Edges(self.source, self.target, self.back, self.first_edge, self.first_edge)

    def to(self, device: torch.device) -> MoleculeBatch:
        """Copy the batch to another device."""
        if device.type == self.atom.device.type == "cpu":
            return self
        flat = {f.name: getattr(self, f.name).to(device) for f in fields(self) if not f.name.startswith("per_")}
        kept = [{k: v.to(device) for k, v in x.items()} for x in (self.per_node, self.per_molecule)]
        return MoleculeBatch(**flat, per_node=kept[0], per_molecule=kept[1])


class Split:
    """All molecules for training, validation or test, with their targets; ``take`` returns batches of them."""

    def __init__(
        self,
        table: MoleculeTable,
        y: Float[Tensor, " molecules"],
        per_node: dict[str, Tensor] | None = None,
        per_molecule: dict[str, Tensor] | None = None,
    ) -> None:
        self.nodes, self.edges, self.y = table.nodes, Spans.of(2 * table.bonds.counts), y
        u, v = table.ends.long() + self.nodes.first[table.bonds.owner]
        source, target = torch.cat([u, v]), torch.cat([v, u])
        order = torch.argsort(target * len(table.atom) + source)
        position = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
        # before sorting, the indices of an edge and its reverse differ by half the list
        back = position[(order + len(u)) % max(1, len(order))]
        self.atom, self.bond = table.atom.long(), table.bond.long().repeat(2)[order]
        # all indices are relative to the molecule, so that a batch only adds its own offsets
        self.source, self.target = (x[order] - self.nodes.first[self.edges.owner] for x in (source, target))
        self.back = back - self.edges.first[self.edges.owner]
        degree = torch.bincount(target, minlength=len(self.atom))
        self.first_edge = degree.cumsum(0) - degree - self.edges.first[self.nodes.owner]
        self.per_node, self.per_molecule = per_node or {}, per_molecule or {}

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: Int[Tensor, " chosen"]) -> MoleculeBatch:
        """Return a batch of the selected molecules, in the given order."""
        nodes, edges = self.nodes.select(which), self.edges.select(which)
        node_rows, edge_rows = self.nodes.rows(which), self.edges.rows(which)
        first_node, first_edge = nodes.first[edges.owner], edges.first
        return MoleculeBatch(
            atom=self.atom[node_rows], bond=self.bond[edge_rows],
            source=self.source[edge_rows] + first_node, target=self.target[edge_rows] + first_node,
            back=self.back[edge_rows] + first_edge[edges.owner],
            first_edge=self.first_edge[node_rows] + first_edge[nodes.owner],
            owner=nodes.owner, sizes=nodes.counts, y=self.y[which],
            per_node={name: x[node_rows] for name, x in self.per_node.items()},
            per_molecule={name: x[which] for name, x in self.per_molecule.items()},
        )  # fmt: skip


def no_rows(module: nn.Module, columns: int, *inputs: Tensor | None) -> Float[Tensor, "0 columns"]:
    """Return the output for an empty batch, with zero gradients for parameters and inputs, as DDP expects."""
    every = [*module.parameters(), *(x for x in inputs if x is not None)]
    return torch.stack([x.sum() for x in every]).sum() * every[0].new_zeros(0, columns)
