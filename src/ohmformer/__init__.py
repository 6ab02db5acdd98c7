"""Linear Transformers that solve graph problems by weights one can write down.

Graphs: :class:`Graph`, :class:`Spectrum`, and in :mod:`ohmformer.families` seeded examples.
Answers by LAPACK, to compare with: :mod:`ohmformer.exact`. Flow, energy and resistance: :mod:`ohmformer.circuit`.
Models: :class:`LinearTransformer`, :class:`EfficientTransformer`.
Weights: :mod:`ohmformer.constructions`, one class per lemma.
"""

from ohmformer import circuit, constructions, exact
from ohmformer.graph import Graph, Spectrum
from ohmformer.transformer import EfficientTransformer, LinearTransformer

__version__ = "0.1.0"

__all__ = [
    "EfficientTransformer",
    "Graph",
    "LinearTransformer",
    "Spectrum",
    "circuit",
    "constructions",
    "exact",
]
