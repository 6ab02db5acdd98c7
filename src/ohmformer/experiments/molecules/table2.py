"""Table 2 of the paper, and the field's benchmarks: grids of runs, and their results as a table and a picture.

Rows are encodings; a cell is the mean over seeds with its standard deviation. Runs are saved in folders named by their
configurations, so that a grid can be resumed, and a larger one reuses the runs of a smaller one.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ohmformer.experiments.molecules.config import PRETRAINED, RunConfig, preset
from ohmformer.experiments.molecules.config import changes as settings
from ohmformer.experiments.molecules.csl import FOLDS
from ohmformer.graph.draw import save
from ohmformer.graph.extras import require
from ohmformer.graph.files import write_text
from ohmformer.graph.text_table import markdown_table

PAPER = {
    "zinc": {"none": 0.286, "lappe": 0.201, "lt-index": 0.138},
    "qm9": {"none": 0.419, "lappe": 0.227, "lt-index": 0.221},
}
PAPER["zinc22k"] = PAPER["zinc"]
"""Test errors in the paper, after 2,000 (ZINC) and 1,000 (QM9) epochs of the full model, on other splits."""
LITERATURE = """
Published on ZINC-12k, other backbones, mostly 2,000 epochs and about 500,000 parameters:

| model and encoding | test error | source |
|---|---|---|
| Graph Transformer, LapPE | 0.226 ± 0.014 | Luo et al., arXiv 2308.11129, table 2 |
| SAN, LapPE | 0.139 ± 0.006 | the same |
| Sparse Transformer: none, SignNet with all eigenvectors | 0.283, 0.102 | repository cptq/SignNet-BasisNet |
| PNA: none, SignNet with all eigenvectors | 0.128, 0.084 | the same |
| Graphormer-GD, resistances | 0.081 ± 0.009 | Luo et al., table 2 |
| GPS, RWSE | 0.070 ± 0.004 | the same |
| GRIT, RRWP | 0.059 ± 0.002 | the same |
"""
SIZES = {"zinc": {"train": 20000, "valid": 2000}, "qm9": {"train": 20000, "valid": 2000}}
"""Default numbers of training and validation molecules of a grid."""
GRID = ("none", "lappe", "lt-index", "lt-random", "rwse", "lt-diagonal", "lt-pairs")


@dataclass(frozen=True)
class Benchmark:
    """One backbone and schedule (the preset) with several encodings."""

    data: str
    preset: str
    encodings: tuple[str, ...]
    seeds: int = 3


TABLE2 = ("none", "lappe", "lt-index", "lt-index pretrain=40", "lt-diagonal", "lt-pairs")
ZINC12K = ("none", "lappe", "signnet", "rwse", "resistance", "heat", "lt-index", "lt-diagonal", "lt-pairs")
BENCHMARKS = {
    "zinc12k": Benchmark("zinc12k", "gine", ZINC12K),
    "zinc12k-pairs": Benchmark("zinc12k", "gps", ("rwse", "rrwp", "lt-all-pairs")),
    "table2-zinc": Benchmark("zinc22k", "standard", TABLE2),
    "table2-qm9": Benchmark("qm9", "standard", TABLE2),
    "csl": Benchmark("csl", "csl", ("none", "lappe", "rwse", "lt-diagonal", "lt-pairs"), FOLDS),
}
"""Tables by name, as accepted by ``ohmformer reproduce``: Table 2 as printed, on our splits, and those of the field."""


@dataclass(frozen=True)
class Run:
    """A finished run: its config, its result, and the validation error after every epoch."""

    config: RunConfig
    result: dict[str, Any]
    valid: list[float]


def grid(data: str, encodings: Sequence[str], seeds: int, preset_name: str, **changes: Any) -> list[RunConfig]:
    """Return the runs of a table, seed by seed; ``pretrain`` is dropped for encodings that are not pretrained.

    Changes for one encoding only follow its name: ``"lt-index pretrain=40"``.
    """
    return [
        preset(preset_name, data, name, **{**SIZES.get(data, {}), **_applying(name, changes), **settings(own)}, seed=seed)
        for seed in range(seeds)
        for name, *own in map(str.split, encodings)
    ]


def _applying(encoding: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in changes.items() if k != "pretrain" or encoding in PRETRAINED}


def finished(folder: Path) -> list[Run]:
    """Read all runs of a folder that have a result."""
    runs = []
    for path in sorted(folder.glob("*/result.json")):
        result = json.loads(path.read_text())
        with (path.parent / "history.csv").open() as file:
            valid = [float(row["valid"]) for row in csv.DictReader(file)]
        runs.append(Run(RunConfig.of(result["config"]), result, valid))
    return runs


def _key(config: RunConfig) -> tuple:
    """Return the key of runs that differ only in the seed."""
    return tuple(v for k, v in json.loads(config.json()).items() if k != "seed")


def markdown(runs: Iterable[Run]) -> str:
    """Format the table as Markdown: one row per configuration, smallest error last; accuracies for classes."""
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run.config), []).append(run)
    header = [
        "data", "encoding", "backbone", "epochs", "seeds", "test error", "renumbered atoms", "validation", "parameters",
        "of the encoding", "s an epoch", "paper",
    ]  # fmt: skip
    if groups and next(iter(groups.values()))[0].config.data == "csl":
        header[4:6] = "folds", "test accuracy"
    rows = []
    for group in sorted(groups.values(), key=lambda g: (g[0].config.data, g[0].config.width, -_mean(g, "test"))):
        config, first = group[0].config, group[0].result
        paper = PAPER.get(config.data, {}).get(config.encoding)
        rows.append([
            config.data, _title(config), f"{config.backbone} {config.width} wide", str(first["epochs"]), str(len(group)),
            _spread(group, "test"), _spread(group, "test_relabelled"), _spread(group, "valid"),
            f"{first['parameters']:,}", f"{first['encoding_parameters']:,}",
            f"{_mean(group, 'seconds_per_epoch'):.1f}", "" if paper is None else f"{paper:.3f}",
        ])  # fmt: skip
    return markdown_table(header, rows)


def _title(config: RunConfig) -> str:
    epochs = f"pretrained {config.pretrain} epoch{'s' * (config.pretrain > 1)}"
    extras = {
        "relabelled every epoch": config.relabel, config.order: config.order != "canonical", epochs: config.pretrain > 0,
        "networkx's rings": config.rings == "networkx", f"{config.channels} channels": config.channels != RunConfig.channels,
        "mean weights": config.average > 0, config.precision: config.precision != RunConfig.precision,
    }  # fmt: skip
    extras = [name for name, on in extras.items() if on]
    return config.encoding + (f" ({', '.join(extras)})" if extras else "")


def _mean(group: list[Run], key: str) -> float:
    return statistics.fmean(run.result[key] for run in group)


def _spread(group: list[Run], key: str) -> str:
    values = [run.result[key] for run in group]
    digits, unit = 3, ""
    if group[0].config.data == "csl":
        values, digits, unit = [100 * (1 - x) for x in values], 1, " %"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}{unit}"


def plot(runs: Sequence[Run], path: Path) -> Path:
    """Plot validation errors against epochs, with one line per run and one colour per encoding."""
    figure = require("matplotlib.figure", "train").Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(_title(run.config) for run in runs))
    for run in runs:
        title = _title(run.config)
        colour = f"C{names.index(title) % 10}"
        label = title if title not in axes.get_legend_handles_labels()[1] else None
        axes.plot(range(1, len(run.valid) + 1), run.valid, color=colour, label=label, linewidth=1.2)
    data = ", ".join(dict.fromkeys(Path(run.config.data).name for run in runs))
    what = ("share of wrong classes", "linear") if data == "csl" else ("mean absolute error", "log")
    axes.set(title=f"Validation error while training: {data}", xlabel="epoch", ylabel=what[0], yscale=what[1])
    axes.locator_params(axis="x", integer=True)
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which("{x:.2g}")
    axes.legend(frameon=False)
    return save(figure, path)


def write(runs: Sequence[Run], folder: Path, *, name: str, note: str) -> tuple[Path, Path]:
    """Write ``NAME.md`` and ``NAME.svg`` into a folder; ``note`` states the origin of the numbers."""
    if not runs:
        raise ValueError(f"expected finished runs for {name}, there are none")
    picture = plot(runs, folder / f"{name}.svg")
    title = name if name in BENCHMARKS and not name.startswith("table2") else f"Table 2: {name}"
    beside = LITERATURE if runs[0].config.data == "zinc12k" else ""
    text = f"# {title}\n\n{note}\n\n{markdown(runs)}\n{beside}\n![validation error]({name}.svg)\n"
    return write_text(folder / f"{name}.md", text), picture
