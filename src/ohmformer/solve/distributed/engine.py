"""``L^+ psi`` on a graph that processes share: Chebyshev's layers, or conjugate gradients where they cannot be planned.

A Chebyshev layer needs no inner products, only an exchange with neighbours; Lanczos estimates the ends of the spectrum, and
residuals are summed over all processes. Both methods work on ``N = D^-1/2 L D^-1/2``, so conjugate gradients are those with
a Jacobi preconditioner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer import native
from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Spectrum
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import relative_error
from ohmformer.solve.costs import NATIVE_DEMANDS, NATIVE_NODES, PANEL
from ohmformer.solve.distributed.shard import Shard
from ohmformer.solve.engines.base import Part, Watch
from ohmformer.solve.engines.chebyshev import Rounds, energy_of_residual, layers_for
from ohmformer.solve.plan import panel_width

ROUNDS = 8
"""Maximum number of restarts of conjugate gradients to remove rounding errors."""


@dataclass(frozen=True)
class ShardPlan:
    """How potentials on shards are computed."""

    method: str
    layers: int
    """Predicted layers per panel of demands, from the condition number."""
    sure: bool
    """Whether Lanczos has found the smallest eigenvalue; if not, there may be many more layers."""
    panel: int
    """Number of demands that are solved for together."""
    in_c: bool
    spectrum: Spectrum

    def __str__(self) -> str:
        least = "about" if self.sure else "at least"
        condition = f"condition number {'' if self.sure else '> '}{self.spectrum.condition:.3g}"
        return f"{self.method}, {least} {self.layers} layers for a panel of up to {self.panel} demands ({condition})"


def plan_for(shard: Shard, demands: int, tol: float, panel: int | None = None) -> ShardPlan:
    """Choose the method and number of layers for ``demands`` demands to a residual of ``tol``."""
    found = shard.extremes
    chebyshev = found.separated
    each = shard.manifest.nodes // shard.group.size
    in_c = chebyshev and min(demands, panel or demands) >= NATIVE_DEMANDS and each >= NATIVE_NODES
    in_c = in_c and all(shard.group.gather(native.active() is not None and shard.group.device.type == "cpu"))
    if chebyshev:
        layers, most = layers_for(tol, found.spectrum), 2 * PANEL if in_c else panel_width(each)
    else:
        layers, most = Chebyshev(found.spectrum).layers_for(tol / found.spectrum.lmin), PANEL
    method = "chebyshev" if chebyshev else "conjugate gradients"
    return ShardPlan(method, layers, found.separated, min(panel or most, max(demands, 1)), in_c, found.spectrum)


def solve(shard: Shard, demands: Float[Tensor, "rows k"], tol: float, plan: ShardPlan) -> Answer:
    """Solve for one panel of demands that sum to zero on every component; the certificate is the same on all processes."""
    if plan.method == "chebyshev":
        part = Part(None, plan.method, plan.in_c, torch.float32, demands.shape[1], "")
        rounds = Rounds(demands, tol, part, shard, plan.spectrum, Watch(None))
        rounds.run()
        phi, layers, spectrum = rounds.potentials, rounds.deepest, rounds.spectrum
        residual, energy, norm = rounds.residual, rounds.energy, rounds.scaled_residual
    else:
        phi, layers = _conjugate_gradients(shard, demands, tol, 4 * plan.layers + 1000)
        spectrum, left, size = plan.spectrum, shard.residual(demands, phi), shard.norms(demands)
        plain, norm = shard.both_norms(left)
        residual = plain / torch.where(size > 0, size, 1.0)
        energy = shard.total((phi * (demands - left)).sum(0)).clamp(min=0)
    error = relative_error(energy_of_residual(norm, energy, spectrum), energy) if plan.sure else None
    worst = float(residual.max()) if residual.numel() else 0.0
    return Answer(
        shard.center(phi), plan.method, layers, worst, None, spectrum, error=error,
        error_kind="estimate" if plan.sure else None,
    )  # fmt: skip


def _conjugate_gradients(
    shard: Shard, demands: Float[Tensor, "rows k"], tol: float, most: int
) -> tuple[Float[Tensor, "rows k"], int]:
    """Solve by conjugate gradients on N, every demand separately, with restarts from the residual, up to ``most`` layers.

    A layer takes two sums over all processes: for the step, and for the residuals with and without weights.
    """
    root, weight = shard.root, torch.where(shard.root > 0, 1 / shard.root, 0.0)
    phi, left, layers = torch.zeros_like(demands), demands, 0
    size = shard.norms(demands).clamp(min=1e-300)
    worst = float((shard.norms(left) / size).max()) if demands.shape[1] else 0.0
    for _ in range(ROUNDS):
        if worst <= tol or layers >= most:
            break
        r = shard.project(root * left)
        p, x = r.clone(), torch.zeros_like(r)
        square = shard.total(r.square().sum(0))
        while layers < most:
            q = shard.times(p)
            step = square / shard.total((p * q).sum(0)).clamp(min=1e-300)
            x.addcmul_(p, step)
            r.addcmul_(q, -step)
            layers += 1
            if layers % 50 == 0:
                r = shard.project(r)
            sums = shard.total(torch.cat([r.square().sum(0), (weight * r).square().sum(0)]))
            after, now = sums.chunk(2)
            if bool((now.sqrt() <= 0.5 * tol * size).all()) or not bool(torch.isfinite(after).all()):
                break
            p = r.addcmul(p, after / square.clamp(min=1e-300))
            square = after
        phi = phi.addcmul(x, root)
        after_all = shard.residual(demands, phi)
        before, worst, left = worst, float((shard.norms(after_all) / size).max()), after_all
        if not worst < 0.5 * before:
            break
    return phi, layers


def check_demands(shard: Shard, demands: Float[Tensor, "rows k"], *, center: bool = False) -> Float[Tensor, "rows k"]:
    """Return demands in float64, centred on request; raise a ValueError on all processes if they do not sum to zero."""
    k = demands.shape[1]
    psi = demands.to(shard.group.device, torch.float64)
    if not center:
        sums, most = shard.component_sums(psi), shard.component_sums(psi.abs())
        off = sums.abs() > 64 * torch.finfo(torch.float64).eps * most.clamp(min=1e-300) * math.log2(shard.manifest.nodes + 2)

        def check() -> None:
            if k and bool(off.any()):
                component, column = divmod(int(off.float().argmax()), k)
                raise ValueError(
                    f"expected every demand to sum to zero on each component, demand {column} sums to "
                    f"{float(sums[component, column]):.3g} on one; center them to subtract the mean"
                )

        shard.group.agree(check)
    return shard.center(psi)
