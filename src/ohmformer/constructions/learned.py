"""Learned constructions: ten numbers a layer, trained on given graphs, for graphs of any size.

A lemma is built for an interval that contains the spectrum; actual graphs seldom fill it. Here the numbers of ``scalars.py``
are trained on the eigenvalues of given graphs to minimise the squared relative error

    loss = mean over graphs of  sum_i (h(lambda_i) - f(lambda_i))^2 / sum_i f(lambda_i)^2

which is the expected squared error of ``h(L) psi`` for isotropic demands psi, relative to that of the answer. Nothing is
normalised, so ``h`` is one polynomial for all graphs. If B is fixed, its degree is the number of layers and the best
one is found by linear least squares; Horner's rule converts it to layers. If the layers change B as well (``evolve``), the
degree is up to ``(3^L - 1) / 2``, and Levenberg-Marquardt trains perturbed copies of the lemma and of that polynomial.

>>> import torch
>>> from ohmformer.graph.families import family
>>> draw = torch.Generator().manual_seed(0)
>>> graphs = [family("grid", 9, generator=draw, spread=1.0) for _ in range(20)]
>>> built = learned("electric", graphs, layers=4)
>>> built.error < 0.5 * built.lemma_error
True
>>> built(graphs[0], torch.eye(9)[0] - torch.eye(9)[8]).shape
torch.Size([9, 1])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import newton, scalars
from ohmformer.constructions.base import Construction, check_layers
from ohmformer.constructions.electric import GradientDescent
from ohmformer.constructions.heat import TaylorHeat
from ohmformer.constructions.resistive import PowerSeriesRoot
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.labelled import as_graph
from ohmformer.transformer.blocks import Program
from ohmformer.transformer.normalize import Normalization

HEAT_TIME = 0.5
TASKS: dict[str, Callable[[Spectrum], Construction]] = {
    "electric": GradientDescent,
    "resistive": PowerSeriesRoot,
    "heat": lambda spectrum: TaylorHeat(spectrum, HEAT_TIME),
}
"""Tasks that can be learned, each with the lemma from which training starts."""
STAGES = ((24, 15), (6, 25), (2, 60))
"""Number of starts and of steps in each training stage; only the best starts enter the next stage."""
NOISE = 0.1
"""Standard deviation of the noise added to starts; divided by the largest eigenvalue for numbers that multiply L."""
MARGIN, BINS = 0.1, 1000
"""If layers change B: relative margin by which eigenvalues of other graphs may differ, and number of bins of eigenvalues."""
JUDGED = 5
"""Every fifth graph is held out."""


@dataclass(frozen=True)
class Learned(Construction):
    """Trained numbers as a construction of one depth, with its error on held-out graphs."""

    task: str
    numbers: tuple[tuple[float, ...], ...]
    """Ten per layer, see :mod:`ohmformer.constructions.scalars`."""
    error: float
    """Relative error on held-out graphs, root mean square over graphs and isotropic demands."""
    lemma_error: float
    """The same error of the lemma at this depth."""
    graphs: int
    """Number of held-out graphs used to measure it."""

    statement: ClassVar[str] = "ours, learned"
    answer: ClassVar[str] = scalars.ANSWER

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.numbers)

    @property
    def at_zero(self) -> float:
        """The value on the null space."""
        return self._lemma.at_zero

    @property
    def _lemma(self) -> Construction:
        return TASKS[self.task](self.spectrum)

    def f(self, x: Tensor) -> Tensor:
        """Evaluate the target function."""
        return self._lemma.f(x)

    def __call__(self, graph: Any, signals: Tensor) -> Float[Tensor, "nodes k"]:
        """Compute ``f(L) signals`` with all layers, for a graph in any supported form."""
        return self.run(as_graph(graph).graph, signals, layers=self.depth, center=self.at_zero == 0)

    def response(self, eigenvalues: Float[Tensor, "*graphs m"]) -> Float[Tensor, "*graphs m"]:
        """Evaluate the polynomial that the layers compute."""
        return _polynomial(torch.tensor(self.numbers, dtype=torch.float64), eigenvalues)

    def error_on(self, graphs: Any) -> float:
        """Measure the relative error on other graphs: root mean square over graphs and isotropic demands."""
        return relative_error(self.response, *eigenvalues(_collate(graphs), self))

    def program(self, layers: int) -> Program:
        """Return the trained weights; only one depth is available."""
        if check_layers(layers) != self.depth:
            raise ValueError(f"expected {self.depth} layers, as many as were trained, got {layers}")
        return scalars.to_program(torch.tensor(self.numbers, dtype=torch.float64), Normalization())

    def inputs(self, graph: Graph, signals: Tensor) -> dict[str, Tensor]:
        """Start from the signals; the answer starts at zero."""
        return {scalars.DEMAND: signals, scalars.ANSWER: torch.zeros_like(signals)}

    def plain(self, laplacian: Tensor, blocks: Mapping[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the answer after each layer: ``[p q] <- [p q] (I + W_R) + G [p q] W_V``, ``G <- A G A``."""
        one = torch.eye(laplacian.shape[-1], dtype=laplacian.dtype, device=laplacian.device)
        p, q, g = blocks[scalars.DEMAND], blocks[scalars.ANSWER], laplacian
        for r00, r01, r10, r11, v00, v01, v10, v11, a_r, a_v in self.numbers[:layers]:
            p, q = p + r00 * p + r01 * q + g @ (v00 * p + v01 * q), q + r10 * p + r11 * q + g @ (v10 * p + v11 * q)
            a = (1 + a_r) * one + a_v * g
            g = a @ g @ a
            yield q

    def error_bound(self, layers: int) -> float:
        """The largest ``|h - f|`` at 20,000 points of the interval: measured on a fine grid, not proved."""
        self.program(layers)
        points = torch.logspace(0, 1, 20000, base=self.spectrum.condition, dtype=torch.float64) * self.spectrum.lmin
        return float((self.response(points) - self.f(points)).abs().max())

    @property
    def min_layers(self) -> int:
        """The depth."""
        return self.depth


