from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given

from ohmformer import Graph, exact
from ohmformer.graph import circuit
from tests.strategies import connected, demands_for, graphs

CLOSE: Any = {"rtol": 1e-9, "atol": 1e-9}


@given(graphs())
def test_pinv_is_numpys(device, g):
    g = g.to(device)
    np.testing.assert_allclose(
        exact.pinv(g).cpu().numpy(), np.linalg.pinv(g.laplacian().cpu().numpy(), hermitian=True, rcond=1e-10), **CLOSE
    )


@given(graphs())
def test_pinv_satisfies_penrose(device, g):
    g = g.to(device)
    laplacian, p = g.laplacian(), exact.pinv(g)
    torch.testing.assert_close(laplacian @ p @ laplacian, laplacian, **CLOSE)
    torch.testing.assert_close(p @ laplacian @ p, p, **CLOSE)
    torch.testing.assert_close(laplacian @ p, g.projector(), **CLOSE)


@given(graphs())
def test_square_root_squares_to_pinv(device, g):
    g = g.to(device)
    root = exact.sqrt_pinv(g)
    torch.testing.assert_close(root @ root, exact.pinv(g), **CLOSE)
    torch.testing.assert_close(root, root.T, **CLOSE)


@given(graphs())
def test_heat_is_scipys_expm_and_a_semigroup(device, g):
    g = g.to(device)
    np.testing.assert_allclose(
        exact.heat(g, 0.3).cpu().numpy(), scipy.linalg.expm(-0.3 * g.laplacian().cpu().numpy()), **CLOSE
    )
    torch.testing.assert_close(exact.heat(g, 0.3) @ exact.heat(g, 0.4), exact.heat(g, 0.7), **CLOSE)
    torch.testing.assert_close(exact.heat(g, 0.3).sum(0).cpu(), torch.ones(g.num_nodes, dtype=torch.float64), **CLOSE)


@given(connected())
def test_effective_resistance_is_networkxs(device, g):
    g = g.to(device)
    theirs: Any = nx.resistance_distance(g.to_networkx(), weight="resistance")
    for u, row in theirs.items():
        for v, value in row.items():
            assert float(exact.effective_resistance(g)[u, v]) == pytest.approx(value, rel=1e-8, abs=1e-9)


@given(graphs())
def test_effective_resistance_is_a_metric_and_infinite_between_components(device, g):
    g = g.to(device)
    r = exact.effective_resistance(g)
    assert torch.equal(r, r.T)
    assert (r.diagonal() == 0).all()
    assert (r + 1e-9 >= 0).all()
    through = (r[:, :, None] + r[None, :, :]).amin(dim=1)
    assert (r <= through * (1 + 1e-9)).all()
    apart = g.components[:, None] != g.components[None, :]
    assert torch.equal(torch.isinf(r), apart)


@given(graphs())
def test_any_square_root_embeds_the_resistance_metric(device, g):
    g = g.to(device)
    """Fact 1, for the principal root and for L^+ B."""
    r = exact.effective_resistance(g)
    for root in (exact.sqrt_pinv(g), exact.pinv(g) @ g.incidence()):
        torch.testing.assert_close(circuit.resistance_from_root(g, root), r, **CLOSE)


@given(graphs())
def test_eigenvectors_are_orthonormal_eigenvectors(device, g):
    g = g.to(device)
    values = np.linalg.eigvalsh(g.laplacian().cpu().numpy())[g.num_components :]
    for which, expected in (("smallest", values), ("largest", values[::-1])):
        k = len(values) + 2
        eig = exact.eigenvectors(g, k, which)
        assert eig.mask.sum() == len(values)
        np.testing.assert_allclose(eig.values[eig.mask].cpu().numpy(), expected, **CLOSE)
        assert eig.values[~eig.mask].abs().sum() == 0
        assert eig.vectors[:, ~eig.mask].abs().sum() == 0
        inside = eig.vectors[:, eig.mask]
        torch.testing.assert_close((inside.T @ inside).cpu(), torch.eye(len(values), dtype=torch.float64), **CLOSE)
        torch.testing.assert_close(g.laplacian() @ inside, inside * eig.values[eig.mask], **CLOSE)


