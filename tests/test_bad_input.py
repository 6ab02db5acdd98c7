"""Errors on wrong input name the condition and the value seen, before anything is done."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import ohmformer as ohm
from ohmformer import Graph, Spectrum, exact
from ohmformer.constructions import (
    Chebyshev,
    CubedHeat,
    GradientDescent,
    GramSchmidt,
    NewtonSchulz,
    ParallelGramSchmidt,
    PowerSeriesRoot,
    SeededHeat,
    Shifted,
    SpectralFilter,
    Squaring,
    TaylorHeat,
)
from ohmformer.constructions.orthogonalize import single_index
from ohmformer.graph.families import family

SPECTRUM = Spectrum(0.5, 4.0)
EDGES = [(0, 1), (1, 2)]
PATH = Graph.from_edges(EDGES)
TWO = Graph.from_edges([(0, 1), (2, 3)])
DIRECTED = Data(edge_index=torch.tensor([[0, 1, 1], [1, 0, 2]]), num_nodes=3)
UNEQUAL = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, w=torch.tensor([1.0, 2.0]))
MISSING = nx.Graph([(0, 1, {"ohm": 1.0}), (1, 2)])

CASES = {
    "negative resistance": (lambda: Graph.from_edges(EDGES, resistance=[1.0, -2.0]), "edge 1 has -2.0"),
    "zero resistance": (lambda: Graph.from_edges(EDGES, resistance=[0.0, 1.0]), "edge 0 has 0.0"),
    "NaN resistance": (lambda: Graph.from_edges(EDGES, resistance=[1.0, np.nan]), "edge 1 has nan"),
    "infinite resistance": (lambda: Graph.from_edges(EDGES, resistance=[1.0, np.inf]), "edge 1 has inf"),
    "zero conductance": (lambda: Graph.from_edges(EDGES, conductance=[1.0, 0.0]), "every conductance positive"),
    "eps of zero": (lambda: ohm.kirchhoff_index(PATH, eps=0.0), r"expected eps in \(0, 1\), got 0.0"),
    "no demand to prepare for": (lambda: ohm.prepare(PATH, demands=0), "expected at least one demand, got demands=0"),
    "resistance in words": (
        lambda: ohm.prepare(PATH).reweight_edge(0, 1, "low"),
        "finite resistance, got 'low'",
    ),
    "both weights": (lambda: Graph.from_edges(EDGES, resistance=[1.0, 1.0], conductance=[1.0, 1.0]), "got both"),
    "too few weights": (lambda: Graph.from_edges(EDGES, resistance=[1.0]), r"shape \(2,\), got \(1,\)"),
    "node out of range": (lambda: Graph.from_edges(EDGES, num_nodes=2), r"0..1, got 2"),
    "negative node": (lambda: Graph.from_edges([(0, -1)]), "got -1"),
    "fractional node": (lambda: Graph.from_edges(np.array([(0.0, 1.5)])), "integer node numbers"),
    "resistance that has no reciprocal": (lambda: Graph.from_edges(EDGES, resistance=[1.0, 1e-310]), "edge 1 has 1e-310"),
    "resistance beyond float32": (
        lambda: Graph.from_edges(EDGES, resistance=[1.0, 1e300]).to(dtype=torch.float32),
        "edge 1 has inf in torch.float32",
    ),
    "complex weights": (lambda: Graph.from_edges(EDGES, resistance=torch.ones(2, dtype=torch.complex64)), "real resistance"),
    "missing PyG attribute": (lambda: Graph.from_pyg(UNEQUAL, resistance="ohm"), "'ohm', it is missing"),
    "PyG data without edges": (lambda: Graph.from_pyg(Data(num_nodes=2)), "an edge_index, it has none"),
    "triples": (lambda: Graph.from_edges([(0, 1, 2)]), "shape \\(edges, 2\\)"),
    "digraph": (lambda: Graph.from_networkx(nx.DiGraph([(0, 1)])), "undirected"),
    "missing attribute": (lambda: Graph.from_networkx(MISSING, resistance="ohm"), r"edge \(1, 2\) does not"),
    "one direction only": (lambda: Graph.from_pyg(DIRECTED), r"pair \(1, 2\) in one direction"),
    "asymmetric weight": (lambda: Graph.from_pyg(UNEQUAL, resistance="w"), r"pair \(0, 1\) has resistances 1 and 2"),
    "asymmetric matrix": (
        lambda: Graph.from_scipy(sp.csr_array(np.array([[0.0, 1.0], [3.0, 0.0]])), entries="conductance"),
        r"pair \(0, 1\)",
    ),
    "rectangular matrix": (lambda: Graph.from_scipy(sp.csr_array((2, 3)), entries="unit"), "got shape 2 x 3"),
    "unknown entries": (lambda: Graph.from_scipy(sp.csr_array((2, 2)), entries="weight"), "got 'weight'"),
    "nothing to collate": (lambda: Graph.collate([]), "got none"),
    "demands of the wrong length": (lambda: exact.potentials(PATH, torch.ones(4)), r"shape \(3, k\), got \(4,\)"),
    "demands that do not sum to zero": (lambda: exact.potentials(PATH, torch.ones(3)), "sums to 3 on component 0"),
    "demands across components": (
        lambda: exact.potentials(TWO, torch.tensor([1.0, 0.0, -1.0, 0.0])),
        "on component [01]; pass center=True",
    ),
    "NaN demands": (lambda: exact.potentials(PATH, torch.tensor([np.nan, 0.0, 0.0])), "NaN or infinity"),
    "demands of a run": (lambda: Chebyshev(SPECTRUM).run(PATH, torch.ones(3), layers=3), "sums to 3"),
    "spectrum upside down": (lambda: Spectrum(2.0, 1.0), "lmin=2.0, lmax=1.0"),
    "spectrum at zero": (lambda: Spectrum(0.0, 1.0), "lmin=0.0"),
    "step above 1/lmax": (lambda: GradientDescent(SPECTRUM, step=0.3), r"\(0, 0.25\], got 0.3"),
    "negative step": (lambda: GradientDescent(SPECTRUM, step=-0.1), "got -0.1"),
    "step of lemma 4": (lambda: Squaring(SPECTRUM, step=0.3), "Lemma 4 needs a step"),
    "time zero": (lambda: TaylorHeat(SPECTRUM, 0.0), "s > 0, got 0.0"),
    "negative time": (lambda: CubedHeat(SPECTRUM, -1.0), "s > 0, got -1.0"),
    "NaN time": (lambda: SeededHeat(SPECTRUM, np.nan), "s > 0, got nan"),
    "exact time zero": (lambda: exact.heat(PATH, 0.0), "s > 0, got 0.0"),
    "no eigenvector": (lambda: exact.eigenvectors(PATH, 0), "k >= 1 eigenvectors, got 0"),
    "which eigenvector": (lambda: exact.eigenvectors(PATH, 1, "middle"), "got 'middle'"),
    "no column": (lambda: GramSchmidt(0), "k >= 1 columns, got 0"),
    "column out of range": (lambda: single_index(3, 3), "0..2, got 3"),
    "mu below lmax": (lambda: Shifted(SPECTRUM, mu=3.0), "mu >= lmax = 4, got 3.0"),
    "negative layers": (lambda: Chebyshev(SPECTRUM).program(-1), "layers >= 0, got -1"),
    "negative layers of a bound": (lambda: Squaring(SPECTRUM).error_bound(-2), "got -2"),
    "eps zero": (lambda: Chebyshev(SPECTRUM).layers_for(0.0), "positive error eps, got 0.0"),
    "lemma 3 outside its condition": (
        lambda: TaylorHeat(SPECTRUM, 1.0).printed_bound(10),
        "8 s lmax <= layers, got 32 > 10",
    ),
    "lemma 5 outside its condition": (lambda: CubedHeat(SPECTRUM, 10.0).error_bound(3), "s lmax <= 9 at 3 layers, got 40"),
    "lemma 5 without layers": (lambda: CubedHeat(SPECTRUM, 0.01).printed_bound(0), "at 0 layers"),
    "lemma 2 without layers": (lambda: PowerSeriesRoot(SPECTRUM).printed_bound(0), "at least 1 layer"),
    "lemma 8 before its end": (lambda: GramSchmidt(3).error_bound(2), "k = 3 layers"),
    "parallel heads before their end": (lambda: ParallelGramSchmidt(3).error_bound(1), "k = 3 layers"),
    "newton-schulz of singular columns": (lambda: NewtonSchulz(3).error_bound(2, 0.0), "smallest one of 0.0"),
    "filter with a pole": (lambda: SpectralFilter(SPECTRUM, lambda x: 1 / (x - 2.25)), "Chebyshev series has not died"),
    "filter infinite at zero": (
        lambda: SpectralFilter(SPECTRUM, lambda x: np.full_like(x, np.inf), null=True),
        r"finite on \[0, 4\]",
    ),
    "filter that drowns in the null space": (
        lambda: SpectralFilter(SPECTRUM, lambda x: np.exp(-(((x - 2) / 0.02) ** 2))),
        "survives rounding on the null space",
    ),
    "filter of another shape": (lambda: SpectralFilter(SPECTRUM, lambda x: x[:2]), "keep the shape"),
    "more eps than depth": (lambda: GradientDescent(Spectrum(1e-12, 1.0)).layers_for(1e-3), "more than 10000000 layers"),
    "unknown family": (lambda: family("moebius", 8, generator=torch.Generator()), "got 'moebius'"),
    "family too small": (lambda: family("csl", 3, generator=torch.Generator()), "at least 5 nodes for csl, got 3"),
    "unknown model": (lambda: Chebyshev(SPECTRUM).run(PATH, layers=1, model="sparse"), "got 'sparse'"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_errors_on_wrong_input_name_what_was_expected(case):
    build, message = CASES[case]
    with pytest.raises(ValueError, match=message) as caught:
        build()
    text = str(caught.value)
    assert "\n" not in text
    assert 10 < len(text) < 200
