"""The learned positional encoding: a module, PyG transforms, pairwise biases, pretraining and bulk encoding.

Names are imported on first use, so that the command line starts without importing PyTorch Geometric.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ohmformer.encoding.pairs import PairwiseBias, pairwise
    from ohmformer.encoding.paper import paper_parameters
    from ohmformer.encoding.pe import LinearTransformerPE
    from ohmformer.encoding.relative import AddRelativeEncoding, dense_pairs
    from ohmformer.encoding.transforms import (
        AddEdgeHeat,
        AddEdgeResistance,
        AddEigenvectorPE,
        AddHeatDiagonalPE,
        AddLinearTransformerPE,
        AddResistancePE,
        AddResistiveEmbeddingPE,
        AddSpectrum,
    )

__all__ = [
    "AddEdgeHeat",
    "AddEdgeResistance",
    "AddEigenvectorPE",
    "AddHeatDiagonalPE",
    "AddLinearTransformerPE",
    "AddRelativeEncoding",
    "AddResistancePE",
    "AddResistiveEmbeddingPE",
    "AddSpectrum",
    "LinearTransformerPE",
    "PairwiseBias",
    "dense_pairs",
    "pairwise",
    "paper_parameters",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"Add": "transforms", "Pai": "pairs", "pai": "pairs", "pap": "paper", "Lin": "pe"}
    home = "relative" if name in ("AddRelativeEncoding", "dense_pairs") else homes[name[:3]]
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
