"""Figures 1, 2 and 3 as lists of settings, and as pictures and tables.

Figure 1: the dense model, three functions of the Laplacian, FC and CSL graphs, log loss against depth. Figure 2: the dense
model, eigenvectors, trained on loss_1-5 (top) and loss_1-10 (bottom), their mean and each loss_i. Figure 3: the efficient
model on all of these. The trained curves are drawn beside the authors' printed numbers and each lemma's construction at
that depth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ohmformer import exact
from ohmformer.constructions import CubedHeat, GradientDescent, PowerSeriesRoot, Squaring, TaylorHeat
from ohmformer.constructions.base import Construction
from ohmformer.experiments.learn.findings import each_loss, exponential_fit, findings
from ohmformer.experiments.learn.graphs import ALIASES
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.sweep import Job
from ohmformer.experiments.learn.tasks import EIGENVECTORS, FUNCTIONS, HEAT_TIME, demand_loss, frobenius_loss
from ohmformer.graph import Graph
from ohmformer.graph.draw import save_both
from ohmformer.graph.extras import require
from ohmformer.graph.families import family
from ohmformer.graph.files import write_text
from ohmformer.graph.text_table import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILIES = ("fc", "csl")
AUTHORS: dict[tuple[str, str, str], dict[int, float]] = {
    ("electric", "csl", "dense"): {1: -0.96, 3: -1.40, 5: -2.74, 7: -4.63, 9: -5.43},
    ("resistive", "csl", "dense"): {1: -1.55, 3: -2.07, 5: -3.67, 7: -5.98, 9: -7.36},
}
"""Natural log of the Frobenius loss that the authors' notebooks print after training, by depth (mean of three seeds)."""
AUTHORS_STEPS = {1: 3100, 3: 6100, 5: 10100, 7: 14100, 9: 40100}
AUTHORS_BATCH = 10_000


@dataclass(frozen=True)
class Preset:
    """The size of an experiment: depths, seeds and steps."""

    depths: tuple[int, ...]
    seeds: int
    matrix_steps: int
    """Muon steps of 100 graphs per layer; twice as many for eigenvectors."""
    scalar_steps: int
    """Levenberg-Marquardt steps of 100 to 8,000 graphs."""
    eigenvectors: tuple[tuple[str, str], ...] = (("dense", "random"),)
    """Models and starts of Figure 2."""


PRESETS = {
    "quick": Preset((1, 3, 5), 1, 60, 40),
    "standard": Preset((1, 3, 5, 7, 9), 2, 100, 150),
    "settled": Preset((1, 3, 5, 7, 9), 2, 1000, 600, tuple(product(("dense", "efficient"), ("random", "construction")))),
    "paper": Preset((1, 3, 5, 7, 9), 3, 0, 1000),
}
"""``settled`` trains ten times as long as ``standard``, and Figure 2 from both starts with both models; ``paper`` uses the
authors' numbers of steps and graphs for matrices."""
PANELS = {
    "fig1": [(task, "") for task in FUNCTIONS],
    "fig2": [(EIGENVECTORS, "1-5"), (EIGENVECTORS, "1-10")],
    "fig3": [*((task, "") for task in FUNCTIONS), (EIGENVECTORS, "1-10")],
}


def jobs(figure: str, preset: str) -> list[Job]:
    """Return every setting of a figure."""
    if figure not in PANELS:
        raise ValueError(f"expected a figure among {', '.join(PANELS)}, got {figure!r}")
    if preset not in PRESETS:
        raise ValueError(f"expected a preset among {', '.join(PRESETS)}, got {preset!r}")
    made: list[Job] = []
    for task, loss in PANELS[figure]:
        for graphs in FAMILIES:
            for layers in PRESETS[preset].depths:
                if figure == "fig3":
                    made.append(_job(preset, task, graphs, "efficient", "random", layers, loss))
                    if task != EIGENVECTORS:
                        made.append(_job(preset, task, graphs, "efficient", "construction", layers, loss))
                elif figure == "fig2":
                    made += [_job(preset, task, graphs, *how, layers, loss) for how in PRESETS[preset].eigenvectors]
                else:  # the authors trained the dense model on the Frobenius loss
                    made.append(_job(preset, task, graphs, "dense", "random", layers, "frobenius"))
    return made


