"""Exact resistances of all edges by selected inversion, against LAPACK, trees, Foster's theorem and each other."""

import gc
import weakref

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.solve import factor, selected

GRADIENT_NODES = 7


def graph_of(nodes: int, pairs: np.ndarray, resistance: np.ndarray) -> Graph:
    return Graph.from_edges(torch.as_tensor(pairs), num_nodes=nodes, resistance=torch.as_tensor(resistance))


def random_pairs(nodes: int, more: int, seed: int) -> np.ndarray:
    """A random tree, and more edges at random, some of them parallel to others."""
    draw = np.random.default_rng(seed)
    tree = np.stack([draw.integers(0, np.arange(1, nodes)), np.arange(1, nodes)], axis=1)
    pairs = draw.integers(0, nodes, (more, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return np.concatenate([tree, pairs, pairs[: more // 10]])


def grid_pairs(side: int) -> np.ndarray:
    node = np.arange(side * side).reshape(side, side)
    right = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    return np.concatenate([right, np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)])


def weighted(nodes: int, pairs: np.ndarray, orders: float = 1.0, seed: int = 0) -> Graph:
    """Resistances over so many orders of magnitude."""
    return graph_of(nodes, pairs, 10 ** np.random.default_rng(seed).uniform(-orders / 2, orders / 2, len(pairs)))


GRAPHS = {
    "random": lambda: weighted(600, random_pairs(600, 500, seed=1)),
    "grid": lambda: weighted(23 * 23, grid_pairs(23)),
    "disconnected": lambda: weighted(
        700, np.concatenate([grid_pairs(15), 230 + random_pairs(300, 200, seed=2), [[690, 691]]])
    ),
    "star and ring": lambda: weighted(
        900, np.concatenate([[(0, i) for i in range(1, 450)], [(i, i + 1) for i in range(449, 899)], [(899, 450)]])
    ),
}


@pytest.fixture(params=GRAPHS)
def graph(request) -> Graph:
    return GRAPHS[request.param]()


def by_lapack(graph: Graph) -> torch.Tensor:
    inverse, (u, v) = exact.pinv(graph), graph.edge_index
    return inverse[u, u] + inverse[v, v] - 2 * inverse[u, v]


def fosters_sum(graph: Graph, value: torch.Tensor) -> float:
    return float((value / graph.resistance).sum())


def test_resistances_of_all_edges_are_lapacks(graph):
    answer = ohm.effective_resistance(graph)
    assert answer.method == "selected inversion"
    assert answer.residual < 1e-12
    assert "Foster" in answer.note
    torch.testing.assert_close(answer.value, by_lapack(graph), rtol=1e-9, atol=0)


def test_spanning_tree_marginals_add_up_to_fosters_number(graph):
    for asked in (graph, weighted(graph.num_nodes, graph.edge_index.t().numpy(), orders=10.0)):
        rank = asked.num_nodes - asked.num_components
        value = ohm.effective_resistance(asked).value
        assert fosters_sum(asked, value) == pytest.approx(rank, rel=1e-12)
        assert bool((value <= asked.resistance * (1 + 1e-12)).all())


@pytest.mark.parametrize("orders", [0.0, 10.0, 20.0])
def test_edges_of_a_tree_keep_their_resistance(orders):
    tree = weighted(5000, random_pairs(5000, 0, seed=3), orders)
    torch.testing.assert_close(ohm.effective_resistance(tree).value, tree.resistance, rtol=1e-15, atol=0)


def test_resistances_over_ten_orders_of_magnitude_are_right_edge_by_edge():
    side, spread = 21, 10.0
    graph = weighted(side * side, grid_pairs(side), spread)
    value = ohm.effective_resistance(graph).value
    torch.testing.assert_close(value, by_high_precision(graph), rtol=1e-10, atol=0)


def by_high_precision(graph: Graph) -> torch.Tensor:
    """Resistances by dense elimination in long double."""
    n, (u, v) = graph.num_nodes, graph.edge_index.numpy()
    c = 1 / graph.resistance.numpy().astype(np.longdouble)
    matrix = np.zeros((n, n), dtype=np.longdouble)
    np.add.at(matrix, (u, u), c)
    np.add.at(matrix, (v, v), c)
    np.add.at(matrix, (u, v), -c)
    np.add.at(matrix, (v, u), -c)
    a = matrix[1:, 1:].copy()
    demand = np.zeros((n, len(u)), dtype=np.longdouble)
    demand[u, np.arange(len(u))], demand[v, np.arange(len(u))] = 1, -1
    b = demand[1:].copy()
    for j in range(n - 1):  # positive definite: no pivots
        below = a[j + 1 :, j] / a[j, j]
        rows = np.nonzero(below)[0]
        a[j + 1 + rows, j:] -= below[rows, None] * a[j, j:]
        b[j + 1 + rows] -= below[rows, None] * b[j]
    x = np.zeros_like(demand)
    for j in range(n - 2, -1, -1):
        x[j + 1] = (b[j] - a[j, j + 1 :] @ x[j + 2 :]) / a[j, j]
    return torch.as_tensor((x[u, np.arange(len(u))] - x[v, np.arange(len(u))]).astype(np.float64))


def test_the_diagonal_of_the_pseudo_inverse_is_lapacks(graph):
    got = selected.pinv_diagonal(graph)
    assert got is not None
    truth = exact.pinv(graph).diagonal()
    torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-12 * float(truth.max()))


def test_the_kirchhoff_index_of_a_large_graph_is_lapacks():
    graph = weighted(23 * 23, grid_pairs(23))
    answer = ohm.kirchhoff_index(graph)
    assert answer.method == "selected inversion"
    assert float(answer.value) == pytest.approx(graph.num_nodes * float(exact.pinv(graph).trace()), rel=1e-9)
    assert float(ohm.kirchhoff_index(GRAPHS["disconnected"]()).value) == np.inf


def test_the_kirchhoff_index_of_a_path_beyond_all_pairs_is_the_formula():
    n = 20_000
    path = Graph.from_edges([(i, i + 1) for i in range(n - 1)])
    assert float(ohm.kirchhoff_index(path).value) == pytest.approx((n**3 - n) / 6, rel=1e-10)
    resistance = torch.ones(n - 1, dtype=torch.float64, requires_grad=True)
    index = ohm.kirchhoff_index(Graph.from_edges(path.edge_index.t(), resistance=resistance)).value
    pairs = torch.arange(1.0, n, dtype=torch.float64) * torch.arange(n - 1.0, 0, -1, dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(index, resistance)[0], pairs, rtol=1e-7, atol=0)  # across an edge


def test_numpy_answers_as_c_does(graph):
    if native.active() is None:
        pytest.skip("needs a library")
    value, diagonal = ohm.effective_resistance(graph).value, selected.pinv_diagonal(graph)
    moved = torch.as_tensor(np.random.default_rng(1).standard_normal(graph.num_edges))
    psi = graph.center(torch.as_tensor(np.random.default_rng(2).standard_normal((graph.num_nodes, 3))))
    potential = ohm.potentials(graph, psi, method="direct").value
    gradient = gradient_of(graph, moved)
    with native.used("off"):
        torch.testing.assert_close(ohm.effective_resistance(graph).value, value, rtol=1e-12, atol=0)
        torch.testing.assert_close(selected.pinv_diagonal(graph), diagonal, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ohm.potentials(graph, psi, method="direct").value, potential, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(gradient_of(graph, moved), gradient, rtol=1e-9, atol=1e-10)


def gradient_of(graph: Graph, weights: torch.Tensor) -> torch.Tensor:
    resistance = graph.resistance.clone().requires_grad_()
    learned = Graph.from_edges(graph.edge_index.t(), num_nodes=graph.num_nodes, resistance=resistance)
    value = ohm.effective_resistance(learned).value
    return torch.autograd.grad((weights * value).sum(), resistance)[0]


def test_gradients_are_squared_currents(graph):
    weights = torch.as_tensor(np.random.default_rng(1).standard_normal(graph.num_edges))
    inverse, (u, v) = exact.pinv(graph), graph.edge_index
    drop = inverse[u] - inverse[v]
    current = (drop[:, u] - drop[:, v]) / graph.resistance  # of edge f for a unit between the ends of edge e
    torch.testing.assert_close(gradient_of(graph, weights), current.square().mT @ weights, rtol=1e-7, atol=1e-9)


def test_gradients_pass_gradcheck(monkeypatch):
    monkeypatch.setattr("ohmformer.solve.resistance.SMALL", GRADIENT_NODES - 1)
    pairs = torch.as_tensor(random_pairs(GRADIENT_NODES, 6, seed=4))
    resistance = torch.rand(len(pairs), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5

    def ask(r: torch.Tensor) -> torch.Tensor:
        answer = ohm.effective_resistance(Graph.from_edges(pairs, num_nodes=GRADIENT_NODES, resistance=r))
        assert answer.method == "selected inversion"
        return answer.value

    assert torch.autograd.gradcheck(ask, resistance.requires_grad_())


def test_a_batch_of_small_and_large_graphs_is_answered_graph_by_graph():
    parts = [
        weighted(9, grid_pairs(3)),
        GRAPHS["random"](),
        weighted(4, grid_pairs(2)),
        GRAPHS["grid"](),
        GRAPHS["disconnected"](),
    ]
    answer = ohm.effective_resistance(Graph.collate(parts), tol=1e-9)
    assert "selected inversion" in answer.method
    assert "cubing" in answer.method
    torch.testing.assert_close(answer.value, torch.cat([by_lapack(part) for part in parts]), rtol=1e-7, atol=1e-12)
    sums = ohm.kirchhoff_index(Graph.collate(parts[:4])).value
    torch.testing.assert_close(
        sums, torch.stack([g.num_nodes * exact.pinv(g).trace() for g in parts[:4]]), rtol=1e-9, atol=0
    )


def test_single_precision_stays_single_precision():
    graph = GRAPHS["grid"]()
    answer = ohm.effective_resistance(graph.to(dtype=torch.float32))
    assert answer.value.dtype == torch.float32
    torch.testing.assert_close(answer.value.double(), by_lapack(graph), rtol=1e-5, atol=0)


def test_a_factor_that_is_too_large_is_recognised_before_it_is_made(monkeypatch):
    draw = np.random.default_rng(0)
    pairs = np.concatenate([random_pairs(20_000, 0, seed=5), draw.integers(0, 20_000, (80_000, 2))])
    expander = graph_of(20_000, pairs[pairs[:, 0] != pairs[:, 1]], np.ones(int((pairs[:, 0] != pairs[:, 1]).sum())))
    made = []
    monkeypatch.setattr(factor, "factorise", lambda *given: made.append(given))
    assert factor.look(expander) is None
    assert "estimated" in ohm.effective_resistance(expander, eps=0.5).note
    assert "random signs" in ohm.kirchhoff_index(expander).note
    assert selected.pinv_diagonal(expander) is None
    assert not made


def test_eps_estimates_where_the_factor_is_too_large_and_is_not_needed_elsewhere(monkeypatch):
    graph = weighted(2000, random_pairs(2000, 1500, seed=6))
    exactly = ohm.effective_resistance(graph, eps=0.5)
    assert exactly.method == "selected inversion"
    assert "eps was not needed" in exactly.note
    monkeypatch.setattr(factor, "BEARABLE", factor.Limits(10, 10.0, 10.0))
    estimate = ohm.effective_resistance(graph, eps=0.5)
    assert "random projections" in estimate.note
    assert float((estimate.value / exactly.value - 1).abs().max()) < 0.5
    solved = ohm.effective_resistance(graph, tol=1e-9)
    assert solved.method != "selected inversion"
    torch.testing.assert_close(solved.value, exactly.value, rtol=1e-6, atol=0)


def test_a_factor_is_kept_until_the_resistances_change_or_the_graph_is_gone(monkeypatch):
    graph, made = GRAPHS["grid"](), []
    factorise = factor.factorise
    monkeypatch.setattr(factor, "factorise", lambda *given: made.append(factorise(*given)) or made[-1])
    first = ohm.effective_resistance(graph).value
    psi = graph.center(torch.eye(graph.num_nodes, 2, dtype=torch.float64))
    ohm.potentials(graph, psi, method="direct")
    ohm.effective_resistance(graph)
    assert len(made) == 1
    graph.resistance.mul_(2.0)
    torch.testing.assert_close(ohm.effective_resistance(graph).value, 2 * first, rtol=1e-12, atol=0)
    assert len(made) == 2
    kept = weakref.ref(made[-1])
    made.clear()
    del graph
    gc.collect()
    assert kept() is None


def test_the_order_of_elimination_is_as_good_as_superlus():
    from scipy.sparse.linalg import splu

    from ohmformer.solve.engines.direct import _grounded

    if native.active() is None:
        pytest.skip("needs a library")
    graph = weighted(60 * 60, grid_pairs(60))
    theirs = splu(_grounded(graph)[0], permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    pattern = factor.look(graph)
    assert pattern is not None
    assert sorted(pattern.order.tolist()) == list(range(3600))
    assert len(pattern.row) < 1.2 * theirs.L.nnz


@pytest.mark.parametrize(("nodes", "pairs"), [(500, np.zeros((0, 2), dtype=int)), (500, np.array([[3, 499]]))])
def test_graphs_with_hardly_any_edge_are_answered(nodes, pairs):
    graph = graph_of(nodes, pairs, np.full(len(pairs), 2.0))
    assert ohm.effective_resistance(graph).value.tolist() == [2.0] * len(pairs)


def test_hubs_and_dense_graphs_are_answered():
    n = 500
    wheel = weighted(n, np.concatenate([[(0, i) for i in range(1, n)], [(i, i + 1) for i in range(1, n - 1)]]))
    complete = weighted(450, np.stack(np.triu_indices(450, 1), axis=1))
    for graph in (wheel, complete):
        torch.testing.assert_close(ohm.effective_resistance(graph).value, by_lapack(graph), rtol=1e-9, atol=0)


def test_any_potentials_prove_that_a_resistance_lies_between_two_numbers():
    graph = weighted(60, random_pairs(60, 40, seed=1), orders=4.0)
    draw, right = torch.Generator().manual_seed(0), ohm.effective_resistance(graph, "all", method="direct").value
    u, v, column = torch.arange(0, 30), torch.arange(30, 60), torch.arange(30)
    psi = torch.zeros(60, 30, dtype=torch.float64).index_put((u, column), torch.tensor(1.0).double())
    psi[v, column] = -1.0
    exact_phi = ohm.potentials(graph, psi, method="direct").value
    for wrong in (0.0, 1e-6, 0.1):
        noise = wrong * torch.randn(60, 30, generator=draw, dtype=torch.float64) * exact_phi.abs()
        low, high = selected.bracket(graph, exact_phi + noise, psi)
        assert bool((low <= right[u, v] * (1 + 1e-12)).all())
        assert bool((high >= right[u, v] * (1 - 1e-12)).all())
        assert float(((high - low) / right[u, v]).max()) < (1e-12 if wrong == 0.0 else 1e9)


def test_wrong_numbers_are_noticed_by_the_principles_whatever_the_factor_says(monkeypatch):
    graph = weighted(900, random_pairs(900, 900, seed=2), orders=2.0)
    checked, other = int(selected._some(graph.num_edges)[0]), 7
    pattern = factor.look(graph)
    assert pattern is not None
    places = selected.edge_places(graph, pattern)
    made = selected.Selected.of

    def wrong(*given):
        found = made(*given)
        less = 1e-6 * found.resistance[places[checked]]
        found.resistance[places[checked]] -= less
        found.resistance[places[other]] += less * graph.resistance[other] / graph.resistance[checked]  # for Foster's sum
        return found

    assert selected.edge_resistances(graph, 1e-9).residual < 1e-12
    ohm.forget(graph)
    monkeypatch.setattr(selected.Selected, "of", wrong)
    with pytest.raises(ValueError, match=r"asked for a residual of 1.0e-09, but selected inversion reaches 1.0e-06"):
        selected.edge_resistances(graph, 1e-9)
