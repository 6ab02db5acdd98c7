"""Where the networkx backend refuses, dispatches elsewhere or raises, it does as networkx does."""

from typing import Any

import networkx as nx
import numpy as np
import pytest

from ohmformer.integrations import networkx_backend as backend
from tests.integrations.test_networkx_backend import EIGEN, FLOWS, PAIRS, SPECTRAL, SUBSETS, labelled, same


def test_what_cannot_be_certified_is_left_to_the_next_backend():
    path = nx.path_graph(30)
    for u, v in path.edges:
        path[u][v]["weight"] = 10.0 ** (-u if u % 2 else u)
    with pytest.raises(NotImplementedError):
        nx.current_flow_closeness_centrality(path, weight="weight", backend="ohmformer")
    negative = nx.Graph([(0, 1, {"weight": 2.0}), (1, 2, {"weight": -4.0}), (0, 2, {"weight": 1.0})])
    with pytest.raises(NotImplementedError):
        nx.resistance_distance(negative, weight="weight", backend="ohmformer")
    for weight in (float("nan"), float("inf")):
        with pytest.raises(NotImplementedError):
            nx.fiedler_vector(nx.Graph([(0, 1), (1, 2, {"weight": weight})]), backend="ohmformer")
    with nx.config(backend_priority=["ohmformer"]):
        found = nx.resistance_distance(negative, 0, 1, weight="weight")
    assert found == pytest.approx(1 / (1 / 2 + 1 / (1 - 4)))


def test_automatic_dispatch_runs_here_unless_networkx_would_answer_otherwise(caplog):
    simple, multi = labelled(1), labelled(1, kind=nx.MultiGraph)
    loop = labelled(1)
    loop.add_edge("node 1", "node 1")
    with nx.config(backend_priority=["ohmformer"]), caplog.at_level("DEBUG", logger="networkx.utils.backends"):
        for graph, ours in ((simple, True), (multi, False), (loop, False)):
            caplog.clear()
            nx.current_flow_betweenness_centrality(graph)
            assert ("Using backend 'ohmformer'" in caplog.text) == ours
            nx.resistance_distance(graph)
            assert "Using backend 'ohmformer' for call to 'resistance_distance'" in caplog.text


@pytest.mark.parametrize("kind", [nx.Graph, nx.MultiGraph, nx.DiGraph, nx.MultiDiGraph])
def test_graphs_go_there_and_back(kind):
    graph = labelled(2, kind=kind)
    converted = backend.convert_from_nx(graph, preserve_edge_attrs=True)
    back = backend.convert_to_nx(converted)
    assert type(back) is kind
    assert list(back) == list(graph) == list(converted)
    assert nx.utils.graphs_equal(back, graph)
    assert repr(converted) == f"BackendGraph(nodes={len(graph)}, edges={graph.number_of_edges()})"


def test_a_converted_graph_can_be_asked_again_and_says_what_it_lacks():
    graph = labelled(2)
    converted: Any = backend.convert_from_nx(graph, preserve_all_attrs=True)
    same(nx.resistance_distance(converted, weight="w"), nx.resistance_distance(graph, weight="w"))
    bare: Any = backend.convert_from_nx(graph)
    same(nx.resistance_distance(bare), nx.resistance_distance(graph))
    with pytest.raises(KeyError, match="converted with edge attribute 'w'"):
        nx.resistance_distance(bare, weight="w")


def outcome(function: Any, *args: Any, **options: Any) -> Any:
    """The answer, or the type of the exception."""
    try:
        return function(*args, **options)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("graph", [nx.empty_graph(n) for n in range(4)] + [nx.path_graph(2), nx.Graph([(0, 1), (2, 3)])])
def test_tiny_and_disconnected_graphs_end_as_in_networkx(graph):
    calls = [(f, ()) for f in (*PAIRS, *FLOWS, *SPECTRAL, nx.approximate_current_flow_betweenness_centrality)]
    calls += [(f, (list(graph)[:1], list(graph)[-1:])) for f in SUBSETS]
    for function, args in calls:
        ours = outcome(function, graph, *args, backend="ohmformer")
        theirs = outcome(function, graph, *args)
        if isinstance(theirs, type) or not isinstance(theirs, (dict, float, np.ndarray)):
            assert ours == theirs
        else:
            same(ours, theirs)


def test_directed_graphs_are_refused_as_in_networkx():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    for function in (*PAIRS, *FLOWS, *EIGEN, nx.approximate_current_flow_betweenness_centrality):
        with pytest.raises(nx.NetworkXNotImplemented):
            function(graph, backend="ohmformer")
    for function in SUBSETS:
        with pytest.raises(nx.NetworkXNotImplemented):
            function(graph, [0], [1], backend="ohmformer")
    assert set(nx.spectral_ordering(graph, backend="ohmformer")) == {0, 1, 2}


@pytest.mark.parametrize(
    ("function", "args", "options"),
    [
        (nx.resistance_distance, ("nobody",), {}),
        (nx.resistance_distance, (None, "nobody"), {}),
        (nx.resistance_distance, (), {"weight": "some"}),
        (nx.resistance_distance, (), {"weight": "none has it"}),
        (nx.resistance_distance, (), {"weight": "zero"}),
        (nx.effective_graph_resistance, (), {"weight": "some"}),
        (nx.effective_graph_resistance, (), {"weight": "zero"}),
        *((f, (), {"solver": "unknown"}) for f in (*FLOWS, nx.approximate_current_flow_betweenness_centrality)),
        *((f, (["node 1"], ["node 2"]), {"solver": "unknown"}) for f in SUBSETS),
        *((f, (["nobody"], ["node 2"]), {}) for f in SUBSETS),
        *((f, (), {"method": "unknown"}) for f in SPECTRAL),
        (nx.approximate_current_flow_betweenness_centrality, (), {"epsilon": 0.0}),
        (nx.approximate_current_flow_betweenness_centrality, (), {"sample_weight": -1}),
        (nx.approximate_current_flow_betweenness_centrality, (), {"kmax": 1}),
    ],
)
def test_bad_arguments_raise_what_networkx_raises(function, args, options):
    graph = labelled(4)
    for *_, data in graph.edges(data=True):
        data["zero"] = 0.0
    theirs = outcome(function, graph, *args, **options)
    assert isinstance(theirs, type)
    assert outcome(function, graph, *args, **options, backend="ohmformer") is theirs
