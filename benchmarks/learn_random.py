"""From random weights: the dense model against the numbers the authors print, and eigenvectors within ten minutes.

    python benchmarks/learn_random.py [--processes 2] [--steps 500]

Finished settings are kept in runs/learn-random and not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from measure import write_table
from ohmformer.experiments.learn import checkpoint
from ohmformer.experiments.learn.figures import AUTHORS, AUTHORS_BATCH, AUTHORS_STEPS
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.sweep import Job, run_all
from ohmformer.experiments.learn.train import evaluate

RUNS = Path("runs/learn-random")
AUTHORS_KEEP = 10
"""Steps for which the authors keep a batch."""
EIGENVECTORS = Job(Setting("eigenvectors", "csl", "efficient", 9, "random", seeds=1), 22_000)
EIGENVECTORS_GOAL = 0.08
OTHER_GRAPHS = 12345
"""The seed of test graphs that nobody looked at while recipes were chosen."""


def on_other_graphs(job: Job, measured: str) -> float:
    """The mean over seeds of a trained model's log loss on test graphs of its own."""
    logs = evaluate(checkpoint.load(RUNS / "checkpoints" / job.name), seed=OTHER_GRAPHS)[measured]
    return sum(logs) / len(logs)


def main() -> None:
    """Train, print, and write results/learn_random.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500, help="steps of 100 graphs for every layer")
    arguments = parser.parse_args()
    dense = [
        Job(Setting(task, "csl", "dense", layers, "random", "frobenius"), arguments.steps * layers)
        for task in ("electric", "resistive")
        for layers in AUTHORS_STEPS
    ]
    results = run_all(
        [*dense, EIGENVECTORS],
        RUNS,
        workers=arguments.processes,
        watch=lambda name, done, of: print(done, of, name, flush=True),
    )
    rows = []
    for job in dense:
        found, setting = results[job], job.setting
        logs = found["seeds"]["log_frobenius"]
        theirs = AUTHORS_STEPS[setting.layers] // AUTHORS_KEEP * AUTHORS_BATCH
        printed = AUTHORS[setting.task, "csl", "dense"][setting.layers]
        rows.append(
            [
                setting.task, str(setting.layers), f"{found['mean_log_frobenius']:.2f}",
                f"{min(logs):.2f} to {max(logs):.2f}", f"{on_other_graphs(job, 'log_frobenius'):.2f}", f"{printed:.2f}",
                f"{found['samples']:,}",
                f"{found['samples'] / theirs:.1%}", f"{found['seconds']:.0f} s",
            ]
        )  # fmt: skip
    print(*("  ".join(row) for row in rows), sep="\n")
    header = [
        "task", "layers", "log Frobenius loss", "over seeds", "on other graphs", "the authors'", "graphs a seed",
        "of theirs", "took",
    ]  # fmt: skip
    found = results[EIGENVECTORS]
    each = found["seeds"]["each"][0]
    notes = (
        "Natural logs on 4,000 fresh graphs, means of seeds 0, 1, 2, which train as one batch on one thread. The authors' "
        "graphs are counted once, though each is seen in ten steps. Times are by the clock, on a machine that did "
        "other things and paused the longer runs for theirs. Recipes were chosen while looking at these test graphs; the "
        "other graphs, again 4,000, were drawn for this column.\n\n"
        f"Eigenvectors, CSL, efficient, 9 layers, seed 0: mean of the ten losses {math.exp(found['mean_log_1-10']):.3f} "
        f"(on other graphs {math.exp(on_other_graphs(EIGENVECTORS, 'log_1-10')):.3f}) after {found['seconds']:.0f} s and "
        f"{found['samples']:,} graphs (goal {EIGENVECTORS_GOAL}); each: "
        f"{', '.join(f'{x:.3f}' for x in each)}."
    )
    print(json.dumps({"eigenvectors": found["mean_log_1-10"], "seconds": found["seconds"]}))
    print(write_table("learn_random", "Trained from random weights", header, rows, notes=notes))


if __name__ == "__main__":
    main()
