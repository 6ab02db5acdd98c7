"""Linear Transformers that solve graph problems by weights one can write down.

Graphs: :class:`Graph`, :class:`Raster`, :class:`Spectrum`, and in :mod:`ohmformer.graph.families` seeded examples.
Reference answers by LAPACK: :mod:`ohmformer.exact`. Flow, energy and resistance: :mod:`ohmformer.graph.circuit`.
Models: :class:`LinearTransformer`, :class:`EfficientTransformer`.
Answers with certificates: :func:`potentials`, :func:`electric_flow`, :func:`effective_resistance`,
:func:`kirchhoff_index`, :func:`pinv_diagonal`, :func:`current_flow_closeness`, :func:`spanning_tree_marginals`,
:func:`resistive_embedding`, :func:`heat_kernel`, :func:`eigenvectors`, :func:`spectral_filter`,
:func:`harmonic`, :func:`kron_reduce`, :func:`current_flow`, :func:`sparsify`.
Power grids: :mod:`ohmformer.solve.power`.
Constructions of weights: :mod:`ohmformer.constructions`, one class per lemma; :func:`learned` trains them on given graphs.

Names are imported on first access, so that processes that only read molecules do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ohmformer import _moved

if TYPE_CHECKING:
    from ohmformer import constructions, exact, native
    from ohmformer.constructions.learned import learned as learned
    from ohmformer.graph import Graph, Raster, Spectrum, circuit, families
    from ohmformer.graph.memory import forget
    from ohmformer.solve import (
        Answer,
        current_flow,
        current_flow_closeness,
        effective_resistance,
        eigenvectors,
        electric_flow,
        harmonic,
        heat_kernel,
        kirchhoff_index,
        kron_reduce,
        pinv_diagonal,
        potentials,
        prepare,
        resistive_embedding,
        spanning_tree_marginals,
        sparsify,
        spectral_filter,
    )
    from ohmformer.solve import power as power
    from ohmformer.solve.plan import plan
    from ohmformer.transformer import EfficientTransformer, LinearTransformer

__version__ = "0.2.0.dev0"

__all__ = [
    "Answer",
    "EfficientTransformer",
    "Graph",
    "LinearTransformer",
    "Raster",
    "Spectrum",
    "circuit",
    "constructions",
    "current_flow",
    "current_flow_closeness",
    "effective_resistance",
    "eigenvectors",
    "electric_flow",
    "exact",
    "families",
    "forget",
    "harmonic",
    "heat_kernel",
    "kirchhoff_index",
    "kron_reduce",
    "native",
    "pinv_diagonal",
    "plan",
    "potentials",
    "power",
    "prepare",
    "resistive_embedding",
    "spanning_tree_marginals",
    "sparsify",
    "spectral_filter",
]

_MODULES = {
    "circuit": "graph.circuit",
    "constructions": "constructions",
    "exact": "exact",
    "families": "graph.families",
    "native": "native",
    "power": "solve.power",
}
_HOMES = {
    "EfficientTransformer": "transformer",
    "Graph": "graph",
    "LinearTransformer": "transformer",
    "Raster": "graph",
    "Spectrum": "graph",
    "forget": "graph.memory",
    "learned": "constructions.learned",
    "plan": "solve.plan",
}
"""Submodules of the public classes and functions that are not in ``solve``."""

_moved.install()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    if name in __all__ or name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'solve')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
