"""The constructions as engines: every layer a Transformer's, on the unscaled Laplacian and from proved bounds."""

from __future__ import annotations

import math

from ohmformer.constructions import Construction
from ohmformer.solve.answer import Answer
from ohmformer.solve.certificate import measure, sum_over_graphs
from ohmformer.solve.engines.base import DENSE, Problem


class LemmaEngine:
    """A construction run as a Transformer, layer by layer."""

    def __init__(self, name: str, construction: type[Construction]) -> None:
        self.name, self._construction = name, construction

    def supports(self, problem: Problem) -> str | None:
        """Support graphs whose matrices fit in memory."""
        width = problem.graph.width
        if width <= DENSE:
            return None
        return f"expected at most {DENSE} nodes for a Transformer with method={self.name!r}, got {width}"

    def run(self, problem: Problem) -> Answer:
        """Run as many layers as the construction's bound requires."""
        graph, psi = problem.graph, problem.demands
        spectrum = graph.spectral_bounds()
        construction = self._construction(spectrum)
        layers = construction.layers_for(problem.tol / (2 * spectrum.lmax))
        phi, trace = construction.answer_to(graph, psi, layers=layers, trace=problem.trace)
        phi = graph.center(phi.detach())
        bound = spectrum.lmax * construction.error_bound(layers)
        now = measure(graph, phi, psi)
        error = now.error(sum_over_graphs(graph, now.left.square()).sqrt() / math.sqrt(spectrum.lmin))
        certificate = {"trace": trace, "error": error, "error_kind": "bound"}
        return Answer(phi, self.name, layers, now.residual, bound, spectrum, **certificate)
