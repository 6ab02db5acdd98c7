"""Errors that answers of other questions than potentials report, against 50 digits: never below the true ones."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact
from ohmformer.graph.matpower import Case, parse_case
from ohmformer.solve.power import dc_flow, lodf, ptdf
from tests.solve.test_power import GRID5, equations
from tests.solve.test_signed import signed_graph
from tests.solve.test_solve import random_graph
from tests.solve.true_errors import draw_graph, resistances_by_cholesky, true_resistances

DIGITS = 80


def inverse(graph: Graph) -> tuple[Any, Any, list[int]]:
    """In 80 digits the Laplacian, that without one node of every component inverted, and the nodes that are left."""
    component, n = graph.components.tolist(), graph.num_nodes
    kept = [i for i in range(n) if component.index(component[i]) != i]
    laplacian = mpmath.zeros(n)
    for u, v, r in zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True):
        for i, j, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
            laplacian[i, j] += sign / mpmath.mpf(r)
    return laplacian, mpmath.matrix([[laplacian[i, j] for j in kept] for i in kept]) ** -1, kept


def flows(graph: Graph, psi: torch.Tensor) -> list[list[Any]]:
    """The current along every edge for every demand, in 80 digits."""
    _, inverted, kept = inverse(graph)
    found = []
    for demand in psi.t().tolist():
        phi = [mpmath.mpf(0)] * graph.num_nodes
        for i, x in zip(kept, inverted * mpmath.matrix([demand[i] for i in kept]), strict=True):
            phi[i] = x
        edges = zip(*graph.edge_index.tolist(), graph.resistance.tolist(), strict=True)
        found.append([(phi[u] - phi[v]) / mpmath.mpf(r) for u, v, r in edges])
    return found


def off(found: Any, right: list[Any], resistance: Any) -> float:
    """``|f - f*| / |f*|`` with ``|f|^2 = sum_e |r_e| f_e^2``."""
    weight = [abs(mpmath.mpf(float(r))) for r in resistance]
    wrong = mpmath.fsum(w * (mpmath.mpf(float(a)) - b) ** 2 for w, a, b in zip(weight, found, right, strict=True))
    return float(mpmath.sqrt(wrong / mpmath.fsum(w * b**2 for w, b in zip(weight, right, strict=True))))


def reported(answer: ohm.Answer) -> float:
    assert answer.error is not None
    return answer.error


def check(answer: ohm.Answer, true: float, kind: str | None = None, within: float = 1e3) -> None:
    assert true <= reported(answer) <= within * max(true, 1e-15), (answer.method, true, answer.error)
    assert kind is None or answer.error_kind == kind


@pytest.mark.parametrize("seed", range(0, 80, 5))
def test_resistances_that_are_asked_for_in_any_way(seed: int) -> None:
    graph = draw_graph(seed, largest=40)[0]
    right = resistances_by_cholesky(graph)
    real = np.isfinite(right) & (right > 0)
    pairs = np.argwhere(np.triu(real))[:: max(real.sum() // 20, 1)]
    for asked, truth in ((pairs, right[tuple(pairs.T)]), ("edges", right[tuple(graph.edge_index)]), ("all", right[real])):
        for method in ("auto", "direct") if seed % 2 else ("auto",):
            answer = ohm.effective_resistance(
                graph, asked if isinstance(asked, str) else torch.as_tensor(asked), method=method
            )
            value = answer.value.numpy()[real] if isinstance(asked, str) and asked == "all" else answer.value.numpy()
            check(answer, float(np.abs(value / truth - 1).max()), within=1e5)
    whole = graph.num_components == 1
    total, index = right[real].sum() / 2, ohm.kirchhoff_index(graph)
    assert abs(float(index.value) / float(total) - 1) <= reported(index) if whole else math.isinf(float(index.value))
    marginals = ohm.spanning_tree_marginals(graph)
    leverage = right[tuple(graph.edge_index)] / graph.resistance.numpy()
    assert float(np.abs(marginals.value.numpy() / leverage - 1).max()) <= reported(marginals)


@pytest.mark.parametrize("method", ["elimination", "chebyshev", "direct"])
def test_resistances_of_pairs_are_off_by_the_square_of_the_error_of_potentials(method: str) -> None:
    graph = random_graph(500, 1200)
    pairs = torch.randint(0, 500, (40, 2), generator=torch.Generator().manual_seed(0))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    truth = true_resistances(graph, pairs.numpy())
    answer = ohm.effective_resistance(graph, pairs, method=method, tol=1e-4)
    check(answer, float(np.abs(answer.value.numpy() / truth - 1).max()), within=1e4)
    assert reported(answer) < 1e-6


@pytest.mark.parametrize("method", ["auto", "elimination", "direct"])
def test_the_diagonal_and_closeness(method: str) -> None:
    for seed in (2, 9, 31):
        graph = draw_graph(seed, largest=25)[0]
        graph = Graph(graph.edge_index, graph.resistance ** (1.0 if method == "auto" else 0.2), graph.batch)
        right = resistances_by_cholesky(graph)
        same = np.isfinite(right)
        sums, size = np.where(same, right, 0).sum(1), same.sum(1)
        total = np.where(same, sums[None], 0).sum(1)
        diagonal = sums / size - total / (2 * size**2)
        real = diagonal > 0
        answer = ohm.pinv_diagonal(graph, method=method, tol=1e-3)
        assert np.abs(answer.value.numpy()[real] / diagonal[real] - 1).max() <= reported(answer)
        closeness = ohm.current_flow_closeness(graph, method=method, tol=1e-3)
        assert np.abs(closeness.value.numpy()[real] * sums[real] - 1).max() <= reported(closeness) * (1 + 1e-6)


def test_estimates_of_resistances_and_their_sum() -> None:
    graph = random_graph(700, 4000)
    truth, (u, v) = exact.pinv(graph), graph.edge_index
    right = truth[u, u] + truth[v, v] - 2 * truth[u, v]
    for seed in range(6):
        answer = ohm.effective_resistance(graph, eps=0.2, seed=seed, method="chebyshev")
        assert "random projections" in answer.note
        assert answer.error_kind == "estimate"
        assert float((answer.value / right - 1).abs().max()) <= reported(answer) <= 0.201
        index = ohm.kirchhoff_index(graph, eps=0.03, seed=seed)
        assert abs(float(index.value) / (700 * float(truth.trace())) - 1) <= reported(index) <= 0.031
        rows = ohm.resistive_embedding(graph, 200, seed=seed)
        gap = (rows.value[u] - rows.value[v]).square().sum(1) / right - 1
        assert float((gap.abs() <= reported(rows)).double().mean()) >= 0.98
        assert float(gap.abs().max()) > reported(rows) / 3
    assert reported(ohm.resistive_embedding(graph, 8)) > 1  # eight columns tell little


@pytest.mark.parametrize("method", ["newton-schulz", "direct"])
def test_squared_distances_of_principal_roots(method: str) -> None:
    for seed in (1, 4, 13, 22):
        graph = draw_graph(seed, largest=20)[0]
        graph = Graph(graph.edge_index, graph.resistance ** (1 / 5), graph.batch)
        answer = ohm.resistive_embedding(graph, method=method, tol=1e-3)
        right = resistances_by_cholesky(graph)
        real = np.isfinite(right) & (right > 0)
        rows = answer.value.numpy().astype(np.longdouble)
        squares = ((rows[:, None] - rows[None]) ** 2).sum(-1)
        check(answer, float(np.abs(squares[real] / right[real] - 1).max()), "bound", within=1e6)


@pytest.mark.parametrize("seed", range(8))
def test_flows_on_signed_graphs_in_the_norm_of_absolute_resistances(seed: int) -> None:
    graph = signed_graph(24, 50, seed)
    r = graph.resistance * 10.0 ** torch.linspace(-seed / 2, seed / 2, graph.num_edges, dtype=torch.float64)
    graph = Graph.from_edges(graph.edge_index.t(), num_nodes=24, resistance=r, signed=True)
    psi = graph.center(torch.randn(24, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    answer = ohm.electric_flow(graph, psi)
    with mpmath.workdps(DIGITS):
        right = flows(graph, psi)
        true = max(off(f, g, r) for f, g in zip(answer.flow.t().tolist(), right, strict=True))
    check(answer, true, "estimate", within=1e4)


@pytest.mark.parametrize("seed", [0, 3, 7, 12, 20, 41])
@pytest.mark.parametrize("method", ["auto", "elimination"])
def test_currents_of_pairs_one_by_one_and_added_up(seed: int, method: str) -> None:
    graph = draw_graph(seed, largest=16)[0]
    if method == "elimination":
        graph = Graph(graph.edge_index, graph.resistance ** (1 / 10), graph.batch)
    component = graph.components
    places = (component == component[0]).nonzero()[:, 0][:4].tolist()
    pairs = [(a, b) for i, a in enumerate(places) for b in places[i + 1 :]]
    psi = torch.zeros(graph.num_nodes, len(pairs), dtype=torch.float64)
    for column, (a, b) in enumerate(pairs):
        psi[a, column], psi[b, column] = 1.0, -1.0
    resistance = resistances_by_cholesky(graph)[tuple(np.array(pairs).T)]
    with mpmath.workdps(DIGITS):
        right = flows(graph, psi)
        total = [mpmath.fsum(abs(f[e]) for f in right) for e in range(graph.num_edges)]
        for targets in (None, [b for _, b in pairs]):
            sources = places if targets is None else [a for a, _ in pairs]
            each = ohm.current_flow(graph, sources, targets, each=True, method=method)
            summed = ohm.current_flow(graph, sources, targets, method=method)
            for answer in (each, summed):
                assert float(np.abs(answer.resistance.numpy() / resistance - 1).max()) <= reported(answer)
            assert max(off(f, g, graph.resistance) for f, g in zip(each.value.t().tolist(), right, strict=True)) <= reported(
                each
            )
            assert off(summed.value, total, graph.resistance) <= reported(summed)


@pytest.mark.parametrize("seed", range(0, 66, 3))
def test_harmonic_functions_are_off_by_less_than_they_say_and_not_by_far_less(seed: int) -> None:
    graph = draw_graph(seed, largest=30)[0]
    fixed = torch.tensor([0, graph.num_nodes // 2, 1]).unique()
    values = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64)[: len(fixed)]
    component = graph.components.tolist()
    for method in ("auto", "elimination"):
        if method == "elimination" and graph.resistance.max() / graph.resistance.min() > 1e6:
            continue
        answer = ohm.harmonic(graph, fixed, values, partial=True, method=method)
        with mpmath.workdps(DIGITS):
            laplacian, _, _ = inverse(graph)
            free = [i for i in range(graph.num_nodes) if torch.isfinite(answer.value[i, 0]) and i not in fixed.tolist()]
            if not free:
                continue
            known = mpmath.matrix([-mpmath.fsum(laplacian[i, int(j)] * float(x) for j, x in zip(fixed, values, strict=True))
                                   for i in free])  # fmt: skip
            right = mpmath.lu_solve(mpmath.matrix([[laplacian[i, j] for j in free] for i in free]), known)
        span = {c: values[[component[j] == c for j in fixed.tolist()]] for c in set(component)}
        true = max(
            abs(float(x - float(answer.value[i, 0]))) / (float(s.max() - s.min()) or math.inf)
            for i, x in zip(free, right, strict=True)
            for s in [span[component[i]]]
        )
        check(answer, true, "bound", within=1e5 if answer.method == "elimination" else 1e3)
        assert reported(answer) <= 1e-6


def eigenpairs(graph: Graph) -> tuple[list[Any], Any]:
    """Eigenvalues, ascending, and eigenvectors of the Laplacian in 80 digits."""
    values, vectors = mpmath.eigsy(inverse(graph)[0])
    return list(values), vectors


def applied(graph: Graph, f: Any, x: torch.Tensor) -> list[list[Any]]:
    """``f(L) x`` for every column x, in 80 digits."""
    values, vectors = eigenpairs(graph)
    n = graph.num_nodes
    return [
        list(vectors * mpmath.diag([f(value) for value in values]) * vectors.T * mpmath.matrix(column)) if n else []
        for column in x.t().tolist()
    ]


def far(value: torch.Tensor, right: list[list[Any]], x: torch.Tensor) -> float:
    """``|y - y*| / |x|`` of the worst column."""
    columns = zip(value.t().tolist(), right, x.t().tolist(), strict=True)
    return max(
        float(mpmath.norm([mpmath.mpf(a) - b for a, b in zip(y, z, strict=True)]) / mpmath.norm(signal))
        for y, z, signal in columns
    )


@pytest.mark.parametrize("method", ["auto", "seeded", "cubing", "taylor", "series", "direct"])
def test_heat_is_off_by_no_more_than_it_says(method: str) -> None:
    for seed in (0, 1, 2, 3):
        drawn = draw_graph(seed, largest=12)[0]
        graph = Graph(drawn.edge_index, drawn.resistance ** (0.05 if method == "taylor" else 0.1), drawn.batch)
        x = torch.randn(graph.num_nodes, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for s, tol in ((0.3, 1e-4), (2.0, 1e-8)):
            answer = ohm.heat_kernel(graph, s, x, tol=tol, method=method)
            with mpmath.workdps(DIGITS):
                true = far(answer.value, applied(graph, lambda t, s=s: mpmath.exp(-s * t), x), x)
            assert true <= reported(answer) <= 10 * tol
            assert answer.error_kind == ("bound" if method == "series" else "estimate")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [1e-8, 1e-4, 1.0])
def test_heat_after_a_long_time_is_within_its_error_and_its_error_near_rounding(first: float, dtype: torch.dtype) -> None:
    graph = Graph.from_edges([(0, 1), (1, 2)], resistance=torch.tensor([first, 1.0], dtype=dtype))
    x = torch.tensor([[1.0], [0.0], [0.0]], dtype=dtype)
    for s in (1e2, 1e3, 1e6, 1e10):
        answer = ohm.heat_kernel(graph, s, x)
        with mpmath.workdps(DIGITS):
            true = far(answer.value, applied(graph, lambda t, s=s: mpmath.exp(-s * t), x), x)
        assert true <= reported(answer) <= max(1e-6, 20 * torch.finfo(dtype).eps), (s, answer.method)


def test_heat_by_lapack_has_the_gradient_of_the_layers() -> None:
    resistance = torch.tensor([1.0, 2.0, 0.5], requires_grad=True)  # float32: the layers round by more than the tolerance
    answer = ohm.heat_kernel(Graph.from_edges([(0, 1), (1, 2), (0, 2)], resistance=resistance), 0.7)
    assert answer.method == "lapack"
    answer.value[0, 1].backward()

    def heat(r: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(-0.7 * Graph.from_edges([(0, 1), (1, 2), (0, 2)], resistance=r).laplacian())

    own = resistance.detach().double().requires_grad_()
    heat(own)[0, 1].backward()
    torch.testing.assert_close(resistance.grad, own.grad, check_dtype=False, rtol=1e-4, atol=1e-6)


def test_rounding_is_part_of_the_error_of_a_series_in_either_precision() -> None:
    graph = draw_graph(3, largest=12)[0]
    for dtype, tol in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
        own = Graph(graph.edge_index, (graph.resistance**0.05).to(dtype), graph.batch)
        x = torch.randn(own.num_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=dtype)
        answer = ohm.heat_kernel(own, 1.0, x, tol=tol, method="series")
        with mpmath.workdps(DIGITS):
            assert far(answer.value, applied(own, lambda t: mpmath.exp(-t), x), x) <= reported(answer)
        assert torch.finfo(dtype).eps < reported(answer) < 1e5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("null", [True, False])
def test_filters_are_off_by_no_more_than_they_say(null: bool) -> None:
    for seed in (0, 1, 2):
        drawn = draw_graph(seed, largest=12)[0]
        graph = Graph(drawn.edge_index, drawn.resistance**0.05, drawn.batch)
        x = graph.center(torch.randn(graph.num_nodes, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        for tol in (1e-3, 1e-8):
            answer = ohm.spectral_filter(graph, lambda t: 1 / (1 + t), x, null=null, tol=tol)
            with mpmath.workdps(DIGITS):
                true = far(answer.value, applied(graph, lambda t: 1 / (1 + t), x), x)
            assert true <= reported(answer) <= 10 * tol  # max |f| is at most one
            assert answer.error_kind == "estimate"


@pytest.mark.parametrize("method", ["direct", "subspace", "lanczos"])
@pytest.mark.parametrize("which", ["smallest", "largest"])
def test_eigenvalues_are_as_near_to_those_of_the_laplacian_as_they_say(method: str, which: str) -> None:
    for seed in (0, 1, 2):
        drawn = draw_graph(seed, largest=12)[0]
        graph = Graph(drawn.edge_index, drawn.resistance**0.05, drawn.batch)
        answer = ohm.eigenvectors(graph, 2, which, method=method, tol=1e-4)
        with mpmath.workdps(DIGITS):
            right = eigenpairs(graph)[0]
            for value in answer.eigenvalues[answer.eigenvalues.isfinite()].tolist():
                assert float(min(abs(mpmath.mpf(value) - x) for x in right)) <= reported(answer) * value
        assert answer.error_kind == "bound"
        assert answer.residual <= reported(answer) <= 0.1


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_reduced_resistances(seed: int) -> None:
    graph = draw_graph(seed, largest=24)[0]
    keep = list(range(0, graph.num_nodes, 3))
    answer = ohm.kron_reduce(graph, keep)
    with mpmath.workdps(DIGITS):
        laplacian, _, _ = inverse(graph)
        at = {node: i for i, node in enumerate(keep)}
        matrix = [[laplacian[i, j] for j in range(graph.num_nodes)] for i in range(graph.num_nodes)]
        for k in (i for i in range(graph.num_nodes) if i not in at):
            if matrix[k][k] > mpmath.mpf(10) ** -60:
                for i in range(graph.num_nodes):
                    share = matrix[i][k] / matrix[k][k] if i != k else mpmath.mpf(0)
                    matrix[i] = [a - share * b for a, b in zip(matrix[i], matrix[k], strict=True)]
        true = 0.0
        for u, v, r in zip(*answer.graph.edge_index.tolist(), answer.graph.resistance.tolist(), strict=True):
            true = max(true, abs(float(-matrix[keep[u]][keep[v]] * mpmath.mpf(r) - 1)))
    check(answer, true, "bound", within=1e4)


def test_energies_of_sparsified_graphs() -> None:
    for graph, seed in ((random_graph(60, 1500), 0), (random_graph(60, 1500), 1)):
        answer = ohm.sparsify(graph, 0.9, seed=seed)
        root = exact.sqrt_pinv(graph)
        values = torch.linalg.eigvalsh(root @ answer.graph.laplacian() @ root)[1:]
        assert answer.graph.num_edges < graph.num_edges
        check(answer, float((values - 1).abs().max()) * (1 - 1e-12), "bound", within=1 + 1e-9)
    same = ohm.sparsify(random_graph(60, 80), 0.5)
    assert (same.error, same.error_kind) == (0.0, "bound")


def exact_angles(case: Case, power: list[Any], out: int | None = None) -> list[Any]:
    """Flows in units by MATPOWER's equations in 80 digits, of injections that sum to zero, a branch left out."""
    _, _, b, _, ends = equations(case)
    n, dead = len(case.bus), case.bus[:, 1] == 4
    x = [mpmath.mpf(row[3]) * mpmath.mpf(row[8] or 1.0) for row in case.branch]
    matrix, on = mpmath.zeros(n), [j for j in range(len(b)) if b[j] != 0 and j != out]
    for j in on:
        u, v = ends[j]
        for i, k, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
            matrix[int(i), int(k)] += sign / x[j]
    kept = [i for i in range(1, n) if not dead[i]]
    theta = [mpmath.mpf(0)] * n
    grounded = mpmath.matrix([[matrix[i, j] for j in kept] for i in kept])
    for i, value in zip(kept, mpmath.lu_solve(grounded, mpmath.matrix([power[i] for i in kept])), strict=True):
        theta[i] = value
    return [(theta[ends[j][0]] - theta[ends[j][1]]) / x[j] if j in on else mpmath.mpf(0) for j in range(len(b))]


