"""Small pictures as inline SVG: weights by named blocks, and error curves. They take the text colour of their page.

No numbers beyond two decimals, no identifiers, no style sheet: a picture can stand any number of times on a page, light or
dark, on screen or on paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

from ohmformer.transformer.blocks import Blocks, Coefficient, Head, Layer

POSITIVE, NEGATIVE, MUTED = "#3b82f6", "#e8710a", "#8a8f98"
CELL_WIDTH, CELL_HEIGHT, MARGIN = 62, 30, 74
FLOOR = 1e-17
"""Errors below this are drawn at this."""


def draw_layer(layer: Layer, names: Sequence[str]) -> str:
    """All weight matrices of a layer, one picture each: ``W^V`` and ``W^Q^T W^K`` of every head, then ``W^R``."""
    pictures = []
    for number, head in enumerate(layer.heads, 1):
        which = f", head {number}" if len(layer.heads) > 1 else ""
        pictures.append(draw_blocks(f"W^V{which}", head.value, names))
        pictures.append(draw_blocks(f"W^Qᵀ W^K{which}", similarity_blocks(head), names))
    if layer.skip:
        pictures.append(draw_blocks("W^R", layer.skip, names))
    return "\n".join(pictures)


def similarity_blocks(head: Head) -> Blocks:
    """``W^Q^T W^K`` by its nonzero blocks, all that attention depends on."""
    product: dict[tuple[str, str], Coefficient] = {}
    for (row, left), q in head.query.items():
        for (other, right), k in head.key.items():
            if row == other:
                product[left, right] = _times(q, k)
    return product


def _times(a: Coefficient, b: Coefficient) -> Coefficient:
    """The product of two multiples of the identity or diagonals."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        raise ValueError("expected multiples of the identity or diagonals in query and key, got a full matrix")
    if isinstance(a, tuple):
        return tuple(x * y for x, y in zip(a, b if isinstance(b, tuple) else [b] * len(a), strict=True))
    return tuple(a * y for y in b) if isinstance(b, tuple) else a * b


def draw_blocks(title: str, blocks: Blocks, names: Sequence[str]) -> str:
    """A weight matrix: what a row's block receives from a column's block, blue if positive, orange if negative."""
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
    return _svg(width, height, label, parts, fixed=True)


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
    """``-0.25 I``, ``diag(0, -1)`` or ``3 x 3``."""
    if isinstance(coefficient, Tensor):
        return " × ".join(map(str, coefficient.shape))
    if isinstance(coefficient, tuple):
        return f"diag({', '.join(_number(x) for x in coefficient)})"
    return "I" if coefficient == 1 else "−I" if coefficient == -1 else f"{_number(coefficient)} I"


def _number(x: int | float) -> str:
    return f"{x:.3g}".replace("-", "−") if x else "0"


@dataclass(frozen=True)
class Curve:
    """Points ``(layers, error)`` of one line, and how it is drawn."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: str
    dashes: str = ""
    dots: bool = False
    width: int = 2
    """Wide lines are pale, so that what runs over them stays visible."""


def draw_curves(curves: Sequence[Curve], label: str) -> str:
    """Errors against layers, the errors on a logarithmic axis."""
    width, height, left, top, bottom = 560, 330, 58, 34, 44
    curves = [curve for curve in curves if curve.points]
    values = [max(y, FLOOR) for curve in curves for _, y in curve.points]
    deepest = max(max(x for curve in curves for x, _ in curve.points), 1)
    low, high = math.floor(math.log10(min(values))), max(math.ceil(math.log10(max(values))), -1)
    low = min(low, high - 2)  # at least two decades

    def place(x: int, y: float) -> tuple[float, float]:
        down = (high - math.log10(max(y, FLOOR))) / (high - low)
        return left + (width - left - 16) * x / deepest, top + (height - top - bottom) * down

    parts = _grid(place, low, high, deepest, width, height)
    for number, curve in enumerate(curves):
        stroke = f'stroke="{curve.colour}" stroke-width="{curve.width}" stroke-opacity="{1 if curve.width < 4 else 0.45}"'
        stroke += f' stroke-dasharray="{curve.dashes}"' if curve.dashes else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        parts.append(f'<polyline points="{path}" fill="none" {stroke} />')
        if curve.dots:
            for x, y in (place(*point) for point in curve.points):
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{curve.colour}" />')
        x = left + 160 * number
        parts.append(f'<line x1="{x}" y1="14" x2="{x + 30}" y2="14" {stroke} />')
        parts.append(_text(x + 38, 18, curve.name, size=12))
    return _svg(width, height, label, parts)


def _grid(
    place: Callable[[int, float], tuple[float, float]], low: int, high: int, deepest: int, width: int, height: int
) -> list[str]:
    parts = []
    step = max(1, math.ceil((high - low) / 6))
    for power in range(high, low - 1, -step):
        _, y = place(0, 10.0**power)
        parts.append(f'<line x1="58" y1="{y:.1f}" x2="{width - 16}" y2="{y:.1f}" stroke="{MUTED}" stroke-opacity="0.3" />')
        parts.append(_text(52, y + 4, f"1e{power}" if power else "1", anchor="end", size=11))
    every = _nice(deepest / 6)
    for layers in range(0, deepest + 1, every):
        x, _ = place(layers, 1.0)
        parts.append(_text(x, height - 26, str(layers), anchor="middle", size=11))
    parts.append(_text((58 + width) / 2, height - 8, "layers", anchor="middle", size=12))
    return parts


def _nice(step: float) -> int:
    """The least of 1, 2, 5, 10, 20, ... that is at least ``step``."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= step:
                return factor * power
        power *= 10


def draw_bars(bars: Mapping[str, float], label: str) -> str:
    """Ratios as bars on a logarithmic axis, 1 at the left."""
    width, row, left = 720, 40, 8
    most = max(max(bars.values(), default=1.0), 1.01)
    parts = []
    for number, (name, ratio) in enumerate(bars.items()):
        y = row * number
        length = max(math.log(max(ratio, 1.0)) / math.log(most) * (width - 90), 2.0)
        parts.append(_text(left, y + 14, name, size=12))
        parts.append(f'<rect x="{left}" y="{y + 19}" width="{length:.1f}" height="12" rx="2" fill="{POSITIVE}" />')
        parts.append(_text(left + length + 8, y + 30, f"{ratio:g} ×", size=12, weight="bold"))
    return _svg(width, row * max(len(bars), 1), label, parts)


def _text(
    x: int | float, y: int | float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="currentColor">{escape(words)}</text>'
    )


def _svg(width: int, height: int, label: str, parts: Sequence[str], *, fixed: bool = False) -> str:
    size = f' width="{width}" height="{height}"' if fixed else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"{size} role="img" '
        f'font-family="sans-serif" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
