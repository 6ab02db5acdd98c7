"""Engine ``chebyshev``: Chebyshev layers on graphs of any size, one CSR product a layer, no n x n array anywhere.

The layers are those of :class:`~ohmformer.constructions.Chebyshev` on ``N = D^-1/2 L D^-1/2``. Unlike in the Transformer's
forward pass, demands are processed in panels that fit the cache, and the layers run in float32 (in C: with 8-bit directions,
:mod:`~ohmformer.solve.engines.chebyshev_native`) while residuals are computed in float64, round by round.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions.electric import Chebyshev
from ohmformer.graph import Spectrum
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import EPS, Sizes, measure, sum_over_graphs
from ohmformer.solve.engines import chebyshev_native
from ohmformer.solve.engines.base import Part, Problem, Watch
from ohmformer.solve.scaled import RowBlocks, Scaled, empty_huge_pages, in_blocks, prepared


class ChebyshevEngine:
    """Chebyshev's semi-iteration on the scaled Laplacian in CSR, for any graph that needs few enough layers."""

    def supports(self, problem: Problem) -> str | None:
        """Support every graph; the plan decides whether the depth is reasonable."""
        return None

    def run(self, problem: Problem) -> Answer:
        """Run as many layers as the spectrum estimated by Lanczos requires, and measure the residual."""
        graph, psi = problem.graph, problem.demands
        scaled, found = prepared(graph)
        watch = Watch(problem.progress)
        solved = Rounds(problem.demands, problem.tol, problem.part, scaled, found.spectrum, watch)
        solved.run()
        phi = graph.center_(solved.potentials).to(psi.dtype)
        worst = float(solved.residual.max()) if solved.residual.numel() else 0.0
        if phi.dtype != torch.float64 or graph.num_graphs > 1:
            now = measure(graph, phi, psi)
            worst, norm = now.residual, sum_over_graphs(graph, (scaled.root * now.left).square()).sqrt()
        else:
            now, norm = Sizes(solved.energy[None], worst), solved.scaled_residual[None]
        error = now.error(energy_of_residual(norm, now.energy, solved.spectrum))
        stopped = watch.stopped and worst > problem.tol
        note, kind = "stopped early" if stopped else "", "estimate"
        return Answer(
            phi, "chebyshev", solved.deepest, worst, None, solved.spectrum, note, stopped, error=error, error_kind=kind
        )


def energy_of_residual(norm: Tensor, energy: Tensor, spectrum: Spectrum) -> Tensor:
    """Bound the energy norm of ``L^+ r``, rounding included, given ``|D^-1/2 r|`` and the energy of the potentials."""
    return norm / math.sqrt(spectrum.lmin) + 4 * EPS / spectrum.lmin * energy.sqrt()


def reduction(spectrum: Spectrum) -> float:
    """Compute the factor by which a float32 round reduces a residual, limited by rounding to about ``eps kappa / 4``."""
    return min(max(torch.finfo(torch.float32).eps * spectrum.condition / 4, 1e-7), 0.1)


def rounds_for(gain: float, spectrum: Spectrum) -> int:
    """Count the rounds that reduce a residual by a factor ``gain``."""
    return max(1, math.ceil(math.log(gain) / math.log(reduction(spectrum)) - 1e-9))


def layers_of_a_round(tol: float, spectrum: Spectrum) -> int:
    """Count the layers of one of the rounds that together reduce every residual by a factor ``tol``."""
    return Chebyshev(spectrum).layers_for(tol ** (1 / rounds_for(tol, spectrum)) / spectrum.lmin)


def layers_for(tol: float, spectrum: Spectrum) -> int:
    """Count the layers of all rounds that reduce every residual by a factor ``tol``."""
    return rounds_for(tol, spectrum) * layers_of_a_round(tol, spectrum)


