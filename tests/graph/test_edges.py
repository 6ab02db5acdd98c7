"""One reading of ``edge_index`` for the whole library: both directions of every edge, or every edge once."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from ohmformer import Graph
from ohmformer.encoding import LinearTransformerPE, pairwise
from ohmformer.graph.edges import lists_both_directions

MIXED = torch.tensor([[0, 1, 1], [1, 0, 2]])
READERS = {
    "Graph.from_pyg": lambda index, weight: Graph.from_pyg(
        Data(edge_index=index, num_nodes=8), conductance=weight if weight is not None else None
    ),
    "gram": lambda index, weight: LinearTransformerPE(2)(index, weight, num_nodes=8),
    "l1": lambda index, weight: LinearTransformerPE(2, degrees="l1")(index, weight, num_nodes=8),
    "evolve": lambda index, weight: LinearTransformerPE(2, phi0="diagonal", evolve=True)(index, weight, num_nodes=8),
    "pairwise": lambda index, weight: pairwise(index, weight, num_nodes=8),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_mixture_is_refused_everywhere_and_names_the_pair(reader, weighted):
    weight = torch.ones(3) if weighted else None
    with pytest.raises(ValueError, match=r"all edges in both directions or all once, got the pair \(1, 2\)"):
        READERS[reader](MIXED, weight)


@pytest.mark.parametrize("reader", READERS)
def test_weights_of_both_directions_must_agree_everywhere(reader):
    index, weight = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([1.0, 1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"in both directions, the pair \(1, 2\) has"):
        READERS[reader](index, weight)
    READERS[reader](index, torch.tensor([1.0, 1.0, 2.0, 2.0]))


@pytest.mark.parametrize("reader", READERS)
def test_unequal_counts_of_parallel_edges_are_a_mixture(reader):
    with pytest.raises(ValueError, match=r"got the pair \(0, 1\) 2 times and \(1, 0\) 1 times"):
        READERS[reader](torch.tensor([[0, 0, 1], [1, 1, 0]]), None)


def test_parallel_edges_are_matched_by_weight_whatever_their_order():
    index = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    graph = Graph.from_pyg(Data(edge_index=index, num_nodes=2), resistance=torch.tensor([1.0, 2.0, 2.0, 1.0]))
    assert graph.edge_index.tolist() == [[0, 0], [1, 1]]
    assert graph.resistance.tolist() == [1.0, 2.0]


def test_edges_listed_once_keep_their_order_and_direction():
    index = torch.tensor([[2, 0, 3, 0], [1, 1, 3, 2]])
    graph = Graph.from_pyg(Data(edge_index=index, num_nodes=4), resistance=torch.tensor([1.0, 2.0, 5.0, 3.0]))
    assert graph.edge_index.tolist() == [[2, 0, 0], [1, 1, 2]]
    assert graph.resistance.tolist() == [1.0, 2.0, 3.0]
    assert graph.self_loops_dropped == 1


def counted(pairs: list[tuple[int, int]]) -> bool | None:
    """By counting: True for both directions, False for once, None for a mixture."""
    count = Counter(p for p in pairs if p[0] != p[1])
    if count and all(count[v, u] == k for (u, v), k in list(count.items())):
        return True
    return None if any((v, u) in count for u, v in count) else False


@given(st.lists(st.tuples(st.integers(-2, 4), st.integers(-2, 4)), max_size=12), st.booleans())
def test_the_reading_is_the_one_found_by_counting(pairs, doubled):
    pairs = pairs + [(v, u) for u, v in pairs] if doubled else pairs
    index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    wanted = counted(pairs)
    if wanted is None:
        with pytest.raises(ValueError, match="got the pair"):
            lists_both_directions(index)
    else:
        assert lists_both_directions(index) == wanted


@pytest.mark.parametrize("options", [{}, {"degrees": "l1"}, {"phi0": "diagonal", "evolve": True}, {"phi0": "random"}])
def test_the_encoding_is_the_same_for_both_listings(options):
    draw = torch.Generator().manual_seed(0)
    once = torch.randint(0, 12, (2, 30), generator=draw).sort(dim=0).values
    weight = torch.rand(30, generator=draw) + 0.1
    model = LinearTransformerPE(4, **options).double().eval()
    twice = model(torch.cat([once, once.flip(0)], 1), weight.repeat(2), num_nodes=12)
    torch.testing.assert_close(model(once, weight, num_nodes=12), twice, atol=1e-9, rtol=0)
