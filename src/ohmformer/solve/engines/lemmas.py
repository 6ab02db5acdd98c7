"""The constructions as engines: every layer a Transformer's, on the unscaled Laplacian and from proved bounds."""

from __future__ import annotations

from ohmformer.constructions import Construction
from ohmformer.solve.answer import Answer
from ohmformer.solve.engines.base import DENSE, Problem, relative_residual


class LemmaEngine:
    """One construction, run as a Transformer, layer by layer."""

    def __init__(self, name: str, construction: type[Construction]) -> None:
        self.name, self._construction = name, construction

    def supports(self, problem: Problem) -> str | None:
        """Graphs whose matrices fit."""
        width = problem.graph.width
        if width <= DENSE:
            return None
        return f"expected at most {DENSE} nodes for a Transformer with method={self.name!r}, got {width}"

    def run(self, problem: Problem) -> Answer:
        """As many layers as the construction's bound asks for."""
        graph, psi = problem.graph, problem.demands
        spectrum = graph.spectral_bounds()
        construction = self._construction(spectrum)
        layers = construction.layers_for(problem.tol / (2 * spectrum.lmax))
        phi, trace = construction.answer_to(graph, psi, layers=layers, trace=problem.trace)
        phi = graph.center(phi.detach())
        bound = spectrum.lmax * construction.error_bound(layers)
        return Answer(phi, self.name, layers, relative_residual(graph, phi, psi), bound, spectrum, trace=trace)
