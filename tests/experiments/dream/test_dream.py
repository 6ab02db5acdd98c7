"""Probes find what is planted in node states, and nothing where nothing is; their controls are beside every number."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GIN

from ohmformer import exact
from ohmformer.constructions import Squaring
from ohmformer.encoding.transforms import graph_of
from ohmformer.experiments import dream
from ohmformer.experiments.dream import states
from ohmformer.experiments.dream.findings import interval
from ohmformer.experiments.dream.measure import measure
from ohmformer.experiments.dream.probes import Parts, node_probe, pair_probe, subspace_probe
from ohmformer.experiments.dream.targets import NODE_TARGETS, TARGETS, Targets
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.families import family

DIAGONAL = NODE_TARGETS[0]


def stars(count: int = 100, spread: float = 3.0) -> list[Data]:
    """Stars of five nodes, all edges of one conductance ``exp(-spread U)``."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 0, 0, 0]])
    weights = torch.exp(-spread * torch.rand(count, generator=draw))
    return [Data(x=torch.ones(5, 1), edge_index=edges, edge_weight=w.expand(8)) for w in weights]


def random_graphs(count: int, low: int = 6, high: int = 11) -> list[Data]:
    draw = torch.Generator().manual_seed(1)
    sizes = torch.randint(low, high, (count,), generator=draw).tolist()
    edges = [family("erdos-renyi", n, generator=draw).edge_index for n in sizes]
    return [
        Data(x=torch.randn(n, 2, generator=draw), edge_index=torch.cat([e, e.flip(0)], 1))
        for n, e in zip(sizes, edges, strict=True)
    ]


def batch_of(graphs: list[Data]) -> Graph:
    batch: Any = Batch.from_data_list([*graphs])
    return graph_of(batch)


class Planted(nn.Module):
    """Lemma 4 on every graph; after each of its layers, the diagonal of its answer among columns of noise, mixed."""

    def __init__(self, lemma: Squaring, depth: int) -> None:
        super().__init__()
        self.lemma, self.layers = lemma, nn.ModuleList(nn.Identity() for _ in range(depth + 1))
        self.mix = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))

    def forward(self, graphs: Any) -> Tensor:
        graph = graph_of(graphs)
        real = torch.arange(graph.width) < graph.graph_sizes[:, None]
        noise = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(3))
        x = noise
        for layer, state in zip(
            self.layers, self.lemma.run(graph, layers=len(self.layers) - 1, trace=True).states, strict=True
        ):
            diagonal = state["pinv"].diagonal(dim1=1, dim2=2)[real]
            x = layer(torch.cat([diagonal[:, None].float(), noise], 1) @ self.mix)
        return x


def proved_depth(lemma: Squaring, graph: Graph, variance: float) -> int:
    """The least depth whose bound, for the smallest eigenvalue of each graph, proves R^2 of 0.99 on its diagonals."""
    lowest = [float(values[values > 0].min()) for values in exact.decompose(graph)[0]]
    bounds = [Squaring(Spectrum(low, lemma.spectrum.lmax)) for low in lowest]
    errors = (np.mean([b.error_bound(layers) ** 2 for b in bounds]) for layers in range(1, 60))
    return next(layers for layers, error in enumerate(errors, 1) if error <= 0.01 * variance)


def test_lemma_4_is_found_at_the_depth_of_its_bound_and_not_before():
    graphs = stars()
    graph = batch_of(graphs)
    lemma = Squaring(exact.spectrum(graph))
    depth = proved_depth(lemma, graph, float(exact.pinv(graph).diagonal(dim1=1, dim2=2).var(correction=0)))
    found = dream.probe(Planted(lemma, depth), graphs, layers=[f"layers.{depth - 1}", f"layers.{depth}"], seeds=2)
    before, there = found.of(DIAGONAL).unbind(1)
    assert (there > 0.99).all()
    assert (before < 0.99).all()
    assert (found.of(DIAGONAL, "shuffled").abs() < 0.05).all()
    assert (found.of(DIAGONAL, "features").abs() < 0.05).all()
    states_ = dream.node_states(Planted(lemma, depth), graphs)
    parts, targets = Parts.of(len(graphs), torch.Generator().manual_seed(0)), Targets.of(graph)
    shallower = [node_probe(states_[f"layers.{i}"], targets, parts)[0] for i in range(depth)]
    assert max(shallower) < 0.99  # at no earlier depth
    assert shallower[0] < 0.05  # before the first layer every node has the same


