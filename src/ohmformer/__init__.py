"""Linear Transformers that solve graph problems by weights one can write down.

Graphs: :class:`Graph`, :class:`Spectrum`, and in :mod:`ohmformer.families` seeded examples.
Answers by LAPACK, to compare with: :mod:`ohmformer.exact`. Flow, energy and resistance: :mod:`ohmformer.circuit`.
Models: :class:`LinearTransformer`, :class:`EfficientTransformer`.
Answers with certificates: :func:`potentials`, :func:`electric_flow`, :func:`effective_resistance`,
:func:`kirchhoff_index`, :func:`resistive_embedding`, :func:`heat_kernel`, :func:`eigenvectors`, :func:`spectral_filter`.
Weights: :mod:`ohmformer.constructions`, one class per lemma.

Names are imported when they are first asked for, so that processes that only read molecules do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ohmformer import circuit, constructions, exact
    from ohmformer.answer import Answer
    from ohmformer.graph import Graph, Spectrum
    from ohmformer.resistance import effective_resistance, kirchhoff_index, resistive_embedding
    from ohmformer.solve import eigenvectors, electric_flow, heat_kernel, potentials, spectral_filter
    from ohmformer.transformer import EfficientTransformer, LinearTransformer

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "EfficientTransformer",
    "Graph",
    "LinearTransformer",
    "Spectrum",
    "circuit",
    "constructions",
    "effective_resistance",
    "eigenvectors",
    "electric_flow",
    "exact",
    "heat_kernel",
    "kirchhoff_index",
    "potentials",
    "resistive_embedding",
    "spectral_filter",
]

_NAMES = {
    "answer": ["Answer"],
    "graph": ["Graph", "Spectrum"],
    "resistance": ["effective_resistance", "kirchhoff_index", "resistive_embedding"],
    "solve": ["eigenvectors", "electric_flow", "heat_kernel", "potentials", "spectral_filter"],
    "transformer": ["EfficientTransformer", "LinearTransformer"],
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOME:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
