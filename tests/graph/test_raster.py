"""Rasters as graphs, against networkx's grids and cells counted by hand."""

import networkx as nx
import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer.graph.raster import Raster

LAND = np.array([[1.0, 2.0, 4.0], [np.nan, 3.0, 5.0]])


def test_four_neighbours_are_joined_by_the_mean_of_both_resistances():
    raster = Raster.of(LAND)
    found = dict(zip(map(tuple, raster.graph.edge_index.t().tolist()), raster.graph.resistance.tolist(), strict=True))
    assert found == {(0, 1): 1.5, (1, 2): 3.0, (3, 4): 4.0, (1, 3): 2.5, (2, 4): 4.5}
    assert raster.cells.tolist() == [[0, 1, 2], [-1, 3, 4]]


def test_diagonals_are_longer_by_the_root_of_two():
    raster = Raster.of(LAND, neighbours=8)
    found = dict(zip(map(tuple, raster.graph.edge_index.t().tolist()), raster.graph.resistance.tolist(), strict=True))
    diagonal = {(0, 3): 2.0, (1, 4): 3.5, (2, 3): 3.5}
    assert len(found) == 8
    for pair, mean in diagonal.items():
        assert found[pair] == pytest.approx(np.sqrt(2) * mean)


def test_a_raster_of_ones_is_networkxs_grid():
    raster, grid = Raster.of(np.ones((4, 5))), nx.grid_2d_graph(4, 5)
    assert {frozenset(e) for e in raster.graph.edge_index.t().tolist()} == {
        frozenset(5 * r + c for r, c in edge) for edge in grid.edges
    }
    ours = ohm.effective_resistance(raster, [((0, 0), (3, 4))]).value
    assert float(ours) == pytest.approx(nx.resistance_distance(grid, (0, 0), (3, 4)), rel=1e-6)


def test_cells_are_nodes_labels_and_masks():
    raster = Raster.of(LAND)
    mask = np.zeros((2, 3), dtype=bool)
    mask[0, 0] = mask[1, 2] = True
    by_mask = ohm.harmonic(raster, mask, [0.0, 1.0])
    by_cell = ohm.harmonic(raster, {(0, 0): 0.0, (1, 2): 1.0})
    assert torch.equal(by_mask.value, by_cell.value)
    image = raster.image(by_cell.value[:, 0])
    assert image[1, 0].isnan()
    assert (float(image[0, 0]), float(image[1, 2])) == (0.0, 1.0)
    assert raster.image(torch.ones(5, 2)).shape == (2, 3, 2)


def test_gradients_reach_the_cells():
    start = torch.tensor(LAND).requires_grad_()
    ohm.effective_resistance(Raster.of(start, neighbours=8), [((0, 0), (1, 2))], tol=1e-10).value.sum().backward()
    assert start.grad is not None
    for cell in [(0, 1), (1, 1)]:
        step, found = 1e-6, []
        for sign in (1, -1):
            moved = LAND.copy()
            moved[cell] += sign * step
            ends = [((0, 0), (1, 2))]
            found.append(float(ohm.effective_resistance(Raster.of(moved, neighbours=8), ends, tol=1e-12).value))
        assert float(start.grad[cell]) == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-5)
    assert float(start.grad[1, 0]) == 0.0


BAD = {
    "six neighbours": (lambda: Raster.of(LAND, neighbours=6), "neighbours=4 or neighbours=8, got 6"),
    "a row": (lambda: Raster.of([1.0, 2.0]), "rows and columns"),
    "zero": (lambda: Raster.of([[1.0, 0.0]]), r"cell \(0, 1\) has 0.0"),
    "infinite": (lambda: Raster.of([[1.0], [np.inf]]), r"cell \(1, 0\) has inf"),
    "outside": (lambda: ohm.harmonic(Raster.of(LAND), {(2, 0): 1.0}), r"within 2 x 3, got \(2, 0\)"),
    "no cell": (lambda: ohm.harmonic(Raster.of(LAND), {(1, 0): 1.0}), r"\(1, 0\) has no resistance"),
    "mask on no cell": (lambda: ohm.harmonic(Raster.of(LAND), np.ones((2, 3), bool), [0.0] * 6), r"\(1, 0\) has no"),
    "apart": (
        lambda: ohm.current_flow(Raster.of([[1.0, np.nan, 1.0]]), [(0, 0)], [(0, 2)]),
        r"cell \(0, 0\) and cell \(0, 2\) are in different components",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name: str):
    call, sentence = BAD[name]
    with pytest.raises(ValueError, match=sentence):
        call()
