"""Linear probes: what can be read from node states by a linear map, judged on graphs that the map has not seen.

Every value is 1 for a perfect prediction and 0 for one from the number of nodes alone; with ``degree`` the degree of every
node is also regressed out of targets and states (a partial R^2).

nodes      y = h w by ridge regression
pairs      R_uv = |B (h_u - h_v)|^2, a structural probe (Hewitt and Manning 2019); Fact 1 says that a resistive
           embedding has exactly this form, whatever square root of L^+ it is
subspace   the span of h A against the lowest eigenvectors V: mean squared cosine of the principal angles, rescaled so
           that a random subspace has 0; A maximises sum_g |V_g^T h_g A|^2 / |h_g A|^2 (a generalised eigenproblem)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import one_hot

from ohmformer.experiments.dream.targets import VECTORS, Targets

PENALTIES = torch.logspace(-7, 1, 9, dtype=torch.float64)
"""Candidate ridge penalties, relative to the size of the (standardised) states."""
RANK, STEPS = 32, 60
"""Columns of B, and number of L-BFGS iterations."""
MOST_DEGREE = 8
"""Larger degrees share one class."""


@dataclass(frozen=True)
class Parts:
    """Masks of the graphs for fitting a probe, choosing its penalty, and evaluation."""

    fit: Bool[Tensor, " graphs"]
    choose: Bool[Tensor, " graphs"]
    judge: Bool[Tensor, " graphs"]

    @classmethod
    def of(cls, graphs: int, draw: torch.Generator) -> Parts:
        """Split graphs at random in the ratio 6 : 2 : 2."""
        rank = torch.randperm(graphs, generator=draw) * 10
        return cls(rank < 6 * graphs, (rank >= 6 * graphs) & (rank < 8 * graphs), rank >= 8 * graphs)

    def at(self, owner: Tensor) -> Parts:
        """Return the masks for items of the given graphs."""
        return Parts(self.fit[owner], self.choose[owner], self.judge[owner])


def node_probe(states: Float[Tensor, "nodes width"], targets: Targets, parts: Parts, *, degree: bool = False) -> list[float]:
    """Compute R^2 of ridge regression for every node target."""
    owner = targets.nodes.owner
    part, known = parts.at(owner), _known(targets.nodes.counts[owner])
    if degree:
        known = torch.cat([known, _degrees(targets)], 1)
    y, x = (_without(z.double(), known, part.fit) for z in (targets.values, _standard(states, part.fit)))
    gram, moment = (x[part.fit].mT @ z[part.fit] for z in (x, y))
    size = gram.diagonal().mean().clamp(min=1e-300)
    one = torch.eye(len(gram), dtype=torch.float64)
    answers = x @ torch.stack([torch.linalg.solve(gram + p * size * one, moment) for p in PENALTIES])
    error = (answers - y).square()
    best = error[:, part.choose].sum(1).argmin(0)
    judged = error[:, part.judge].sum(1).gather(0, best[None])[0]
    return (1 - judged / y[part.judge].square().sum(0)).tolist()


def pair_probe(
    states: Float[Tensor, "nodes width"], targets: Targets, parts: Parts, draw: torch.Generator, *, degree: bool = False
) -> float:
    """Compute R^2 of squared distances of linearly mapped states for pair resistances."""
    u, v = targets.pairs
    owner = targets.nodes.owner
    part, known = parts.at(owner[u]), _known(targets.nodes.counts[owner[u]])
    if degree:
        known = torch.cat([known, _degrees(targets)[u] + _degrees(targets)[v]], 1)
    y = targets.resistance.double()
    y = _without(y[:, None], known, part.fit)[:, 0].float()
    scale = y[part.fit].std().clamp(min=1e-30)
    y, known = y / scale, known.float()
    h = _standard(states, parts.at(owner).fit).float()
    difference = h[u] - h[v]
    columns = difference.shape[1]
    b = torch.randn(columns, min(RANK, columns), generator=draw) * 0.1 / columns**0.5
    w = torch.zeros(known.shape[1])
    b.requires_grad_()
    w.requires_grad_()

    def error(which: Tensor) -> Tensor:
        return ((difference[which] @ b).square().sum(1) + known[which] @ w - y[which]).square()

    def loss() -> Tensor:
        return error(part.fit).mean() + 1e-5 * b.square().sum()

    judged = _descend([b, w], loss, lambda: float(error(part.choose).sum()), lambda: float(error(part.judge).sum()))
    return 1 - judged / float(y[part.judge].square().sum())


def subspace_probe(states: Float[Tensor, "nodes width"], targets: Targets, parts: Parts, *, degree: bool = False) -> float:
    """Compute the share of the lowest eigenvectors that the best three columns of states span, beyond chance."""
    nodes = targets.nodes
    owner, graphs = nodes.owner, len(nodes)
    part = parts.at(owner)
    h = _standard(states, part.fit)
    if degree:
        h = _without(h, torch.cat([_known(nodes.counts[owner]), _degrees(targets)], 1), part.fit)

    def per_graph(x: Tensor) -> Tensor:
        return x.new_zeros(graphs, *x.shape[1:]).index_add(0, owner, x)

    h = h - (per_graph(h) / nodes.counts[:, None])[owner]
    h = h / per_graph(h.square()).sum(1).clamp(min=1e-30).sqrt()[owner, None]
    v = targets.vectors.double()
    cross = per_graph(v[:, :, None] * h[:, None])  # V^T h of every graph
    fit = parts.fit & targets.separated
    rows = fit[owner]
    inside, all_of_it = (x.flatten(0, -2).mT @ x.flatten(0, -2) for x in (cross[fit], h[rows]))
    size, one = all_of_it.diagonal().mean().clamp(min=1e-300), torch.eye(h.shape[1], dtype=torch.float64)
    scores = []
    for penalty in PENALTIES:
        whiten = torch.linalg.inv(torch.linalg.cholesky(all_of_it + penalty * size * one)).mT
        a = whiten @ torch.linalg.eigh(whiten.mT @ inside @ whiten).eigenvectors[:, -VECTORS:]
        z = h @ a
        gram = per_graph(z[:, :, None] * z[:, None])
        gram = gram + 1e-9 * gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=1e-30)[:, None, None] * torch.eye(a.shape[1])
        cosines = torch.linalg.solve(gram, (cross @ a).mT) * (cross @ a).mT
        share = cosines.sum((1, 2)) / VECTORS
        chance = a.shape[1] / (nodes.counts - 1)
        scores.append((share - chance) / (1 - chance))
    score = torch.stack(scores)
    best = score[:, parts.choose & targets.separated].mean(1).argmax()
    return float(score[best, parts.judge & targets.separated].mean())


def _descend(
    weights: list[Tensor], loss: Callable[[], Tensor], choose: Callable[[], float], judge: Callable[[], float]
) -> float:
    """Minimise by L-BFGS; return the evaluation error at the step with the smallest validation error."""
    optimizer = torch.optim.LBFGS(weights, max_iter=10, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return float(value.detach())

    found = []
    for _ in range(STEPS // 10):
        optimizer.step(closure)
        with torch.no_grad():
            found.append((choose(), judge()))
    return min(found)[1]


def _known(sizes: Tensor) -> Float[Tensor, "items 4"]:
    """Return ``1, n, n^2, 1/n`` with n the numbers of nodes over their mean."""
    n = sizes.double() / sizes.double().mean()
    return torch.stack([torch.ones_like(n), n, n.square(), n.reciprocal()], 1)


def _degrees(targets: Targets) -> Float[Tensor, "nodes classes"]:
    return one_hot(targets.degree.clamp(max=MOST_DEGREE), MOST_DEGREE + 1).double()


def _standard(x: Tensor, fit: Tensor) -> Float[Tensor, "nodes width"]:
    """Standardise columns by mean and standard deviation of the fitted nodes; constant columns become zero."""
    x = x.double()
    centre, spread = x[fit].mean(0), x[fit].std(0)
    return (x - centre) / torch.where(spread > 1e-9 * (centre.abs() + spread), spread, torch.inf)


def _without(y: Float[Tensor, "items k"], known: Float[Tensor, "items c"], fit: Tensor) -> Float[Tensor, "items k"]:
    """Regress ``known`` out of y, by least squares on the fitted items."""
    gram = known[fit].mT @ known[fit]
    gram = gram + 1e-9 * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    return y - known @ torch.linalg.solve(gram, known[fit].mT @ y[fit])
