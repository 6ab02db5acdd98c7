"""GINE, GPS and the Graph Transformer as modules of PyG: edges in any order, batches, features of pairs."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GINEConv, GPSConv

from ohmformer.encoding import LinearTransformerPE
from ohmformer.experiments.molecules.backbone import Backbone
from ohmformer.experiments.molecules.batches import Split
from ohmformer.experiments.molecules.gine import GINE
from ohmformer.experiments.molecules.gps import GPS, Dense, GPSLayer
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer
from ohmformer.experiments.molecules.model import Embedding

ALL = {
    "gine": lambda: GINE(8, layers=2),
    "gps": lambda: GPS(8, heads=2, layers=2, pairs=3),
    "gt": lambda: GraphTransformer(8, heads=2, layers=2),
}


@pytest.fixture
def inputs(split: Split, device: torch.device):
    """Molecules as a PyG user has them: features, edges in both directions, the graph of every node, features of pairs."""
    batch = split.take(torch.arange(6))
    draw = torch.Generator().manual_seed(0)
    x, edge_attr = (torch.randn(len(rows), 8, generator=draw) for rows in (batch.atom, batch.bond))
    most = int(batch.sizes.max())
    arrays = (
        x,
        torch.stack([batch.source, batch.target]),
        edge_attr,
        batch.owner,
        torch.randn(6, most, most, 3, generator=draw),
    )
    return [x.to(device) for x in arrays]


def _made(name: str, like: torch.Tensor) -> Backbone:
    torch.manual_seed(0)
    model = ALL[name]()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases of attention would be zero
    return model.eval().to(like.device)


@pytest.mark.parametrize("name", ALL)
def test_edges_may_be_listed_in_any_order(name: str, inputs):
    x, edge_index, edge_attr, batch, pairs = inputs
    order = torch.randperm(edge_index.shape[1], generator=torch.Generator().manual_seed(1)).to(x.device)
    model = _made(name, x)
    once, again = (
        model(x, ends, e, batch, pairs) for ends, e in ((edge_index, edge_attr), (edge_index[:, order], edge_attr[order]))
    )
    torch.testing.assert_close(again, once, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_a_graph_alone_gets_what_it_gets_in_a_batch(name: str, inputs):
    x, edge_index, edge_attr, batch, pairs = inputs
    model = _made(name, x)
    together = model(x, edge_index, edge_attr, batch, pairs)
    for graph in range(6):
        node, edge = batch == graph, batch[edge_index[0]] == graph
        first, size = int(node.nonzero()[0]), int(node.sum())
        alone = model(x[node], edge_index[:, edge] - first, edge_attr[edge], None, pairs[graph : graph + 1, :size, :size])
        torch.testing.assert_close(alone, together[node], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_nodes_may_be_numbered_in_any_way(name: str, inputs):
    x, edge_index, edge_attr, batch, pairs = inputs
    node, edge = batch == 3, batch[edge_index[0]] == 3
    size, first = int(node.sum()), int(node.nonzero()[0])
    x, edge_index, edge_attr, pairs = x[node], edge_index[:, edge] - first, edge_attr[edge], pairs[3:4, :size, :size]
    to = torch.randperm(size, generator=torch.Generator().manual_seed(2)).to(x.device)
    place = to.argsort()
    model = _made(name, x)
    moved = model(x[place], to[edge_index], edge_attr, None, pairs[:, place][:, :, place])
    torch.testing.assert_close(moved[to], model(x, edge_index, edge_attr, None, pairs), atol=1e-5, rtol=1e-5)


def test_directed_edges_send_their_gradients_back_along_themselves():
    """Against the same sum by ``index_add``, in float64."""
    model = GINE(4, layers=2).double().eval()
    draw = torch.Generator().manual_seed(0)
    x, edge_attr = (torch.randn(n, 4, generator=draw, dtype=torch.float64, requires_grad=True) for n in (5, 6))
    edge_index = torch.tensor([[0, 0, 3, 1, 4, 4], [1, 2, 0, 2, 2, 0]])
    assert torch.autograd.gradcheck(lambda x, e: model(x, edge_index, e), (x, edge_attr))


def test_gps_without_pairs_is_pyg_s():
    torch.manual_seed(0)
    ours, net = GPSLayer(8, 2, 0.0, 0), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    theirs = GPSConv(8, GINEConv(net), heads=2)
    net.load_state_dict(ours.mlp.state_dict())
    attention = {
        "in_proj_weight": ours.qkv.weight, "in_proj_bias": ours.qkv.bias,
        "out_proj.weight": ours.out.weight, "out_proj.bias": ours.out.bias,
    }  # fmt: skip
    theirs.attn.load_state_dict(attention)
    for k, layer in ((0, ours.ff[0]), (3, ours.ff[2])):
        theirs.mlp[k].load_state_dict(layer.state_dict())
    model = GPS(8, heads=2, layers=1)
    model.layers[0] = ours
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5], [1, 0, 2, 1, 4, 3, 5, 4]])
    x, edge_attr, batch = torch.randn(6, 8), torch.randn(8, 8), torch.tensor([0, 0, 0, 1, 1, 1])
    expected = theirs(x, edge_index, batch, edge_attr=edge_attr)
    torch.testing.assert_close(model(x, edge_index, edge_attr, batch), expected, atol=1e-5, rtol=1e-5)


def test_the_bias_of_attention_reads_the_encoder_s_pairs():
    """A bias that forbids all pairs but equal nodes leaves every node its own value."""
    layer = GPSLayer(8, 2, 0.0, 1)
    assert layer.bias is not None
    layer.bias.mix.weight.data.fill_(1e4)
    model = GPS(8, heads=2, layers=1, pairs=1)
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    pairs = LinearTransformerPE(1, read="pairs", norm=None, hidden=1, groups=1)(edges, num_nodes=3)
    assert pairs.shape == (1, 3, 3, 1)
    x = torch.randn(3, 8)
    mixed = layer.attend(x, Dense.of(torch.zeros(3, dtype=torch.long), pairs), torch.eye(3)[None, :, :, None])
    torch.testing.assert_close(mixed, layer.qkv(x)[:, 16:])
    assert model(x, edges, torch.randn(4, 8), None, pairs).shape == (3, 8)


def test_a_graph_without_nodes_leaves_gradients_finite():
    model = GPS(8, heads=2, layers=1, pairs=1)
    x = torch.randn(2, 8, requires_grad=True)
    edges, pairs = torch.tensor([[0, 1], [1, 0]]), torch.randn(3, 2, 2, 1)
    model(x, edges, torch.randn(2, 8), torch.tensor([2, 2]), pairs).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_an_unseen_label_is_a_zero_row():
    embedding = Embedding(2, 8)
    h, features = embedding(torch.tensor([1, 2, 0]), torch.tensor([3]), None, None)
    assert torch.equal(h, torch.stack([embedding.atom.weight[1], torch.zeros(8), embedding.atom.weight[0]]))
    assert torch.equal(features.e, embedding.bond.weight[3:])
    outer = nn.Linear(8, 5)
    torch.testing.assert_close(features.mapped(outer), outer(features.e))


@pytest.mark.parametrize("kind", [GraphTransformer, GPS])
def test_a_width_that_heads_cannot_share_is_refused(kind: type):
    with pytest.raises(ValueError, match="expected a width that 3 heads can share, got 8"):
        kind(8, heads=3)
