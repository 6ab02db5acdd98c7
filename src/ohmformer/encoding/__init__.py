"""The learned positional encoding: a module, PyG transforms, pairwise biases, pretraining and bulk encoding.

:mod:`ohmformer.encoding.graphgym` registers a GraphGym node encoder when it is imported.
"""

from ohmformer.encoding.pairwise import PairwiseBias, pairwise
from ohmformer.encoding.pe import LinearTransformerPE, paper_parameters
from ohmformer.encoding.transforms import (
    AddEdgeHeat,
    AddEdgeResistance,
    AddEigenvectorPE,
    AddHeatDiagonalPE,
    AddLinearTransformerPE,
    AddResistancePE,
    AddResistiveEmbeddingPE,
)

__all__ = [
    "AddEdgeHeat",
    "AddEdgeResistance",
    "AddEigenvectorPE",
    "AddHeatDiagonalPE",
    "AddLinearTransformerPE",
    "AddResistancePE",
    "AddResistiveEmbeddingPE",
    "LinearTransformerPE",
    "PairwiseBias",
    "pairwise",
    "paper_parameters",
]
