"""The learned positional encoding: a module, PyG transforms, pairwise biases, pretraining and bulk encoding.

Names are imported when they are first used, so that the command line does not wait for PyTorch Geometric.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ohmformer.encoding.pairs import PairwiseBias, pairwise
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "transforms" if name.startswith("Add") else "pairs" if name.lower().startswith("pairwise") else "pe"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
