"""The front door: a graph and a question in, an answer with a certificate out.

Every answer says what it is worth: ``residual`` is measured, ``bound`` is proved (or None), ``layers`` and ``method`` say
how it was made, ``plan`` which engine was chosen for which graphs and why.
"""

from ohmformer.solve.answer import Answer, EigenAnswer, FlowAnswer, GraphAnswer
from ohmformer.solve.currents import CurrentAnswer, current_flow
from ohmformer.solve.dirichlet import harmonic
from ohmformer.solve.flow import electric_flow, potentials
from ohmformer.solve.functions import heat_kernel, spectral_filter
from ohmformer.solve.plan import Plan
from ohmformer.solve.projections import resistive_embedding
from ohmformer.solve.reduction import kron_reduce
from ohmformer.solve.resistance import effective_resistance, kirchhoff_index
from ohmformer.solve.solver import Solver, prepare
from ohmformer.solve.sparsification import sparsify
from ohmformer.solve.spectra import eigenvectors

__all__ = [
    "Answer",
    "CurrentAnswer",
    "EigenAnswer",
    "FlowAnswer",
    "GraphAnswer",
    "Plan",
    "Solver",
    "current_flow",
    "effective_resistance",
    "eigenvectors",
    "electric_flow",
    "harmonic",
    "heat_kernel",
    "kirchhoff_index",
    "kron_reduce",
    "potentials",
    "prepare",
    "resistive_embedding",
    "sparsify",
    "spectral_filter",
]
