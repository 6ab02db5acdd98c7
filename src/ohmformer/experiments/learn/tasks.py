"""The learning tasks: functions of the Laplacian and eigenvectors, with the losses of sections 3.5 and 4.1.

Answers are compared up to scale, as every layer normalises its state:

    loss_U = mean over graphs and demands of | phi_i / |phi_i| - U psi_i / |U psi_i| |^2        as the paper writes it
    the same with the whole answer matrix divided by its Frobenius norm                        as in the authors' code
    loss_i = mean over graphs of min over signs of | phi_i -+ v_i |^2                          eigenvector i

Problems have the seeds as their first axis; every seed has its own graphs, drawn from ``(seed, step)`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.experiments.learn.graphs import GraphDistribution

HEAT_TIME = 0.5
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "electric": torch.reciprocal,
    "resistive": torch.rsqrt,
    "heat": lambda x: torch.exp(-HEAT_TIME * x),
}
"""Functions of the Laplacian, evaluated on its nonzero eigenvalues."""
EIGENVECTORS = "eigenvectors"
TASKS = (*FUNCTIONS, EIGENVECTORS)
SCALE_FREE = ("electric", "resistive", EIGENVECTORS)
"""Tasks whose answer, up to scale, is invariant to scaling all resistances; for these ``|B|_F = 1`` on entry."""
STREAMS = {"train": 0, "test": 1, "start": 2}


def generator(seed: int, step: int, stream: str = "train") -> torch.Generator:
    """Return the random generator of one seed at one step."""
    state = np.random.SeedSequence([seed, step, STREAMS[stream]]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))


@dataclass(frozen=True)
class Problems:
    """Graphs with demands and exact answers, drawn for training or testing."""

    incidence: Float[Tensor, "seeds graphs nodes edges"]
    gram: Float[Tensor, "seeds graphs nodes nodes"]
    demands: Float[Tensor, "seeds graphs nodes demands"] | None
    """None for eigenvectors, which start from a trained matrix."""
    target: Float[Tensor, "seeds graphs nodes demands"]

    def split(self, graphs: int) -> list[Problems]:
        """Split into parts of at most ``graphs`` graphs per seed."""
        incidence, gram, target = (x.split(graphs, dim=1) for x in (self.incidence, self.gram, self.target))
        demands = [None] * len(gram) if self.demands is None else self.demands.split(graphs, dim=1)
        return [Problems(*parts) for parts in zip(incidence, gram, demands, target, strict=True)]


def draw(
    task: str, distribution: GraphDistribution, generators: list[torch.Generator], graphs: int, dtype: torch.dtype
) -> Problems:
    """Draw graphs with as many centred Gaussian demands as nodes, and solve them by LAPACK in float64."""
    incidence = torch.stack([distribution.incidence(graphs, g) for g in generators])
    gram = incidence @ incidence.mT
    demands = None
    values, vectors = torch.linalg.eigh(gram)
    if task == EIGENVECTORS:
        target = vectors
    else:
        nodes = distribution.nodes
        demands = torch.stack([torch.randn(graphs, nodes, nodes, generator=g, dtype=torch.float64) for g in generators])
        demands -= demands.mean(dim=-2, keepdim=True)
        range_ = vectors[..., 1:]  # the graphs are connected: one null vector
        target = range_ @ (FUNCTIONS[task](values[..., 1:, None]) * (range_.mT @ demands))
        target = target / target.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    cast = [None if x is None else x.to(dtype) for x in (incidence, gram, demands, target)]
    return Problems(*cast)  # pyright: ignore[reportArgumentType]


def demand_loss(
    answer: Float[Tensor, "*seeds graphs nodes demands"], target: Float[Tensor, "*seeds graphs nodes demands"]
) -> Float[Tensor, "*seeds"]:
    """Compute the paper's loss: every demand's answer divided by its own norm."""
    return (_unit(answer, (-2,)) - _unit(target, (-2,))).square().sum(-2).mean(dim=(-2, -1))


def frobenius_loss(
    answer: Float[Tensor, "*seeds graphs nodes demands"], target: Float[Tensor, "*seeds graphs nodes demands"]
) -> Float[Tensor, "*seeds"]:
    """Compute the authors' code's loss: the answer matrix divided by its Frobenius norm."""
    return (_unit(answer, (-2, -1)) - _unit(target, (-2, -1))).square().sum(dim=(-2, -1)).mean(dim=-1)


def eigenvector_losses(
    answer: Float[Tensor, "*seeds graphs nodes k"], target: Float[Tensor, "*seeds graphs nodes k"]
) -> Float[Tensor, "*seeds k"]:
    """Compute ``loss_1 .. loss_k``, up to the signs of the eigenvectors."""
    unit = _unit(answer, (-2,))
    minus, plus = (unit - target).square().sum(-2), (unit + target).square().sum(-2)
    return torch.minimum(minus, plus).mean(dim=-2)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "demand": demand_loss,
    "frobenius": frobenius_loss,
    "1-5": lambda answer, target: eigenvector_losses(answer[..., :5], target[..., :5]).mean(-1),
    "1-10": lambda answer, target: eigenvector_losses(answer[..., :10], target[..., :10]).mean(-1),
}
"""Training losses by name; each returns one number per seed."""


def _unit(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Divide x by its norm over the given dimensions; zeros stay zero."""
    square = x.square().sum(dim=dim, keepdim=True)
    return x * torch.where(square > 0, square, 1.0).rsqrt()
