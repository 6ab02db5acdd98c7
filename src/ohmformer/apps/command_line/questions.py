"""What ``ohmformer solve`` can ask: tasks, and the flags each of them uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Task(StrEnum):
    """The tasks of ``ohmformer solve``."""

    resistance = "resistance"
    """Effective resistance of every edge, or of given pairs of nodes."""
    all_pairs = "all-pairs"
    """Effective resistance of every pair of nodes."""
    kirchhoff = "kirchhoff"
    """The sum of the effective resistances of all pairs."""
    closeness = "closeness"
    """The current-flow closeness of every node, and its entry of the diagonal of L^+."""
    spanning_trees = "spanning-trees"
    """The probability that a random spanning tree contains each edge."""
    embedding = "embedding"
    """A point per node; squared distances are effective resistances."""
    flow = "flow"
    """The unit flow from one node to another, on the edges."""
    potentials = "potentials"
    """The potentials of that flow, on the nodes."""
    heat = "heat"
    """The distribution of a unit of heat from one node after some time."""
    eigenvectors = "eigenvectors"
    """The smallest nonzero eigenvalues and their eigenvectors."""
    power_flow = "power-flow"
    """The DC power flow of a MATPOWER case, on its branches."""
    ptdf = "ptdf"
    """The share of a megawatt from one bus to another that every branch carries."""
    lodf = "lodf"
    """The share of a branch's flow that every other branch takes over when it is out, and the flow then."""
    harmonic = "harmonic"
    """Potentials given on some nodes and harmonic on all others."""
    currents = "currents"
    """The sum of the currents of many pairs of nodes, on edges and nodes, and the resistances of the pairs."""
    sparsify = "sparsify"
    """A graph with fewer edges and nearly the same energies."""
    reduce = "reduce"
    """The Kron reduction of the graph to some nodes."""


USES: dict[Task, tuple[str, ...]] = {
    Task.resistance: ("--tol-of", "--eps", "--pair", "--pairs", "--explain"),
    Task.all_pairs: (
        "--tol-of",
        "--explain",
    ),
    Task.kirchhoff: ("--eps", "--explain"),
    Task.closeness: ("--eps", "--explain"),
    Task.spanning_trees: ("--eps", "--explain"),
    Task.embedding: ("--k", "--explain"),
    Task.flow: ("--tol-of", "--from", "--to", "--plot", "--explain"),
    Task.potentials: ("--tol-of", "--from", "--to", "--plot", "--explain"),
    Task.heat: ("--from", "--s", "--laplacian"),
    Task.eigenvectors: ("--k", "--laplacian"),
    Task.power_flow: (),
    Task.ptdf: ("--from", "--to"),
    Task.lodf: ("--outage",),
    Task.harmonic: ("--fixed", "--partial"),
    Task.currents: ("--pair", "--pairs", "--explain"),
    Task.sparsify: ("--eps", "--seed"),
    Task.reduce: ("--keep",),
}
"""The flags that affect each task, besides those that every task uses."""
NEEDS: dict[Task, tuple[str, ...]] = {
    Task.flow: ("--from NODE", "--to NODE"),
    Task.potentials: ("--from NODE", "--to NODE"),
    Task.heat: ("--from NODE",),
    Task.ptdf: ("--from NODE", "--to NODE"),
    Task.lodf: ("--outage ROW",),
    Task.harmonic: ("--fixed FILE",),
    Task.currents: ("--pair A B or --pairs FILE",),
    Task.sparsify: ("--eps EPS",),
    Task.reduce: ("--keep NODE or --keep FILE",),
}
"""The required flags of each task."""
UNUSED: dict[Task, tuple[str, ...]] = dict.fromkeys((Task.sparsify, Task.reduce), ("--tol", "--method"))
"""Flags that all other tasks use."""


CHOICES = {"--tol-of": ("residual", "error"), "--laplacian": ("combinatorial", "normalized")}
"""The values of flags that have few."""
BESIDE: dict[Task, tuple[str, ...]] = {Task.currents: ("nodes", "pairs"), Task.eigenvectors: ("eigenvalues",)}
"""Names of the tables that ``--out`` writes beside the first."""


@dataclass(frozen=True)
class Question:
    """A task and all its options."""

    task: Task
    source: str | None = None
    sink: str | None = None
    pairs: list[tuple[str, str]] | None = None
    s: float = 0.5
    k: int = 6
    eps: float | None = None
    tol: float | None = None
    method: str = "auto"
    outage: int | None = None
    seed: int = 0
    keep: list[str] | None = None
    fixed: tuple[dict[str, list[float]], list[str]] | None = None
    """Node values and the names of their columns."""
    partial: bool = False
    tol_of: str | None = None
    laplacian: str = "combinatorial"
    predicted: float | None = None
    """Predicted seconds, if needed and known."""


def check_flags(task: Task, given: Mapping[str, Any]) -> None:
    """Raise a ValueError for a given flag that would have no effect or a value that is none of its own."""
    if given.get("--demands") is not None:
        raise ValueError("expected --demands for a folder of shards only, got it for a graph in a file")
    for flag, value in given.items():
        if value not in (None, False) and flag not in USES[task] and any(flag in used for used in USES.values()):
            tasks = ", ".join(name for name, used in USES.items() if flag in used)
            raise ValueError(f"expected {flag} with --task {tasks} only, got it with --task {task}")
        if value is not None and flag in UNUSED.get(task, ()):
            raise ValueError(f"expected no {flag} with --task {task}, it would change nothing")
    for flag, low, high in (("--eps", 0, 1), ("--tol", 0, 1), ("--s", 0, float("inf"))):
        if given.get(flag) is not None and not low < given[flag] < high:
            bound = "> 0" if high > 1 else "in (0, 1)"
            raise ValueError(f"expected {flag} {bound}, got {given[flag]}")
    for flag, choices in CHOICES.items():
        if given.get(flag) not in (None, *choices):
            raise ValueError(f"expected {flag} {' or '.join(choices)}, got {given[flag]!r}")
    if given.get("--k") is not None and given["--k"] < 1:
        raise ValueError(f"expected --k >= 1, got {given['--k']}")
    for flags in NEEDS.get(task, ()):
        if all(given.get(flag.split()[0]) is None for flag in flags.split(" or ")):
            raise ValueError(f"expected {flags} for --task {task}, got none")


def advise(text: str, ask: Question, nodes: int) -> str:
    """Rephrase advice in an error message of the library in terms of flags."""
    limit = re.search(r"(?:more than|at most) (\d+) nodes", text)
    if limit and ask.task is Task.all_pairs:
        return (
            f"expected at most {limit[1]} nodes for --task all-pairs, got {nodes}; "
            "--pair A B or --pairs FILE answers single pairs exactly"
        )
    if ask.task is Task.currents and "pairs of sources" in text:
        return f"{text.partition(', each with')[0]}; give fewer pairs with --pair A B or --pairs FILE"
    text = text.replace("expected a method among", "expected --method among")
    return text.replace("pass partial=True for NaN there", "--partial leaves it out")
