"""The study: do models trained on ZINC-12k hold electric flow, from which layer on, and does it go with their error?

Runs of ``ohmformer reproduce zinc12k`` (and similar) are read from a folder. Probes are fitted and evaluated on test
molecules, which no model was trained on. The values of every run and split are stored, so that a study can be interrupted
and extended when more runs are finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ohmformer.encoding.pyg import Batch
from ohmformer.encoding.transforms import graph_of
from ohmformer.experiments.dream.findings import NOTE, Findings, draw
from ohmformer.experiments.dream.measure import Progress, measure
from ohmformer.experiments.dream.states import record
from ohmformer.experiments.dream.targets import Targets
from ohmformer.experiments.molecules.batches import Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.sources import tables
from ohmformer.experiments.molecules.training import measure_norms, predict
from ohmformer.graph.draw import save_both
from ohmformer.graph.files import write_text
from ohmformer.graph.text_table import markdown_table

NORMED = 2000
"""Number of training molecules used to measure the untrained model's scales and batch norms."""
RENAMED = {f"backbone.{part}.": f"embedding.{part}." for part in ("atom", "bond", "node_encoding", "edge_encoding")}
"""Weights that have other names in checkpoints of earlier versions."""


@dataclass(frozen=True)
class Probed:
    """A trained model and its probe values."""

    config: RunConfig
    test: float
    """The test error."""
    found: Findings

    @property
    def group(self) -> str:
        """The name shared by runs that differ only in the seed."""
        return f"{self.config.backbone}, {self.config.encoding}"


def run_study(
    runs: Path,
    kept: Path,
    *,
    molecules: int = 400,
    seeds: int = 3,
    smiles: Path | None = None,
    progress: Progress | None = None,
) -> list[Probed]:
    """Probe every finished run of a folder on the first test molecules; store the values of splits in ``kept``."""
    folders = sorted(path.parent for path in runs.glob("*/result.json") if (path.parent / "best.ckpt").is_file())
    if not folders:
        raise ValueError(f"expected finished runs of ohmformer train or reproduce in {runs}, there are none")
    found = []
    for i, folder in enumerate(folders):

        def tell(done: int, steps: int, words: str, i: int = i, name: str = folder.name) -> None:
            if progress is not None:
                progress(i * steps + done, len(folders) * steps, f"{name}: {words}")

        found.append(_probe_run(folder, kept / f"{folder.name}-{molecules}", molecules, seeds, smiles, tell))
    return found


def _probe_run(folder: Path, kept: Path, molecules: int, seeds: int, smiles: Path | None, progress: Progress) -> Probed:
    result = json.loads((folder / "result.json").read_text())
    config = RunConfig.of(result["config"])
    progress(0, 1, "reading molecules")
    data = RunData(config, tables(config, smiles=smiles))
    model = trained_model(folder, data)
    whole = data.table("test")
    test = data.split(whole)
    error = float(data.target.error(predict(model, test), test.y).mean()) * data.target.unit
    if abs(error - result["test"]) > 1e-3 * result["test"]:
        raise ValueError(f"expected weights with the test error {result['test']:.4f} in {folder}, got {error:.4f}")
    table = whole.rows(torch.arange(min(molecules, len(whole))))
    split, fresh = data.split(table), untrained_model(config, data)
    trained, features = _states(model, split)
    before, _ = _states(fresh, split)
    return Probed(
        config, error, measure(trained, [before], features, targets_of(split), seeds=seeds, folder=kept, progress=progress)
    )


def trained_model(folder: Path, data: RunData) -> MoleculeModel:
    """Load the best weights of a run, including runs of earlier versions."""
    state = torch.load(folder / "best.ckpt", weights_only=True, map_location="cpu")["state_dict"]
    prefix = "averaged.module." if data.config.average else "model."
    state = {_renamed(name.removeprefix(prefix)): x for name, x in state.items() if name.startswith(prefix)}
    model = _build(data.config, data)
    model.load_state_dict(state)
    return model.eval()


def untrained_model(config: RunConfig, data: RunData) -> MoleculeModel:
    """Build the model of a run before training, from another seed, with its scales measured as in training."""
    model = _build(replace(config, seed=config.seed + 1000), data)
    some = data.split(data.train_table.rows(torch.arange(min(NORMED, len(data.train_table)))))
    model.encoding.calibrate(some)
    measure_norms(model, some, config.seed)
    return model.eval()


