"""Sampled elimination: the factor against LAPACK and its plain form, the engine on awkward graphs."""

import gc
import weakref

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.graph.families import family
from ohmformer.graph.memory import remembered
from ohmformer.solve import costs
from ohmformer.solve.distances import lmin_at_most, parts_of
from ohmformer.solve.engines import ENGINES, Problem
from ohmformer.solve.engines.base import Part
from ohmformer.solve.engines.elimination import WITHOUT_KERNELS, factored, sweeps
from ohmformer.solve.engines.elimination_factor import Factor, eliminate
from ohmformer.solve.scaled import OFTEN, Scaled, extreme_eigenvalues
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for

needs_kernels = pytest.mark.skipif(native.active() is None, reason="needs native kernels")
both = pytest.mark.parametrize("in_c", [False, pytest.param(True, marks=needs_kernels)], ids=["numpy", "C"])


def grid(side: int, seed: int = 0) -> Graph:
    node = np.arange(side * side).reshape(side, side)
    pairs = [(node[:, :-1], node[:, 1:]), (node[:-1], node[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in pairs])
    return Graph.from_edges(edges, resistance=np.random.default_rng(seed).uniform(0.1, 10, len(edges)))


def star_of_cliques() -> Graph:
    """A hub of degree 500 beside others of small degree: sorted by qsort, and in a bucket shared by several degrees."""
    rng = np.random.default_rng(0)
    edges = np.concatenate([np.stack([np.zeros(500, int), np.arange(1, 501)], 1), rng.integers(1, 501, (1500, 2))])
    edges = edges[edges[:, 0] != edges[:, 1]]
    return Graph.from_edges(edges, resistance=rng.uniform(0.5, 2, len(edges)))


def wide_range(orders: int, seed: int = 0) -> Graph:
    edges = grid(15).edge_index.t()
    decades = np.random.default_rng(seed).uniform(-orders / 2, orders / 2, len(edges))
    return Graph.from_edges(edges, resistance=10.0**decades)


def tree(nodes: int, seed: int = 0) -> Graph:
    rng = np.random.default_rng(seed)
    child = np.arange(1, nodes)
    parent = (rng.random(nodes - 1) * child).astype(int)
    return Graph.from_edges(np.stack([parent, child], 1), resistance=10.0 ** rng.uniform(-3, 3, nodes - 1))


GRAPHS = {
    "grid": grid(20),
    "hub": star_of_cliques(),
    "random": random_graph(400, 1600),
    "twelve orders of magnitude": wide_range(12),
    "components, isolated nodes, parallel edges": Graph.from_edges(
        [(0, 1), (1, 2), (2, 0), (4, 5), (4, 5), (5, 6), (6, 4), (6, 4), (8, 9)],
        num_nodes=11,
        resistance=np.arange(1.0, 10.0),
    ),
    "one node": Graph.from_edges(torch.zeros(0, 2, dtype=torch.long), num_nodes=1),
    "no edges": Graph.from_edges(torch.zeros(0, 2, dtype=torch.long), num_nodes=5),
    "batch": Graph.collate([random_graph(n, 2 * n, seed=n) for n in (3, 17, 60)]),
}


def dense(factor: Factor) -> np.ndarray:
    """What the factor stands for, with nodes in their own order."""
    n = len(factor.order)
    lower = np.eye(n)
    for s in range(n):
        for e in range(int(factor.begin[s]), int(factor.begin[s + 1])):
            lower[int(factor.neighbour[e]), s] -= float(factor.share[e])
    inverse = factor.inverse.numpy()
    pivots = np.where(inverse > 0, 1 / np.where(inverse > 0, inverse, 1), 0)
    place = factor.place.long().numpy()
    return ((lower * pivots) @ lower.T)[np.ix_(place, place)]


def laplacian(graph: Graph) -> np.ndarray:
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for (u, v), r in zip(graph.edge_index.t().tolist(), graph.resistance.tolist(), strict=True):
        matrix[[u, v], [u, v]] += 1 / r
        matrix[[u, v], [v, u]] -= 1 / r
    return matrix


def solved(graph: Graph, psi: torch.Tensor, *, in_c: bool, tol: float = 1e-8, panel: int = 8, progress=None) -> ohm.Answer:
    part = Part(None, "elimination", in_c, torch.float64, panel, "test")
    return ENGINES["elimination"].run(Problem(graph, psi, tol, part, progress))


# ------------------------------------------------------------------------------------------------ the factor


@needs_kernels
@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_factor_in_c_is_that_of_the_plain_form(name, seed):
    plain, in_c = (eliminate(GRAPHS[name], seed=seed, in_c=kind) for kind in (False, True))
    for field in ("order", "place", "begin", "neighbour"):
        assert torch.equal(getattr(plain, field), getattr(in_c, field))
    for field in ("share", "inverse"):
        torch.testing.assert_close(getattr(plain, field), getattr(in_c, field), rtol=1e-13, atol=0)


def strips(graph: Graph, parts: int) -> torch.Tensor:
    """Number the parts of a graph by the numbers of its nodes, whatever its edges."""
    return (torch.arange(graph.num_nodes) * parts // max(graph.num_nodes, 1)).int()


@needs_kernels
@pytest.mark.parametrize("parts", [2, 5])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_factor_in_parts_is_the_same_in_c_and_on_any_number_of_threads(name, parts, monkeypatch):
    graph = GRAPHS[name]
    plain = eliminate(graph, part=strips(graph, parts), in_c=False)
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        in_c = eliminate(graph, part=strips(graph, parts), in_c=True)
        for field in ("order", "place", "begin", "neighbour", "first"):
            assert torch.equal(getattr(plain, field), getattr(in_c, field))
        for field in ("share", "inverse"):
            torch.testing.assert_close(getattr(plain, field), getattr(in_c, field), rtol=1e-13, atol=0)


@pytest.mark.parametrize("in_c", [False, pytest.param(True, marks=needs_kernels)], ids=["numpy", "C"])
def test_rows_of_a_part_have_neighbours_in_it_or_between_parts_only(in_c):
    graph = GRAPHS["grid"]
    part = strips(graph, 4)
    factor = eliminate(graph, part=part, in_c=in_c)
    row = torch.repeat_interleave(torch.arange(graph.num_nodes), factor.begin.diff())
    its, other = (part[factor.order.long()[rows]] for rows in (row, factor.neighbour.long()))
    inside = row < factor.first[-2]
    assert torch.equal(its[inside], other[inside])
    for number in range(4):
        assert (part[factor.order[factor.first[number] : factor.first[number + 1]].long()] == number).all()
    tail, head = graph.edge_index
    between = torch.unique(torch.cat([tail, head])[(part[tail] != part[head]).repeat(2)])
    assert torch.equal(factor.order[factor.first[-2] :].sort().values.long(), between)


@needs_kernels
def test_a_long_graph_in_parts_has_the_same_answer_on_any_number_of_threads(monkeypatch):
    monkeypatch.setattr("ohmformer.solve.distances.NODES_OF_A_PART", 500)
    base = grid(60)
    psi = demands_for(base, k=3)
    answers = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        graph = Graph(base.edge_index, base.resistance, base.batch)
        answers.append(ohm.potentials(graph, psi, tol=1e-8, method="elimination").value)
        assert len(factored(graph, in_c=True).factor.first) == 7 + 2
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    truth = exact.potentials(base, psi)
    torch.testing.assert_close(answers[0], truth, rtol=0, atol=1e-6 * float(truth.abs().max()))


@needs_kernels
def test_graphs_that_are_not_long_are_one_part(monkeypatch):
    monkeypatch.setattr("ohmformer.solve.distances.NODES_OF_A_PART", 100)
    long, short = grid(40), random_graph(1600, 6000)
    edges = torch.cat([long.edge_index, short.edge_index + 1600], dim=1)
    r = torch.cat([long.resistance, short.resistance])
    beside = Graph.from_edges(edges.t(), resistance=r)  # the search ends in the second component
    assert int(parts_of(long).max()) == 3
    assert int(parts_of(short).max()) == 0
    assert int(parts_of(beside).max()) == 0
    assert int(parts_of(grid(15)).max()) == 0


@both
@pytest.mark.parametrize("name", ["grid", "hub", "random", "batch"])
def test_the_preconditioned_spectrum_lies_around_one(name, in_c):
    graph = GRAPHS[name]
    approximate = dense(eliminate(graph, in_c=in_c))
    values, vectors = np.linalg.eigh(laplacian(graph))
    used = values > 1e-9
    assert used.sum() == graph.num_nodes - graph.num_components
    half = vectors[:, used] / np.sqrt(values[used])
    ratios = np.linalg.eigvalsh(half.T @ approximate @ half)  # of the factor to the Laplacian
    assert 1 / 15 < ratios[0] < 1 < ratios[-1] < 15
    assert abs(approximate.sum(1)).max() < 1e-9 * abs(approximate).max()  # the null space is kept


@both
def test_the_factor_is_right_on_average(in_c):
    graph = Graph.from_edges(
        [(0, i) for i in range(1, 6)] + [(1, 2), (3, 4)], resistance=[1.0, 2.0, 0.5, 4.0, 1.0, 3.0, 2.0]
    )
    draws = np.stack([dense(eliminate(graph, seed=seed, in_c=in_c)) for seed in range(4000)])
    error = draws.std(0) / np.sqrt(len(draws))
    assert (abs(draws.mean(0) - laplacian(graph)) <= 5 * error + 1e-12).all()


@both
def test_trees_are_eliminated_exactly(in_c):
    graph = tree(200)
    factor = eliminate(graph, in_c=in_c)
    assert len(factor.share) == graph.num_edges
    truth = laplacian(graph)
    np.testing.assert_allclose(dense(factor), truth, rtol=1e-12, atol=1e-12 * abs(truth).max())
    assert solved(graph, demands_for(graph), in_c=in_c, tol=1e-6).layers <= 2


@both
def test_a_seed_gives_one_factor_and_another_seed_another(in_c):
    one, same, other = (eliminate(GRAPHS["grid"], seed=seed, in_c=in_c) for seed in (1, 1, 2))
    assert torch.equal(one.neighbour, same.neighbour)
    assert torch.equal(one.share, same.share)
    assert one.share.shape != other.share.shape or not torch.equal(one.share, other.share)


@both
def test_sweeps_invert_the_factor(in_c):
    graph = GRAPHS["grid"]
    factor = eliminate(graph, in_c=in_c)
    psi = demands_for(graph, k=3)
    x = sweeps(factor)(psi[factor.order.long()].numpy())[factor.place.long()]
    np.testing.assert_allclose(dense(factor) @ x, psi.numpy(), rtol=0, atol=1e-9)


@needs_kernels
def test_a_factor_with_more_entries_than_expected_is_made_with_more_memory():
    graph = family("complete", 120, generator=torch.Generator().manual_seed(0), spread=1.0)
    tail, head = (x.contiguous() for x in graph.edge_index)
    order, place = torch.empty(2, 120, dtype=torch.int32)
    begin, found, first = torch.empty(121, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.empty(3).long()
    neighbour, share, inverse = torch.empty(9, dtype=torch.int32), torch.empty(9).double(), torch.empty(120).double()
    part = torch.zeros(120, dtype=torch.int32)
    arrays = tail, head, 1 / graph.resistance, part, first, order, place, begin, neighbour, share, inverse, found
    native.call("ohm_eliminate", 120, graph.num_edges, 1, 0, 0, *arrays)
    assert int(found) == -1


# ------------------------------------------------------------------------------------------------ the engine


@both
@pytest.mark.parametrize("name", GRAPHS)
def test_potentials_are_those_of_lapack(name, in_c):
    graph = GRAPHS[name]
    psi = demands_for(graph, k=3)
    answer = solved(graph, psi, in_c=in_c)
    assert answer.residual <= 1e-8
    truth = exact.potentials(graph, psi)
    values = np.linalg.eigvalsh(laplacian(graph))
    nonzero = values[values > 1e-12 * max(values[-1], 1e-300)]
    condition = nonzero[-1] / nonzero[0] if len(nonzero) else 1.0
    torch.testing.assert_close(
        answer.value, truth, rtol=0, atol=min(condition * 1e-8, 0.1) * float(truth.abs().max()) + 1e-12
    )


@both
@pytest.mark.parametrize("demands", [1, 2, 3, 4, 5, 8, 9, 64])
def test_any_number_of_demands_is_solved_column_by_column(demands, in_c):
    graph = GRAPHS["grid"]
    psi = demands_for(graph, k=demands) * torch.logspace(-8, 8, demands, dtype=torch.float64)
    if demands > 2:
        psi[:, 1] = 0
    answer = solved(graph, psi, in_c=in_c, panel=16)
    left = torch.as_tensor(laplacian(graph)) @ answer.value - psi
    assert (left.norm(dim=0) <= 1e-8 * psi.norm(dim=0)).all()
    assert answer.residual <= 1e-8


@both
def test_every_graph_of_a_batch_keeps_its_own_tolerance(in_c):
    graphs = [grid(12, seed) for seed in range(3)]
    batch = Graph.collate(graphs)
    psi = demands_for(batch, k=2) * torch.tensor([1e-9, 1.0, 1e9], dtype=torch.float64)[batch.batch][:, None]
    answer = solved(batch, psi, in_c=in_c)
    assert answer.residual <= 1e-8
    for graph, phi, b in zip(graphs, answer.value.split(144), psi.split(144), strict=True):
        left = torch.as_tensor(laplacian(graph)) @ phi - b
        assert (left.norm(dim=0) <= 1.01e-8 * b.norm(dim=0)).all()


@both
def test_more_than_float64_gives_ends_with_what_it_gives(in_c):
    graph = wide_range(12, seed=1)
    answer = solved(graph, demands_for(graph), in_c=in_c, tol=1e-30)
    assert 1e-30 < answer.residual < 1e-5
    assert not answer.stopped


def test_float32_graphs_get_float32_answers():
    graph = grid(25).to("cpu", torch.float32)
    answer = ohm.potentials(graph, demands_for(graph).float(), tol=1e-4, method="elimination")
    assert answer.value.dtype == torch.float32
    assert answer.residual <= 1e-4


def test_gradients_pass_gradcheck_by_the_same_engine():
    base = grid(4)
    psi = demands_for(base, k=2).requires_grad_()
    r = base.resistance.clone().requires_grad_()

    def ask(r, psi):
        graph = Graph(base.edge_index, r, base.batch)
        return ohm.potentials(graph, graph.center(psi), tol=1e-12, method="elimination").value

    assert torch.autograd.gradcheck(ask, (r, psi), eps=1e-5, atol=1e-6)


@both
def test_progress_can_stop_a_solve(in_c):
    told = []

    def stop(layers, residual):
        told.append((layers, residual))
        return True

    graph = grid(60)
    psi = demands_for(graph)
    answer = solved(graph, psi, in_c=in_c, tol=1e-10, progress=stop)
    assert [layers for layers, _ in told] == [10]
    assert (answer.stopped, answer.note, answer.layers) == (True, "stopped early", 10)
    left = ((graph.sparse_laplacian() @ answer.value - psi).norm(dim=0) / psi.norm(dim=0)).max()
    assert answer.residual == pytest.approx(float(left), rel=1e-6)
    assert 1e-10 < answer.residual < 1


@needs_kernels
def test_ctrl_c_returns_the_best_so_far():
    def interrupt(layers, residual):
        if layers >= 20:
            raise KeyboardInterrupt

    graph = grid(60)
    answer = ohm.potentials(graph, demands_for(graph), tol=1e-10, method="elimination", progress=interrupt)
    assert (answer.method, answer.stopped, answer.note) == ("elimination", True, "stopped early")
    assert 1e-10 < answer.residual < 1


@both
def test_a_factor_is_kept_until_resistances_change_or_the_graph_is_gone(in_c):
    base = grid(10)
    r = base.resistance.clone()
    graph = Graph(base.edge_index, r, base.batch)
    first = factored(graph, in_c=in_c)
    assert factored(graph, in_c=in_c) is first
    r[3] *= 2
    assert factored(graph, in_c=in_c) is not first
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


def test_without_kernels_large_graphs_are_refused_with_the_number_of_nodes():
    many = Graph.from_edges([(0, 1)], num_nodes=WITHOUT_KERNELS + 1)
    with (
        native.used("off"),
        pytest.raises(ValueError, match=f"expected at most {WITHOUT_KERNELS} nodes .* without native kernels, got 20001"),
    ):
        ohm.potentials(many, {0: 1.0, 1: -1.0}, method="elimination")


# ------------------------------------------------------------------------------------------------ the plan


@needs_kernels
def test_distances_bound_the_smallest_eigenvalue_from_above():
    for graph in (grid(40), tree(300), family("path", 500, generator=torch.Generator().manual_seed(0))):
        scaled = Scaled.of(graph)
        values = np.linalg.eigvalsh((scaled.root * graph.laplacian() * scaled.root.mT).numpy())
        assert values[1] <= lmin_at_most(graph)
    assert lmin_at_most(grid(40)) < 20 * extreme_eigenvalues(Scaled.of(grid(40))).spectrum.lmin
    assert lmin_at_most(random_graph(2000, 8000)) == float("inf")


@needs_kernels
def test_distances_look_at_every_component():
    short, long = family("complete", 10, generator=torch.Generator().manual_seed(0)), grid(40)
    parts = [GRAPHS["no edges"], short, long, short]
    edges = np.concatenate([g.edge_index.t().numpy() + sum(p.num_nodes for p in parts[:i]) for i, g in enumerate(parts)])
    r = torch.cat([g.resistance for g in parts])
    together = Graph.from_edges(edges, num_nodes=sum(g.num_nodes for g in parts), resistance=r)
    assert lmin_at_most(together) == pytest.approx(lmin_at_most(long), rel=1e-9)


def test_lanczos_gives_up_early_on_long_graphs_and_goes_on_when_asked_to():
    scaled = Scaled.of(grid(60))
    early, late = extreme_eigenvalues(scaled, floor=0.01), extreme_eigenvalues(scaled)
    assert not early.separated
    assert early.floor == 0.01
    assert late.spectrum.lmin < early.spectrum.lmin < 0.01


@needs_kernels
@pytest.mark.parametrize("demands", [1, 64])
def test_looks_at_the_spectrum_take_at_most_15_percent_of_what_another_engine_is_predicted_to_take(demands):
    one = random_graph(3000, 20000)
    node, steps = torch.arange(6000), torch.arange(1, 13)
    pairs = torch.stack([node.repeat_interleave(12), (node[:, None] + steps).flatten() % 6000])
    ring = Graph.from_edges(pairs.t())  # long, with so many edges that its distances are not computed
    for graph in (ring, grid(60)):
        answer = ohm.potentials(graph, demands_for(graph, k=demands), tol=1e-8)
        assert answer.method in ("elimination", "direct")
        ends = remembered(graph, "ends")
        steps = ends.steps if ends else 0
        least = costs.elimination(graph.num_nodes, graph.num_edges, demands)
        size = graph.num_nodes, graph.num_edges
        step = costs.conjugate(*size, 2, 2) - costs.conjugate(*size, 2, 1) if demands == 1 else costs.lanczos_step(*size)
        assert (steps - OFTEN) * step <= costs.PROBING * least
    assert steps == 0  # distances tell
    assert ohm.potentials(one, demands_for(one, k=demands), tol=1e-8).method == (
        "conjugate" if demands == 1 else "chebyshev"
    )
    assert remembered(one, "ends").separated


@needs_kernels
def test_a_factor_is_made_once_the_questions_before_would_have_paid_for_it():
    graph = grid(90)
    psi = demands_for(graph, k=1)
    engines = [ohm.plan(graph, tol=1e-8).parts[0].engine for _ in range(10)]
    assert set(engines) == {"elimination"}  # asking for plans does not count
    answers = [ohm.potentials(graph, psi, tol=1e-8) for _ in range(10)]
    engines = [answer.method for answer in answers]
    first = engines.index("direct")
    assert 1 < first < 10  # the second question has an approximate factor, which is faster than to make another
    assert set(engines[:first]) == {"elimination"}
    assert set(engines[first:]) == {"direct"}
    plans = [answer.plan for answer in answers if answer.plan is not None]
    first_time, later, factor = (plans[i].parts[0].predicted for i in (0, 1, first))
    assert later < first_time
    assert later < factor < first * later  # all that came after the first pays for it
    for answer in answers:
        torch.testing.assert_close(answer.value, answers[-1].value, rtol=0, atol=1e-6 * float(answers[-1].value.abs().max()))


@needs_kernels
def test_the_plan_takes_elimination_for_long_graphs_only():
    assert ohm.plan(grid(60)).parts[0].engine == "elimination"
    assert ohm.plan(random_graph(3000, 12_000)).parts[0].engine == "conjugate"
    assert ohm.plan(random_graph(3000, 12_000), demands=20).parts[0].engine == "chebyshev"
    with native.used("off"):
        assert ohm.plan(grid(60)).parts[0].engine != "elimination"
