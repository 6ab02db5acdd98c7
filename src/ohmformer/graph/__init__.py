"""What a graph is, and what can be said of it without solving anything.

:class:`Graph` and its conventions are in :mod:`ohmformer.graph.graph`, bounds on its eigenvalues in
:mod:`ohmformer.graph.spectrum`, flow, energy and resistance from potentials in :mod:`ohmformer.graph.circuit`.
"""

from ohmformer.graph.graph import Graph
from ohmformer.graph.raster import Raster
from ohmformer.graph.spectrum import Spectrum

__all__ = ["Graph", "Raster", "Spectrum"]
