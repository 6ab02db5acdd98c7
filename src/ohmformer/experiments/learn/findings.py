"""Section 4.1's findings, checked on our own runs of Figure 2.

The paper: trained on loss_1-10, larger eigenvectors are learned more accurately, with the exception of loss_2; trained on
loss_1-5, smaller ones are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import correlation, linear_regression
from typing import Any

from ohmformer.experiments.learn.sweep import Job


@dataclass(frozen=True)
class Finding:
    """One claim on one family at one depth."""

    claim: str
    graphs: str
    kind: str
    """Model and start."""
    layers: int
    losses: list[float]
    """loss_2, loss_3, ... up to the last one in the training loss."""
    holds: bool
    note: str

    def __str__(self) -> str:
        numbers = ", ".join(f"{x:.3f}" for x in self.losses)
        verdict = "holds" if self.holds else "does not hold"
        where = f"{self.graphs.upper()}, {self.kind}, {self.layers} layers"
        return f"{where}: {self.claim}: **{verdict}**{self.note} (loss_2 on: {numbers})"


def findings(results: Mapping[Job, Mapping[str, Any]]) -> list[Finding]:
    """Check the claims at the greatest depth of every family, model and start."""
    found: list[Finding] = []
    curves: dict[tuple[str, str, str], list[Job]] = {}
    for job in results:
        s = job.setting
        curves.setdefault((s.loss, s.graphs, f"{s.model} model, {s.init}"), []).append(job)
    for (loss, graphs, kind), mine in sorted(curves.items()):
        deepest = max(mine, key=lambda job: job.setting.layers)
        found.append(_judge(loss, graphs, kind, deepest.setting.layers, each_loss(results[deepest])))
    return found


def exponential_fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit log losses by a straight line in depth; return its slope and R^2.

    >>> exponential_fit([(1, -1.0), (3, -2.0), (5, -3.0)])
    (-0.5, 1.0)
    """
    depths, logs = zip(*points, strict=True)
    return linear_regression(depths, logs).slope, correlation(depths, logs) ** 2 if len(set(logs)) > 1 else 0.0


def each_loss(result: Mapping[str, Any]) -> list[float]:
    """Average ``loss_1 .. loss_n`` over seeds."""
    columns = zip(*result["seeds"]["each"], strict=True)
    return [sum(column) / len(column) for column in columns]


def _judge(trained_on: str, graphs: str, kind: str, layers: int, each: list[float]) -> Finding:
    """Check loss_3 > loss_4 > ... > loss_10 (loss_2 is the paper's exception) or loss_2 < loss_3 < loss_4 < loss_5."""
    if trained_on == "1-10":
        first, losses, better, turns = 3, each[1:10], "larger", "rises"
        note = "; loss_2 is the exception" if losses[0] < losses[1] else "; loss_2 is no exception"
        wrong = [i for i, (a, b) in enumerate(pairwise(losses[1:]), first) if not a > b]
    else:
        first, losses, better, turns, note = 2, each[1:5], "smaller", "falls", ""
        wrong = [i for i, (a, b) in enumerate(pairwise(losses), first) if not a < b]
    note += f"; it {turns} from index {', '.join(map(str, wrong))} to the next" if wrong else ""
    claim = f"trained on loss_{trained_on}, {better} eigenvectors are more accurate"
    return Finding(claim, graphs, kind, layers, losses, not wrong, note)
