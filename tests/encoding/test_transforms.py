"""PyG transforms: fixed encodings say what LAPACK says, a frozen one what its model says."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

import ohmformer as ohm
from ohmformer import exact
from ohmformer.encoding import (
    AddEdgeHeat,
    AddEdgeResistance,
    AddEigenvectorPE,
    AddHeatDiagonalPE,
    AddLinearTransformerPE,
    AddResistancePE,
    AddResistiveEmbeddingPE,
    LinearTransformerPE,
    PairwiseBias,
    pairwise,
)
from ohmformer.encoding.transforms import graph_of
from tests.encoding.molecules import batch_of, fuzzed, molecules

TRANSFORMS = (
    AddLinearTransformerPE(LinearTransformerPE(4)), AddResistancePE(), AddResistiveEmbeddingPE(3), AddHeatDiagonalPE(),
    AddEigenvectorPE(40), AddEdgeResistance(), AddEdgeHeat(),
)  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_transforms_add_their_attribute_to_any_graph(transform):
    lonely: Any = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=2)
    for data in (molecules(3)[-1], batch_of(molecules(4)), lonely):
        out = transform(data)
        value = out[transform.attr_name]
        about_edges = "Edge" in type(transform).__name__
        assert len(value) == (data.edge_index.shape[1] if about_edges else data.num_nodes)
        assert value.isfinite().all()
        assert value.dtype == torch.float32
        assert transform.attr_name not in data
        transform.attr_name, name = None, transform.attr_name
        merged = transform(data)
        transform.attr_name = name
        assert (merged.edge_attr if about_edges else merged.x).shape[0] == len(value)


def test_fixed_transforms_say_what_lapack_says():
    data = molecules(60)[-1]
    graph = graph_of(data)
    resistance, heat = exact.effective_resistance(graph)[0], exact.heat(graph, 2.0)[0]
    assert data.edge_index is not None
    u, v = data.edge_index
    torch.testing.assert_close(AddEdgeResistance()(data).edge_resistance[:, 0].double(), resistance[u, v], atol=1e-5, rtol=0)
    torch.testing.assert_close(AddEdgeHeat([2])(data).edge_heat[:, 0].double(), heat[u, v], atol=1e-5, rtol=0)
    found = AddResistancePE()(data).resistance_pe.double()
    torch.testing.assert_close(found, torch.stack([resistance.mean(1), resistance.amax(1)], 1), atol=1e-5, rtol=0)
    diagonal = AddHeatDiagonalPE([2])(data).heat_diagonal_pe[:, 0].double()
    torch.testing.assert_close(diagonal, heat.diagonal(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("laplacian", ["combinatorial", "normalized"])
def test_heat_and_eigenvectors_of_any_graph_are_the_front_door_s(laplacian):
    for seed in range(40):
        data = fuzzed(seed)
        if data.edge_weight is not None:  # three decades: more of them drown in float32
            data.edge_weight = data.edge_weight.sqrt().sqrt()
        graph = graph_of(data)
        heat = AddHeatDiagonalPE([0.5], laplacian=laplacian)(data).heat_diagonal_pe[:, 0].double()
        wanted = ohm.heat_kernel(graph, 0.5, method="direct", laplacian=laplacian).value
        torch.testing.assert_close(heat, wanted.diagonal(), atol=2e-6, rtol=0)
        u, v = data.edge_index
        if laplacian == "combinatorial":
            found = AddEdgeHeat([0.5])(data).edge_heat[:, 0].double()
            torch.testing.assert_close(found, wanted.at(u, v), atol=2e-6, rtol=0)
        truth = ohm.eigenvectors(graph, 3, laplacian=laplacian)
        found = AddEigenvectorPE(3, "none", laplacian=laplacian)(data).eigenvector_pe.double()
        sizes = (truth.eigenvalues > 0).double()[0] if graph.num_graphs else torch.zeros(3)
        torch.testing.assert_close(found.square().sum(0), sizes.double(), atol=1e-5, rtol=0)
        matrix = graph.laplacian()[0] if graph.num_nodes else torch.zeros(0, 0, dtype=torch.float64)
        if laplacian == "normalized":
            root = torch.where(matrix.diagonal() > 0, matrix.diagonal(), 1.0).rsqrt()
            matrix = root[:, None] * matrix * root
        if graph.num_nodes:
            wrong = matrix @ found - found * truth.eigenvalues[0].nan_to_num()
            assert float(wrong.abs().max()) <= 1e-5 * float(matrix.diagonal().max())


def test_a_transform_leaves_the_model_that_it_is_given_alone():
    model, data = LinearTransformerPE(4, phi0="random"), molecules(3)[-1]
    transform = AddLinearTransformerPE(model)
    before = transform(data).linear_transformer_pe
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        model.readout.zero_()
    assert torch.equal(transform(data).linear_transformer_pe, before)


def test_transforms_show_their_arguments():
    """PyG compares them as text to tell whether a processed dataset still fits."""
    assert repr(AddEigenvectorPE(3)) == (
        "AddEigenvectorPE(k=3, sign='canonical', attr_name='eigenvector_pe', seed=0, laplacian='combinatorial')"
    )
    assert repr(AddHeatDiagonalPE([1, 2], None)) == (
        "AddHeatDiagonalPE(times=(1, 2), attr_name=None, laplacian='combinatorial')"
    )
    one, two = LinearTransformerPE(4, seed=0), LinearTransformerPE(4, seed=0)
    assert repr(AddLinearTransformerPE(one)) == repr(AddLinearTransformerPE(two))
    with torch.no_grad():
        two.readout[0, 0] += 1
    pairs = [
        (AddEigenvectorPE(3), AddEigenvectorPE(4)), (AddResistiveEmbeddingPE(3), AddResistiveEmbeddingPE(3, seed=1)),
        (AddResistancePE(), AddResistancePE("r")), (AddEdgeHeat(), AddEdgeHeat([1])), (AddEdgeResistance(), AddEdgeHeat()),
        (AddLinearTransformerPE(one), AddLinearTransformerPE(two)),
        (AddLinearTransformerPE("zinc"), AddLinearTransformerPE(one)),
    ]  # fmt: skip
    assert all(repr(a) != repr(b) and "\n" not in repr(a) for a, b in pairs)


def test_a_dataset_that_was_processed_with_another_k_is_noticed_by_pyg(tmp_path):
    from torch_geometric.data import InMemoryDataset

    class Dataset(InMemoryDataset):
        def __init__(self, k):
            super().__init__(str(tmp_path), pre_transform=AddEigenvectorPE(k))
            self.load(self.processed_paths[0])

        @property
        def processed_file_names(self):
            return "data.pt"

        def process(self):
            assert self.pre_transform is not None
            self.save([self.pre_transform(g) for g in molecules(3)], self.processed_paths[0])

    first: Any = Dataset(2)[0]
    assert first.eigenvector_pe.shape[1] == 2
    with pytest.warns(UserWarning, match="pre_transform"):
        Dataset(5)


def test_eigenvector_signs_follow_the_policy():
    data = molecules(60)[-1]
    plain = AddEigenvectorPE(3, "none")(data).eigenvector_pe
    assert torch.equal(AddEigenvectorPE(3, "absolute")(data).eigenvector_pe, plain.abs())
    assert bool((AddEigenvectorPE(3)(data).eigenvector_pe.pow(3).sum(0) >= -1e-6).all())
    random = AddEigenvectorPE(3, "random", seed=1)
    assert torch.equal(random(data).eigenvector_pe.abs(), plain.abs())
    with pytest.raises(ValueError, match="expected sign among"):
        AddEigenvectorPE(3, "plus")


def test_pairwise_features_are_symmetric_and_zero_on_padding():
    batch = batch_of(molecules(4))
    features = pairwise(batch.edge_index, batch=batch.batch)
    torch.testing.assert_close(features, features.transpose(1, 2), atol=1e-5, rtol=0)
    small = int(batch.ptr[1])
    assert not features[0, small:].any()
    assert PairwiseBias(heads=4)(features).shape == (4, 4, *features.shape[1:3])


def test_batches_and_single_graphs_are_transformed_alike():
    graphs = list(molecules(4))
    transform = AddHeatDiagonalPE()
    alone = torch.cat([transform(g).heat_diagonal_pe for g in graphs])
    torch.testing.assert_close(transform(Batch.from_data_list(graphs)).heat_diagonal_pe, alone, atol=1e-5, rtol=0)
