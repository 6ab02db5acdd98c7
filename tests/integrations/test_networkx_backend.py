"""The networkx backend: networkx's own tests run through it, and its answers are networkx's."""

import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _ohmformer_networkx import get_info
from ohmformer.integrations import currents
from ohmformer.integrations import networkx_backend as backend
from tests.strategies import connected

backends: Any = import_module("networkx.utils.backends")  # its stubs know little of it
OURS = sorted(get_info()["functions"])
PAIRS = [nx.resistance_distance, nx.effective_graph_resistance]
FLOWS = [
    nx.current_flow_closeness_centrality,
    nx.current_flow_betweenness_centrality,
    nx.edge_current_flow_betweenness_centrality,
]
SUBSETS = [nx.current_flow_betweenness_centrality_subset, nx.edge_current_flow_betweenness_centrality_subset]
EIGEN = [nx.algebraic_connectivity, nx.fiedler_vector, nx.spectral_bisection]
SPECTRAL = [*EIGEN, nx.spectral_ordering]

NETWORKX_TESTS = [
    "algorithms/centrality/tests/test_current_flow_betweenness_centrality.py",
    "algorithms/centrality/tests/test_current_flow_betweenness_centrality_subset.py",
    "algorithms/centrality/tests/test_current_flow_closeness.py",
    "algorithms/tests/test_distance_measures.py::TestResistanceDistance",
    "algorithms/tests/test_distance_measures.py::TestEffectiveGraphResistance",
    "algorithms/community/tests/test_divisive.py",
    "linalg/tests/test_algebraic_connectivity.py",
]


def test_networkx_knows_the_backend_or_the_package_must_be_installed_again():
    assert "ohmformer" in backends.backends, "run `make test`, or pip install -e . again: entry points are read from there"
    assert backends.backend_info["ohmformer"] == get_info()


def test_networkx_own_tests_pass_through_the_backend(tmp_path):
    (tmp_path / "empty.ini").touch()
    log = tmp_path / "log"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(tmp_path / "empty.ini"), "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "--import-mode=append", f"--log-file={log}", "--log-file-level=DEBUG"]
    command += ["--log-file-format=%(message)s", *(str(Path(nx.__file__).parent / name) for name in NETWORKX_TESTS)]
    environment = os.environ | {
        "NETWORKX_TEST_BACKEND": "ohmformer",
        "NETWORKX_FALLBACK_TO_NX": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTEST_ADDOPTS": "",
    }
    for name in [name for name in environment if name.startswith("PYTEST_XDIST") or name == "PYTEST_CURRENT_TEST"]:
        del environment[name]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    counted = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", run.stdout.splitlines()[-1])}
    assert set(counted) <= {"passed", "warning", "warnings"}, counted
    assert counted["passed"] >= 140

    # every function ran here, in many tests, and only negative resistances were left to networkx
    text = log.read_text()
    called = Counter(re.findall(r"Using backend 'ohmformer' for call to '(\w+)'", text))
    assert sorted(called) == OURS
    assert called.total() > 300
    refused = Counter(re.findall(r"Backend 'ohmformer' raised when calling '(\w+)'", text))
    assert refused == {"resistance_distance": 1, "effective_graph_resistance": 1}
    left = set(re.findall(r"Falling back to use 'networkx' instead of 'ohmformer' backend for call to '(\w+)'", text))
    assert not left & set(OURS)


def test_what_is_announced_is_what_is_there():
    """Networkx runs whatever bears the name of one of its functions."""
    assert sorted(name for name in backends._registered_algorithms if hasattr(backend, name)) == OURS
    assert all(getattr(backend, name).__doc__ for name in OURS)


def test_importing_networkx_imports_no_torch():
    code = "import sys, networkx as nx; print('ohmformer' in nx.config.backends, {'torch', 'ohmformer'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.split(maxsplit=1) == ["True", "set()\n"]


# ---------------------------------------------------------------------------------------------------- as networkx


def labelled(seed: int, nodes: int = 11, edges: int = 20, kind: type = nx.Graph) -> Any:
    """A connected graph with string labels; weight ``w`` on every edge, ``some`` on every other."""
    rng = np.random.default_rng(seed)
    names = [f"node {i}" for i in rng.permutation(nodes)]
    ends = [(names[int(rng.integers(0, i))], names[i]) for i in range(1, nodes)]
    while len(ends) < edges:
        u, v = rng.choice(nodes, 2, replace=False)
        ends.append((names[u], names[v]))
    graph = kind()
    graph.add_nodes_from(names)
    for j, (u, v) in enumerate(ends):
        graph.add_edge(u, v, w=float(np.exp(rng.normal())), **({"some": 3.0} if j % 2 else {}))
    return graph


