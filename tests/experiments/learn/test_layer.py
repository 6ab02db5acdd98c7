"""A layer of each model and the derivatives that are written out beside it."""

import pytest
import torch

from ohmformer.experiments.learn.layer import dense_layer, layer, unit_blocks, unit_norm, unit_trace


def test_the_derivative_of_a_layer_agrees_with_finite_differences():
    """Two seeds of two graphs; G is given as B B^T, since its derivative is that of a symmetric matrix."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"phi": (4, 3, 4), "incidence": (4, 3, 5), "weights": (2, 4, 12), "numbers": (3, 4, 1, 1)}
    leaves = [(0.5 * torch.randn(*s, generator=draw, dtype=torch.float64)).requires_grad_() for s in shapes.values()]

    def twice(phi: torch.Tensor, incidence: torch.Tensor, weights: torch.Tensor, numbers: torch.Tensor):
        return layer(*layer(phi, incidence @ incidence.mT, weights, *numbers.unbind(0)), weights, *numbers.unbind(0))

    assert torch.autograd.gradcheck(twice, leaves)


def test_a_dense_layer_is_its_formula_graph_by_graph_with_the_derivative_of_finite_differences():
    draw = torch.Generator().manual_seed(1)
    x, weights = (torch.randn(*s, generator=draw).double().requires_grad_() for s in ((4, 3, 2), (2, 2, 6)))
    for i, new in enumerate(dense_layer(x, weights)):
        compare, value, keep = weights[i // 2].split(2, dim=1)
        torch.testing.assert_close(new, x[i] @ keep + x[i] @ compare @ x[i].T @ x[i] @ value)
    assert torch.autograd.gradcheck(lambda x, w: dense_layer(dense_layer(x, w), w), (x, weights))


def test_a_layer_is_the_formula_of_its_module_graph_by_graph():
    draw = torch.Generator().manual_seed(1)
    phi, incidence, weights = (torch.randn(*s, generator=draw).double() for s in ((4, 3, 2), (4, 3, 5), (2, 2, 6)))
    seen, move, stay = torch.randn(3, 4, 1, 1, generator=draw).double()
    new_phi, new_gram = layer(phi, incidence @ incidence.mT, weights, seen, move, stay)
    for i in range(4):
        compare, value, keep = weights[i // 2].split(2, dim=1)
        gram = incidence[i] @ incidence[i].T
        similarity = seen[i] * gram + phi[i] @ compare @ phi[i].T
        acting = stay[i] * torch.eye(3) + move[i] * similarity
        torch.testing.assert_close(new_phi[i], phi[i] @ keep + similarity @ phi[i] @ value)
        torch.testing.assert_close(new_gram[i], acting @ gram @ acting.T)


@pytest.mark.parametrize(
    ("normalise", "size"),
    [
        (unit_norm, lambda x: torch.linalg.vector_norm(x, dim=(1, 2))),
        (lambda x: unit_norm(x, (1,)), lambda x: torch.linalg.vector_norm(x, dim=1)),
        (unit_trace, lambda x: torch.einsum("gii->g", x)),
        (lambda x: unit_blocks(x, 2, (True, True))[..., :2], lambda x: torch.linalg.vector_norm(x, dim=(1, 2))),
        (lambda x: unit_blocks(x, 1, (True, False))[..., 1:], lambda x: torch.linalg.vector_norm(x, dim=1)),
    ],
    ids=["norm", "columns", "trace", "incidence", "features"],
)
def test_what_is_normalised_has_size_one_and_the_derivative_of_finite_differences(normalise, size):
    draw = torch.Generator().manual_seed(2)
    x = (torch.randn(3, 4, 4, generator=draw, dtype=torch.float64) + torch.eye(4)).requires_grad_()
    sizes = size(normalise(x))
    torch.testing.assert_close(sizes, torch.ones_like(sizes))
    assert torch.autograd.gradcheck(normalise, x)