def _job(preset: str, task: str, graphs: str, model: str, init: str, layers: int, loss: str) -> Job:
    size = PRESETS[preset]
    batch = AUTHORS_BATCH if preset == "paper" and init == "random" else 0
    setting = Setting(task, graphs, model, layers, init, loss, size.seeds, batch=batch)
    if setting.scalars:
        return Job(setting, size.scalar_steps)
    if preset == "paper":
        return Job(setting, AUTHORS_STEPS[layers])
    return Job(setting, layers * size.matrix_steps * (2 if task == EIGENVECTORS else 1))


@lru_cache(maxsize=32)
def lemma_losses(task: str, graphs: str, depths: tuple[int, ...], count: int = 200) -> dict[str, list[dict[str, float]]]:
    """Measure log losses of the lemmas' constructions at each depth, by statement, on ``count`` graphs of a family (seed 0).

    Each is built for the interval that contains the eigenvalues of all these graphs. Eigenvectors have no entry: with k = 10
    columns Lemma 6 needs 11 layers for its first iteration.
    """
    if task == EIGENVECTORS:
        return {}
    draw = torch.Generator().manual_seed(0)
    graph = Graph.collate([family(ALIASES.get(graphs, graphs), 10, generator=draw, spread=2.0) for _ in range(count)])
    spectrum = exact.spectrum(graph)
    constructions: dict[str, list[Construction]] = {
        "electric": [GradientDescent(spectrum), Squaring(spectrum)],
        "resistive": [PowerSeriesRoot(spectrum)],
        "heat": [TaylorHeat(spectrum, HEAT_TIME), CubedHeat(spectrum, HEAT_TIME)],
    }
    demands = graph.projector() @ torch.randn(count, 10, 10, generator=draw, dtype=torch.float64)
    losses: dict[str, list[dict[str, float]]] = {}
    for construction in constructions[task]:
        target = construction.target(graph) @ demands
        rows = losses.setdefault(construction.statement, [])
        for layers in depths:
            answer = construction.run(graph, layers=layers) @ demands
            rows.append(
                {
                    "log_demand": float(demand_loss(answer, target).log()),
                    "log_frobenius": float(frobenius_loss(answer, target).log()),
                }
            )
    return losses


def draw_figure(figure: str, results: Mapping[Job, Mapping[str, Any]]) -> Figure:
    """Draw all panels of a figure; those of Figure 2 once for every model and start."""
    columns = 3 if figure != "fig3" else 4
    kinds = list(dict.fromkeys((job.setting.model, job.setting.init) for job in results))
    below = list(product(kinds, PANELS[figure]))
    rows = len(below) if figure == "fig2" else 1
    canvas = require("matplotlib.figure", "plot").Figure(figsize=(4.2 * columns, 4.6 * rows), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False)
    if figure == "fig2":
        for row, (kind, (_, loss)) in zip(axes, below, strict=True):
            mine = {
                job: result
                for job, result in results.items()
                if (job.setting.model, job.setting.init, job.setting.loss) == (*kind, loss)
            }
            _draw_depths(row[0], mine, f"log_{loss}", f"log loss_{loss}, trained on it, {kind[0]} model")
            for axis, graphs in zip(row[1:], FAMILIES, strict=True):
                these = {job: result for job, result in mine.items() if job.setting.graphs == graphs}
                _draw_each(axis, these, int(loss.split("-")[1]), graphs)
    else:
        for axis, (task, loss) in zip(axes[0], PANELS[figure], strict=True):
            mine = {job: result for job, result in results.items() if job.setting.task == task}
            measured = f"log_{loss}" if loss else "log_frobenius" if figure == "fig1" else "log_demand"
            _draw_depths(axis, mine, measured, task)
    return canvas