def same(ours: Any, theirs: Any, turned: bool = False) -> None:
    """Equal to 1e-9, keys and their order included; with ``turned``, edges as keys may be turned round."""
    if isinstance(theirs, dict):
        if turned:
            ours, theirs = ({frozenset(key): value for key, value in x.items()} for x in (ours, theirs))
            assert set(ours) == set(theirs)
        else:
            assert list(ours) == list(theirs)
        for key, value in ours.items():
            same(value, theirs[key])
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_allclose(ours * np.sign(ours @ theirs), theirs, rtol=1e-6, atol=1e-6)
    else:
        assert type(ours) is type(theirs)
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


def both(function: Any, *args: Any, **options: Any) -> None:
    same(function(*args, backend="ohmformer", **options), function(*args, backend="networkx", **options))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [None, "w", "some", "none has it"])
def test_flows_are_those_of_networkx(seed, weight):
    graph = labelled(seed)
    for function in FLOWS:
        both(function, graph, weight=weight)
    some, others = list(graph)[:4], list(graph)[3:9]
    for normalized in (True, False):
        for function in FLOWS[1:]:
            both(function, graph, normalized=normalized, weight=weight)
        for function in SUBSETS:
            both(function, graph, some, others, normalized=normalized, weight=weight)
            both(function, graph, [], others, normalized=normalized, weight=weight)


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph])
@pytest.mark.parametrize("invert", [True, False])
@pytest.mark.parametrize("weight", [None, "w"])
def test_resistances_are_those_of_networkx(kind, invert, weight):
    graph = labelled(7, kind=kind)
    graph.add_edge("node 2", "node 2", w=5.0)
    both(nx.effective_graph_resistance, graph, weight=weight, invert_weight=invert)
    for nodes in [{}, {"nodeA": "node 3"}, {"nodeB": "node 4"}, {"nodeA": "node 3", "nodeB": "node 4"}]:
        both(nx.resistance_distance, graph, weight=weight, invert_weight=invert, **nodes)
    both(nx.current_flow_closeness_centrality, graph, weight=weight)


@settings(max_examples=25)
@given(circuit=connected(), seed=st.integers(0, 1000))
def test_any_connected_circuit_has_networkx_answers(circuit, seed):
    multi = circuit.to_networkx()
    graph = nx.Graph()
    graph.add_nodes_from(multi)
    for u, v, r in multi.edges(data="resistance"):
        graph.add_edge(u, v, c=1 / r + graph.get_edge_data(u, v, {"c": 0.0})["c"])
    both(nx.resistance_distance, multi, weight="resistance")
    for function in FLOWS:
        both(function, graph, weight="c")
    rng = Random(seed)
    sources, targets = (rng.choices(list(graph), k=3) for _ in range(2))
    for function in SUBSETS:
        both(function, graph, sources, targets, weight="c")
    laplacian = nx.laplacian_matrix(graph, weight="c").toarray()
    check_fiedler(graph, laplacian, normalized=False)
    root = np.diag(1 / np.sqrt(np.diag(laplacian)))
    check_fiedler(graph, root @ laplacian @ root, normalized=True)


def check_fiedler(graph: nx.Graph, laplacian: np.ndarray, normalized: bool) -> None:
    """Against numpy: the eigenvalue, and a unit vector in its eigenspace, which may have any sign or several dimensions."""
    values, vectors = np.linalg.eigh(laplacian)
    found = nx.algebraic_connectivity(graph, weight="c", normalized=normalized, backend="ohmformer")
    assert found == pytest.approx(values[1], rel=1e-9, abs=1e-12 * values[-1])
    x = nx.fiedler_vector(graph, weight="c", normalized=normalized, backend="ohmformer")
    assert np.linalg.norm(x) == pytest.approx(1)
    space = vectors[:, np.abs(values - values[1]) < 1e-6 * values[1]]
    assert np.linalg.norm(space.T @ x) == pytest.approx(1, abs=1e-9)
    assert x[np.abs(x) > 1e-9][0] < 0


