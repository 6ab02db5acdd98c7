"""All probes on all layers, beside their controls.

| value | meaning |
|---|---|
| trained | the states of the model |
| degree | the same, after regressing out the degree of every node |
| untrained | the states of the same model with initial weights |
| features | the input features alone, the same for all layers |
| shuffled | the states of the model, targets shuffled among graphs of the same size |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ohmformer.encoding.pyg import Batch, Data
from ohmformer.encoding.transforms import graph_of
from ohmformer.experiments.dream import states as recording
from ohmformer.experiments.dream.findings import CONTROLS, Findings
from ohmformer.experiments.dream.probes import Parts, node_probe, pair_probe, subspace_probe
from ohmformer.experiments.dream.targets import TARGETS, Targets
from ohmformer.graph.files import write_text

FEWEST = 10
Progress = Callable[[int, int, str], None]
"""Called with (steps done, all steps, current step)."""


def probe(
    model: nn.Module,
    graphs: Sequence[Data],
    *,
    layers: Sequence[str] | None = None,
    untrained: nn.Module | None = None,
    features: Tensor | None = None,
    forward: recording.Forward | None = None,
    seeds: int = 5,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Measure how much of electric flow the node states of a model hold, layer by layer, with controls.

    Args:
        model: any model whose layers return a row for every node of a PyG batch.
        graphs: PyG data; ``edge_weight`` is read as conductances.
        layers: names of submodules, see :func:`~ohmformer.experiments.dream.states.node_states`.
        untrained: the model with initial weights; by default redrawn for every seed by ``reset_parameters``.
        features: the input features of every node; ``x`` by default.
        forward: how to run the model on a batch.
        seeds: number of splits of the graphs into those that probes are fitted and evaluated on.
        folder: where the values of every seed are stored, so that an interrupted call can be resumed.
        progress: see :data:`Progress`.
    """
    if seeds < 1:
        raise ValueError(f"expected at least 1 seed, got {seeds}")
    if len(graphs) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} graphs to fit and judge probes on, got {len(graphs)}")
    targets = Targets.of(graph_of(Batch.from_data_list([*graphs])))  # pyright: ignore[reportArgumentType]
    trained = recording.node_states(model, graphs, layers, forward)
    initial = [recording.untrained(model, seed) for seed in range(seeds)] if untrained is None else [untrained]
    before = [recording.node_states(one, graphs, layers, forward) for one in initial]
    given = recording.input_features(graphs) if features is None else features
    return measure(trained, before, given, targets, seeds=seeds, folder=folder, progress=progress)


def measure(
    trained: Mapping[str, Tensor],
    untrained: Sequence[Mapping[str, Tensor]],
    features: Tensor,
    targets: Targets,
    *,
    seeds: int,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Probe recorded states of layers for several splits of the graphs; ``folder`` stores the values of each split.

    States of untrained models are given once for all splits, or one for each.
    """
    for one in untrained:
        if list(one) != list(trained):
            raise ValueError(f"expected the same layers of the untrained model, got {list(one)} and {list(trained)}")
    found = []
    for seed in range(seeds):
        path = None if folder is None else folder / f"split{seed}.json"
        if path is None or not path.is_file():
            steps = (seed * len(trained), seeds * len(trained))
            before = untrained[seed % len(untrained)]
            values = _one_split(trained, before, features, targets, seed, progress, steps)
            if path is None:
                found.append(values)
                continue
            write_text(path, json.dumps({"layers": list(trained), "values": values}) + "\n")
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["layers"] != list(trained):
            raise ValueError(f"expected values of layers {', '.join(trained)} in {path}, got others; move it to begin again")
        found.append(kept["values"])
    values = {name: torch.tensor([split[name] for split in found], dtype=torch.float64) for name in CONTROLS}
    return Findings(list(trained), list(TARGETS), values)


def _one_split(
    trained: Mapping[str, Tensor], untrained: Mapping[str, Tensor], features: Tensor, targets: Targets, seed: int,
    progress: Progress | None, steps: tuple[int, int],
) -> dict[str, list[list[float]]]:  # fmt: skip
    """Compute all values of one split: for every control, layer and target."""
    draw = torch.Generator().manual_seed(seed)
    parts, mixed = Parts.of(len(targets.nodes), draw), targets.shuffled(draw)
    alone = _all_targets(features, targets, parts, seed)
    found: dict[str, list[list[float]]] = {name: [] for name in CONTROLS}
    for i, (layer, states) in enumerate(trained.items()):
        if progress is not None:
            progress(steps[0] + i, steps[1], f"seed {seed}, {layer}")
        found["trained"].append(_all_targets(states, targets, parts, seed))
        found["degree"].append(_all_targets(states, targets, parts, seed, degree=True))
        found["untrained"].append(_all_targets(untrained[layer], targets, parts, seed))
        found["features"].append(alone)
        found["shuffled"].append(_all_targets(states, mixed, parts, seed))
    return found


def _all_targets(states: Tensor, targets: Targets, parts: Parts, seed: int, *, degree: bool = False) -> list[float]:
    draw = torch.Generator().manual_seed(seed)
    return [
        *node_probe(states, targets, parts, degree=degree),
        pair_probe(states, targets, parts, draw, degree=degree),
        subspace_probe(states, targets, parts, degree=degree),
    ]