def _draw_depths(axis: Axes, results: Mapping[Job, Mapping[str, Any]], measured: str, title: str) -> None:
    """Plot trained curves by family and start, seeds as dots, with the authors' numbers and the lemmas."""
    if not results:
        return _leave_empty(axis, title)
    curves: dict[tuple[str, str], list[tuple[int, list[float]]]] = {}
    for job, result in results.items():
        key = (job.setting.graphs, job.setting.init)
        curves.setdefault(key, []).append((job.setting.layers, result["seeds"][measured]))
    colours = {"fc": "tab:blue", "csl": "tab:orange"}
    for (graphs, init), points in sorted(curves.items()):
        points.sort()
        colour, style = colours.get(graphs, "tab:green"), "-" if init == "random" else "--"
        depths = [depth for depth, _ in points]
        label = f"{graphs.upper()}, from {'random weights' if init == 'random' else 'the lemma'}"
        label += (
            ", B as it is" if any(job.setting.normalize == "features" for job in results if _is(job, graphs, init)) else ""
        )
        axis.plot(depths, [sum(v) / len(v) for _, v in points], style, color=colour, marker="o", label=label)
        for depth, values in points:
            axis.plot([depth] * len(values), values, ".", color=colour, alpha=0.4)
    setting = next(iter(results)).setting
    depths = sorted({job.setting.layers for job in results})
    for (task, graphs, model), printed in AUTHORS.items():
        if (task, model) == (setting.task, setting.model) and measured == "log_frobenius":
            known = {d: v for d, v in printed.items() if d in depths}
            label = f"{graphs.upper()}, the authors'"
            axis.plot(list(known), list(known.values()), "x:", color=colours[graphs], label=label)
    for graphs in sorted({job.setting.graphs for job in results}):
        for statement, rows in lemma_losses(setting.task, graphs, tuple(depths)).items():
            values = [row[measured] for row in rows]
            axis.plot(depths, values, ":", color=colours.get(graphs), alpha=0.6, label=f"{graphs.upper()}, {statement}")
    measure = {"log_demand": "log loss per demand", "log_frobenius": "log Frobenius loss"}
    label = measure.get(measured, f"log loss_{measured.removeprefix('log_')}")
    axis.set(title=title, xlabel="layers", ylabel=f"{label} (natural)", xticks=depths)
    _legend_below(axis)
    axis.grid(alpha=0.3)


def _leave_empty(axis: Axes, title: str) -> None:
    axis.set(title=f"{title}: not trained yet", xticks=[], yticks=[])


def _legend_below(axis: Axes) -> None:
    axis.legend(
        fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False, handlelength=4, markerscale=0.6
    )


def _is(job: Job, graphs: str, init: str) -> bool:
    return (job.setting.graphs, job.setting.init) == (graphs, init)


def _draw_each(axis: Axes, results: Mapping[Job, Mapping[str, Any]], count: int, graphs: str) -> None:
    """Plot ``loss_2 .. loss_count`` against depth; loss_1 is omitted, as in the paper."""
    if not results:
        return _leave_empty(axis, f"each loss, {graphs.upper()}")
    colormaps = require("matplotlib", "plot").colormaps
    ordered = sorted(results.items(), key=lambda item: item[0].setting.layers)
    depths = [job.setting.layers for job, _ in ordered]
    for i in range(1, count):
        means = [each_loss(result)[i] for _, result in ordered]
        colour = colormaps["viridis"](i / count)
        axis.plot(depths, [math.log(x) for x in means], marker="o", color=colour, label=f"loss_{i + 1}")
    axis.set(title=f"each loss, {graphs.upper()}", xlabel="layers", ylabel="log loss_i (natural)", xticks=depths)
    _legend_below(axis)
    axis.grid(alpha=0.3)


