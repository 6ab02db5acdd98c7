"""Weight matrices by named blocks, drawn as inline SVG in the text colour of the page.

They have neither identifiers nor a style sheet, so that a picture can be repeated on a page, light or dark, on screen or on
paper, and every one is described in words for screen readers. Charts are drawn by matplotlib, in :mod:`.charts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import Tensor

from ohmformer.transformer.blocks import Blocks, Coefficient, Head, Layer

POSITIVE, NEGATIVE, MUTED = "#3b82f6", "#e8710a", "#8a8f98"
CELL_WIDTH, CELL_HEIGHT, MARGIN = 62, 30, 74


def draw_layer(layer: Layer, names: Sequence[str]) -> str:
    """Draw all weight matrices of a layer, one picture each: ``W^V`` and ``W^Q^T W^K`` of every head, then ``W^R``."""
    pictures = []
    for number, head in enumerate(layer.heads, 1):
        which = f", head {number}" if len(layer.heads) > 1 else ""
        pictures.append(draw_blocks(f"W^V{which}", head.value, names))
        pictures.append(draw_blocks(f"W^Qᵀ W^K{which}", similarity_blocks(head), names))
    if layer.skip:
        pictures.append(draw_blocks("W^R", layer.skip, names))
    return "\n".join(pictures)


def similarity_blocks(head: Head) -> Blocks:
    """Multiply ``W^Q^T W^K``, by nonzero blocks; attention depends on query and key through this product only."""
    product: dict[tuple[str, str], Coefficient] = {}
    for (row, left), q in head.query.items():
        for (other, right), k in head.key.items():
            if row == other:
                product[left, right] = _times(q, k)
    return product


def _times(a: Coefficient, b: Coefficient) -> Coefficient:
    """Multiply two coefficients, each a multiple of the identity or a diagonal."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        raise ValueError("expected multiples of the identity or diagonals in query and key, got a full matrix")
    if isinstance(a, tuple):
        return tuple(x * y for x, y in zip(a, b if isinstance(b, tuple) else [b] * len(a), strict=True))
    return tuple(a * y for y in b) if isinstance(b, tuple) else a * b


def draw_blocks(title: str, blocks: Blocks, names: Sequence[str]) -> str:
    """Draw a weight matrix: what a row's block receives from a column's block, blue if positive, orange if negative."""
    width, height = MARGIN + CELL_WIDTH * len(names) + 2, 58 + CELL_HEIGHT * len(names)
    parts = [_text(2, 16, title, weight="bold", size=13)]
    for i, name in enumerate(names):
        parts.append(_text(MARGIN + CELL_WIDTH * (i + 0.5), 46, name, anchor="middle", size=11))
        parts.append(_text(MARGIN - 6, 54 + CELL_HEIGHT * (i + 0.5) + 4, name, anchor="end", size=11))
    largest = max((_size(c) for c in blocks.values()), default=0.0)
    for i, target in enumerate(names):
        for j, source in enumerate(names):
            x, y = MARGIN + CELL_WIDTH * j, 54 + CELL_HEIGHT * i
            coefficient = blocks.get((target, source))
            fill, opacity = "none", 0.0
            if coefficient is not None and _size(coefficient) > 0:
                fill = NEGATIVE if _negative(coefficient) else POSITIVE
                opacity = 0.25 + 0.5 * _size(coefficient) / largest
            parts.append(
                f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" fill="{fill}" '
                f'fill-opacity="{opacity:.2f}" stroke="{MUTED}" stroke-opacity="0.5" />'
            )
            if coefficient is not None:
                words = _words(coefficient)
                size = 11 if len(words) <= 8 else 9
                parts.append(_text(x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2 + 4, words, anchor="middle", size=size))
    label = f"{title}: " + ", ".join(f"{words} from {s} to {t}" for (t, s), words in _described(blocks))
    return _svg(width, height, label, parts)


def _described(blocks: Blocks) -> list[tuple[tuple[str, str], str]]:
    return [(pair, _words(coefficient)) for pair, coefficient in blocks.items()]


def _size(coefficient: Coefficient) -> int | float:
    if isinstance(coefficient, Tensor):
        return float(coefficient.abs().max())
    return max(abs(x) for x in coefficient) if isinstance(coefficient, tuple) else abs(coefficient)


def _negative(coefficient: Coefficient) -> bool:
    if isinstance(coefficient, Tensor):
        return float(coefficient.sum()) < 0
    return (sum(coefficient) if isinstance(coefficient, tuple) else coefficient) < 0


def _words(coefficient: Coefficient) -> str:
    """Write a coefficient: ``-0.25 I``, ``diag(0, -1)`` or ``3 x 3``."""
    if isinstance(coefficient, Tensor):
        return " × ".join(map(str, coefficient.shape))
    if isinstance(coefficient, tuple):
        return f"diag({', '.join(_number(x) for x in coefficient)})"
    return "I" if coefficient == 1 else "−I" if coefficient == -1 else f"{_number(coefficient)} I"


def _number(x: int | float) -> str:
    return f"{x:.3g}".replace("-", "−") if x else "0"


def _text(
    x: int | float, y: int | float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="currentColor">{escape(words)}</text>'
    )


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="sans-serif" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