def targets_of(split: Split) -> Targets:
    """Compute the targets of molecules, with resistance 1 for every bond."""
    every = split.take(torch.arange(len(split)))
    graphs = Batch(edge_index=torch.stack([every.source, every.target]), batch=every.owner, num_nodes=len(every.owner))
    graphs.ptr = split.nodes.start
    return Targets.of(graph_of(graphs))  # pyright: ignore[reportArgumentType]


def _build(config: RunConfig, data: RunData) -> MoleculeModel:
    return MoleculeModel(config, len(data.labels), data.most_nodes, data.target.outputs)


def _renamed(name: str) -> str:
    return next((new + name.removeprefix(old) for old, new in RENAMED.items() if name.startswith(old)), name)


def _states(model: MoleculeModel, split: Split) -> tuple[dict[str, Tensor], Tensor]:
    """Record the states after the embedding and every layer, and the input features: labels and encodings of atoms."""
    layers = [f"backbone.layers.{i}" for i in range(len(model.backbone.layers))]  # pyright: ignore[reportArgumentType]
    found = dict(
        record(
            model, ["encoding", "embedding", *layers], lambda: model(split.take(torch.arange(len(split))), torch.Generator())
        )
    )
    labels = one_hot(split.atom, model.embedding.atom.num_embeddings + 1).float()
    features = torch.cat([labels, found["encoding"]], 1) if "encoding" in found else labels
    return {"input": found["embedding"], **{f"layer {i}": found[name] for i, name in enumerate(layers, 1)}}, features


# ---------------------------------------------------------------------------------------------------- what was found


def by_group(found: Sequence[Probed]) -> dict[str, Findings]:
    """Join the findings by backbone and encoding."""
    groups: dict[str, list[Probed]] = {}
    for run in found:
        groups.setdefault(run.group, []).append(run)
    return {name: Findings.over([run.found for run in runs]) for name, runs in sorted(groups.items())}


def against_error(found: Sequence[Probed]) -> str:
    """Tabulate Spearman's rank correlations of probe values with the test error over runs, by target."""
    from scipy.stats import spearmanr

    rows, errors = [], [run.test for run in found]
    for target in found[0].found.targets:
        means = [run.found.of(target).mean(0) for run in found]
        before = [run.found.of(target, "untrained").mean(0) for run in found]
        columns = [
            [float(x[-1]) for x in means], [float(x.max()) for x in means],
            [float((x - y).max()) for x, y in zip(means, before, strict=True)],
        ]  # fmt: skip
        cells = [_correlation(spearmanr(column, errors)) if len(found) > 3 else "" for column in columns]
        rows.append([target, str(len(found)), *cells])
    return markdown_table(["target", "runs", "last layer", "best layer", "best layer beyond the untrained model"], rows)


def _correlation(result: Any) -> str:
    return f"{result.statistic:.2f} (p = {result.pvalue:.2f})"


def first_layers(groups: Mapping[str, Findings]) -> str:
    """Tabulate, for every group and target, the value at the input and at the first layer within 0.02 of the best."""
    names = next(iter(groups.values())).targets
    rows = []
    for name, found in groups.items():
        cells = []
        for target in names:
            mean, before = (found.of(target, c).mean(0) for c in ("trained", "untrained"))
            first = int((mean >= mean.max() - 0.02).nonzero()[0])
            there = f"{found.layers[first]}; untrained {float(before[first]):.2f}"
            cells.append(f"{float(mean[0]):.2f} → {float(mean[first]):.2f} ({there})")
        rows.append([name, *cells])
    return markdown_table(["model", *names], rows)


def write(found: Sequence[Probed], out: Path, note: str) -> list[Path]:
    """Write ``dream.md``, ``dream.svg`` and ``dream.png`` into a folder."""
    groups = by_group(found)
    errors: dict[str, list[float]] = {}
    for run in found:
        errors.setdefault(run.group, []).append(run.test)
    pictures = save_both(draw(groups), out / "dream")
    listed = [f"- {name}: test error {', '.join(f'{x:.4f}' for x in errors[name])}" for name in groups]
    parts = [
        "# Do they dream of electric flow?", note, NOTE, "\n".join(listed), "![values by layer](dream.svg)",
        "Input → first layer within 0.02 of the best one:", first_layers(groups),
        "Spearman's correlation with the test error over runs (negative: the more of it, the lower the error):",
        against_error(found),
        *(f"## {name}\n\n{x.paragraph()}\n\n{x.table()}" for name, x in groups.items()),
    ]  # fmt: skip
    return [write_text(out / "dream.md", "\n\n".join(parts) + "\n"), *pictures]