def table(figure: str, results: Mapping[Job, Mapping[str, Any]]) -> str:
    """Format all numbers of a figure as a Markdown table, with one row per task, family and start."""
    depths = sorted({job.setting.layers for job in results})
    several = len({job.setting.model for job in results}) > 1
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for job, result in results.items():
        s = job.setting
        task = s.task if s.task != EIGENVECTORS else f"{s.task}, trained on loss_{s.loss}"
        for name in (name for name in result if name.startswith("mean_log_")):
            measured = name.removeprefix("mean_").replace("_", " ")
            start = f"{s.model}, {s.init}" if several else s.init
            rows.setdefault((task, s.graphs, start, measured), {})[s.layers] = f"{result[name]:.2f}"
            if s.task == EIGENVECTORS and s.loss == name.removeprefix("mean_log_"):
                seeds = result["seeds"][f"log_{s.loss}"]
                rows.setdefault((task, s.graphs, start, f"loss {s.loss}"), {})[s.layers] = f"{_mean_loss(seeds):.3f}"
                spread = f"{max(seeds) - min(seeds):.2f}"
                rows.setdefault((task, s.graphs, start, f"{measured}, range over seeds"), {})[s.layers] = spread
    for task, graphs, model in AUTHORS:
        if figure == "fig1" and model == "dense":
            row = {d: f"{v:.2f}" for d, v in AUTHORS[task, graphs, model].items()}
            rows[task, graphs, "random", "log frobenius, the authors'"] = row
    for task in dict.fromkeys(job.setting.task for job in results):
        for graphs in dict.fromkeys(job.setting.graphs for job in results):
            for statement, found in lemma_losses(task, graphs, tuple(depths)).items():
                for name in ("log_demand", "log_frobenius"):
                    row = {d: f"{x[name]:.2f}" for d, x in zip(depths, found, strict=True)}
                    rows[task, graphs, f"{statement} itself", name.replace("_", " ")] = row
    lines = [[*key, *(rows[key].get(d, "") for d in depths)] for key in sorted(rows)]
    return markdown_table(["task", "graphs", "start", "measured", *map(str, depths)], lines)


def _mean_loss(logs: list[float]) -> float:
    return sum(map(math.exp, logs)) / len(logs)


def depth_curves(results: Mapping[Job, Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return the trained curves by name, as depths and log losses averaged over seeds."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for job, result in results.items():
        s = job.setting
        name = " ".join((s.task, s.graphs, s.model, s.init, s.loss))
        curves.setdefault(name, []).append((s.layers, result[f"mean_log_{s.loss}"]))
    return {name: sorted(points) for name, points in curves.items()}


def rises(results: Mapping[Job, Mapping[str, Any]]) -> list[str]:
    """Return the places where a trained curve does not fall from one depth to the next."""
    return [
        f"{name}: {x:.2f} at {a} layers, {y:.2f} at {b}"
        for name, points in depth_curves(results).items()
        for (a, x), (b, y) in pairwise(points)
        if not y < x
    ]


def write(figure: str, preset: str, results: Mapping[Job, Mapping[str, Any]], out: Path, note: str) -> list[Path]:
    """Write the picture (.svg and .png) and the table (.md) of a figure into a folder."""
    canvas = draw_figure(figure, results)
    pictures = save_both(canvas, out / f"{figure}-{preset}")
    straight = rises(results)
    verdict = "Log loss falls at every step of depth, for every curve." if not straight else "Where log loss does not fall:"
    fits = [
        f"- {name}: {rate:+.2f} a layer, R^2 {fit:.3f}"
        for name, points in depth_curves(results).items()
        if len(points) > 2
        for rate, fit in [exponential_fit(points)]
    ]
    claims = ["Findings of section 4.1:", "", *(f"- {f}" for f in findings(results)), ""] if figure == "fig2" else []
    seconds = sum(result["seconds"] for result in results.values())
    text = "\n".join(
        [
            f"# Figure {figure[-1]}, preset {preset}", "", note, "",
            f"Natural logs, means over seeds; {len(results)} settings, {seconds:.0f} s of training in all. Losses on 4,000 "
            "fresh graphs.", "", f"![Figure {figure[-1]}]({figure}-{preset}.svg)", "", table(figure, results), "", verdict,
            *(f"- {line}" for line in straight), "",
            *(["Does it fall exponentially? Log loss fitted by a straight line in depth:", *fits, ""] if fits else []),
            *claims,
        ]
    )  # fmt: skip
    return [*pictures, write_text(out / f"{figure}-{preset}.md", text)]
