"""The front door: a graph and a question in, an answer with a certificate out.

Every answer has a certificate: ``residual`` is measured, ``bound`` is proved (or None), ``layers`` and ``method`` say how it
was computed, ``plan`` which engine was chosen for which graphs and why.
"""

from ohmformer.solve.answer import Answer, EigenAnswer, FlowAnswer, GraphAnswer
from ohmformer.solve.currents import CurrentAnswer, current_flow
from ohmformer.solve.diagonal import current_flow_closeness, kirchhoff_index, pinv_diagonal
from ohmformer.solve.dirichlet import harmonic
from ohmformer.solve.flow import electric_flow, potentials
from ohmformer.solve.functions import heat_kernel, spectral_filter
from ohmformer.solve.plan import Plan
from ohmformer.solve.projections import resistive_embedding
from ohmformer.solve.reduction import kron_reduce
from ohmformer.solve.resistance import effective_resistance, spanning_tree_marginals
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
    "current_flow_closeness",
    "effective_resistance",
    "eigenvectors",
    "electric_flow",
    "harmonic",
    "heat_kernel",
    "kirchhoff_index",
    "kron_reduce",
    "pinv_diagonal",
    "potentials",
    "prepare",
    "resistive_embedding",
    "spanning_tree_marginals",
    "sparsify",
    "spectral_filter",
]
