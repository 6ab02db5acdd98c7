"""Linear Transformers that solve graph problems by weights one can write down.

Graphs: :class:`Graph`, :class:`Spectrum`, and in :mod:`ohmformer.families` seeded examples.
Answers by LAPACK, to compare with: :mod:`ohmformer.exact`. Flow, energy and resistance: :mod:`ohmformer.circuit`.
Models: :class:`LinearTransformer`, :class:`EfficientTransformer`.
Answers with certificates: :func:`potentials`, :func:`electric_flow`, :func:`effective_resistance`,
:func:`kirchhoff_index`, :func:`resistive_embedding`, :func:`heat_kernel`, :func:`eigenvectors`, :func:`spectral_filter`.
Weights: :mod:`ohmformer.constructions`, one class per lemma.
"""

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
