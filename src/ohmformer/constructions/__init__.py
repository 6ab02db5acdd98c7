"""Every lemma as weights, with the iteration it implements and its bound; and constructions that need fewer layers.

Electric flow: :class:`GradientDescent` (Lemma 1), :class:`Squaring` (Lemma 4), :class:`Chebyshev` and
:class:`ChebyshevCubing`.
The square root of the pseudo-inverse: :class:`PowerSeriesRoot` (Lemma 2), :class:`NewtonSchulzRoot`.
Heat kernel: :class:`TaylorHeat` (Lemma 3), :class:`CubedHeat` (Lemma 5), :class:`SeededHeat`.
Any other function: :class:`SpectralFilter`. Trained on given graphs: :class:`Learned`, made by ``ohmformer.learned``.
Eigenvectors: :class:`SubspaceIteration` of :class:`Laplacian` (Lemma 6), :class:`Shifted` (Corollary 7) or
:class:`ThroughPinv`, with :class:`GramSchmidt` (Lemma 8), :class:`ParallelGramSchmidt` or :class:`NewtonSchulz`.

>>> import torch
>>> from ohmformer import Graph, exact
>>> circuit = Graph.from_edges([(0, 1), (1, 2), (2, 0)], resistance=[1.0, 2.0, 3.0])
>>> lemma1 = GradientDescent(exact.spectrum(circuit))
>>> layers = lemma1.layers_for(1e-9)
>>> layers, lemma1.run(circuit, torch.tensor([1.0, 0.0, -1.0]), layers=layers).flatten()
(30, tensor([ 0.6667,  0.1667, -0.8333], dtype=torch.float64))
"""

from ohmformer.constructions.base import Construction
from ohmformer.constructions.eigenvectors import Gap, Laplacian, Shifted, SubspaceIteration, ThroughPinv
from ohmformer.constructions.electric import Chebyshev, ChebyshevCubing, GradientDescent, Squaring
from ohmformer.constructions.heat import CubedHeat, SeededHeat, TaylorHeat
from ohmformer.constructions.learned import Learned
from ohmformer.constructions.orthogonalize import GramSchmidt, NewtonSchulz, Orthogonalization, ParallelGramSchmidt
from ohmformer.constructions.resistive import NewtonSchulzRoot, PowerSeriesRoot
from ohmformer.constructions.spectral import SpectralFilter

__all__ = [
    "Chebyshev",
    "ChebyshevCubing",
    "Construction",
    "CubedHeat",
    "Gap",
    "GradientDescent",
    "GramSchmidt",
    "Laplacian",
    "Learned",
    "NewtonSchulz",
    "NewtonSchulzRoot",
    "Orthogonalization",
    "ParallelGramSchmidt",
    "PowerSeriesRoot",
    "SeededHeat",
    "Shifted",
    "SpectralFilter",
    "Squaring",
    "SubspaceIteration",
    "TaylorHeat",
    "ThroughPinv",
]
