"""The engines that solve for potentials, by name; one file each, one protocol (:class:`~.base.Engine`)."""

from ohmformer.constructions import Chebyshev, ChebyshevCubing, GradientDescent, Squaring
from ohmformer.solve.engines.base import Engine, Part, Problem
from ohmformer.solve.engines.chebyshev import ChebyshevEngine
from ohmformer.solve.engines.conjugate import ConjugateEngine
from ohmformer.solve.engines.cubing import CubingEngine
from ohmformer.solve.engines.direct import DirectEngine
from ohmformer.solve.engines.elimination import EliminationEngine
from ohmformer.solve.engines.lemmas import LemmaEngine
from ohmformer.solve.engines.signed import SignedEngine

ENGINES: dict[str, Engine] = {
    "cubing": CubingEngine(),
    "chebyshev": ChebyshevEngine(),
    "conjugate": ConjugateEngine(),
    "elimination": EliminationEngine(),
    "direct": DirectEngine(),
    "LDL^T": SignedEngine(),
}
"""The engines that plans refer to."""
TRANSFORMERS: dict[str, Engine] = {
    "gradient-descent": LemmaEngine("gradient-descent", GradientDescent),
    "squaring": LemmaEngine("squaring", Squaring),
    "chebyshev": LemmaEngine("chebyshev", Chebyshev),
    "cubing": LemmaEngine("cubing", ChebyshevCubing),
}
"""The constructions as Transformers: Lemmas 1 and 4, and for traces those that also have engines."""

__all__ = ["ENGINES", "TRANSFORMERS", "Engine", "Part", "Problem"]
