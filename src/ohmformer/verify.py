"""Every construction on a zoo of graphs: is each error within its bound, and is each Transformer its algorithm?

Three things are checked for every construction, graph and depth:

- the error against LAPACK is at most the proved bound plus what floating point may add;
- the efficient Transformer equals the plain matrix iteration, layer by layer;
- the dense Transformer equals the efficient one, block by block and layer by layer. (Where the null space of L has no part
  in the answer, states are compared on the range of L.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    Construction,
    CubedHeat,
    GradientDescent,
    GramSchmidt,
    Laplacian,
    NewtonSchulz,
    NewtonSchulzRoot,
    Orthogonalization,
    ParallelGramSchmidt,
    PowerSeriesRoot,
    SeededHeat,
    Shifted,
    SpectralFilter,
    Squaring,
    SubspaceIteration,
    TaylorHeat,
    ThroughPinv,
)
from ohmformer.constructions.base import Runnable
from ohmformer.constructions.eigenvectors import sine
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.families import Named, zoo
from ohmformer.transformer import GRAM, INCIDENCE, Trace

AGREEMENT = 1e-10
"""How far apart, relatively, two realisations of one iteration may be in float64."""

HEAT_TIME = 0.5
SLOWEST_RATIO = 0.98
"""Eigenvalue ratios nearer to one are left out: their eigenspaces are hardly separated."""


@dataclass(frozen=True)
class Check:
    """One construction on one graph at one depth."""

    construction: str
    statement: str
    graph: str
    layers: int
    error: float
    """Against LAPACK: operator norm relative to ``|f(L)|``, sine of an angle, or ``|Phi^T Phi - I|``."""
    bound: float
    rounding: float
    plain: float
    """Largest relative difference between Transformer and plain iteration over all layers."""
    dense: float
    """Largest relative difference between dense and efficient Transformer over all layers and blocks."""

    @property
    def ratio(self) -> float:
        """Error over bound, rounding included."""
        return self.error / (self.bound + self.rounding)

    @property
    def holds(self) -> bool:
        """Whether nothing is violated; NaN violates."""
        return self.ratio <= 1 and self.plain <= AGREEMENT and self.dense <= AGREEMENT


@dataclass(frozen=True)
class Row:
    """All checks of one construction."""

    construction: str
    statement: str
    checks: int
    graphs: int
    layers: int
    error: float
    bound: float
    ratio: float
    plain: float
    dense: float
    violations: int

    @classmethod
    def of(cls, checks: list[Check]) -> Row:
        """The worst of everything; ``error`` and ``bound`` are of the worst check at the greatest depth."""
        layers = max(c.layers for c in checks)
        deepest = max((c for c in checks if c.layers == layers), key=lambda c: c.error)
        return cls(
            construction=checks[0].construction,
            statement=checks[0].statement,
            checks=len(checks),
            graphs=len({c.graph for c in checks}),
            layers=layers,
            error=deepest.error,
            bound=deepest.bound,
            ratio=_worst(c.ratio for c in checks),
            plain=_worst(c.plain for c in checks),
            dense=_worst(c.dense for c in checks),
            violations=sum(not c.holds for c in checks),
        )


@dataclass(frozen=True)
class Verification:
    """The outcome of a whole run."""

    seed: int
    graphs: int
    rows: list[Row]
    violated: list[Check]

    @property
    def holds(self) -> bool:
        """Whether there is no violation."""
        return not self.violated

    def as_dict(self) -> dict:
        """For JSON."""
        return {**asdict(self), "violations": len(self.violated), "holds": self.holds}


def verify(
    seed: int = 0, *, graphs: list[Named] | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Verification:
    """Check every construction on every graph of the zoo; ``progress`` is told (done, total, graph) as it goes."""
    graphs = zoo(seed) if graphs is None else graphs
    checks: list[Check] = []
    for done, named in enumerate(graphs):
        if progress:
            progress(done, len(graphs), named.name)
        checks += check_graph(named, seed)
    if progress:
        progress(len(graphs), len(graphs), "done")
    by_name: dict[str, list[Check]] = {}
    for check in checks:
        by_name.setdefault(check.construction, []).append(check)
    return Verification(seed, len(graphs), [Row.of(c) for c in by_name.values()], [c for c in checks if not c.holds])


def check_graph(named: Named, seed: int) -> Iterator[Check]:
    """All checks on one graph."""
    spectrum = exact.spectrum(named.graph)
    for name, construction, depths in functions_of_the_laplacian(spectrum):
        for layers in depths:
            if layers == 0 or layers >= construction.min_layers:
                yield check_function(name, construction, named, layers)
    rank = int((exact.decompose(named.graph)[0] > 0).sum())
    for name, build in eigensolvers(spectrum).items():
        candidates = [build(k) for k in range(1, min(4, rank))]
        best = min(candidates, key=lambda c: c.eigenspace(named.graph).ratio, default=None)
        if best is not None and best.eigenspace(named.graph).ratio <= SLOWEST_RATIO:
            if isinstance(best.orthogonalize, NewtonSchulz):
                best = replace(best, orthogonalize=_enough_rounds(best, named.graph))
            for steps in (0, 1, 3, 10, 25):
                yield check_eigenvectors(name, best, named, best.layers(steps), seed)
    k = min(4, named.graph.num_nodes)
    for name, orthogonalization in {
        "gram-schmidt": GramSchmidt(k),
        "parallel gram-schmidt": ParallelGramSchmidt(k),
        "newton-schulz": NewtonSchulz(k),
    }.items():
        yield check_orthogonalization(name, orthogonalization, named, seed)


def functions_of_the_laplacian(spectrum: Spectrum) -> Iterator[tuple[str, Construction, tuple[int, ...]]]:
    """Every construction of a function of the Laplacian, with the depths to check."""
    deep, steep = (0, 1, 2, 5, 12, 30, 80), (0, 1, 2, 3, 4, 6, 9, 12)
    yield "gradient descent", GradientDescent(spectrum), deep
    yield "chebyshev", Chebyshev(spectrum), deep
    yield "squaring", Squaring(spectrum), steep
    yield "chebyshev cubing", ChebyshevCubing(spectrum), steep
    yield "power series root", PowerSeriesRoot(spectrum), deep
    yield "newton-schulz root", NewtonSchulzRoot(spectrum, scaled=False), steep
    yield "scaled newton-schulz", NewtonSchulzRoot(spectrum), steep
    yield "taylor heat", TaylorHeat(spectrum, HEAT_TIME), deep
    yield "cubed heat", CubedHeat(spectrum, HEAT_TIME), steep
    yield "seeded heat", SeededHeat(spectrum, HEAT_TIME), steep
    yield "filter 1/(1+x)", SpectralFilter(spectrum, lambda x: 1 / (1 + x), null=True), deep
    yield "filter log(x)", SpectralFilter(spectrum, np.log), deep


def eigensolvers(spectrum: Spectrum) -> dict[str, Callable[[int], SubspaceIteration]]:
    """Every eigenvector construction, by the number of vectors."""
    return {
        "top k": lambda k: SubspaceIteration(Laplacian(spectrum), GramSchmidt(k)),
        "bottom k": lambda k: SubspaceIteration(Shifted(spectrum), GramSchmidt(k)),
        "top k, parallel heads": lambda k: SubspaceIteration(Laplacian(spectrum), ParallelGramSchmidt(k)),
        "top k, newton-schulz": lambda k: SubspaceIteration(Laplacian(spectrum), NewtonSchulz(k)),
        "bottom k through L+": lambda k: SubspaceIteration(ThroughPinv(spectrum), NewtonSchulz(k)),
    }


def _enough_rounds(solver: SubspaceIteration, graph: Graph) -> NewtonSchulz:
    """Newton-Schulz with as many rounds as the eigenvalues of this graph ask for, six at least."""
    needed = math.ceil(math.log(solver.eigenspace(graph).condition) / math.log(1.5))
    return NewtonSchulz(solver.k, max(6, needed))


def check_function(name: str, construction: Construction, named: Named, layers: int) -> Check:
    """A function of the Laplacian, at one depth."""
    graph = named.graph
    blocks = construction.inputs(graph, graph.identity() if construction.at_zero else graph.projector())
    plain, dense, answer = _compare(construction, graph, blocks, layers)
    error = float(torch.linalg.matrix_norm(answer - construction.target(graph), 2))
    size = construction.size
    return Check(
        name,
        construction.statement,
        named.name,
        layers,
        error=error / size,
        bound=construction.error_bound(layers) / size,
        rounding=construction.rounding(layers, graph.num_nodes) / size,
        plain=plain,
        dense=dense,
    )


def check_eigenvectors(name: str, construction: SubspaceIteration, named: Named, layers: int, seed: int) -> Check:
    """Subspace iteration, at one depth."""
    graph = named.graph
    start = construction.start(graph, seed)
    basis = construction.eigenspace(graph).basis
    gap = construction.gap(graph, start)
    plain, dense, columns = _compare(construction, graph, construction.inputs(graph, start), layers)
    return Check(
        name,
        construction.multiply.statement,
        named.name,
        layers,
        error=sine(basis, columns),
        bound=construction.error_bound(layers, gap),
        rounding=construction.rounding(gap, graph.num_nodes),
        plain=plain,
        dense=dense,
    )


def check_orthogonalization(name: str, construction: Orthogonalization, named: Named, seed: int) -> Check:
    """Random columns made orthonormal, at the depth that the bound asks for."""
    n, k = named.graph.num_nodes, construction.k
    columns = torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    columns = columns / torch.linalg.matrix_norm(columns, 2)
    smallest = float(torch.linalg.svdvals(columns)[-1])
    if isinstance(construction, NewtonSchulz):
        layers = construction.layers_for(1e-12, smallest)
        bound = construction.error_bound(layers, smallest)
    else:
        assert isinstance(construction, GramSchmidt | ParallelGramSchmidt)
        layers = construction.layers_for(1e-12)
        bound = construction.error_bound(layers)
    plain, dense, answer = _compare(construction, named.graph, {construction.answer: columns}, layers)
    gram = answer.mT @ answer - torch.eye(k, dtype=torch.float64)
    return Check(
        name,
        construction.statement,
        named.name,
        layers,
        error=float(torch.linalg.matrix_norm(gram, 2)),
        bound=bound,
        rounding=8 * torch.finfo(torch.float64).eps * (n + layers) / smallest,
        plain=plain,
        dense=dense,
    )


def _compare(construction: Runnable, graph: Graph, blocks: dict[str, Tensor], layers: int) -> tuple[float, float, Tensor]:
    """Differences Transformer - plain and dense - efficient, and the answer."""
    efficient = construction.run_blocks(graph, blocks, layers)
    dense = construction.run_blocks(graph, blocks, layers, model="dense")
    if isinstance(construction, Orthogonalization):
        iterates = construction.plain(blocks[construction.answer], layers)
    else:
        assert isinstance(construction, Construction | SubspaceIteration)
        iterates = construction.plain(graph.laplacian(), blocks, layers)
    answers = efficient[construction.answer]
    plain = _worst([0.0, *(_difference(a, b) for a, b in zip(answers[1:], iterates, strict=True))])
    in_range = isinstance(construction, Construction) and not construction.at_zero
    onto = graph.projector() if in_range else graph.identity()
    return plain, _block_difference(efficient, dense, onto), answers[-1]


def _block_difference(efficient: Trace, dense: Trace, onto: Tensor) -> float:
    """The largest difference of a block at a layer, relative to the largest that the block has been so far."""
    worst = 0.0
    for name in efficient.states[0]:
        mine = efficient[name]
        if name == GRAM:
            incidence = dense[INCIDENCE]
            other = incidence @ incidence.mT
        else:
            other = dense[name]
        size = torch.linalg.matrix_norm(onto @ mine).cummax(0).values
        gap = torch.linalg.matrix_norm(onto @ (mine - other))
        worst = _worst([worst, float((gap / torch.where(size > 0, size, 1.0)).max())])
    return worst


def _difference(a: Tensor, b: Tensor) -> float:
    size = float(torch.linalg.matrix_norm(b))
    return float(torch.linalg.matrix_norm(a - b)) / (size if size > 0 else 1.0)


def _worst(values: Iterable[float]) -> float:
    """The largest, where NaN is worse than everything."""
    values = list(values)
    return math.nan if any(math.isnan(v) for v in values) else max(values)
