"""Every construction on a zoo of graphs: is each error within its bound, and is each Transformer its algorithm?

Three things are checked for every construction, graph and depth:

- the error against LAPACK is at most the proved bound plus a bound on rounding;
- the efficient Transformer equals the plain matrix iteration, layer by layer;
- the dense Transformer equals the efficient one, block by block and layer by layer. (Where the null space of L has no part
  in the answer, states are compared on the range of L.)

Lemmas 1, 2, 3 and 6 are also checked in the dynamics of appendix E, where queries and keys read ``D^-1/2 B``: there they
apply to the normalised Laplacian ``N = D^-1/2 L D^-1/2``; weights are diagonal, and layers (or steps) are looped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ohmformer import constructions as built
from ohmformer import exact
from ohmformer.constructions import Construction, NewtonSchulz, Orthogonalization, SubspaceIteration
from ohmformer.constructions.base import Runnable
from ohmformer.constructions.eigenvectors import Gap, sine, tangent
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.families import Named, zoo
from ohmformer.transformer import GRAM, INCIDENCE, Program, Trace
from ohmformer.transformer.normalize import Normalization

AGREEMENT = 1e-10
"""Largest allowed relative difference between two implementations of an iteration in float64."""

HEAT_TIME = 0.5
SLOWEST_RATIO = 0.98
"""Eigenvalue ratios closer to one are skipped: their eigenspaces are hardly separated."""
ORTHOGONALIZATIONS = {
    "gram-schmidt": built.GramSchmidt,
    "parallel gram-schmidt": built.ParallelGramSchmidt,
    "newton-schulz": NewtonSchulz,
}


@dataclass(frozen=True)
class Check:
    """The check of one construction on one graph at one depth."""

    construction: str
    statement: str
    graph: str
    layers: int
    error: float
    """Error against LAPACK: operator norm relative to ``|f(L)|``, sine of an angle, or ``|Phi^T Phi - I|``."""
    bound: float
    rounding: float
    plain: float
    """Largest relative difference between Transformer and plain iteration over all layers."""
    dense: float
    """Largest relative difference between dense and efficient Transformer over all layers and blocks."""

    @property
    def ratio(self) -> float:
        """Error divided by bound, rounding included."""
        return self.error / (self.bound + self.rounding)

    @property
    def holds(self) -> bool:
        """Whether no bound is violated; NaN is a violation."""
        return self.ratio <= 1 and self.plain <= AGREEMENT and self.dense <= AGREEMENT


@dataclass(frozen=True)
class Row:
    """Summary of all checks of one construction."""

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
        """Summarise checks by the worst one; ``error`` and ``bound`` are those of the worst check at the greatest depth."""
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
    """The result of a whole run."""

    seed: int
    graphs: int
    rows: list[Row]
    violated: list[Check]

    @property
    def holds(self) -> bool:
        """Whether there is no violation."""
        return not self.violated

    def as_dict(self) -> dict:
        """Convert to plain types, for JSON."""
        return {**asdict(self), "violations": len(self.violated), "holds": self.holds}


def verify(
    seed: int = 0, *, graphs: list[Named] | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Verification:
    """Check every construction on every graph of the zoo; ``progress`` is called with (done, total, graph)."""
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
    """Yield all checks on one graph."""
    spectrum = exact.spectrum(named.graph)
    for name, construction, depths in functions_of_the_laplacian(spectrum):
        trial = prepare(construction, named.graph, seed)
        for layers in depths:
            if layers == 0 or layers >= construction.min_layers:
                yield trial.check(name, named.name, layers)
    rank = int((exact.decompose(named.graph)[0] > 0).sum())
    for name, build in eigensolvers(spectrum).items():
        candidates = [build(k) for k in range(1, min(4, rank))]
        best = min(candidates, key=lambda c: c.eigenspace(named.graph).ratio, default=None)
        if best is not None and best.eigenspace(named.graph).ratio <= SLOWEST_RATIO:
            if isinstance(best.orthogonalize, NewtonSchulz):
                best = replace(best, orthogonalize=_enough_rounds(best, named.graph))
            trial = prepare(best, named.graph, seed)
            for steps in (0, 1, 3, 10, 25):
                yield trial.check(name, named.name, best.layers(steps))
    for name, kind in ORTHOGONALIZATIONS.items():
        trial = prepare(kind(min(4, named.graph.num_nodes)), named.graph, seed)
        yield trial.check(name, named.name, trial.layers_for(1e-12))
    for name, trial, depths in in_molecules(named.graph, seed):
        for layers in depths:
            yield trial.check(name, named.name, layers)


def functions_of_the_laplacian(spectrum: Spectrum) -> Iterator[tuple[str, Construction, tuple[int, ...]]]:
    """Yield every construction of a function of the Laplacian, with the depths to check."""
    deep, steep = (0, 1, 2, 5, 12, 30, 80), (0, 1, 2, 3, 4, 6, 9, 12)
    yield "gradient descent", built.GradientDescent(spectrum), deep
    yield "chebyshev", built.Chebyshev(spectrum), deep
    yield "squaring", built.Squaring(spectrum), steep
    yield "chebyshev cubing", built.ChebyshevCubing(spectrum), steep
    yield "power series root", built.PowerSeriesRoot(spectrum), deep
    yield "newton-schulz root", built.NewtonSchulzRoot(spectrum, scaled=False), steep
    yield "scaled newton-schulz", built.NewtonSchulzRoot(spectrum), steep
    yield "taylor heat", built.TaylorHeat(spectrum, HEAT_TIME), deep
    yield "cubed heat", built.CubedHeat(spectrum, HEAT_TIME), steep
    yield "seeded heat", built.SeededHeat(spectrum, HEAT_TIME), steep
    yield "filter 1/(1+x)", built.SpectralFilter(spectrum, lambda x: 1 / (1 + x), null=True), deep
    yield "filter log(x)", built.SpectralFilter(spectrum, np.log), deep


def eigensolvers(spectrum: Spectrum) -> dict[str, Callable[[int], SubspaceIteration]]:
    """Return every eigenvector construction, each as a function of the number of vectors."""
    return {
        "top k": lambda k: SubspaceIteration(built.Laplacian(spectrum), built.GramSchmidt(k)),
        "bottom k": lambda k: SubspaceIteration(built.Shifted(spectrum), built.GramSchmidt(k)),
        "top k, parallel heads": lambda k: SubspaceIteration(built.Laplacian(spectrum), built.ParallelGramSchmidt(k)),
        "top k, newton-schulz": lambda k: SubspaceIteration(built.Laplacian(spectrum), NewtonSchulz(k)),
        "top k, 3 products": lambda k: SubspaceIteration(built.Laplacian(spectrum), built.GramSchmidt(k), products=3),
        "bottom k through L+": lambda k: SubspaceIteration(built.ThroughPinv(spectrum), NewtonSchulz(k)),
    }


def _enough_rounds(solver: SubspaceIteration, graph: Graph) -> NewtonSchulz:
    """Return Newton-Schulz with as many rounds as the eigenvalues of this graph require, at least six."""
    needed = math.ceil(math.log(solver.eigenspace(graph).condition) / math.log(1.5))
    return NewtonSchulz(solver.k, max(6, needed))


@dataclass(frozen=True)
class Trial:
    """A construction on one graph: its initial blocks, the error of its answer, and the proved bound on that error."""

    construction: Runnable
    graph: Graph
    statement: str
    blocks: dict[str, Tensor]
    error: Callable[[Tensor], float]
    bound: Callable[[int], float]
    """Returns a bound on the error at a depth; raises a ValueError where nothing is proved."""
    rounding: Callable[[int], float]

    def check(self, name: str, graph: str, layers: int) -> Check:
        """Compare error and bound, and the Transformers with each other and with the plain iteration, at one depth."""
        plain, dense, answer = _compare(self.construction, self.graph, self.blocks, layers)
        proved = {"bound": self.bound(layers), "rounding": self.rounding(layers)}
        return Check(name, self.statement, graph, layers, error=self.error(answer), plain=plain, dense=dense, **proved)

    def layers_for(self, eps: float) -> int:
        """Return the least depth whose bound is at most ``eps``, for constructions that start from random columns."""
        assert isinstance(self.construction, Orthogonalization)
        return self.construction.layers_for(eps, _smallest(self.blocks[self.construction.answer]))


def prepare(construction: Runnable, graph: Graph, seed: int) -> Trial:
    """Prepare the trial of a construction on a graph; errors of functions of the Laplacian are relative to their size."""
    if isinstance(construction, Construction):
        size, truth = construction.size, construction.target(graph)
        everything = graph.identity() if construction.at_zero else graph.projector()
        return Trial(
            construction, graph, construction.statement, construction.inputs(graph, everything),
            error=lambda answer: float(torch.linalg.matrix_norm(answer - truth, 2)) / size,
            bound=lambda layers: construction.error_bound(layers) / size,
            rounding=lambda layers: construction.rounding(layers, graph.num_nodes) / size,
        )  # fmt: skip
    if isinstance(construction, SubspaceIteration):
        start = construction.start(graph, seed)
        basis, gap = construction.eigenspace(graph).basis, construction.gap(graph, start)
        return Trial(
            construction, graph, construction.multiply.statement, construction.inputs(graph, start),
            error=lambda columns: sine(basis, columns),
            bound=lambda layers: construction.error_bound(layers, gap),
            rounding=lambda _: construction.rounding(gap, graph.num_nodes),
        )  # fmt: skip
    assert isinstance(construction, Orthogonalization)
    n, k = graph.num_nodes, construction.k
    columns = torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(graph.device)
    columns = columns / torch.linalg.matrix_norm(columns, 2)
    one, smallest = torch.eye(k, dtype=columns.dtype, device=columns.device), _smallest(columns)
    return Trial(
        construction, graph, construction.statement, {construction.answer: columns},
        error=lambda answer: float(torch.linalg.matrix_norm(answer.mT @ answer - one, 2)),
        bound=lambda layers: construction.error_bound(layers, smallest),
        rounding=lambda layers: 8 * torch.finfo(columns.dtype).eps * (n + layers) / smallest,
    )  # fmt: skip


@dataclass(frozen=True)
class InMolecules(Runnable):
    """A construction in the dynamics of appendix E: queries and keys read ``D^-1/2 B``, so it acts on N instead of L."""

    inner: Construction | SubspaceIteration

    @property
    def answer(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The block that holds the answer."""
        return self.inner.answer

    def program(self, layers: int) -> Program:
        """Return the same weights."""
        whole = self.inner.program(layers)
        return Program(whole.blocks, whole.layers, replace(whole.normalization, degrees="gram"))

    def plain(self, laplacian: Tensor, blocks: dict[str, Tensor], layers: int) -> Iterator[Tensor]:
        """Yield the states of the same iteration with N, computed by matrix algebra."""
        return self.inner.plain(normalized(laplacian), blocks, layers)