@pytest.mark.parametrize("method", ["tracemin", "tracemin_pcg", "tracemin_lu", "lanczos", "lobpcg"])
@pytest.mark.parametrize("normalized", [True, False])
def test_fiedler_vectors_are_those_of_networkx_up_to_sign(method, normalized):
    graph = labelled(3)
    ours = {"weight": "w", "normalized": normalized, "method": method, "backend": "ohmformer"}
    theirs = {"weight": "w", "normalized": normalized, "method": "tracemin_lu", "tol": 1e-10, "seed": 1}
    same(nx.fiedler_vector(graph, **ours), nx.fiedler_vector(graph, **theirs))
    sides = nx.spectral_bisection(graph, **ours)
    assert set(map(frozenset, sides)) == set(map(frozenset, nx.spectral_bisection(graph, **theirs)))
    order = nx.spectral_ordering(graph, **ours)
    assert nx.spectral_ordering(graph, **theirs) in (order, order[::-1])


def test_spectral_functions_read_magnitudes_and_skip_edges_of_no_weight():
    graph = nx.MultiGraph([(0, 1, {"weight": -2.0}), (0, 1, {"weight": 1.0}), (1, 2), (2, 2, {"weight": 9.0})])
    simple = nx.Graph([(0, 1, {"weight": 3.0}), (1, 2)])
    expected = np.linalg.eigvalsh(nx.laplacian_matrix(simple).toarray())[1]
    assert nx.algebraic_connectivity(graph, backend="ohmformer") == pytest.approx(expected)
    same(nx.fiedler_vector(graph, backend="ohmformer"), nx.fiedler_vector(simple, seed=1))
    graph.add_edge(2, 3, weight=0.0)
    assert nx.algebraic_connectivity(graph, backend="ohmformer") == 0.0
    with pytest.raises(nx.NetworkXError, match="2 components"):
        nx.fiedler_vector(graph, backend="ohmformer")


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("weight", [None, "w", "some"])
def test_sampled_betweenness_is_that_of_networkx_for_the_same_seed(normalized, weight):
    for seed in range(4):
        options = {"normalized": normalized, "weight": weight, "epsilon": 0.3, "sample_weight": 1.5, "seed": 11 + seed}
        both(nx.approximate_current_flow_betweenness_centrality, edited(labelled(seed)), **options)


def edited(graph: Any) -> Any:
    """The same graph after edges were removed and added again, so that neighbours stand in another order than nodes."""
    for u, v, data in list(graph.edges(data=True))[::3]:
        graph.remove_edge(u, v)
        graph.add_edge(v, u, **data)
    return graph


@pytest.mark.parametrize(
    "make", [lambda seed: labelled(seed), lambda seed: edited(labelled(seed)), lambda _: nx.karate_club_graph()]
)
def test_edges_are_named_as_in_networkx(make):
    for seed in range(6):
        graph = make(seed)
        some, others = list(graph)[:4], list(graph)[3:9]
        both(nx.edge_current_flow_betweenness_centrality, graph)
        both(nx.edge_current_flow_betweenness_centrality_subset, graph, some, others)


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph, nx.DiGraph])
@pytest.mark.parametrize("normalized", [True, False])
def test_spectral_orderings_are_those_of_networkx(kind, normalized):
    """Weights are drawn, so eigenvalues are simple and entries differ; labels are strings, integers and a mixture."""
    for seed in range(8):
        first = labelled(seed, kind=kind)
        second = labelled(seed + 100, nodes=9, edges=14, kind=kind)
        second = nx.relabel_nodes(second, {v: 7 * int(v.split()[1]) + 30 for v in second})
        graph = nx.compose(first, second)
        graph.add_edge(1000, 5, w=1.0)
        graph.add_node("alone")
        options = {"weight": "w", "normalized": normalized}
        ours = nx.spectral_ordering(graph, **options, backend="ohmformer")
        assert ours == nx.spectral_ordering(graph, **options, seed=seed, tol=1e-10)


def test_sampled_betweenness_comes_within_epsilon_of_the_truth():
    graph = labelled(6, nodes=30, edges=60)
    truth = nx.current_flow_betweenness_centrality(graph, weight="w")
    options = {"weight": "w", "epsilon": 0.1, "backend": "ohmformer"}
    estimate = nx.approximate_current_flow_betweenness_centrality(graph, seed=1, **options)
    assert estimate == nx.approximate_current_flow_betweenness_centrality(graph, seed=1, **options)
    assert estimate != nx.approximate_current_flow_betweenness_centrality(graph, seed=2, **options)
    assert max(abs(estimate[v] - truth[v]) for v in graph) < 0.1


