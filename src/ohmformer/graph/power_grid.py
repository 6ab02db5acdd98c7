"""What of a power grid is in service, as a graph: reactances as resistances, as DC power flow sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order

from ohmformer.graph.graph import Graph
from ohmformer.graph.labelled import NamedGraph
from ohmformer.graph.matpower import ISOLATED, REFERENCE, Case, read_case


@dataclass(frozen=True, eq=False)
class PowerGrid(NamedGraph):
    """The buses and branches of a case that are in service; a branch of reactance x and tap t has the resistance x t.

    Buses of type 4, branches that are switched off or end at such a bus, and branches with equal ends are left out. The
    graph is signed if reactances are negative.
    """

    case: Case = field(kw_only=True)
    bus: Int[np.ndarray, " nodes"] = field(kw_only=True)
    """Row in ``case.bus`` of each node."""
    branch: Int[np.ndarray, " edges"] = field(kw_only=True)
    """Row in ``case.branch`` of each edge."""
    shift: Float[np.ndarray, " edges"] = field(kw_only=True)
    """Phase shift of each edge, in radians."""
    reference: Int[np.ndarray, " components"] = field(kw_only=True)
    """Reference node of each component: its angle is given, and it balances the power."""

    @classmethod
    def of(cls, case: Case | Path | str) -> PowerGrid:
        """Build the grid from a case or from its file."""
        case = case if isinstance(case, Case) else read_case(Path(case))
        number = case.column("bus", "BUS_I")
        bus = np.nonzero(case.column("bus", "BUS_TYPE") != ISOLATED)[0]
        node = np.full(len(number), -1)
        node[bus] = np.arange(len(bus))
        tail, head = (node[rows_of(number, case.column("branch", end))] for end in ("F_BUS", "T_BUS"))
        branch = np.nonzero((case.column("branch", "BR_STATUS") > 0) & (tail >= 0) & (head >= 0) & (tail != head))[0]
        x, tap = case.column("branch", "BR_X")[branch], case.column("branch", "TAP")[branch]
        reactance = x * np.where(tap == 0, 1.0, tap)
        bad = np.nonzero((reactance == 0) | ~np.isfinite(reactance))[0]
        if len(bad):
            ends = [case.column("branch", end)[branch[bad[0]]] for end in ("F_BUS", "T_BUS")]
            wrong = f"branch {ends[0]:.0f}-{ends[1]:.0f} ({case.place('branch', int(branch[bad[0]]))})"
            raise ValueError(
                f"expected a reactance other than zero on every branch in service, {wrong} of {case.name} has {x[bad[0]]:g}"
            )
        ends = np.stack([tail[branch], head[branch]], axis=1)
        graph = Graph.from_edges(ends, num_nodes=len(bus), resistance=reactance, signed=True)
        reference, notes = _references(case, graph, bus)
        labels = [f"{n:.0f}" for n in number[bus]]
        shift = np.deg2rad(case.column("branch", "SHIFT")[branch])
        return cls(graph, labels, notes, case=case, bus=bus, branch=branch, shift=shift, reference=reference)

    def injection(self) -> Float[np.ndarray, " nodes"]:
        """Compute the megawatts injected at each bus: generators and DC lines minus load and shunt conductance.

        A DC line extracts ``PF`` at its first bus and injects ``PF - (LOSS0 + LOSS1 PF)`` at its second, as in MATPOWER.
        """
        case, number = self.case, self.case.column("bus", "BUS_I")
        running = np.where(case.column("gen", "GEN_STATUS") > 0, case.column("gen", "PG"), 0.0)
        generated = np.bincount(rows_of(number, case.column("gen", "GEN_BUS")), running, len(number))
        total, lines = generated - case.column("bus", "PD") - case.column("bus", "GS"), self.dc_lines()
        first, second, sent, fixed, part = (
            case.column("dcline", name)[lines] for name in ("F_BUS", "T_BUS", "PF", "LOSS0", "LOSS1")
        )
        np.add.at(total, rows_of(number, first), -sent)
        np.add.at(total, rows_of(number, second), sent - (fixed + part * sent))
        return total[self.bus]

    def dc_lines(self) -> Int[np.ndarray, " lines"]:
        """Return the rows of DC lines that are in service between buses that are in service."""
        number, case = self.case.column("bus", "BUS_I")[self.bus], self.case
        ends = [np.isin(case.column("dcline", end), number) for end in ("F_BUS", "T_BUS")]
        return np.nonzero((case.column("dcline", "BR_STATUS") > 0) & ends[0] & ends[1])[0]

    def nodes_of(self, buses: Any) -> Int[np.ndarray, " chosen"]:
        """Return nodes by bus number; raise a ValueError for a bus that is not in service."""
        number = self.case.column("bus", "BUS_I")[self.bus]
        asked = np.asarray(buses, dtype=np.float64).ravel()
        missing = asked[~np.isin(asked, number)]
        if len(missing):
            raise ValueError(f"expected a bus of {self.case.name} in service, got {missing[0]:g}")
        return rows_of(number, asked)

    def edges_of_rows(self, rows: Any, *, running: bool = False) -> Int[np.ndarray, " chosen"]:
        """Return edges by the rows of their branches, from 0, or all edges for None; -1 if a branch is out of service.

        With ``running`` such a branch raises a ValueError.
        """
        count = len(self.case.branch)
        asked = np.arange(count) if rows is None else np.asarray(rows).ravel()
        if asked.size and (asked.dtype.kind not in "iu" or asked.min() < 0 or asked.max() >= count):
            raise ValueError(f"expected rows of mpc.branch in 0..{count - 1}, got {asked.tolist()}")
        edge = np.full(count, -1)
        edge[self.branch] = np.arange(len(self.branch))
        found = edge[asked.astype(np.int64)]
        if running and (found < 0).any():
            off = describe_branch(self.case, int(asked[found < 0][0]))
            raise ValueError(f"expected branches of {self.case.name} in service, {off} is not")
        return found

    def branch_name(self, edge: int) -> str:
        """Return the name of an edge for messages."""
        return describe_branch(self.case, int(self.branch[edge]))

    def bridges(self) -> Int[np.ndarray, " bridges"]:
        """Find the bridges: edges of a spanning tree that no cycle contains, whose removal disconnects their island."""
        nodes = self.graph.num_nodes
        ends = np.sort(self.graph.edge_index.numpy(), axis=0)
        key, first, count = np.unique(ends[0] * nodes + ends[1], return_index=True, return_counts=True)
        u, v = key // nodes, key % nodes
        joined = np.concatenate([u, self.reference]), np.concatenate([v, np.full(len(self.reference), nodes)])
        pattern = coo_array((np.ones(len(joined[0])), joined), shape=(nodes + 1, nodes + 1))
        order, parent = breadth_first_order(pattern.tocsr(), nodes, directed=False)
        depth = np.zeros(nodes + 1, dtype=np.int64)
        for node in order[1:]:
            depth[node] = depth[parent[node]] + 1
        child = np.where(parent[u] == v, u, np.where(parent[v] == u, v, -1))
        top, up, level = list(range(nodes + 1)), parent.tolist(), depth.tolist()

        def highest(node: int) -> int:
            """Return the first node upwards, from a node, whose tree edge to its parent is in no cycle found so far."""
            while top[node] != node:
                top[node] = node = top[top[node]]
            return node

        for a, b in zip(u[child < 0].tolist(), v[child < 0].tolist(), strict=True):
            x, y = highest(a), highest(b)
            while x != y:
                x, y = (x, y) if level[x] >= level[y] else (y, x)
                top[x] = up[x]
                x = highest(up[x])
        free = np.array(top) == np.arange(nodes + 1)
        return first[(child >= 0) & free[child] & (count == 1)]


def rows_of(number: Float[np.ndarray, " buses"], asked: Float[np.ndarray, " asked"]) -> Int[np.ndarray, " asked"]:
    """Return the row of each bus number; all must exist."""
    order = np.argsort(number)
    return order[np.searchsorted(number[order], asked)]


def describe_branch(case: Case, row: int) -> str:
    """Return the name of a branch for messages."""
    ends = (case.column("branch", end)[row] for end in ("F_BUS", "T_BUS"))
    return "branch {} (row {} of mpc.branch)".format("-".join(f"{n:.0f}" for n in ends), row + 1)


def _references(case: Case, graph: Graph, bus: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Choose a node for each component: its reference bus, or else the first bus with a generator, or the first bus."""
    kind, number = case.column("bus", "BUS_TYPE")[bus], case.column("bus", "BUS_I")[bus]
    component = graph.components.numpy()
    rank = np.where(kind == REFERENCE, 0, np.where(kind == REFERENCE - 1, 1, 2))
    order = np.lexsort((np.arange(len(bus)), rank, component))
    reference = order[np.unique(component[order], return_index=True)[1]]
    given = np.bincount(component[kind == REFERENCE], minlength=len(reference))
    if (given > 1).any():
        same = number[(kind == REFERENCE) & (component == np.argmax(given > 1))]
        row = case.place("bus", int(np.flatnonzero(case.column("bus", "BUS_I") == same[1])[0]))
        raise ValueError(
            f"expected one reference bus (type 3) on every island of {case.name}, got {same[0]:.0f} and {same[1]:.0f} "
            f"({row}) on one"
        )
    instead = [f"{n:.0f}" for n in number[reference[given == 0]]]
    if not instead:
        return reference, ()
    more = f" and {len(instead) - 3} more" if len(instead) > 3 else ""
    return reference, (f"islands without a reference bus are balanced at bus {', '.join(instead[:3])}{more}",)
