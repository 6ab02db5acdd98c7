"""Encodings of all pairs of nodes: what they are, that PyG collates them, and how they lie in a dense batch."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data

import ohmformer as ohm
from ohmformer.encoding import AddRelativeEncoding, LinearTransformerPE, dense_pairs, pairwise
from tests.encoding.molecules import batch_of, molecules

SINGLE = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), x=torch.ones(2, 5), num_nodes=2)


def transforms():
    learned = LinearTransformerPE(4, read="pairs").eval()
    return [
        AddRelativeEncoding("resistance"),
        AddRelativeEncoding("heat", times=(0.5, 2)),
        AddRelativeEncoding("walks", steps=6),
        AddRelativeEncoding("learned", model=learned),
    ]


@pytest.mark.parametrize("transform", transforms(), ids=lambda t: t.kind)
def test_pairs_of_a_batch_are_those_of_its_graphs(transform, device):
    graphs = [Data(edge_index=g.edge_index, num_nodes=g.num_nodes).to(device) for g in [*molecules(6), SINGLE]]
    if transform.model is not None:
        transform.model.to(device)
    alone: Any = Batch.from_data_list([transform(data.clone()) for data in graphs])
    alone = alone.to(device)
    joined: Any = Batch.from_data_list([*graphs])
    together: Any = transform(joined.to(device))
    torch.testing.assert_close(alone.relative_encoding, together.relative_encoding, atol=1e-5, rtol=0)
    assert together.relative_encoding.device.type == device.type
    dense = dense_pairs(alone.relative_encoding, alone.batch)
    first = alone.ptr[3]
    n = int(alone.ptr[4] - first)
    torch.testing.assert_close(
        dense[3, :n, :n].flatten(0, 1), transform(graphs[3].clone()).relative_encoding, atol=1e-6, rtol=0
    )
    assert not bool(dense[3, n:].any())
    assert alone.to_data_list()[3].relative_encoding.shape[0] == n * n


def test_resistances_heat_and_walks_are_those_of_dense_matrices():
    data: Any = molecules(30)[-1]
    n, (u, v) = data.num_nodes, data.edge_index
    adjacency = torch.zeros(n, n, dtype=torch.float64).index_put((u, v), torch.ones(len(u), dtype=torch.float64))
    walk = adjacency / adjacency.sum(1, keepdim=True)
    powers = torch.stack([torch.linalg.matrix_power(walk, k) for k in range(8)], dim=-1).flatten(0, 1).float()
    found = AddRelativeEncoding("walks", steps=8)(data.clone()).relative_encoding
    torch.testing.assert_close(found, powers, atol=1e-6, rtol=0)
    both = torch.cat([AddRelativeEncoding(kind)(data.clone()).relative_encoding for kind in ("resistance", "heat")], dim=1)
    truth = pairwise(data.edge_index, num_nodes=n)[0].flatten(0, 1)
    torch.testing.assert_close(both, truth, atol=1e-6, rtol=0)
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    torch.testing.assert_close(both[:, 2], torch.matrix_exp(-2 * laplacian).flatten().float(), atol=1e-5, rtol=0)
    resistance = ohm.effective_resistance(data, "all").value
    torch.testing.assert_close(both[:, 0], (1 / (1 + resistance)).flatten().float(), atol=1e-6, rtol=0)


def test_weights_and_single_nodes_walk_as_they_should():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), edge_weight=torch.tensor([1.0, 3.0]), num_nodes=4)
    walk = AddRelativeEncoding("walks", steps=2)(data).relative_encoding[:, 1].view(4, 4)
    truth = torch.tensor([[0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(walk, truth)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "shortest"}, "expected kind among resistance, heat, walks, learned, got 'shortest'"),
        ({"kind": "learned"}, "expected model= with read='pairs'"),
        ({"kind": "learned", "model": LinearTransformerPE(4)}, "got one with read='nodes'"),
        ({"kind": "walks", "steps": 0}, "expected steps >= 1, got 0"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        AddRelativeEncoding(**arguments)


def test_rows_of_other_graphs_are_refused():
    batch = batch_of(molecules(3))
    with pytest.raises(ValueError, match="expected a row for each of"):
        dense_pairs(torch.zeros(5, 2), batch.batch)


def test_two_models_and_two_kinds_are_told_apart_by_their_text():
    models = [LinearTransformerPE(4, read="pairs", seed=seed) for seed in (0, 1)]
    texts = [repr(AddRelativeEncoding("learned", model=model)) for model in models]
    assert texts[0] != texts[1]
    assert (
        repr(AddRelativeEncoding("walks", steps=3)) == "AddRelativeEncoding('walks', steps=3, attr_name='relative_encoding')"
    )