def test_targets_are_those_of_lapack_and_of_powers_of_the_walk():
    graphs = random_graphs(12)
    targets = Targets.of(batch_of(graphs))
    for i, data in enumerate(graphs):
        rows = targets.nodes.rows(torch.tensor([i]))
        n, edges = len(rows), data.edge_index
        assert edges is not None
        a = np.zeros((n, n))
        a[tuple(edges.numpy())] = 1.0
        laplacian, walk = np.diag(a.sum(1)) - a, a / a.sum(1, keepdims=True)
        values, vectors = np.linalg.eigh(laplacian)
        truth = [np.linalg.pinv(laplacian), *(vectors @ np.diag(np.exp(-s * values)) @ vectors.T for s in (0.5, 4.0))]
        truth += [np.linalg.matrix_power(walk, k) for k in (4, 8)]
        np.testing.assert_allclose(targets.values[rows], np.stack([np.diag(x) for x in truth], 1), atol=1e-10)
        np.testing.assert_array_equal(targets.degree[rows], a.sum(1))
        mine = targets.nodes.owner[targets.pairs[0]] == i
        u, v = targets.pairs[:, mine].numpy() - int(rows[0])
        p = truth[0]
        np.testing.assert_allclose(targets.resistance[mine], (p[u, u] + p[v, v] - 2 * p[u, v]), atol=1e-10)
        span = targets.vectors[rows].numpy()
        np.testing.assert_allclose(laplacian @ span, span * values[1:4], atol=1e-9)


def test_shuffled_targets_stay_with_graphs_of_their_size():
    targets = Targets.of(batch_of(random_graphs(60, 6, 9)))
    mixed = targets.shuffled(torch.Generator().manual_seed(0))
    size = targets.nodes.counts[targets.nodes.owner]
    for n in (6, 7, 8):
        of_size = targets.values[size == n], mixed.values[size == n]
        assert not torch.equal(*of_size)
        torch.testing.assert_close(of_size[0].sort(0).values, of_size[1].sort(0).values)
    gram = torch.stack([v.mT @ v for v in mixed.nodes.split(mixed.vectors)])
    torch.testing.assert_close(gram, torch.eye(3, dtype=torch.float64).expand_as(gram))  # whole subspaces moved


def test_a_resistive_embedding_is_found_by_its_distances_and_a_spectral_one_by_its_span():
    graphs = random_graphs(60)
    graph = batch_of(graphs)
    targets, parts = Targets.of(graph), Parts.of(60, torch.Generator().manual_seed(0))
    values, vectors = exact.decompose(graph)
    real = torch.arange(graph.width) < graph.graph_sizes[:, None]
    embedding = (vectors * torch.where(values > 0, values, torch.inf).rsqrt()[:, None])[real].float()
    turned = embedding @ torch.linalg.qr(torch.randn(embedding.shape[1], 2 * embedding.shape[1]).T)[0].T
    draw = torch.Generator().manual_seed(0)
    assert pair_probe(turned, targets, parts, draw) > 0.97
    noise = torch.randn(graph.num_nodes, 8, generator=draw)
    assert abs(pair_probe(noise, targets, parts, draw)) < 0.1
    mixed = torch.cat([targets.vectors.float(), noise], 1) @ torch.randn(11, 11, generator=draw)
    assert subspace_probe(mixed, targets, parts) > 0.97
    assert abs(subspace_probe(noise, targets, parts)) < 0.15


def test_what_the_degree_tells_is_taken_out_and_what_it_does_not_tell_is_left():
    graphs = random_graphs(80)
    targets, parts = Targets.of(batch_of(graphs)), Parts.of(80, torch.Generator().manual_seed(0))
    noise = torch.randn(len(targets.degree), 2, generator=torch.Generator().manual_seed(0))
    degrees = torch.cat([targets.degree[:, None].float(), noise], 1)
    plain, beyond = (node_probe(degrees, targets, parts, degree=d)[0] for d in (False, True))
    assert plain > 0.5
    assert abs(beyond) < 0.05
    assert node_probe(targets.values[:, :1].float(), targets, parts, degree=True)[0] > 0.999


def test_states_are_those_of_the_layers_in_order_and_the_model_is_left_as_it_was():
    graphs = random_graphs(10)
    model: Any = GIN(2, 4, num_layers=3, norm="batch_norm").train()
    model.convs[1].eval()
    modes = [m.training for m in model.modules()]
    found = dream.node_states(model, graphs)
    assert list(found) == [f"convs.{i}" for i in range(3)]
    assert [m.training for m in model.modules()] == modes
    assert not any(m._forward_hooks for m in model.modules())
    batch: Any = Batch.from_data_list([*graphs])
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(found["convs.0"], model.convs[0](batch.x, batch.edge_index))
        torch.testing.assert_close(found["convs.2"], model(batch.x, batch.edge_index))
    assert list(
        dream.node_states(nn.Sequential(nn.Linear(2, 3)), graphs, ["0"], lambda m, b: m(m(b.x) @ torch.ones(3, 2)))
    ) == [
        "0",
        "0, call 2",
    ]


