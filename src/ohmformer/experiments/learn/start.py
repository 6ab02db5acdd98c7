"""Initial weights: random, or near the lemma of the task."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions import GradientDescent, PowerSeriesRoot, TaylorHeat, scalars
from ohmformer.constructions.base import Construction
from ohmformer.experiments.learn.graphs import GraphDistribution
from ohmformer.experiments.learn.models import START, random_weights
from ohmformer.experiments.learn.setting import TOURNAMENT, Setting
from ohmformer.experiments.learn.tasks import EIGENVECTORS, HEAT_TIME, generator
from ohmformer.graph import Spectrum

DISTURBANCE = {"scalars": 0.1, "matrices": 0.02}
"""Deviation of the noise added to a construction; for scalars that multiply ``G``, divided by the largest eigenvalue."""


def initial_weights(setting: Setting) -> dict[str, Tensor]:
    """Draw the initial weights of all seeds, stacked; scalars have a second axis for the starts of a seed."""
    each = [_one_seed(setting, generator(seed, 0, "start")) for seed in setting.all_seeds]
    return {name: torch.stack([weights[name] for weights in each]) for name in each[0]}


def lemma(setting: Setting) -> Construction:
    """Build the paper's construction for the task, for the spectrum of these graphs."""
    spectrum = sampled_spectrum(setting.distribution)
    if setting.task == "heat":
        return TaylorHeat(spectrum, HEAT_TIME)
    return {"electric": GradientDescent, "resistive": PowerSeriesRoot}[setting.task](spectrum)


@lru_cache(maxsize=64)
def sampled_spectrum(distribution: GraphDistribution) -> Spectrum:
    """Return the smallest and largest nonzero eigenvalue of 1,000 graphs."""
    incidence = distribution.incidence(1000, generator(0, 0, "start"))
    values = torch.linalg.eigvalsh(incidence @ incidence.mT)[:, 1:]
    return Spectrum(float(values.min()), float(values.max()))


def _one_seed(setting: Setting, draw: torch.Generator) -> dict[str, Tensor]:
    """Draw the initial weights of one seed."""
    if setting.scalars:
        start = scalars.from_program(lemma(setting).program(setting.layers))
        noise = DISTURBANCE["scalars"] * torch.randn(TOURNAMENT[0].starts, *start.shape, generator=draw, dtype=torch.float64)
        noise[..., scalars.ON_GRAM] /= sampled_spectrum(setting.distribution).lmax
        return {"scalars": start + noise}
    edges, nodes, eigenvectors = setting.distribution.edges, setting.nodes, setting.task == EIGENVECTORS
    weights = random_weights(setting.model, setting.layers, edges, nodes, eigenvectors, draw)
    if setting.init == "random":
        return weights
    if eigenvectors:
        built = _corollary_7(setting)
        weights[START][:, nodes:] = torch.linalg.qr(weights[START][:, nodes:]).Q  # a Phi_0 of full rank
    else:
        numbers = scalars.from_program(lemma(setting).program(setting.layers)).float()
        built = _matrices(numbers, setting.model, edges, nodes)
    return {
        name: built[name] + DISTURBANCE["matrices"] * torch.randn(w.shape, generator=draw) if name in built else w
        for name, w in weights.items()
    }


def _corollary_7(setting: Setting) -> dict[str, Tensor]:
    """Build subspace iteration for the smallest eigenvectors with its orthogonalisation in the same layer.

        phi_i <- phi_i - L phi_i / lmax - sum over j of d_j phi_j <phi_j, phi_i> + d_i phi_i,    d_j = 1 - (j - 1) / n

    on the answers, and without the d_j on the other columns; columns are normalised after it. Column j takes more from the
    others than they take from it if j is smaller, so that they settle in the order of the eigenvalues.
    """
    lmax, nodes = sampled_spectrum(setting.distribution).lmax, setting.nodes
    numbers = torch.zeros(setting.layers, scalars.WIDTH)
    numbers[:, [4, 7]] = -1 / lmax
    built = _matrices(numbers, setting.model, setting.distribution.edges, nodes)
    taken = torch.linspace(1.0, 1.0 / nodes, nodes)
    for name, diagonal in (("skip", taken), ("query", (lmax * taken).sqrt()), ("key", (lmax * taken).sqrt())):
        built[name][:, -nodes:, -nodes:] += torch.diag(diagonal)
    return built


def _matrices(numbers: Float[Tensor, "layers 10"], model: str, edges: int, nodes: int) -> dict[str, Tensor]:
    """Expand multiples of the identity to matrices, for the dense or the efficient model."""
    layers, width = len(numbers), 2 * nodes
    blocks = {
        name: torch.stack([torch.kron(row.view(2, 2).contiguous(), torch.eye(nodes)) for row in part])
        for name, part in (("skip", numbers[:, :4]), ("value", numbers[:, 4:8]))
    }
    blocks |= {name: torch.zeros(layers, width, width) for name in ("query", "key")}
    alphas = {"value": numbers[:, 9], "query": torch.ones(layers), "key": torch.ones(layers), "skip": numbers[:, 8]}
    if model == "efficient":
        return blocks | {"alphas": torch.stack([alphas[name] for name in ("value", "query", "key", "skip")], dim=-1)}
    return {
        name: torch.stack(
            [torch.block_diag(a * torch.eye(edges), b) for a, b in zip(alphas[name], blocks[name], strict=True)]
        )
        for name in blocks
    }