class Rounds:
    """One solve, panel by panel and round by round: the potentials so far and their accuracy."""

    def __init__(
        self, demands: Float[Tensor, "nodes k"], tol: float, part: Part, scaled: Scaled, spectrum: Spectrum, watch: Watch
    ) -> None:
        self.demands, self.tol, self.part = demands.double().contiguous(), tol, part
        self.scaled, self.spectrum, self.watch = scaled, spectrum, watch
        self.norm, self.scaled_residual = scaled.both_norms(self.demands)
        """Norms of the demands, and ``|D^-1/2 r|`` of the residuals."""
        self.residual, self.energy = (self.norm > 0).double(), torch.zeros_like(self.norm)
        """For every demand the relative residual ``|r| / |psi|``, and the energy ``|phi|_L^2`` of its potentials."""
        self.potentials = empty_huge_pages(*self.demands.shape, dtype=torch.float64, device=self.demands.device, zero=True)
        self.deepest = 0
        self._use(spectrum)

    def _use(self, spectrum: Spectrum) -> None:
        self.spectrum, self.construction = spectrum, Chebyshev(spectrum)
        self.step = self.scaled.step(self.construction.gamma, torch.float32)

    def run(self) -> None:
        """Solve for all panels of demands; Ctrl-C keeps the potentials so far."""
        nodes, columns = self.scaled.width, self.demands.shape[1]
        widest = min(self.part.panel, columns)
        padded = chebyshev_native.padded(widest) if self.part.native else widest
        space = empty_huge_pages(3 * nodes * padded, dtype=torch.float32, device=self.demands.device)
        try:
            for first in range(0, columns, self.part.panel):
                self._solve_panel(slice(first, min(first + self.part.panel, columns)), space)
                if self.watch.stopped:
                    break
        except KeyboardInterrupt:
            self.watch.stopped = True

    def _solve_panel(self, part: slice, space: Float[Tensor, " memory"]) -> None:
        psi, phi, norm = self.demands[:, part], self.potentials[:, part], self.norm[part]
        width = chebyshev_native.padded(psi.shape[1]) if self.part.native else psi.shape[1]
        state = space[: 3 * self.scaled.width * width].view(3, self.scaled.width, width)
        left, worst, layers = psi, float(self.residual[part].max()), 0
        while worst > self.tol and not self.watch.stopped:
            goal = min(0.9 * (self.tol / worst) ** (1 / rounds_for(self.tol / worst, self.spectrum)), 0.1)
            depth = self.construction.layers_for(goal / self.spectrum.lmin)  # few layers may increase the residual
            size = self.scaled_residual[part].clamp(min=1e-290).log2().round().exp2()
            found, done = self._one_round(left, size, state, depth)
            _add(phi, found, size, self.scaled.root)
            after = self.scaled.residual(psi, phi, in_c=self.part.native)
            plain, weighted = self.scaled.both_norms(after)
            now = plain / torch.where(norm > 0, norm, 1.0)
            before, worst = worst, float(now.max())
            if worst < before:
                left, self.residual[part] = after, now
                self.energy[part], self.scaled_residual[part] = _energies(psi, phi, left, self.scaled), weighted
            else:
                _add(phi, found, -size, self.scaled.root)
            layers += done
            self.watch.layers += done
            self.watch.residual = float(self.residual.max())
            self.deepest = max(self.deepest, layers)
            if not self.watch.stopped:
                self.watch(0)
            if worst > 0.9 * before or (worst > 0.5 * before and self.spectrum.lmin < 1e-13):
                break  # limit of float64
            if worst > 4 * goal * before and not self.watch.stopped:  # the smallest eigenvalue was overestimated
                self._use(Spectrum(self.spectrum.lmin / 2, self.spectrum.lmax))

    def _one_round(
        self, left: Float[Tensor, "nodes k"], size: Float[Tensor, " k"], state: Float[Tensor, "3 width columns"], layers: int
    ) -> tuple[Float[Tensor, "nodes k"], int]:
        """Solve in float32 for the residual ``left``; return the scaled solution and the number of layers.

        Columns are divided by their sizes, powers of two that make their scaled norms about one.
        """
        root = self.scaled.root
        demand, beyond = state[0, : len(left)].tensor_split([left.shape[1]], dim=1)
        for rows in in_blocks(len(left)):
            torch.mul(left[rows] / size, root[rows], out=demand[rows])
        beyond.zero_()
        in_c = self.part.native and layers <= chebyshev_native.LIMITS["layers"]
        one_round = chebyshev_native.one_round if in_c else chebyshev_round
        x, done = one_round(self.step, state, self.construction, layers, self.watch)
        return x[: len(left), : left.shape[1]], done


def chebyshev_round(
    step: RowBlocks, state: Float[Tensor, "3 nodes k"], construction: Chebyshev, layers: int, watch: Watch
) -> tuple[Float[Tensor, "nodes k"], int]:
    """Run ``layers`` layers of Chebyshev's construction from zero, given ``step = I - gamma N``, or fewer if stopped.

    ``state[0]`` is the demand; the whole state is overwritten, and the answer is a view of it. A layer is a step of gradient
    descent with over-relaxation: ``x_before <- (1 - omega) x_before + omega (x + gamma (demand - N x))``, after which the
    two are swapped.
    """
    push, x, before = state
    push.mul_(construction.gamma)
    x.zero_()
    before.zero_()
    done = 0
    try:
        for omega in construction.omegas(layers):
            for rows, product in step:
                before[rows].lerp_(product(x).add_(push[rows]), omega)
            x, before = before, x
            done += 1
            if done % 10 == 0 and watch(done):
                break
    except KeyboardInterrupt:
        watch.stopped = True
    return x, done


def _energies(psi: Tensor, phi: Tensor, left: Tensor, scaled: Scaled) -> Float[Tensor, " k"]:
    """Compute ``phi^T L phi = phi^T (psi - left)`` of every column."""
    energy = psi.new_zeros(psi.shape[1])
    for rows in in_blocks(len(psi)):
        energy += (phi[rows] * (psi[rows] - left[rows])).sum(0)
    return scaled.total(energy).clamp(min=0)


def _add(phi: Float[Tensor, "n k"], x: Float[Tensor, "n k"], size: Float[Tensor, " k"], root: Float[Tensor, "n 1"]) -> None:
    """Add ``D^-1/2 x`` to ``phi`` in place, with the columns of x times their sizes."""
    for rows in in_blocks(len(phi)):
        phi[rows].addcmul_(x[rows].double().mul_(size), root[rows])
