"""The front door: a graph and a question in, an answer with a certificate out."""

from ohmformer.solve.answer import Answer, FlowAnswer
from ohmformer.solve.questions import eigenvectors, electric_flow, heat_kernel, potentials, spectral_filter
from ohmformer.solve.resistance import effective_resistance, kirchhoff_index, resistive_embedding

__all__ = [
    "Answer",
    "FlowAnswer",
    "effective_resistance",
    "eigenvectors",
    "electric_flow",
    "heat_kernel",
    "kirchhoff_index",
    "potentials",
    "resistive_embedding",
    "spectral_filter",
]
