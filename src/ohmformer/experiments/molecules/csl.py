"""CSL (Murphy et al. 2019): 150 circular graphs with skip links, 10 classes that message passing alone cannot tell apart.

A graph has 41 nodes; node i is linked to i + 1 and to i + R, and its class is the skip length R. There are 15 copies of each
class, with nodes numbered at random, in five folds of three copies of every class, as in the benchmark (Dwivedi et al.): one
is for testing, the next one for validation, the other three for training.
"""

from __future__ import annotations

import torch

from ohmformer.experiments.molecules.table import MoleculeTable
from ohmformer.graph.ragged import Spans

NODES, SKIPS, COPIES, FOLDS = 41, (2, 3, 4, 5, 6, 9, 11, 12, 13, 16), 15, 5


def csl() -> MoleculeTable:
    """Create all graphs, copy by copy, so that a fold is a range of rows; nodes and edges have a single label."""
    draw, node = torch.Generator().manual_seed(0), torch.arange(NODES)
    ends = []
    for skip in SKIPS * COPIES:
        links = torch.stack([node.repeat(2), torch.cat([node + 1, node + skip]) % NODES])
        ends.append(torch.randperm(NODES, generator=draw)[links])
    graphs = len(ends)
    return MoleculeTable(
        atom=torch.zeros(NODES * graphs, dtype=torch.int16), ends=torch.cat(ends, dim=1).short(),
        bond=torch.zeros(2 * NODES * graphs, dtype=torch.int16),
        node_start=Spans.of(torch.full((graphs,), NODES)).start, bond_start=Spans.of(torch.full((graphs,), 2 * NODES)).start,
        parts=torch.arange(len(SKIPS)).repeat(COPIES)[:, None].float(), row=torch.arange(graphs), labels=("node",),
    )  # fmt: skip


def csl_fold(fold: int) -> tuple[MoleculeTable, MoleculeTable, MoleculeTable]:
    """Return the training, validation and test graphs of a fold."""
    table = csl()
    parts = torch.arange(len(table)).chunk(FOLDS)
    turned = [parts[(fold + i) % FOLDS] for i in range(FOLDS)]
    return table.rows(torch.cat(turned[2:])), table.rows(turned[1]), table.rows(turned[0])