def test_an_untrained_copy_has_other_weights_and_leaves_the_model_and_the_global_seed_alone():
    model: Any = GIN(2, 4, num_layers=2)
    before, state = {k: x.clone() for k, x in model.state_dict().items()}, torch.random.get_rng_state()
    fresh: Any = states.untrained(model, 7)
    again: Any = states.untrained(model, 7)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(x, before[k]) for k, x in model.state_dict().items())
    assert not torch.equal(fresh.convs[0].nn.lins[0].weight, model.convs[0].nn.lins[0].weight)
    assert torch.equal(fresh.convs[0].nn.lins[0].weight, again.convs[0].nn.lins[0].weight)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers": ["convs.9"]}, "expected names of submodules, got 'convs.9'"),
        ({"seeds": 0}, "expected at least 1 seed, got 0"),
        ({"graphs": 3}, "expected at least 10 graphs"),
        ({"forward": lambda model, batch: model(batch.x[:5], batch.edge_index[:, :0])}, "expected layers="),
    ],
)
def test_bad_input_is_one_sentence(change: dict, sentence: str):
    graphs = random_graphs(change.pop("graphs", 12))
    with pytest.raises(ValueError, match=sentence):
        dream.probe(GIN(2, 4, num_layers=2), graphs, **change)


def test_parameters_that_cannot_be_reset_ask_for_an_untrained_model():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.scale

    with pytest.raises(ValueError, match=r"expected untrained=.*'scale'"):
        dream.probe(Odd(), random_graphs(12))


def test_an_interrupted_call_goes_on_to_the_same_numbers(tmp_path: Path):
    targets = Targets.of(batch_of(random_graphs(20)))
    x = {"a": torch.randn(len(targets.degree), 3, generator=torch.Generator().manual_seed(0))}
    whole = measure(x, [x], x["a"], targets, seeds=2)

    def stop(done: int, steps: int, words: str) -> None:
        if words.startswith("seed 1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(x, [x], x["a"], targets, seeds=2, folder=tmp_path, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["split0.json"]
    resumed = measure(x, [x], x["a"], targets, seeds=2, folder=tmp_path)
    for name in dream.CONTROLS:
        assert torch.equal(whole.values[name], resumed.values[name])
    (tmp_path / "split0.json").write_text(json.dumps({"layers": ["b"], "values": {}}))
    with pytest.raises(ValueError, match="expected values of layers a"):
        measure(x, [x], x["a"], targets, seeds=2, folder=tmp_path)


def test_findings_are_a_table_a_figure_and_a_paragraph(tmp_path: Path):
    shape = (3, 2, len(TARGETS))
    values = {name: torch.zeros(shape, dtype=torch.float64) for name in dream.CONTROLS}
    values["trained"][:, 1, 0] = torch.tensor([0.8, 0.9, 1.0])
    values["untrained"][:, 1, 0] = 0.3
    values["features"][:, 1, 1] = values["trained"][:, 1, 1] = 0.5
    found = dream.Findings(["first", "second"], list(TARGETS), values)
    half = 4.302652729911275 * 0.1 / math.sqrt(3)  # Student's t with two degrees of freedom
    assert interval(torch.tensor([0.8, 0.9, 1.0], dtype=torch.float64)) == pytest.approx(half)
    rows = found.table().splitlines()
    assert len(rows) == 2 + 2 * len(TARGETS)
    assert f"| {DIAGONAL} | second | 0.90 ± 0.25 | 0.00 ± 0.00 | 0.30 ± 0.00 |" in found.table()
    text = found.paragraph()
    assert "training added 0.60 ± 0.25" in text
    assert "no more than without training (0.00 ± 0.00)" in text
    assert "Resistance: in no layer" in text
    assert len(found.figure().axes) == len(TARGETS)
    assert (
        {p.name for p in found.save(tmp_path)}
        == {"dream.md", "dream.svg", "dream.png"}
        == {p.name for p in tmp_path.iterdir()}
    )
    joined = dream.Findings.over([found, found])
    torch.testing.assert_close(joined.of(DIAGONAL)[0], values["trained"][:, :, 0].mean(0))
