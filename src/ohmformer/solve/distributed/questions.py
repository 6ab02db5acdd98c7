"""Questions about a graph that processes share; all of them ask together, and each gets its own rows of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.solve.answer import Answer, check_reached, check_tolerance
from ohmformer.solve.distributed.answers import Asked, Tell, fingerprint, in_panels
from ohmformer.solve.distributed.engine import check_demands, plan_for, solve
from ohmformer.solve.distributed.noise import Noise
from ohmformer.solve.distributed.shard import Shard


def potentials(
    shard: Shard,
    demands: Float[Tensor, "rows k"],
    *,
    tol: float = 1e-6,
    center: bool = False,
    panel: int | None = None,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Compute ``phi = L^+ psi`` as :func:`ohmformer.potentials`; each process gets the rows of its ``shard.nodes``.

    Demands are those of the process's own nodes, in their order. With ``out``, every finished panel is written there
    (:func:`read_answer` reads the whole answer), and existing panels are not solved for again.
    """
    psi = check_demands(shard, demands, center=center)
    question = {"ask": "potentials", "demands": None if out is None else fingerprint(shard, demands)}
    return _solved(Asked(shard, question, tol, panel, out, tell), psi.shape[1], lambda columns: psi[:, columns])


def _solved(asked: Asked, columns: int, demands: Callable[[slice], Float[Tensor, "rows k"]]) -> Answer:
    """Compute potentials for a number of columns of demands, which are created when needed."""
    shard, tol = asked.shard, asked.tol
    check_tolerance(tol, "auto", ("auto",))
    plan = plan_for(shard, columns, tol, asked.panel)
    asked.say(str(plan))
    asked = replace(asked, panel=plan.panel)
    return check_reached(in_panels(asked, columns, lambda some: solve(shard, demands(some), tol, plan)), tol)


def resistances(
    shard: Shard,
    pairs: Sequence[tuple[int, int]] | Int[Tensor, "pairs 2"],
    *,
    tol: float = 1e-6,
    panel: int | None = None,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Compute effective resistances between pairs of nodes, the same on all processes; ``inf`` between components."""
    ends = torch.as_tensor(pairs, dtype=torch.long).reshape(-1, 2)
    wrong = ends[(ends < 0) | (ends >= shard.manifest.nodes)]
    if len(wrong):
        raise ValueError(f"expected nodes from 0 to {shard.manifest.nodes - 1}, got {int(wrong[0])}")
    place, column = shard.places(ends.flatten())
    component = shard.root.new_zeros(len(ends) * 2)
    component[column] = 1 + shard.component_numbers[shard.components[place]].double()
    component = shard.total(component).view(-1, 2)  # nonzero on one process only
    joined = component[:, 0] == component[:, 1]
    which, sign = column // 2, (1 - 2 * (column % 2)).double()

    def demands(columns: slice) -> Tensor:
        psi = shard.root.new_zeros(len(shard.nodes), columns.stop - columns.start)
        some = (which >= columns.start) & (which < columns.stop) & joined[which]
        return psi.index_put_((place[some], which[some] - columns.start), sign[some], accumulate=True)

    asked = Asked(shard, {"ask": "pairs", "pairs": ends.tolist()}, tol, panel, out, tell)
    found = _solved(asked, len(ends), demands)
    drop = found.value.new_zeros(len(ends)).index_add_(0, which, sign * found.value[place, which])
    return replace(found, value=torch.where(joined, shard.total(drop), math.inf))


def resistive_embedding(
    shard: Shard,
    dim: int,
    *,
    seed: int = 0,
    tol: float = 1e-6,
    panel: int | None = None,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Compute ``dim`` coordinates of every node, whose squared distances are effective resistances on average.

    As :func:`ohmformer.resistive_embedding`; for a given seed the same for any number of processes.
    """
    if dim < 1:
        raise ValueError(f"expected dim >= 1, got {dim}")
    noise = Noise(shard, seed)

    def demands(columns: slice) -> Tensor:
        return noise.demands(columns) / math.sqrt(dim)

    return _solved(Asked(shard, {"ask": "resistive embedding", "seed": seed}, tol, panel, out, tell), dim, demands)
