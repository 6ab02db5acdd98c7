"""The table of kernels: what each one answers for, what it takes, and how large its inputs may be.

Every kernel is a C function in ``native/src`` whose first argument is the number of threads. It returns 0, or 1 if memory
is exhausted, or 2 if it was stopped. ``kernel.h`` repeats the limits for the compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field

WHOLE, SINGLE, DOUBLE, ARRAY = (ctypes.c_int64,), (ctypes.c_float,), (ctypes.c_double,), (ctypes.c_void_p,)
"""Argument types, each a tuple of one: ``2 * WHOLE + 3 * ARRAY`` is two integers and three tensors."""


@dataclass(frozen=True)
class Kernel:
    """A C function.

    Attributes:
        answers_for: what it computes, in one sentence.
        source: the source file.
        arguments: the types of its arguments after the number of threads.
        limits: the largest inputs it supports, by name; callers must check them.
        long: whether it may take seconds and can be stopped early; its first argument is then the number of nodes.
    """

    answers_for: str
    source: str
    arguments: tuple[type, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    long: bool = False


KERNELS: dict[str, Kernel] = {
    "ohm_invert": Kernel(
        "Pseudo-inverses of a batch of small Laplacians by Chebyshev cubing in float32 and squarings in float64.",
        "small.c",
        2 * WHOLE + DOUBLE + 16 * ARRAY,
        {"nodes": 64, "edges": 2048, "layers": 12, "degree": 9},
    ),
    "ohm_all_pairs": Kernel(
        "Effective resistances of all pairs of nodes of a batch of small graphs from their pseudo-inverses.",
        "small.c",
        WHOLE + 7 * ARRAY,
        {"nodes": 64},
    ),
    "ohm_direction": Kernel(
        "One Chebyshev layer on some rows of a large graph for 32 or 64 demands, directions kept in eight bits.",
        "sparse.c",
        3 * WHOLE + SINGLE + 7 * ARRAY,
        {"demands": 64, "layers": 64},
    ),
    "ohm_residual": Kernel(
        "The residual psi - L phi of any number of demands on a large graph, in float64.",
        "sparse.c",
        3 * WHOLE + 6 * ARRAY,
    ),
    "ohm_components": Kernel(
        "The connected component of every node of a graph or batch.",
        "components.c",
        2 * WHOLE + 3 * ARRAY,
    ),
    "ohm_sums": Kernel(
        "Sums of columns over every component, without loss, and the largest absolute value there.",
        "components.c",
        3 * WHOLE + 4 * ARRAY,
    ),
    "ohm_rows": Kernel(
        "Neighbours and conductances of a large graph by rows, in any order of its nodes.",
        "rows.c",
        2 * WHOLE + 8 * ARRAY,
        {"edges": 2**30 - 1},
    ),
    "ohm_laplacian": Kernel(
        "The Laplacian of a large graph in CSR, and the roots of its degrees, from its conductances by rows.",
        "rows.c",
        WHOLE + 8 * ARRAY,
    ),
    "ohm_distances": Kernel(
        "Numbers of edges from a far node of every component.",
        "rows.c",
        WHOLE + 4 * ARRAY,
    ),
    "ohm_eliminate": Kernel(
        "An approximate Cholesky factor of a large Laplacian by sampled elimination.",
        "elimination.c",
        5 * WHOLE + 12 * ARRAY,
        {"edges": 2**30 - 1},
        long=True,
    ),
    "ohm_conjugate": Kernel(
        "Steps of conjugate gradients on panels of up to 8 demands, with an approximate Cholesky factor.",
        "conjugate.c",
        5 * WHOLE + 19 * ARRAY,
        {"demands": 8, "parts": 64},
        long=True,
    ),
    "ohm_order": Kernel(
        "An order of elimination of the nodes of a large graph by minimum degree, given up where it takes too much work.",
        "order.c",
        WHOLE + DOUBLE + 5 * ARRAY,
        {"entries": 2**31 - 1},
        long=True,
    ),
    "ohm_pattern": Kernel(
        "The pattern of the factor of a Laplacian, nodes in the order of elimination, or how many entries it has.",
        "order.c",
        3 * WHOLE + 8 * ARRAY,
        {"entries": 2**31 - 1},
        long=True,
    ),
    "ohm_factorise": Kernel(
        "The factor of a Laplacian by elimination without subtractions, and its tangent.",
        "factor.c",
        2 * WHOLE + 12 * ARRAY,
        long=True,
    ),
    "ohm_sweep": Kernel(
        "Potentials of any number of demands from the factor of a Laplacian, or their energy.",
        "potentials.c",
        3 * WHOLE + 9 * ARRAY,
    ),
    "ohm_answer": Kernel(
        "Centred potentials of any number of demands from the factor of a Laplacian, their residual, and energies of both.",
        "potentials.c",
        4 * WHOLE + 14 * ARRAY,
    ),
    "ohm_select": Kernel(
        "Effective resistances of all pairs on the pattern of the factor of a Laplacian, and their tangents.",
        "selected.c",
        2 * WHOLE + 9 * ARRAY,
        long=True,
    ),
    "ohm_measure": Kernel(
        "The residual psi - L phi, summed without loss, and the energy of phi, for any number of demands.",
        "certificate.c",
        2 * WHOLE + 8 * ARRAY,
    ),
    "ohm_square": Kernel(
        "The square of a sparse matrix by rows.",
        "walks.c",
        WHOLE + 7 * ARRAY,
    ),
    "ohm_walks": Kernel(
        "Weights of walks of up to five steps between pairs of nodes: entries of powers of a sparse matrix.",
        "walks.c",
        2 * WHOLE + 11 * ARRAY,
    ),
    "ohm_noise": Kernel(
        "Gaussian demands with the covariance of a Laplacian: a sparse matrix times columns drawn edge by edge.",
        "walks.c",
        4 * WHOLE + 5 * ARRAY,
        {"multiple": 4},
    ),
    "ohm_cluster": Kernel(
        "Clusters of nodes of a graph too large for memory, after some more of its edges have been seen.",
        "partition.c",
        2 * WHOLE + 5 * ARRAY,
    ),
    "ohm_pairwise": Kernel(
        "Effective resistances of all pairs of nodes of small graphs by elimination without subtractions.",
        "pairwise.c",
        WHOLE + 4 * ARRAY,
    ),
    "ohm_encode": Kernel(
        "The layers of the learned encoding on a batch of graphs, for inference in float32 with Gram degrees.",
        "layers.c",
        6 * WHOLE + 7 * ARRAY,
        {"channels": 8, "evolving_nodes": 64, "nodes": 2**29 - 1, "edges": 2**29 - 1},
    ),
    "ohm_on_spectrum": Kernel(
        "The layers of the learned encoding on eigenvalues, where every node is its own demand and B is fixed.",
        "on_spectrum.c",
        3 * WHOLE + 5 * ARRAY,
        {"channels": 16},
    ),
    "ohm_on_spectrum_backward": Kernel(
        "The gradient of ohm_on_spectrum with respect to the weights of its layers.",
        "on_spectrum.c",
        3 * WHOLE + 6 * ARRAY,
        {"channels": 16},
    ),
    "ohm_eigen": Kernel(
        "Eigenvalues and eigenvectors of a batch of small matrices, several side by side in vector lanes, in float64.",
        "eigen.c",
        WHOLE + 10 * ARRAY,
        {"nodes": 64},
    ),
    "ohm_conductances": Kernel(
        "The conductances of one small graph as a matrix, from its edges as PyG lists them.",
        "conductances.c",
        2 * WHOLE + 5 * ARRAY,
        {"nodes": 64},
    ),
    "ohm_spectrum": Kernel(
        "Eigenvalues and eigenvectors of one small graph from the matrix of its conductances.",
        "eigen.c",
        2 * WHOLE + 4 * ARRAY,
        {"nodes": 64},
    ),
    "ohm_local": Kernel(
        "Polynomials of a large sparse matrix at its nodes and entries, by walks around every node.",
        "local.c",
        2 * WHOLE + 8 * ARRAY,
        {"degree": 64},
        long=True,
    ),
    "ohm_meet": Kernel(
        "Products of rows of two panels of columns at the entries of a sparse matrix, both ways.",
        "local.c",
        3 * WHOLE + DOUBLE + 5 * ARRAY,
        {"multiple": 8},
    ),
    "ohm_functions": Kernel(
        "The layers of the learned encoding on the spectra of graphs, read at all nodes and edges.",
        "on_spectrum.c",
        8 * WHOLE + 13 * ARRAY,
        {"channels": 16},
    ),
    "ohm_functions_backward": Kernel(
        "The gradient of ohm_functions with respect to the weights of its layers.",
        "on_spectrum.c",
        6 * WHOLE + 9 * ARRAY,
        {"channels": 16},
    ),
    "ohm_read_pairs": Kernel(
        "Functions of the Laplacian at pairs of nodes, from their values on its eigenvalues.",
        "on_spectrum.c",
        WHOLE + 9 * ARRAY,
        {"channels": 16},
    ),
    "ohm_read_pairs_backward": Kernel(
        "The gradient of ohm_read_pairs with respect to those values.",
        "on_spectrum.c",
        WHOLE + 8 * ARRAY,
        {"channels": 16},
    ),
}
"""All kernels by the name of their C function."""
