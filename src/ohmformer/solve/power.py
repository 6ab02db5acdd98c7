"""DC power flow, and how it changes: with transfers between buses (PTDF) and with outages of branches (LODF).

As in MATPOWER: voltages are one per unit, angles theta in radians, and a branch from f to t with reactance x, tap ratio a
and phase shift s carries the power ``(theta_f - theta_t - s) / (x a)``. This is an electric flow with reactances as
resistances, on a signed graph if some are negative.

``error`` is the relative error of the flows, for the worst transfer or outage, in the norm ``(sum |x| f^2)^(1/2)`` over all
branches; for ``ptdf(branches=...)``, that of the unit flow from which a branch's factors are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ohmformer.graph.matpower import Case
from ohmformer.graph.power_grid import PowerGrid
from ohmformer.solve.answer import Answer, join
from ohmformer.solve.certificate import EPS, relative
from ohmformer.solve.flow import potentials

PANEL = 256
"""Number of demands that are solved for together."""
TOL = 1e-9
SINGULAR = 1e-12
"""Relative size below which ``1 - PTDF`` of a branch for its own ends counts as zero."""


@dataclass(frozen=True)
class PowerAnswer(Answer):
    """A DC power flow: ``value`` is megawatts on the branches, from first bus to second, one per row."""

    angle: Float[Tensor, " buses"] = field(kw_only=True)
    """Degrees, one per row of ``mpc.bus``; that of the file if a bus is out of service."""
    injection: Float[Tensor, " buses"] = field(kw_only=True)
    """Injected megawatts, balanced at the reference bus of every island."""


@dataclass(frozen=True)
class OutageAnswer(Answer):
    """Line outage distribution factors: ``value`` is ``(branches, outages)``."""

    splits: Bool[Tensor, " outages"] = field(kw_only=True)
    """Whether the outage disconnects the grid; its column is then NaN, as power has no other path."""


def dc_flow(
    case: Case | PowerGrid | Path | str, injection: Any = None, *, tol: float = TOL, method: str = "direct"
) -> PowerAnswer:
    """Compute the DC power flow of a case, or of other injections; differentiable in these.

    Args:
        case: a MATPOWER case or its file.
        injection: megawatts injected at every row of ``mpc.bus``; by default generation minus load, and the power that DC
            lines take and deliver. The reference bus of every island balances the total.
        tol: the largest acceptable residual.
        method: as for :func:`~ohmformer.solve.flow.potentials`.
    """
    grid = case if isinstance(case, PowerGrid) else PowerGrid.of(case)
    buses, base, graph = len(grid.case.bus), grid.case.base_mva, grid.graph
    bus, reference = torch.as_tensor(grid.bus), torch.as_tensor(grid.reference)
    lines = f"{len(grid.dc_lines())} DC lines put in what they carry" if len(grid.dc_lines()) else ""
    if injection is None:
        put_in = torch.as_tensor(grid.injection())
    else:
        given = torch.as_tensor(injection, dtype=torch.float64)
        if tuple(given.shape) != (buses,):
            raise ValueError(f"expected an injection for every bus of {grid.case.name}, shape ({buses},), got {given.shape}")
        put_in = given[bus]
    put_in = _balanced(grid, put_in)
    tail, head = graph.edge_index
    shifted = torch.as_tensor(grid.shift) / graph.resistance
    by_shifts = torch.zeros(graph.num_nodes, dtype=torch.float64).index_add(0, tail, shifted).index_add(0, head, -shifted)
    answer = potentials(graph, put_in / base + by_shifts, tol=tol, method=method, center=True)
    phi = answer.value[:, 0]
    given_angle = torch.deg2rad(torch.as_tensor(grid.case.column("bus", "VA").copy()))
    theta = phi + (given_angle[bus[reference]] - phi[reference])[graph.components]
    by_angles = (phi[tail] - phi[head]) / graph.resistance
    flow = base * (by_angles - shifted)
    heat = _heat(grid, torch.stack([by_angles, shifted, flow / base], dim=1))
    wrong = None if answer.error is None else answer.error * heat[0] + 4 * EPS * (heat[0] + heat[1])
    error = None if wrong is None else relative(wrong, heat[2])
    certificate = {name: value for name, value in vars(answer).items() if name not in ("value", "labels", "note")}
    certificate |= {"error": error, "rounded": False}
    return PowerAnswer(
        torch.zeros(len(grid.case.branch), dtype=torch.float64).index_copy(0, torch.as_tensor(grid.branch), flow),
        **certificate,
        note="; ".join(filter(None, (answer.note, *grid.notes, lines if injection is None else ""))),
        angle=torch.rad2deg(given_angle.index_copy(0, bus, theta)),
        injection=torch.zeros(buses, dtype=torch.float64).index_copy(0, bus, put_in),
    )


def ptdf(
    case: Case | PowerGrid | Path | str,
    *,
    transfers: Any = None,
    branches: Any = None,
    tol: float = TOL,
    method: str = "direct",
) -> Answer:
    """Compute power transfer distribution factors: the part of a transferred megawatt that every branch carries.

    With ``transfers``, pairs of buses with power sent from the first to the second: ``(branches, transfers)``, one solve per
    transfer. Without: ``(branches, buses)`` for ``branches``, from every bus to the reference bus of its island, one solve
    per branch. The whole matrix is computed only on request, with ``branches="all"``.

    Args:
        case: a MATPOWER case or its file.
        transfers: pairs of buses, by their numbers in the case.
        branches: rows of ``mpc.branch``, counted from 0; with transfers, all of them by default.
        tol: the largest acceptable residual.
        method: as for :func:`~ohmformer.solve.flow.potentials`.
    """
    grid = case if isinstance(case, PowerGrid) else PowerGrid.of(case)
    if transfers is None and branches is None:
        raise ValueError("expected transfers= or branches=, got neither; branches='all' makes the whole matrix")
    edge = grid.edges_of_rows(None if branches is None or isinstance(branches, str) else branches)
    if transfers is not None:
        pairs = np.asarray(transfers, dtype=np.float64).reshape(-1, 2)
        ends = np.stack([grid.nodes_of(pairs[:, 0]), grid.nodes_of(pairs[:, 1])])
        island = grid.graph.components.numpy()[ends]
        if (apart := np.nonzero(island[0] != island[1])[0]).size:
            one, other = pairs[apart[0]]
            raise ValueError(f"expected transfers within an island, buses {one:g} and {other:g} are on different ones")
        return _by_panels(grid, ends, tol, method, lambda phi, _: _factors(grid, edge, phi), len(edge))
    running, bus = edge >= 0, torch.as_tensor(grid.bus)
    reference, r = torch.as_tensor(grid.reference)[grid.graph.components], grid.graph.resistance[edge[running]]

    def on_buses(phi: Tensor, some: slice) -> Tensor:
        return torch.zeros(len(grid.case.bus), phi.shape[1], dtype=phi.dtype).index_copy(
            0, bus, (phi - phi[reference]) / r[some]
        )

    found = _by_panels(grid, grid.graph.edge_index.numpy()[:, edge[running]], tol, method, on_buses, len(grid.case.bus))
    value = torch.zeros(len(edge), len(grid.case.bus), dtype=torch.float64)
    value[torch.as_tensor(running)] = found.value.t()
    return replace(found, value=value)


def lodf(
    case: Case | PowerGrid | Path | str,
    outages: Any,
    *,
    branches: Any = None,
    tol: float = TOL,
    method: str = "direct",
) -> OutageAnswer:
    """Compute line outage distribution factors: the part of a branch's flow that each other branch takes over in its outage.

    ``(branches, outages)``, one solve per outage; -1 on the branch that is out. An outage that splits the grid has no
    factors: its column is NaN, ``splits`` marks it and the note names it.

    Args:
        case: a MATPOWER case or its file.
        outages: rows of ``mpc.branch``, counted from 0; each is a single outage.
        branches: rows of the monitored branches; all by default.
        tol: the largest acceptable residual.
        method: as for :func:`~ohmformer.solve.flow.potentials`.
    """
    grid = case if isinstance(case, PowerGrid) else PowerGrid.of(case)
    edge, out = grid.edges_of_rows(branches), grid.edges_of_rows(outages, running=True)
    splits, grown = torch.as_tensor(np.isin(out, grid.bridges())), []

    def after(phi: Tensor, some: slice) -> Tensor:
        own = _factors(grid, out[some], phi).diagonal()
        grown.append(float(_growth(grid, out[some], phi, own).where(~splits[some], 0.0).max()))
        lost = (1 - own).abs() <= SINGULAR * own.abs().clamp(min=1)
        if bool((wrong := lost & ~splits[some]).any()):
            name = grid.branch_name(int(out[some][int(wrong.nonzero()[0])]))
            raise ValueError(f"expected a grid that has a power flow without {name}, reactances cancel there")
        factors = _factors(grid, edge, phi) / torch.where(splits[some], torch.nan, 1 - own)
        factors[torch.as_tensor(edge[:, None] == out[some])] = -1.0
        return torch.where(splits[some], torch.nan, factors)

    found = _by_panels(grid, grid.graph.edge_index.numpy()[:, out], tol, method, after, len(edge))
    error = None if found.error is None else (found.error + 4 * EPS) * max(grown, default=0.0)
    found = replace(found, error=error)
    names = [grid.branch_name(int(j)) for j in out[splits.numpy()]]
    more = f" and of {len(names) - 3} more" if len(names) > 3 else ""
    note = f"the grid falls apart without {', '.join(names[:3])}{more}" if names else ""
    certificate = {name: value for name, value in vars(found).items() if name != "note"}
    return OutageAnswer(**certificate, note="; ".join(filter(None, (found.note, note))), splits=splits)


def _by_panels(
    grid: PowerGrid,
    ends: Int[np.ndarray, "2 k"],
    tol: float,
    method: str,
    make: Callable[[Tensor, slice], Tensor],
    rows: int,
) -> Answer:
    """Join ``make(potentials, columns)`` for unit demands from one end to the other, computed panel by panel."""
    value, answers = torch.zeros(rows, ends.shape[1], dtype=torch.float64), []
    for first in range(0, ends.shape[1], PANEL):
        some = slice(first, first + PANEL)
        u, v = torch.as_tensor(ends[:, some])
        demand = torch.zeros(grid.graph.num_nodes, len(u), dtype=torch.float64)
        column = torch.arange(len(u))
        demand[u, column] += 1.0
        demand[v, column] -= 1.0
        answers.append(potentials(grid.graph, demand, tol=tol, method=method))
        value[:, some] = make(answers[-1].value, some)
        answers[-1] = replace(answers[-1], value=None)
    return join(answers, value) if answers else Answer(value, "none", 0, 0.0, 0.0, note="nothing is asked for")


def _factors(grid: PowerGrid, edge: Int[np.ndarray, " rows"], phi: Float[Tensor, "nodes k"]) -> Float[Tensor, "rows k"]:
    """Return the flow on some edges, zero where a branch is out of service."""
    j = torch.as_tensor(edge)
    tail, head = grid.graph.edge_index[:, j]
    return torch.where((j >= 0)[:, None], (phi[tail] - phi[head]) / grid.graph.resistance[j, None], 0.0)


def _growth(
    grid: PowerGrid, out: Int[np.ndarray, " k"], phi: Float[Tensor, "nodes k"], own: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Bound the growth of the relative error of a unit flow f in ``f / (1 - f_out)``, with -1 on the branch itself."""
    flow, left = _factors(grid, np.arange(grid.graph.num_edges), phi), (1 - own).abs()
    size, r = _heat(grid, flow), grid.graph.resistance[out].abs()
    factors = (flow / left).index_put((torch.as_tensor(out), torch.arange(len(out))), torch.tensor(1.0).double())
    return size / left * (1 + size / r.sqrt() / left) / _heat(grid, factors)


def _heat(grid: PowerGrid, flow: Float[Tensor, "edges k"]) -> Float[Tensor, " k"]:
    """Compute the norm for comparing flows, ``(sum_e |x_e| f_e^2)^(1/2)``."""
    return (flow.detach().square() * grid.graph.resistance.abs()[:, None]).sum(0).sqrt()


def _balanced(grid: PowerGrid, injection: Float[Tensor, " nodes"]) -> Float[Tensor, " nodes"]:
    """Balance injections at the reference bus of every island."""
    graph = grid.graph
    total = injection.new_zeros(graph.num_components).index_add(0, graph.components, injection)
    return injection.index_add(0, torch.as_tensor(grid.reference), -total)