def test_parallel_edges_count_as_one_of_their_summed_conductance():
    graph = labelled(8, kind=nx.MultiGraph)
    graph.add_edge("node 0", "node 0", w=7.0)
    simple = nx.Graph()
    simple.add_nodes_from(graph)
    for u, v, w in graph.edges(data="w"):
        if u != v:
            simple.add_edge(u, v, w=w + simple.get_edge_data(u, v, {"w": 0.0})["w"])
    some, others = list(graph)[:3], list(graph)[5:]
    same(
        nx.current_flow_betweenness_centrality(graph, weight="w", backend="ohmformer"),
        nx.current_flow_betweenness_centrality(simple, weight="w"),
    )
    same(
        nx.current_flow_betweenness_centrality_subset(graph, some, others, weight="w", backend="ohmformer"),
        nx.current_flow_betweenness_centrality_subset(simple, some, others, weight="w"),
    )
    edges = nx.edge_current_flow_betweenness_centrality(graph, weight="w", backend="ohmformer")
    assert edges.pop(("node 0", "node 0")) == 0.0
    same(edges, nx.edge_current_flow_betweenness_centrality(simple, weight="w"), turned=True)


def test_an_edge_of_no_conductance_carries_nothing_and_connects_nothing():
    graph = nx.cycle_graph(5)
    graph.add_edge(0, 2, weight=0.0)
    same(
        nx.edge_current_flow_betweenness_centrality(graph, weight="weight", backend="ohmformer"),
        nx.edge_current_flow_betweenness_centrality(nx.cycle_graph(5)) | {(0, 2): 0.0},
        turned=True,
    )
    graph.add_edge(4, 5, weight=0.0)
    with pytest.raises(nx.NetworkXError, match="2 components"):
        nx.current_flow_closeness_centrality(graph, weight="weight", backend="ohmformer")
    assert nx.effective_graph_resistance(graph, "weight", invert_weight=False, backend="ohmformer") == float("inf")


# ---------------------------------------------------------------------------------------------------- sizes and slices


def test_slices_change_no_answer(monkeypatch):
    graph = labelled(9, nodes=40, edges=90)
    some, others = list(graph)[:5], list(graph)[7:30]

    def answers() -> list[Any]:
        return [
            nx.resistance_distance(graph, "node 1", weight="w", backend="ohmformer"),
            *(function(graph, weight="w", backend="ohmformer") for function in FLOWS),
            *(function(graph, some, others, weight="w", backend="ohmformer") for function in SUBSETS),
            nx.approximate_current_flow_betweenness_centrality(graph, weight="w", seed=3, backend="ohmformer"),
        ]

    whole = answers()
    for cells in (90, 300):  # 2 and 7 columns a slice; 16 x 90 < 40 x 40, so the columns of L^+ do not fit
        monkeypatch.setattr(currents, "CELLS", cells)
        for mine, theirs in zip(answers(), whole, strict=True):
            same(mine, theirs)


def test_graphs_of_many_nodes_go_through_the_sparse_engines(monkeypatch):
    graph = nx.connected_watts_strogatz_graph(500, 6, 0.2, seed=4)
    rng = np.random.default_rng(4)
    for *_, data in graph.edges(data=True):
        data["w"] = float(rng.uniform(0.5, 2))
    inverse = np.linalg.pinv(nx.laplacian_matrix(graph, weight="w").toarray(), hermitian=True)
    far = len(graph) * np.diag(inverse) + np.trace(inverse)
    from_seven = np.diag(inverse) + inverse[7, 7] - 2 * inverse[7]
    for dense, cells in ((currents.DENSE, currents.CELLS), (100, currents.CELLS), (100, 50_000)):
        monkeypatch.setattr(currents, "CELLS", cells)
        monkeypatch.setattr(currents, "DENSE", dense)
        monkeypatch.setattr(backend, "DENSE", dense)
        found = nx.current_flow_closeness_centrality(graph, weight="w", backend="ohmformer")
        np.testing.assert_allclose(list(found.values()), 1 / far, rtol=1e-8)
        found = nx.resistance_distance(graph, 7, weight="w", invert_weight=False, backend="ohmformer")
        assert isinstance(found, dict)
        np.testing.assert_allclose(list(found.values()), from_seven, rtol=1e-8, atol=1e-12)
    with pytest.raises(NotImplementedError, match="for the given arguments"):
        nx.fiedler_vector(graph, backend="ohmformer")
