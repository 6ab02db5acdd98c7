"""Questions about a graph that processes share; all of them ask together, and each gets its own rows of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.graph import Spectrum
from ohmformer.solve.answer import Answer, check_reached, check_tolerance, join
from ohmformer.solve.distributed.answers import AnswerFiles, certificate_of
from ohmformer.solve.distributed.engine import ShardPlan, check_demands, plan_for, solve
from ohmformer.solve.distributed.shard import Shard

Tell = Callable[[str], None]
"""Called, on process 0, with the plan before any work and after every panel."""


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
    """``phi = L^+ psi``, as :func:`ohmformer.potentials`: of every process the rows of its own nodes, ``shard.nodes``.

    Demands are those of the process's own nodes, in their order. With ``out``, every panel is written there as it is
    finished (:func:`read_answer` reads all of it), and a panel that is there is not solved for again.
    """
    check_tolerance(tol, "auto", ("auto",))
    psi = check_demands(shard, demands, center=center)
    found = _in_panels(shard, psi.shape[1], lambda columns: psi[:, columns], tol, panel, out, {"ask": "potentials"}, tell)
    return check_reached(found, tol)


def _in_panels(
    shard: Shard,
    columns: int,
    demands: Callable[[slice], Float[Tensor, "rows k"]],
    tol: float,
    panel: int | None,
    out: Path | str | None,
    question: dict[str, Any],
    tell: Tell | None,
    scale: float = 1.0,
) -> Answer:
    """Solve for the columns that ``demands`` gives, panel by panel, unless they are in ``out`` already."""
    plan = plan_for(shard, columns, tol, panel)
    _say(shard, tell, str(plan))
    asked = {**question, "columns": columns, "tol": tol, "panel": plan.panel}
    files = AnswerFiles(shard, out, asked)
    answers: list[Answer] = []
    for i, first in enumerate(range(0, columns, plan.panel)):
        kept = files.finished(i)
        if kept is None:
            found = solve(shard, demands(slice(first, min(first + plan.panel, columns))), tol, plan)
            found = replace(found, value=found.value * scale)
            files.save(i, {"nodes": shard.nodes, "value": found.value}, certificate_of(found))
        else:
            found = _answer(files.load(i)["value"], kept)
        answers.append(found)
        more = f"panel {i + 1} of {-(-columns // plan.panel)}: residual {found.residual:.1e}"
        _say(shard, tell, more + (", kept from before" if kept else f", {found.layers} layers"))
    answer = join(answers, torch.cat([x.value for x in answers], dim=1)) if answers else _nothing(shard, plan)
    files.close(answer)
    return answer


def _answer(value: Tensor, kept: dict[str, Any]) -> Answer:
    """An answer out of its file."""
    spectrum = None if kept["spectrum"] is None else Spectrum(*kept["spectrum"])
    return Answer(value, **{**kept, "spectrum": spectrum})


def _nothing(shard: Shard, plan: ShardPlan) -> Answer:
    return Answer(shard.root.new_zeros(len(shard.nodes), 0), plan.method, 0, 0.0, None, plan.spectrum)


def _say(shard: Shard, tell: Tell | None, text: str) -> None:
    if tell is not None and shard.group.rank == 0:
        tell(text)


def resistances(
    shard: Shard,
    pairs: Sequence[tuple[int, int]] | Int[Tensor, "pairs 2"],
    *,
    tol: float = 1e-6,
    panel: int | None = None,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Effective resistances between pairs of nodes, the same on all processes; infinite between components."""
    check_tolerance(tol, "auto", ("auto",))
    ends = torch.as_tensor(pairs, dtype=torch.long).reshape(-1, 2)
    wrong = ends[(ends < 0) | (ends >= shard.manifest.nodes)]
    if len(wrong):
        raise ValueError(f"expected nodes from 0 to {shard.manifest.nodes - 1}, got {int(wrong[0])}")
    place, column = shard.places(ends.flatten())
    component = shard.root.new_full((len(ends) * 2,), -1.0)
    component[column] = shard.component_numbers[shard.components[place]].double()
    component = shard.total(component + 1).view(-1, 2)  # one process has it, the others none
    joined = component[:, 0] == component[:, 1]
    which, sign = column // 2, (1 - 2 * (column % 2)).double()

    def demands(columns: slice) -> Tensor:
        psi = shard.root.new_zeros(len(shard.nodes), columns.stop - columns.start)
        some = (which >= columns.start) & (which < columns.stop) & joined[which]
        psi.index_put_((place[some], which[some] - columns.start), sign[some], accumulate=True)
        return psi

    found = _in_panels(shard, len(ends), demands, tol, panel, out, {"ask": "pairs", "pairs": ends.tolist()}, tell)
    drop = found.value.new_zeros(len(ends))
    drop.index_add_(0, which, sign * found.value[place, which])
    value = torch.where(joined, shard.total(drop), math.inf)
    return check_reached(replace(found, value=value), tol)