def learned(task: str = "electric", graphs: Any = None, *, layers: int = 9, evolve: bool = False, seed: int = 0) -> Learned:
    """Train ten numbers per layer for a distribution of graphs; return a construction with a measured error.

    Args:
        task: ``electric`` (``L^+``), ``resistive`` (its square root) or ``heat`` (``exp(-L/2)``).
        graphs: a list of graphs in any supported form, or a batch; every fifth is held out.
        layers: depth.
        evolve: also let the layers change B, which costs products of n x n matrices, and is worth many layers.
        seed: seed of the perturbed copies that training starts from.
    """
    if task not in TASKS:
        raise ValueError(f"expected a task among {', '.join(TASKS)}, got {task!r}")
    if check_layers(layers) < 1:
        raise ValueError(f"expected at least 1 layer, got {layers}")
    batch = _collate(graphs)
    count = batch.num_graphs
    if count < 2:
        raise ValueError(f"expected at least 2 graphs, one of them to be held out, got {count}")
    lemma = TASKS[task](exact.spectrum(batch))
    values, weights, target = eigenvalues(batch, lemma)
    judged = torch.arange(count) % JUDGED == min(JUDGED, count) - 1
    first = scalars.from_program(lemma.program(layers))
    numbers = best_polynomial(values[~judged], weights[~judged], target[~judged], lemma.spectrum, layers)
    if evolve:
        numbers = _train(torch.stack([first, numbers]), *_density(values[~judged], weights[~judged], lemma), lemma, seed)
    held_out = values[judged], weights[judged], target[judged]
    errors = [relative_error(partial(_polynomial, x), *held_out) for x in (numbers, first)]
    rows = tuple(tuple(row) for row in numbers.tolist())
    return Learned(lemma.spectrum, task, rows, errors[0], errors[1], int(judged.sum()))


def best_polynomial(
    values: Float[Tensor, "graphs m"],
    weights: Float[Tensor, "graphs 1 m"],
    target: Float[Tensor, "graphs m"],
    spectrum: Spectrum,
    layers: int,
) -> Float[Tensor, "layers 10"]:
    """Find the polynomial of degree ``layers`` of least loss, as layers ``q <- y q + a p`` with y = L mapped to [-1, 1]."""
    real = weights[:, 0] > 0
    each = ((weights[:, 0] / (weights[:, 0] * target.square()).sum(1, keepdim=True)).sqrt())[real]
    slope, shift = (
        2 / (spectrum.lmax - spectrum.lmin or 1.0),
        (spectrum.lmax + spectrum.lmin) / (spectrum.lmax - spectrum.lmin or 1.0),
    )
    y = slope * values[real] - shift
    basis = torch.from_numpy(np.polynomial.chebyshev.chebvander(y.numpy(), layers)) * each[:, None]
    series = torch.linalg.lstsq(basis, (target[real] * each)[:, None], driver="gelsd").solution[:, 0]
    a = np.polynomial.chebyshev.cheb2poly(series.numpy())  # may be shorter
    a = np.pad(a, (0, layers + 1 - len(a)))[::-1]
    numbers = torch.zeros(layers, scalars.WIDTH, dtype=torch.float64)
    numbers[0, 6], numbers[0, 2] = slope * a[0], a[1] - shift * a[0]
    numbers[0, 3] = -1.0
    numbers[1:, 2], numbers[1:, 3], numbers[1:, 7] = torch.from_numpy(a[2:].copy()), -1.0 - shift, slope
    return numbers


