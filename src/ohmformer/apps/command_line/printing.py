"""Tables on standard output: as CSV with the digits that a certificate supports, or as JSON with all of them."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

MOST, LEAST = 9, 2
"""Most digits printed, and fewest digits of a nonzero number."""


def print_table(table: Mapping[str, np.ndarray], uncertain: Mapping[str, np.ndarray] | None = None) -> None:
    """Print columns as CSV with quoting; ``uncertain`` bounds the errors in each column."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table)
    columns = [_texts(values, (uncertain or {}).get(name)) for name, values in table.items()]
    writer.writerows(zip(*columns, strict=True))


def digits(values: np.ndarray, uncertain: np.ndarray) -> np.ndarray:
    """Count the certain digits of numbers: a true value with at most this many digits is printed exactly.

    Numbers that may be zero have no certain digits.

    >>> digits(np.array([0.999999995, 1.99999996, 0.27, 1e-12]), np.array([1.3e-8, 1e-7, 0.03, 1e-9])).tolist()
    [7, 7, 2, 0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.floor(-np.log10(2 * np.asarray(uncertain)))  # an error of half a unit of this place is rounded off
        first = np.floor(np.log10(np.abs(values)))
        count = np.nan_to_num(first + 1 + place, nan=MOST, posinf=MOST, neginf=0)
    nothing = np.isfinite(values) & (np.abs(values) <= uncertain)
    return np.where(nothing, 0, np.clip(count, LEAST, MOST)).astype(np.int64)


def _texts(values: np.ndarray, uncertain: np.ndarray | None) -> list[Any]:
    if values.dtype.kind != "f":
        return values.tolist()
    count = np.full(len(values), MOST) if uncertain is None else digits(values, uncertain)
    return [f"{x + 0.0:.{n}g}" if n else "0" for x, n in zip(values.tolist(), count.tolist(), strict=True)]


def as_json(told: Mapping[str, Any]) -> str:
    """Format an object as JSON; numbers that JSON lacks become strings: ``"inf"``, ``"-inf"`` and ``"nan"``."""
    return json.dumps(_plain(told), ensure_ascii=False, allow_nan=False, indent=1)


def rows_of(table: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts keyed by column name."""
    return [dict(zip(table, row, strict=True)) for row in zip(*(x.tolist() for x in table.values()), strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
