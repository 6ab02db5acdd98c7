"""Ten numbers a layer, trained on somebody's graphs: a construction like any other, with a measured error."""

import networkx as nx
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, Spectrum, exact
from ohmformer.constructions import Chebyshev, newton, scalars
from ohmformer.constructions.learned import TASKS, Learned, eigenvalues, learned, relative_error
from ohmformer.graph.families import family
from ohmformer.verify import _compare


def grids(count: int, nodes: int = 16, seed: int = 0) -> list[Graph]:
    draw = torch.Generator().manual_seed(seed)
    return [family("grid", nodes, generator=draw, spread=1.0) for _ in range(count)]


def chebyshev(spectrum: Spectrum, layers: int):
    """The polynomial of Chebyshev's layers, by running them on matrices of one row."""
    built = Chebyshev(spectrum)

    def response(values: torch.Tensor) -> torch.Tensor:
        x = values.flatten()[:, None, None]
        *_, phi = built.plain(x, {"demand": torch.ones_like(x)}, layers)
        return phi.view_as(values)

    return response


def test_with_b_as_it_is_the_polynomial_is_the_best_one_of_its_degree():
    graphs = grids(15)
    built = learned("electric", graphs, layers=4)
    trained = [g for i, g in enumerate(graphs) if i % 5 != 4]
    values = np.stack([np.linalg.eigvalsh(g.laplacian().numpy())[1:] for g in trained])
    weights = 1 / np.sqrt((values**-2.0).sum(1, keepdims=True)) * np.ones_like(values)
    best = np.polynomial.Polynomial.fit(values.ravel(), 1 / values.ravel(), 4, w=weights.ravel())
    np.testing.assert_allclose(built.response(torch.from_numpy(values)), best(values), rtol=1e-8)
    assert built.depth == 4
    assert built.error < relative_error(chebyshev(built.spectrum, 4), *eigenvalues(Graph.collate(graphs), built))


@pytest.mark.parametrize("evolve", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_its_layers_are_its_polynomial_on_graphs_of_any_size(task: str, evolve: bool):
    built = learned(task, grids(8, 9), layers=3, evolve=evolve)
    g = family("csl", 12, generator=torch.Generator().manual_seed(1), spread=1.0)
    psi = torch.randn(12, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    psi = psi if built.at_zero else psi - psi.mean(0)
    values, vectors = np.linalg.eigh(g.laplacian().numpy())
    h = built.response(torch.from_numpy(values)).numpy()
    h[0] = h[0] if built.at_zero else 0.0
    truth = vectors @ (h[:, None] * (vectors.T @ psi.numpy()))
    np.testing.assert_allclose(built(g, psi), truth, atol=1e-9 * np.abs(truth).max())
    plain, dense, _ = _compare(built, g, built.inputs(g, psi), 3)
    assert max(plain, dense) < 1e-10


def test_the_error_is_that_of_random_demands_on_graphs_that_were_held_out():
    graphs = grids(10)
    built = learned("electric", graphs, layers=3, evolve=True)
    shares = []
    for g in graphs[4::5]:
        psi = torch.randn(16, 2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        psi -= psi.mean(0)
        truth = torch.from_numpy(np.linalg.pinv(g.laplacian().numpy())) @ psi
        shares.append(float((built(g, psi) - truth).square().sum() / truth.square().sum()))
    assert built.graphs == 2
    assert built.error == pytest.approx(np.sqrt(np.mean(shares)), rel=0.05)
    assert built.error == pytest.approx(built.error_on(graphs[4::5]), rel=1e-9)
    assert built.error < built.lemma_error / 3


def test_layers_that_change_b_are_worth_more_than_as_many_that_do_not():
    graphs = grids(10, 25)
    fixed, evolving = (learned("electric", graphs, layers=4, evolve=evolve) for evolve in (False, True))
    assert evolving.error < fixed.error / 5
    assert all(row[8] == row[9] == 0.0 for row in fixed.numbers)


def test_no_eigenvalue_of_the_interval_has_a_larger_error_than_said():
    built = learned("electric", grids(10), layers=3)
    values = torch.linspace(built.spectrum.lmin, built.spectrum.lmax, 777, dtype=torch.float64)
    largest = float((built.response(values) - 1 / values).abs().max())
    assert largest <= built.error_bound(3) * (1 + 1e-6)


def test_the_gradient_of_the_relative_error_agrees_with_automatic_differentiation():
    draw = torch.Generator().manual_seed(0)
    numbers = 0.3 * torch.randn(1, 3, 10, generator=draw, dtype=torch.float64)
    values = torch.rand(1, 4, 5, generator=draw, dtype=torch.float64) + 0.5
    squares = torch.rand(1, 4, 1, 5, generator=draw, dtype=torch.float64)
    answer, jacobian = scalars.response_and_jacobian(numbers, values, normalize_incidence=False, up_to_scale=False)
    _, half = newton._normal_equations(answer, jacobian, 1 / values, squares, False)
    x = numbers.clone().requires_grad_()
    response = scalars.response(x[:, None], values, normalize_incidence=False, up_to_scale=False)
    (gradient,) = torch.autograd.grad(scalars.loss(response, 1 / values, squares, up_to_scale=False).sum(), x)
    torch.testing.assert_close(2 * half / 4, gradient.flatten(1), rtol=1e-8, atol=1e-12)


def test_graphs_come_in_any_form_and_the_same_seed_gives_the_same_numbers():
    rings = [nx.cycle_graph(n) for n in (5, 6, 7, 8, 9)]
    built, again = (ohm.learned("electric", rings, layers=2, evolve=True, seed=3) for _ in range(2))
    assert isinstance(built, Learned)
    assert built.numbers == again.numbers
    assert built(rings[0], torch.tensor([1.0, 0, -1, 0, 0])).shape == (5, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("flow", grids(3)), "expected a task among electric, resistive, heat, got 'flow'"),
        (("electric", grids(1)), "expected at least 2 graphs, one of them to be held out, got 1"),
        (("electric", None), "expected a list of graphs, or a batch, got NoneType"),
        (("electric", [nx.empty_graph(3), nx.path_graph(3)]), "expected graphs with edges"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        learned(*arguments)


def test_other_depths_than_the_trained_one_are_refused():
    built = learned("electric", grids(3, 9), layers=2)
    with pytest.raises(ValueError, match="expected 2 layers, as many as were trained, got 3"):
        built.run(grids(1, 9)[0], layers=3)
    assert exact.spectrum(Graph.collate(grids(3, 9))) == built.spectrum