def test_power_flows_transfers_and_outages() -> None:
    case = parse_case(GRID5.read_text(), "grid5.m")
    reactance = case.branch[:, 3] * np.where(case.branch[:, 8] == 0, 1, case.branch[:, 8])
    with mpmath.workdps(DIGITS):
        flow, ends = dc_flow(case), equations(case)[4]
        shift = [mpmath.mpf(float(np.deg2rad(row[9]))) for row in case.branch]
        power = [mpmath.mpf(p) / case.base_mva for p in flow.injection.tolist()]
        power[0] = -mpmath.fsum(power[1:])
        on = [row[10] > 0 and not {ends[j][0], ends[j][1]} & {5} for j, row in enumerate(case.branch)]
        pushed = [shift[j] / mpmath.mpf(float(reactance[j])) if on[j] else mpmath.mpf(0) for j in range(len(on))]
        for j, s in enumerate(pushed):
            power[ends[j][0]] += s
            power[ends[j][1]] -= s
        right = [f - s for f, s in zip(exact_angles(case, power), pushed, strict=True)]
        check(flow, off(flow.value / case.base_mva, right, reactance), "estimate", within=1e3)
        unit = [mpmath.mpf(i) for i in (1, 0, -1, 0, 0, 0)]
        transfer = ptdf(case, transfers=[(10, 30)])
        check(transfer, off(transfer.value[:, 0], exact_angles(case, unit), reactance), "estimate", within=1e3)
        for row in (0, 2, 4, 6):
            found = lodf(case, [row])
            injected = [mpmath.mpf(0)] * 6
            injected[ends[row][0]], injected[ends[row][1]] = mpmath.mpf(1), mpmath.mpf(-1)
            factors = exact_angles(case, injected, out=row)
            factors[row] = mpmath.mpf(-1)
            check(found, off(found.value[:, 0], factors, reactance), "estimate", within=1e5)


def test_what_was_not_begun_has_no_error() -> None:
    graph = random_graph(700, 1500)
    pairs = torch.randint(0, 700, (600, 2), generator=torch.Generator().manual_seed(0))
    calls = []

    def stop(layers: int, residual: float) -> bool:
        calls.append(layers)
        return len(calls) > 2

    answer = ohm.effective_resistance(graph, pairs, method="chebyshev", progress=stop)
    assert answer.stopped
    assert answer.error is None
