"""Layers on eigenvalues: what the layers do to whole matrices, with gradients of weights and eigenvalues."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from ohmformer import native
from ohmformer.encoding import on_spectrum as module
from ohmformer.encoding.on_spectrum import on_spectrum, weights_of
from ohmformer.graph.ragged import Spans

CHANNELS, DEPTH = 3, 4


def layers_of(weights: Tensor) -> Tensor:
    """W of every layer from skip, gram, phi, value and product in the columns of a matrix."""
    channels = (weights.shape[1] - 3) // 2
    skip, gram, phi, *_ = weights.unbind(1)
    return weights_of(weights[:, 3 : 3 + channels], weights[:, 3 + channels :], gram, phi, skip)


def side_by_side(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Where the eigenvalues of graphs of these sizes begin, and whose they are."""
    spans = Spans.of(torch.tensor(sizes))
    return spans.start, spans.owner


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_matrices(n: Tensor, weights: Tensor, factor: float, *, restore: bool) -> Tensor:
    """Equation e:z_dynamics_molecule on a channel's n x n matrix as it reads, one graph; the channels' matrices."""
    size = len(n)
    phi = [torch.eye(size, dtype=n.dtype) / size**0.5 for _ in range(CHANNELS)]
    norms = torch.full((CHANNELS,), size**0.5, dtype=n.dtype)
    for l, row in enumerate(weights):
        skip, gram, beta = row[:3]
        value, product = row[3 : 3 + CHANNELS], row[3 + CHANNELS :]
        k = sum((w * x @ x.mT for w, x in zip(product, phi, strict=True)), torch.zeros_like(n))
        seen = n * (1.0 if l == 0 else factor)
        phi = [skip * x + v * (gram * seen + beta * k) @ x for v, x in zip(value, phi, strict=True)]
        length = torch.stack([x.norm() for x in phi])
        norms = norms * length if restore else norms
        phi = [x / y for x, y in zip(phi, length, strict=True)]
    return torch.stack([x * y for x, y in zip(phi, norms, strict=True)])


@pytest.mark.parametrize("restore", [False, True])
def test_numbers_are_what_the_layers_do_to_matrices(restore):
    weights, sizes = drawn(DEPTH, 3 + 2 * CHANNELS), [5, 3, 1]
    factor = torch.tensor([0.7, 1.3, 1.0], dtype=torch.float64)
    matrices = [x @ x.mT / len(x) for x in (drawn(n, n, seed=n) for n in sizes)]
    spectra = [torch.linalg.eigh(x) for x in matrices]
    start, owner = side_by_side(sizes)
    p = on_spectrum(torch.cat([v for v, _ in spectra]), start, owner, layers_of(weights), factor, restore=restore)
    for i, (n, (_, vectors)) in enumerate(zip(matrices, spectra, strict=True)):
        truth = on_matrices(n, weights, float(factor[i]), restore=restore)
        ours = torch.stack([(vectors * p[owner == i, c]) @ vectors.mT for c in range(CHANNELS)])
        torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9 * float(truth.abs().max()))


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_those_of_differences(restore, scaled):
    start, owner = side_by_side([4, 2, 1])

    def run(values: Tensor, weights: Tensor, factor: Tensor) -> Tensor:
        return on_spectrum(values, start, owner, layers_of(weights), factor if scaled else None, restore=restore)

    inputs = drawn(7).abs(), drawn(DEPTH, 3 + 2 * CHANNELS), 0.5 + drawn(3, seed=1).abs()
    assert torch.autograd.gradcheck(run, [x.requires_grad_() for x in inputs])


def test_a_channel_may_walk_rest_or_vanish():
    walk, gone = (
        torch.tensor([[skip, gram, 1.0, -1.0, 0.0, 1.0, 0.0, 0.0, 0.0]]) for skip, gram in ((1.0, 1.0), (0.0, 0.0))
    )
    values, (start, owner) = torch.tensor([0.0, 0.5, 1.5]), side_by_side([3])
    p = on_spectrum(values, start, owner, layers_of(torch.cat([walk, walk])), restore=True)
    torch.testing.assert_close(p, torch.stack([(1 - values) ** 2, torch.ones(3), (1 + values) ** 2], dim=1))
    assert not on_spectrum(values, start, owner, layers_of(torch.cat([gone, walk]))).any()


@pytest.mark.skipif(native.active() is None, reason="needs the native library")
@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("channels", [3, 16])
def test_native_layers_and_their_gradients_are_those_of_torch_in_float64(restore, channels, monkeypatch):
    start, owner = side_by_side([7, 1, 4, 0])
    values = drawn(12).abs()
    weights, factor = 0.5 * drawn(DEPTH, 3 + 2 * channels, seed=2), 0.5 + drawn(4, seed=1).abs()
    gradient, results = drawn(12, channels, seed=3), []
    for dtype, wanted in ((torch.float64, False), (torch.float32, True)):
        rows = weights.detach().to(dtype, copy=True).requires_grad_()
        with nullcontext() if wanted else native.used("off"):
            if wanted:
                monkeypatch.setattr(module._TorchLayers, "forward", lambda *x: pytest.fail("torch"))
            p = on_spectrum(values.to(dtype), start, owner, layers_of(rows), factor.to(dtype), restore=restore)
        (p * gradient.to(dtype)).sum().backward()
        assert rows.grad is not None
        results += [p.detach().double(), rows.grad.double()]
    truth, slope, ours, our_slope = results
    torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))
    torch.testing.assert_close(our_slope, slope, rtol=1e-3, atol=1e-4 * float(slope.abs().max()))
