"""A solution as it is sent to the browser: every layer at once, so that sliding needs no request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ohmformer.apps.explorer.compute import Solution, solve, solve_beside
from ohmformer.apps.explorer.methods import TASKS, explained
from ohmformer.apps.explorer.state import State
from ohmformer.apps.explorer.trained import Trained
from ohmformer.apps.explorer.weights import drawn_weights


def answered(state: State, trained: Mapping[str, Trained]) -> dict[str, Any]:
    """Solve the question of a state and write what the page shows; the second construction's answer is in ``beside``."""
    answer = shown(state, solve(state, trained), method=explained(state.task, state.method)[0])
    if (second := solve_beside(state, trained)) is not None:
        answer["beside"] = shown(state, second, method=explained(state.task, state.beside)[0])
    return answer


def shown(state: State, solution: Solution, *, method: str) -> dict[str, Any]:
    """Write what the page shows as JSON; values that are not finite become null."""
    task, finite = TASKS[state.task], solution.exact[solution.exact.isfinite()]
    return {
        "task": {"label": task.label, "value": task.value, "unit": task.unit, "signed": task.signed, "flows": task.flows},
        "method": method,
        "layers": len(solution.errors) - 1,
        "values": [_digits(row) for row in solution.values.tolist()],
        "exact": _digits(solution.exact.tolist()),
        "scale": float(finite.abs().max()) if len(finite) else 1.0,
        "errors": _digits(solution.errors),
        "bounds": _digits(solution.bounds),
        "errorLabel": solution.error_label,
        "readout": {**asdict(solution.readout), "now": _digits(solution.readout.now)},
        "weights": drawn_weights(solution.program),
    }


def _digits(values: list[Any]) -> list[float | None]:
    """Round to eight digits, more than can be seen; None for what is not finite."""
    return [float(f"{x:.8g}") if x is not None and math.isfinite(x) else None for x in values]