def normalized(laplacian: Tensor) -> Tensor:
    """Compute ``N = D^-1/2 L D^-1/2``; isolated nodes have zeros."""
    return Normalization(degrees="gram").seen_gram(laplacian, None)


def in_molecules(graph: Graph, seed: int) -> Iterator[tuple[str, Trial, tuple[int, ...]]]:
    """Yield Lemmas 1, 2, 3 and 6 on the normalised Laplacian, with reference answers by LAPACK and the depths to check."""
    values, vectors = torch.linalg.eigh(normalized(graph.laplacian()))
    nonzero = torch.arange(len(values), device=values.device) >= len(values) - int(graph.ranks.sum())  # eigenvalues ascend
    if not bool(nonzero.any()):
        return
    spectrum, basis = Spectrum(float(values[nonzero].min()), float(values.max())), vectors[:, nonzero]
    for _, construction, depths in functions_of_the_laplacian(spectrum):
        if construction.statement in ("Lemma 1", "Lemma 2", "Lemma 3"):
            trial = prepare(construction, graph, seed)
            image = torch.where(nonzero, construction.f(torch.where(nonzero, values, 1.0)), construction.at_zero)
            truth, range_ = (vectors * image) @ vectors.mT, basis @ basis.mT
            start = construction.inputs(graph, graph.identity() if construction.at_zero else range_)
            error = lambda x, truth=truth, size=construction.size: float(torch.linalg.matrix_norm(x - truth, 2)) / size  # noqa: E731
            yield (
                f"{construction.statement.lower()}, molecules",
                replace(trial, construction=InMolecules(construction), blocks=start, error=error),
                depths,
            )
    ratios = {k: float(values[-k - 1] / values[-k]) for k in range(1, min(4, basis.shape[1]))}
    k = min(ratios, key=ratios.__getitem__, default=0)
    if not k or ratios[k] > SLOWEST_RATIO:
        return
    solver, top = SubspaceIteration(built.Laplacian(spectrum), built.GramSchmidt(k)), basis[:, -k:]
    start = basis @ (basis.mT @ solver.start(graph, seed))
    gap = Gap(ratios[k], tangent(top, start), float(values[-1] / values[-k]))
    yield "lemma 6, molecules", Trial(
        InMolecules(solver), graph, "Lemma 6", solver.inputs(graph, start), error=lambda columns: sine(top, columns),
        bound=lambda layers: solver.error_bound(layers, gap), rounding=lambda _: solver.rounding(gap, graph.num_nodes),
    ), tuple(solver.layers(steps) for steps in (0, 1, 3, 10, 25))  # fmt: skip


