"""Charts of the report and the gallery, drawn by matplotlib and put into the page as SVG images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ohmformer.apps.report.weights import POSITIVE
from ohmformer.graph.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-17
"""Smaller errors are drawn at this value."""
STYLE = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "ohmformer", "font.family": "sans-serif"}
"""Text is stored as text and dollar signs are literal; equal charts give identical files."""


@dataclass(frozen=True)
class Curve:
    """The points ``(layers, error)`` of one line and its matplotlib style."""

    name: str
    points: Sequence[tuple[int, float]]
    style: Mapping[str, Any]


def draw_curves(curves: Sequence[Curve], label: str) -> str:
    """Plot errors against layers on a logarithmic axis; return an HTML image."""
    with _style():
        figure, axes = _figure(5.6, 3.3)
        for curve in curves:
            if curve.points:
                layers, errors = zip(*curve.points, strict=True)
                axes.plot(layers, [max(error, FLOOR) for error in errors], label=curve.name, **curve.style)
        axes.set(xlabel="layers", ylabel="error", yscale="log")
        bottom, top = axes.get_ylim()
        axes.set_ylim(min(bottom, top / 100), top)  # at least two decades
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.set_major_formatter(lambda error, _: f"{error:g}")
        axes.minorticks_off()
        axes.grid(axis="y", alpha=0.3)
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        return _image(figure, label)


def draw_bars(bars: Mapping[str, float], label: str) -> str:
    """Draw ratios as bars on a logarithmic axis that starts at 1; return an HTML image."""
    with _style():
        figure, axes = _figure(7.2, 0.4 * max(len(bars), 1) + 0.2)
        positions = range(len(bars))
        drawn = axes.barh(positions, [max(ratio, 1.01) for ratio in bars.values()], height=0.32, color=POSITIVE)
        axes.bar_label(drawn, [f"{ratio:g} ×" for ratio in bars.values()], padding=4, weight="bold")
        for position, name in zip(positions, bars, strict=True):
            axes.annotate(name, (1, position - 0.22), va="bottom", fontsize=9)
        axes.set(xscale="log", xlim=(1, max([*bars.values(), 1.1]) ** 1.12), ylim=(max(len(bars), 1) - 0.6, -0.85))
        axes.set_axis_off()
        return _image(figure, label)


@contextmanager
def _style() -> Iterator[None]:
    """Apply the style of the charts within a ``with`` block."""
    with require("matplotlib", "report").rc_context(STYLE):
        yield


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure with one pair of axes; sizes are in inches."""
    figure = require("matplotlib.figure", "report").Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _image(figure: Figure, label: str) -> str:
    """Return a figure as an HTML image with embedded data."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, bbox_inches="tight")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(label)}" />'
