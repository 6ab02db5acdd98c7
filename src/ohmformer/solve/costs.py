"""What solving costs: thresholds, and seconds predicted from sizes, each beside the measurement it comes from.

Predictions are seconds of processor time on one thread (AMD EPYC, AVX-512, 1 MB of L2 cache) for the first question about a
graph at a tolerance of 1e-8, measured on a busy machine on graphs like those of ``benchmarks/real_graphs.py``;
``benchmarks/solve.py`` and ``benchmarks/scale.py`` measure the thresholds again. Other machines differ by a factor that is
similar for all engines, and predictions are only compared with each other. Entries are ``nodes + 2 edges``, those of the
Laplacian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# ---------------------------------------------------------------------------------------------------- thresholds

SMALL = 400
"""Nodes up to which whole inverses are computed where needed, and always without kernels. In torch on one thread this takes
0.01 s at 200 nodes and 0.05 s at 400, for any demands and condition number, with a proved bound on the residual. With
kernels, graphs of more than 64 nodes are solved by their factor instead: 0.003 s at either size, without that bound, but
with one on the error."""
TOGETHER = 4096
"""Nodes up to which larger graphs of a batch are solved as one block-diagonal system: 20 random graphs of 500 nodes take
0.06 s together and 0.25 s one by one, 5 of 4,000 nodes 0.14 and 0.16 s."""
REASONABLE = 3000
"""Layers beyond which a factorization replaces chebyshev if there are no kernels. On weighted grids the factorization is
faster from far fewer layers on (100 x 100: 1,025 layers, 0.74 s, and 0.07 s; 300 x 300: 2,112, 6.2 s, and 0.6 s); expanders,
whose factors fill in, need few layers."""
FEW_EDGES = 3.5
"""Edges per node beyond which no factor of a large graph is considered for estimating its resistances: grids, meshes, roads
and power grids have up to 3."""
MAYBE_LONG = 8.0
"""Edges per node up to which a graph's distances are computed before Lanczos: grids, meshes, roads and power grids have up
to 3, random geometric graphs 6. This takes 0.04 s on a grid of 1000 x 1000 and 0.05 s on 200,000 nodes of a geometric graph,
where Lanczos takes 0.3 s until it gives up. On expanders it ends after an eighth of the nodes."""
NODES_OF_A_PART = 2**15
"""Nodes of a part of a long graph in elimination. First question to 1e-8 with 65,536, 40,000 and 20,000 nodes a part, on one
thread and on two, and as one part: grid of 1000 x 1000 1.33, 1.23, 1.40 and 0.90, 0.90, 0.96, one part 1.70 and 1.73 s;
geometric graph of 200,000 nodes 0.57, 0.59, 0.56 and 0.50, 0.51, 0.43, one part 0.78 and 0.80 s; mesh of 150,000 0.25, 0.27,
0.27 and 0.19, 0.27, 0.21, one part 0.24 and 0.25 s. On one thread parts help because their vectors fit the cache."""
FEWEST_PARTS = 4
"""Parts below which a graph is left whole: two on a power grid of 70,000 nodes take 36 steps instead of 30."""
HOPS_OF_A_PART = 16
"""Distances that a part spans at least, so that an eighth of the nodes at most have neighbours in another part."""
MANY_NODES = 100_000
"""Nodes beyond which eigenvectors use elimination instead of a factor, if a single demand does."""
WIDE = 1e8
"""Range of resistances beyond which a factor within the limits is used at any cost: with elimination potentials may be off
by 1 % at a residual of 1e-6 (600 nodes, twenty orders of magnitude), with a factor they are accurate to rounding."""
LAYERS = 20
"""Minimum number of chebyshev layers, used to decide whether resistances of edges are faster to estimate than to compute
from a factor. A factor with its resistances takes 1 ns per unit of work (measured); a layer is assumed to take as long per
entry of the Laplacian and demand (not measured)."""
LITTLE_WORK = 1e8
"""Work of a factor up to which no alternative is considered: 0.1 s."""
WALK = 10.0
"""Time of a walk of three steps, relative to an entry and a demand of a layer: on 200,000 random nodes with 10^6 edges 2.4e8
walks take 2.0 s, and 64 projections, of 19 layers and 2.2e6 entries, 1.9 s; processor time, one thread."""
SPREAD = 5.0
"""Largest share of a resistance left by walks of three steps, over the mean: 4.2 on random graphs with conductances over
four orders of e, 1.4 to 2.3 on unweighted ones, Barabasi-Albert's and grids. A few edges above it are solved for."""
DEFAULT_EPS = 0.01
"""Relative error of estimates if ``eps`` is not given and a factor would be too large."""
NATIVE_NODES = 2**15
"""Nodes from which on layers are faster in C. 64 demands, one thread, in C and by torch: 0.063 and 0.053 s on 16,384 nodes,
0.15 and 0.23 s on 32,768, 0.43 and 2.7 s on 65,536 (5 edges a node)."""
NATIVE_DEMANDS = 17
"""Demands from which on layers in C, which have 32 or 64 columns, are about as fast or faster. On 40,000 nodes, one thread,
in C and by torch: 16 demands 0.24 and 0.17 s, 17 0.27 and 0.23 s, 32 0.44 and 0.47 s, 64 0.40 and 0.51 s."""
FEW = 3
"""Demands up to which conjugate gradients are faster than Lanczos and layers. On 200,000 random nodes with 10^6 edges to
1e-8, one thread, processor time, plus one random demand: 1 demand 0.27 and 0.45 s, 3 0.47 and 0.6 s, 7 0.72 and 0.8 s;
without Lanczos layers are as fast from 4 on."""
PANEL = 32
"""Demands that torch's layers process together: 128 bytes per row, two cache lines."""
CACHE = 2**22
"""Numbers of a panel that fit the cache: on small graphs panels are wider, up to 8 times :data:`PANEL`."""
BEYOND_CACHE = 2**18
"""Nodes from which on a panel is in main memory, where long rows are fetched faster: 2 times :data:`PANEL`."""
LANCZOS = 2000
"""Maximum number of Lanczos steps to find the smallest eigenvalue of a graph shared by processes, each a layer of one
demand. If it is found, Chebyshev's layers are used: on a grid of 200^2 (condition number 4e4, 495 steps) they took 0.8
processor seconds for 8 demands where conjugate gradients took 3.3, 4.6 against 32 for 64, and as long for one. If not,
conjugate gradients need at least as many layers, with all demands."""
EDITS = 32
"""Edits of a graph up to which its factor is used for the edited one. Every edit adds a column of potentials: on a weighted
grid of 300 x 300 an edit and a question take 0.05 s after one edit and 0.07 s after 30, with a new factor 0.13 s."""
LIKELY = 0.9
"""A factor predicted from sizes to take less than this fraction of the best time so far is always analysed."""
PROBING = 0.15
"""Fraction of the best time so far that probing another engine may take. Processor time of plans, of the first answer to one
demand at 1e-8: 0.042 of 0.27 s on 200,000 random nodes with 10^6 edges (0.034 of it builds rows, which the answer needs),
0.003 of 0.036 s on 50,000 scale-free nodes, 0.046 of 0.45 s on a geometric graph of 100,000, 0.010 of 0.135 s on a grid of
300 x 300. What is taken for the spectrum of an expander is not probing, as the answer needs it (``benchmarks/plan.py``).
With 1 to 3 demands a random one beside them, for the estimate of the error, takes 3 to 18 %. With more, Lanczos for the
layers of chebyshev takes at most 10 % with 32, 15 to 17 % with 16, and 19 to 32 % with 4 to 8. Conjugate gradients would
save that, but take 1.2 times as long in total with 4 demands on 200,000 random nodes and 1.7 times with 8."""
LOOKING = 0.4
"""Minimum fraction of a factor's time, solve included, taken by its analysis: 0.41 to 0.67 by the predictions on four real
graphs. Earlier questions count only once they have taken this much."""
SOON = 0.002
"""Seconds that such an analysis may take in any case."""


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a factor."""

    entries: int
    """Number of entries: with its pattern and the resistances on it, each takes :data:`BYTES`."""
    work: float
    """The sum of squared column counts."""
    work_in_python: float
    """The same limit without kernels in C."""


BYTES = 20
BEARABLE = Limits(entries=60_000_000, work=3e10, work_in_python=1e8)
"""1.2 GB, and 1 ns per unit of work, factor and resistances together: a grid of 300 x 300 has 2.6 million entries and 4e8 of
work and takes 0.4 s, one of 1000 x 1000 has 46 million and 2.2e10 and takes 19 s. Random graphs of 9,000 nodes and 49,000
edges are beyond the limit."""

# ---------------------------------------------------------------------------------------------------- predictions

QUESTION = 0.001
"""Overhead of a question in seconds: reading demands, components, a plan, an answer."""


def cubing(cubes: float, *, in_c: bool) -> float:
    """Predict inverses given the sum of n^3: 0.01 s at 200 nodes, 0.05 at 400 by torch; 0.015 s for 1,000 molecules in C."""
    return QUESTION + (1.1e-9 * cubes if in_c else 0.003 + 7.5e-10 * cubes)


def chebyshev(nodes: int, edges: int, demands: int, layers: int, *, in_c: bool) -> float:
    """Predict ``layers`` layers with Lanczos and CSR.

    Per entry and demand one takes 1.8 ns by torch (1.6 to 2.2 on five graphs), 0.5 in C. Many demands take 0.2 to 0.4 ns
    each on random graphs of 500 to 32,000 nodes, which fit the cache, 8 take 0.5, and 64 take 0.7 on 200,000 nodes. On
    graphs of some hundred nodes 30 layers take 0.005 s.
    """
    entries, each = nodes + 2 * edges, 0.3e-9 if nodes < NATIVE_NODES else 0.7e-9
    one = 0.5e-9 * (PANEL * math.ceil(demands / PANEL)) if in_c else 1.1e-9 + each * demands
    return QUESTION + 0.002 + 3e-5 * layers + entries * (90e-9 + layers * one)


def conjugate(nodes: int, edges: int, demands: int, steps: int) -> float:
    """Predict ``steps`` steps of conjugate gradients scaled by degrees; a random demand counts as one.

    A step takes 1.9 ns per entry for one demand, 2.6 for two and 3.3 for four; rows, copies and the check 33 ns.
    """
    return QUESTION + 3e-5 * steps + (nodes + 2 * edges) * (30e-9 + 3e-9 * demands + steps * (1.5e-9 + 0.5e-9 * demands))


def lanczos_step(nodes: int, edges: int) -> float:
    """Predict one step of Lanczos: 5 ms on 200,000 nodes and 10^6 edges."""
    return 1e-4 + 2.3e-9 * (nodes + 2 * edges)


def elimination(nodes: int, edges: int, demands: int, *, kept: bool = False) -> float:
    """Predict an approximate factor, unless one is ``kept``, and conjugate gradients.

    The factor takes 30 to 90 ns per entry on power grids and roads, 97 on grids, 150 to 180 on meshes and geometric graphs,
    approximated as 25 ns per edge of a node (430 and 1,400 on expanders, where layers are few). A step takes 4.3 ns per
    entry for one demand, 1.8 for each of eight; to 1e-8 there are 23 steps on 2,640 nodes, 36 on 90,000, 46 on 1,000,000,
    about 2.2 times the binary logarithm.
    """
    entries, degree, steps = nodes + 2 * edges, 2 * edges / max(nodes, 1), 2.2 * math.log2(max(nodes, 2))
    factor = 0.0 if kept else 25e-9 * degree
    return QUESTION + entries * (factor + steps * (2.5e-9 + 1.8e-9 * demands) + 10e-9 * demands)


def look_at_factor(nodes: int, edges: int) -> float:
    """Predict elimination order and pattern: 100 to 150 ns per entry up to 450,000, 210 and 320 for 10^6 and more."""
    return (nodes + 2 * edges) * (120e-9 + 5e-14 * (nodes + 2 * edges))


def direct(nodes: int, edges: int, demands: int, entries: int, work: float) -> float:
    """Predict a factor with ``entries`` and ``work``, including its analysis, sweeps and certificate.

    Fitted to processor seconds, best of 2 to 5, of the seven graphs of ``benchmarks/real_graphs.py`` that have a factor,
    without the largest grid: 140 ns per node and 0.094 ns per unit of work are 0.77 to 1.26 of a factor's time (grid of 300
    x 300: 0.043 s, US power grid: 0.013 s). ``benchmarks/plan.py`` compares the whole with measured times.
    """
    factor = 0.094e-9 * work + 140e-9 * nodes + 30e-9 * (nodes + 2 * edges)  # including rows
    return look_at_factor(nodes, edges) + factor + solves(nodes, edges, demands, entries)


def solves(nodes: int, edges: int, demands: int, entries: int) -> float:
    """Predict solves with a kept factor: fitted likewise, 0.85 to 1.14 of the time of 1 and 64 demands on those graphs."""
    each = 1.9e-9 * (nodes + 2 * edges) + 2.4e-9 * nodes + 0.43e-9 * entries
    return QUESTION + 35e-9 * (nodes + 2 * edges) + 2.6e-9 * entries + demands * each


def direct_if_flat(nodes: int, edges: int, demands: int) -> float:
    """Predict a factor of a graph that can be drawn with few crossings, without analysing it.

    A grid of 300 x 300 and a mesh of 150,000 nodes have 1.9 and 1.7 ``n log2 n`` entries and 16 and 17 ``n^1.5`` of work, a
    power grid a tenth of that.
    """
    return direct(nodes, edges, demands, int(2 * nodes * math.log2(max(nodes, 2))), 17 * nodes**1.5)


def work_on_expander(nodes: int, gap: float) -> float:
    """Estimate the least work of a factor if the smallest eigenvalue of the scaled Laplacian is ``gap``.

    By the easy half of Cheeger's inequality, half of the nodes cannot be separated by fewer than ``gap n / 8`` others, which
    end up joined.
    """
    return (gap * nodes / 8) ** 3