def _smallest(columns: Tensor) -> float:
    """Compute the smallest singular value."""
    return float(torch.linalg.svdvals(columns)[-1])


def _compare(construction: Runnable, graph: Graph, blocks: dict[str, Tensor], layers: int) -> tuple[float, float, Tensor]:
    """Compare Transformer and plain iteration, and dense and efficient model; return both differences and the answer."""
    efficient = construction.run_blocks(graph, blocks, layers)
    dense = construction.run_blocks(graph, blocks, layers, model="dense")
    if isinstance(construction, Orthogonalization):
        iterates = construction.plain(blocks[construction.answer], layers)
    else:
        assert isinstance(construction, Construction | SubspaceIteration | InMolecules)
        iterates = construction.plain(graph.laplacian(), blocks, layers)
    answers = efficient[construction.answer]
    plain = _worst([0.0, *(_difference(a, b) for a, b in zip(answers[1:], iterates, strict=True))])
    in_range = isinstance(construction, Construction) and not construction.at_zero
    onto = graph.projector() if in_range else graph.identity()
    return plain, _block_difference(efficient, dense, onto), answers[-1]


def _block_difference(efficient: Trace, dense: Trace, onto: Tensor) -> float:
    """Return the largest difference of any block after any layer, relative to the block's largest norm up to that layer."""
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
    """Return the largest value, NaN if there is one."""
    values = list(values)
    return math.nan if any(math.isnan(v) for v in values) else max(values)