def _train(
    first: Float[Tensor, "starts layers 10"], values: Tensor, weights: Tensor, target: Tensor, lemma: Construction, seed: int
) -> Float[Tensor, "layers 10"]:
    """Train perturbed copies of the given numbers, fewer in each stage; return the best."""
    draw = torch.Generator().manual_seed(seed)
    noise = NOISE * torch.randn(STAGES[0][0], *first.shape[1:], generator=draw, dtype=torch.float64)
    noise[: len(first)] = 0.0
    noise[..., scalars.ON_GRAM] /= lemma.spectrum.lmax
    numbers = first[torch.arange(len(noise)) % len(first)] + noise
    damping = torch.full((len(noise),), 1e-2, dtype=torch.float64)
    for starts, steps in STAGES:
        best = _losses(numbers, values, weights, target).argsort()[:starts]
        numbers, damping = numbers[best], damping[best]
        each = [x.expand(len(numbers), *x.shape) for x in (values, target, weights)]
        for _ in range(steps):
            numbers, damping, _ = newton.step(numbers, damping, *each, normalize_incidence=False, up_to_scale=False)
    return numbers[_losses(numbers, values, weights, target).argmin()]


def _density(
    values: Float[Tensor, "graphs m"], weights: Float[Tensor, "graphs 1 m"], lemma: Construction
) -> tuple[Float[Tensor, "1 points"], Float[Tensor, "1 1 points"], Float[Tensor, "1 points"]]:
    """Bin the eigenvalues of all graphs, and of the same graphs with all resistances changed by ``MARGIN``.

    The loss depends on the graphs only through the weight of each eigenvalue; the margin prevents a polynomial of
    high degree from growing just outside the observed eigenvalues.
    """
    low, high = lemma.spectrum.lmin / (1 + MARGIN), lemma.spectrum.lmax * (1 + MARGIN)
    step = max(math.log(high / low) / BINS, 1e-6)
    mass, null = torch.zeros(BINS + 1, dtype=torch.float64), 0.0
    for scale in (1 / (1 + MARGIN), 1.0, 1 + MARGIN):
        moved = values * scale
        positive, safe = values > 0, torch.where(values > 0, moved, 1.0)
        target = weights[:, 0] * torch.where(positive, lemma.f(safe), lemma.at_zero)
        share = (weights[:, 0] / target.square().sum(1, keepdim=True)) / (3 * len(values))
        place = ((safe / low).log() / step).long().clamp(0, BINS)
        mass.index_add_(0, place[positive], share[positive])
        null += float(share[~positive].sum())
    points = low * torch.exp((torch.arange(BINS + 1) + 0.5) * step).double()
    seen = mass > 0
    points, mass, target = points[seen], mass[seen], lemma.f(points[seen])
    if null:
        points, mass = torch.cat([points.new_zeros(1), points]), torch.cat([mass.new_tensor([null]), mass])
        target = torch.cat([target.new_tensor([lemma.at_zero]), target])
    return points[None], mass[None, None], target[None]


def relative_error(
    response: Callable[[Tensor], Tensor],
    values: Float[Tensor, "graphs m"],
    weights: Float[Tensor, "graphs 1 m"],
    target: Float[Tensor, "graphs m"],
) -> float:
    """Compute the relative error of ``h(L)`` against ``f(L)``: root mean square over graphs and isotropic demands."""
    return float(scalars.loss(response(values), target, weights, up_to_scale=False).sqrt())


def _losses(numbers: Tensor, values: Tensor, weights: Tensor, target: Tensor) -> Float[Tensor, " starts"]:
    answer = scalars.response(numbers[:, None], values, normalize_incidence=False, up_to_scale=False)
    return torch.nan_to_num(scalars.loss(answer, target, weights, up_to_scale=False), torch.inf, torch.inf)


def _polynomial(numbers: Float[Tensor, "layers 10"], eigenvalues: Tensor) -> Tensor:
    return scalars.response(numbers, eigenvalues, normalize_incidence=False, up_to_scale=False)


def _collate(graphs: Any) -> Graph:
    """Collate graphs in any supported form into a batch."""
    if isinstance(graphs, Graph):
        return graphs
    if not isinstance(graphs, Sequence | Iterable) or isinstance(graphs, str):
        raise ValueError(f"expected a list of graphs, or a batch, got {type(graphs).__name__}")
    return Graph.collate([as_graph(graph).graph.to("cpu", torch.float64) for graph in graphs])


def eigenvalues(batch: Graph, lemma: Construction) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the eigenvalues of each graph, padded to equal length, weights that are 0 on padding, and the targets.

    If the null space contributes to the answer, one eigenvalue 0 stands for every component.
    """
    values = exact.decompose(batch)[0]
    rank = (values > 0).sum(1)
    if not bool(rank.all()):
        raise ValueError(f"expected graphs with edges, got one without (number {int((rank == 0).nonzero()[0])})")
    real = torch.arange(batch.width) < (batch.graph_sizes if lemma.at_zero else rank)[:, None]
    safe = torch.where(values > 0, values, 1.0)
    target = torch.where(values > 0, lemma.f(safe), lemma.at_zero)
    return torch.where(real, values, 0.0), real[:, None].double(), torch.where(real, target, 0.0)