def test_batches_equal_their_graphs_one_by_one(device):
    parts = [
        Graph.from_edges([(0, 1), (1, 2)], resistance=[1e-3, 2e-3]),
        Graph.from_edges([(0, 1), (2, 3)], resistance=[1e3, 5e3], num_nodes=5),
        Graph.from_edges([], num_nodes=1),
    ]
    parts = [part.to(device) for part in parts]
    together = Graph.collate(parts)
    for f in (exact.pinv, exact.sqrt_pinv, exact.effective_resistance, lambda g: exact.heat(g, 0.1)):
        for i, part in enumerate(parts):
            n = part.num_nodes
            torch.testing.assert_close(f(together)[i, :n, :n], f(part), rtol=1e-10, atol=0)
            assert f(together)[i, n:].nan_to_num(posinf=1).abs().sum() == 0
    psi = torch.cat([demands_for(part, seed=i) for i, part in enumerate(parts)])
    torch.testing.assert_close(
        exact.potentials(together, psi),
        torch.cat([exact.potentials(part, demands_for(part, seed=i)) for i, part in enumerate(parts)]),
    )
    assert exact.eigenvectors(together, 2).values.shape == (3, 2)


@given(graphs())
def test_primal_energy_equals_dual_energy_at_the_optimum(device, g):
    g = g.to(device)
    psi = demands_for(g)
    phi = exact.potentials(g, psi)
    flow = circuit.flow(g, phi)
    torch.testing.assert_close(circuit.divergence(g, flow), psi, **CLOSE)
    torch.testing.assert_close(circuit.primal_energy(g, flow), circuit.dual_energy(g, phi, psi), **CLOSE)
    torch.testing.assert_close(circuit.primal_energy(g, flow), (psi * phi).sum(0), **CLOSE)


@given(graphs())
def test_every_other_flow_costs_more_and_every_other_potential_is_worth_less(device, g):
    g = g.to(device)
    psi = demands_for(g)
    phi = exact.potentials(g, psi)
    flow = circuit.flow(g, phi)
    energy = circuit.primal_energy(g, flow)
    # the null space of B R^{1/2} holds the circulations
    cycles = torch.as_tensor(scipy.linalg.null_space((g.incidence() * g.resistance.sqrt()).cpu().numpy())).to(device)
    if cycles.shape[1]:
        other = flow + cycles @ cycles.new_ones(cycles.shape[1], psi.shape[1])
        torch.testing.assert_close(circuit.divergence(g, other), psi, **CLOSE)
        assert (circuit.primal_energy(g, other) >= energy).all()
    assert (circuit.dual_energy(g, phi + 0.1 * psi, psi) <= energy * (1 + 1e-12)).all()


@pytest.mark.parametrize("a", [1e3, 1e6, 1e9])
def test_resistances_of_a_path_add_whatever_their_spread(device, a):
    g = Graph.from_edges([(0, 1), (1, 2), (2, 3)], resistance=[1 / a, a, 1 / a]).to(device)
    r = exact.effective_resistance(g)
    for (u, v), truth in {(0, 1): 1 / a, (1, 2): a, (2, 3): 1 / a, (0, 3): a + 2 / a}.items():
        assert float(r[u, v]) == pytest.approx(truth, rel=1e-6)
    phi = exact.potentials(g, torch.tensor([1.0, 0.0, 0.0, -1.0]))
    assert float(phi[0] - phi[3]) == pytest.approx(a + 2 / a, rel=1e-6)
    assert exact.spectrum(g).lmin == pytest.approx(1 / a, rel=1e-5)


def test_the_rank_is_known_not_guessed(device):
    g = Graph.from_edges([(0, 1), (1, 2), (3, 4)], resistance=[1e-9, 1e9, 1.0], num_nodes=6).to(device)
    assert g.ranks.tolist() == [3]
    assert int((exact.decompose(g)[0] > 0).sum()) == 3
    assert int(exact.eigenvectors(g, 6).mask.sum()) == 3


def test_float32_graphs_get_float32_answers_where_they_are(device):
    g = Graph.from_edges([(0, 1), (1, 2)]).to(device, torch.float32)
    assert exact.pinv(g).dtype == torch.float32
    assert exact.pinv(g).device.type == device.type
    assert exact.potentials(g, torch.tensor([1.0, 0.0, -1.0])).dtype == torch.float32
