"""Weight matrices by named blocks, as HTML tables: blue behind what is positive, orange behind what is negative."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ohmformer.transformer.blocks import Blocks, Coefficient, Head, Layer

POSITIVE, NEGATIVE, MUTED = "#3b82f6", "#e8710a", "#8a8f98"


def layer_tables(layer: Layer, names: Sequence[str]) -> str:
    """Return all weight matrices of a layer as tables: ``W^V`` and ``W^Q^T W^K`` of every head, then ``W^R``."""
    matrices: list[tuple[str, Blocks]] = []
    for number, head in enumerate(layer.heads, 1):
        which = f", head {number}" if len(layer.heads) > 1 else ""
        matrices += [(f"W^V{which}", head.value), (f"W^Qᵀ W^K{which}", similarity_blocks(head))]
    if layer.skip:
        matrices.append(("W^R", layer.skip))
    return "\n".join(block_table(title, blocks, names) for title, blocks in matrices)


def similarity_blocks(head: Head) -> Blocks:
    """Return the nonzero blocks of ``W^Q^T W^K``, through which alone attention depends on query and key."""
    product: dict[tuple[str, str], Coefficient] = {}
    for (row, left), q in head.query.items():
        for (other, right), k in head.key.items():
            if row == other:
                if max(np.ndim(q), np.ndim(k)) > 1:
                    raise ValueError("expected multiples of the identity or diagonals in query and key, got a full matrix")
                value = np.multiply(q, k).tolist()
                product[left, right] = tuple(value) if isinstance(value, list) else value
    return product


def block_table(title: str, blocks: Blocks, names: Sequence[str]) -> str:
    """Return a weight matrix as a table: what a row's block receives from a column's block; larger entries are darker."""
    values = {pair: np.asarray(coefficient, dtype=float) for pair, coefficient in blocks.items()}
    largest = max((np.abs(x).max() for x in values.values()), default=0.0)

    def cell(pair: tuple[str, str]) -> str:
        if pair not in values:
            return "<td></td>"
        x = values[pair]
        opacity = round(64 + 128 * np.abs(x).max() / largest) if x.any() else 0
        return f'<td style="background: {NEGATIVE if x.sum() < 0 else POSITIVE}{opacity:02x}">{_words(x)}</td>'

    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(f"<tr><th>{escape(t)}</th>{''.join(cell((t, s)) for s in names)}</tr>" for t in names)
    return f'<table class="weights"><caption>{escape(title)}</caption><tr><th>to ← from</th>{header}</tr>{rows}</table>'


def _words(x: np.ndarray) -> str:
    """Format a coefficient: ``-0.25 I``, ``diag(0, -1)`` or ``3 x 3``."""
    if x.ndim == 2:
        return " × ".join(map(str, x.shape))
    numbers = [f"{value:.3g}".replace("-", "−") for value in x.flatten()]
    if x.ndim == 1:
        return f"diag({', '.join(numbers)})"
    return {"1": "I", "−1": "−I"}.get(numbers[0], f"{numbers[0]} I")
