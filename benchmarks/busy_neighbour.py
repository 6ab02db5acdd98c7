"""1,000 molecules on an idle machine, and with a neighbour on every core: how much longer they take."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

import ohmformer as ohm
from measure import write_table
from ohmformer import Graph
from ohmformer.encoding import LinearTransformerPE
from solve import molecules


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    time.sleep(1)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median of the seconds that something takes; pauses between, as between the batches of a program."""
    took = []
    for _ in range(repeats + 2):
        time.sleep(0.1)
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return statistics.median(took[2:])


def main() -> None:
    """Measure, print, and write results/busy_neighbour.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    batch, cores = Graph.collate(molecules(1000, seed=2)), os.cpu_count() or 1
    both = torch.cat([batch.edge_index, batch.edge_index.flip(0)], dim=1)
    model = LinearTransformerPE(16, seed=0).eval()

    def encode() -> None:
        with torch.no_grad():
            model(both, batch=batch.batch, num_nodes=batch.num_nodes)

    asked: dict[str, Callable[[], object]] = {
        "resistances of all pairs": lambda: ohm.effective_resistance(replace(batch), "all"),
        "resistances of all edges": lambda: ohm.effective_resistance(replace(batch)),
        "potentials": lambda: ohm.potentials(replace(batch), demand),
        "encoding, 16 numbers a node": encode,
    }
    demand = batch.center(torch.randn(batch.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    idle = {name: seconds(run, arguments.repeats) for name, run in asked.items()}
    with neighbours(cores):
        busy = {name: seconds(run, arguments.repeats) for name, run in asked.items()}
    rows = [
        [name, f"{1e3 * idle[name]:.3g} ms", f"{1e3 * busy[name]:.3g} ms", f"{busy[name] / idle[name]:.2f}"]
        for name in asked
    ]
    print(*("  ".join(row) for row in rows), sep="\n", flush=True)
    header = ["question about 1,000 molecules", "idle", f"{cores} neighbours on {cores} cores", "busy / idle"]
    notes = (
        f"Medians of {arguments.repeats}. Half of every core is what is left, so that 2 is the least that can be expected."
    )
    print(write_table("busy_neighbour", "1,000 molecules beside busy neighbours", header, rows, notes=notes))


if __name__ == "__main__":
    main()
