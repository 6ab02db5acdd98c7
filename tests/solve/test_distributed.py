"""One graph over several processes: shards, answers as on one process, and what happens when something is missing."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ohmformer as ohm
from ohmformer import Graph, exact, native
from ohmformer.solve import distributed
from tests.solve.processes import run, start


@dataclass(frozen=True)
class Example:
    """Edges, how they are cut into parts, and demands."""

    nodes: int
    tail: np.ndarray
    head: np.ndarray
    conductance: np.ndarray
    rule: str = "ranges"
    demands: int = 3

    @property
    def graph(self) -> Graph:
        pairs = torch.as_tensor(np.stack([self.tail, self.head], axis=1))
        return Graph.from_edges(pairs, num_nodes=self.nodes, conductance=torch.as_tensor(self.conductance))

    @property
    def psi(self) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1)
        return self.graph.center(torch.randn(self.nodes, self.demands, generator=draw, dtype=torch.float64))

    def shard(self, folder: Path, parts: int) -> distributed.Manifest:
        edges = distributed.edge_arrays(self.tail, self.head, conductance=self.conductance)
        return distributed.shard(edges, folder, parts, partition=self.rule, nodes=self.nodes)


def random_edges(nodes: int, edges: int, seed: int, **more) -> Example:
    draw = np.random.default_rng(seed)
    tail, head = draw.integers(0, nodes, (2, edges))
    real = tail != head
    return Example(nodes, tail[real], head[real], draw.uniform(0.5, 2, int(real.sum())), **more)


def grid(side: int, **more) -> Example:
    number = np.arange(side * side).reshape(side, side)
    tail, head = np.concatenate(
        [[number[:-1].ravel(), number[1:].ravel()], [number[:, :-1].ravel(), number[:, 1:].ravel()]], 1
    )
    return Example(side * side, tail, head, np.ones(len(tail)), **more)


def skewed(nodes: int) -> Example:
    """A star whose leaves are joined to few others: one node is everybody's neighbour."""
    draw = np.random.default_rng(3)
    leaves = np.arange(1, nodes)
    tail, head = np.concatenate([np.zeros_like(leaves), leaves]), np.concatenate([leaves, draw.permutation(leaves)])
    return Example(nodes, tail, head, 10.0 ** draw.uniform(-1, 1, len(tail)))


def blocks() -> Example:
    """Three components and isolated nodes between them, so that some parts have no edge."""
    parts = [random_edges(30, 90, 4), random_edges(2, 1, 6), random_edges(40, 100, 5)]
    shift = [0, 90, 100]
    tail, head = (
        np.concatenate([getattr(x, end) + s for x, s in zip(parts, shift, strict=True)]) for end in ("tail", "head")
    )
    return Example(150, tail, head, np.concatenate([x.conductance for x in parts]))


EXAMPLES = {
    "random": random_edges(300, 1200, 0),
    "random by METIS": random_edges(300, 1200, 0, rule="auto"),
    "grid": grid(14),
    "grid by stream": grid(14, rule="stream"),
    "long path": Example(400, np.arange(399), np.arange(1, 400), np.ones(399), demands=2),
    "skewed degrees": skewed(200),
    "disconnected": blocks(),
    "parts without edges": Example(90, np.arange(9), np.arange(1, 10), np.ones(9)),
    "more parts than nodes": random_edges(3, 6, 1),
    "parallel edges": random_edges(12, 150, 2),
    "one node": Example(1, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)),
}


def ask_potentials(rank, folder):
    """All examples, one after the other, by the same processes; the long path as if it were too long for Lanczos."""
    module: Any = sys.modules["ohmformer.solve.distributed.shard"]
    found, most = {}, module.LANCZOS
    for name, example in EXAMPLES.items():
        module.LANCZOS = 100 if name == "long path" else most
        shard = distributed.Shard.load(folder / name)
        answer = distributed.potentials(shard, example.psi[shard.nodes], tol=1e-9)
        found[name] = shard.nodes, answer.value, answer.residual, answer.error, answer.method
    return found


@pytest.fixture(scope="module")
def wanted():
    return {name: ohm.potentials(x.graph, x.psi, tol=1e-10).value for name, x in EXAMPLES.items()}


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_give_the_answer_of_one_process_on_awkward_graphs(tmp_path, processes, wanted):
    for name, example in EXAMPLES.items():
        example.shard(tmp_path / name, processes)
    found = run(processes, ask_potentials, tmp_path)
    for name, want in wanted.items():
        value = torch.full_like(want, torch.nan)
        for part in found:
            nodes, rows, residual, _, _ = part[name]
            value[nodes] = rows
            assert residual <= 1e-9
            assert part[name][2:] == found[0][name][2:]  # one certificate
        assert float((value - want).norm()) <= 1e-6 * float(want.norm()), name
        error, truth = found[0][name][3], exact.potentials(EXAMPLES[name].graph, EXAMPLES[name].psi)
        laplacian = EXAMPLES[name].graph.laplacian()
        off, size = ((x * (laplacian @ x)).sum(0).clamp(min=0).sqrt() for x in (value - truth, truth))
        assert error is None or bool((off <= error * size + 1e-12 * size.clamp(min=1)).all()), name
    assert found[0]["random"][3] is not None
    assert found[0]["long path"][4] == "conjugate gradients"
    assert found[0]["random"][4] == "chebyshev"


MANY = random_edges(800, 4000, 7, demands=20)


def ask_for_many(rank, folder):
    from ohmformer.solve.distributed import engine

    engine.NATIVE_NODES = 100
    shard = distributed.Shard.load(folder)
    plan = engine.plan_for(shard, 20, 1e-9)
    before = shard.group.sent
    answer = distributed.potentials(shard, MANY.psi[shard.nodes], tol=1e-9)
    return (
        shard.nodes,
        answer.value,
        plan.in_c,
        shard.group.sent - before,
        sum(len(x) for _, x in shard.sends),
        answer.layers,
    )


@pytest.mark.skipif(native.active() is None, reason="no native kernels")
def test_many_demands_go_through_layers_of_eight_bits_and_a_byte_each_is_sent(tmp_path):
    MANY.shard(tmp_path / "shards", 2)
    want = ohm.potentials(MANY.graph, MANY.psi, tol=1e-10).value
    value = torch.full_like(want, torch.nan)
    for nodes, rows, in_c, sent, sends, layers in run(2, ask_for_many, tmp_path / "shards"):
        assert in_c
        value[nodes] = rows
        rounds, rest = divmod(sent - layers * 32 * sends, 8 * 20 * sends)  # and residuals in float64, one a round
        assert (rest, rounds <= 6) == (0, True)
    assert float((value - want).norm()) <= 1e-6 * float(want.norm())


# ---------------------------------------------------------------------------------------------------- what is wrong


def load_and_tell(rank, folder):
    try:
        distributed.Shard.load(folder)
    except ValueError as error:
        return str(error)
    return None


def test_a_wrong_part_is_named_on_all_processes_before_any_work(tmp_path):
    example, folder = EXAMPLES["grid"], tmp_path / "shards"
    example.shard(folder, 2)
    assert "2, got 4" in run(4, load_and_tell, folder)[3]
    part, manifest = folder / "part-00001.safetensors", folder / "manifest.json"
    whole, listed = part.read_bytes(), manifest.read_text()
    EXAMPLES["random"].shard(tmp_path / "other", 2)
    wrong = {
        "it is damaged": lambda: part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1])),
        "there is no such file": part.unlink,
        "cannot be read": lambda: manifest.write_text(listed[:-20]),
        "it is of another one": lambda: manifest.write_bytes((tmp_path / "other/manifest.json").read_bytes()),
        "it has no manifest.json": manifest.unlink,
    }
    for sentence, spoil in wrong.items():
        spoil()
        told = run(2, load_and_tell, folder)
        assert told[0] == told[1]
        assert sentence in told[0], told[0]
        part.write_bytes(whole)
        manifest.write_text(listed)
    assert run(2, load_and_tell, folder) == [None, None]


# ---------------------------------------------------------------------------------------------------- other questions

PAIRS = [(0, 5), (3, 140), (2, 2), (5, 91), (100, 130)]


def ask_everything(rank, folder):
    shard = distributed.Shard.load(folder)
    signals = torch.eye(150, dtype=torch.float64)[shard.nodes][:, :3]
    edges = distributed.edge_resistances(shard, 0.2, seed=1)
    vectors = distributed.eigenvectors(shard, 4, tol=1e-9)
    return {
        "nodes": shard.nodes,
        "pairs": distributed.resistances(shard, PAIRS, tol=1e-10).value,
        "heat": distributed.heat(shard, 0.7, signals, tol=1e-10).value,
        "filter": distributed.spectral_filter(shard, lambda x: 1 / (1 + x), signals, tol=1e-10).value,
        "resistive": distributed.resistive_embedding(shard, 600, seed=3, tol=1e-9, panel=70).value,
        "heat rows": distributed.heat_embedding(shard, 30, 0.5, seed=3, tol=1e-9, panel=13).value,
        "vectors": vectors.value, "eigenvalues": vectors.eigenvalues,
        "edges": (edges.tail, edges.head, edges.value),
    }  # fmt: skip


def test_every_question_is_answered_as_on_one_process_and_alike_by_any_number(tmp_path):
    example = blocks()
    graph = example.graph
    gathered = []
    for processes in (1, 3):
        example.shard(tmp_path / str(processes), processes)
        parts = run(processes, ask_everything, tmp_path / str(processes))
        order = torch.cat([part["nodes"] for part in parts]).argsort()
        names = ("heat", "filter", "resistive", "heat rows", "vectors")
        found = {name: torch.cat([part[name] for part in parts])[order] for name in names}
        tail, head, value = (torch.cat([part["edges"][i] for part in parts]) for i in range(3))
        by_pair = (tail * 150 + head).argsort()
        found |= {"pairs": parts[0]["pairs"], "eigenvalues": parts[0]["eigenvalues"], "edges": value[by_pair]}
        gathered.append(found)
    one, three = gathered
    for name in one:
        if name != "vectors":  # up to sign
            torch.testing.assert_close(three[name], one[name], rtol=1e-6, atol=1e-8, msg=name)
    torch.testing.assert_close(one["pairs"], ohm.effective_resistance(graph, PAIRS).value, rtol=1e-8, atol=1e-12)
    signals = torch.eye(150, dtype=torch.float64)[:, :3]
    torch.testing.assert_close(one["heat"], ohm.heat_kernel(graph, 0.7, signals).value, rtol=0, atol=1e-6)
    smooth = ohm.spectral_filter(graph, lambda x: 1 / (1 + x), signals).value
    torch.testing.assert_close(one["filter"], smooth, rtol=0, atol=1e-6)
    wanted = ohm.eigenvectors(graph, 4, method="direct")
    torch.testing.assert_close(one["eigenvalues"], wanted.eigenvalues, rtol=1e-6, atol=1e-9)
    laplacian = graph.laplacian()
    torch.testing.assert_close(laplacian @ one["vectors"], one["vectors"] * one["eigenvalues"], rtol=0, atol=1e-6)
    pairs = np.unique(np.sort(np.stack([example.tail, example.head], axis=1), axis=1), axis=0)
    exact = ohm.effective_resistance(graph, torch.as_tensor(pairs)).value
    assert bool(((one["edges"] - exact).abs() <= 0.2 * exact).all())
    points = one["resistive"]
    estimate = (points[pairs[:, 0]] - points[pairs[:, 1]]).square().sum(1)
    assert float(((estimate - exact) / exact).abs().mean()) < 2 * (2 / 600) ** 0.5
    kernel = ohm.heat_kernel(graph, 0.5).value
    rows = one["heat rows"]
    assert float((rows.square().sum(1) / kernel.diagonal()).mean() - 1) < 4 * (2 / 30 / 150) ** 0.5


# ---------------------------------------------------------------------------------------------------- what goes wrong


def solve_in_panels(rank, folder, out):
    example = replace(EXAMPLES["long path"], demands=3)
    shard = distributed.Shard.load(folder)
    started = time.monotonic()
    try:
        return distributed.potentials(shard, example.psi[shard.nodes], tol=1e-9, panel=1, out=out).residual
    except distributed.ProcessLost as lost:
        return str(lost), time.monotonic() - started


def test_when_a_process_is_killed_the_others_name_it_and_finished_panels_are_kept(tmp_path):
    example = replace(EXAMPLES["long path"], demands=3)
    folder, out = tmp_path / "shards", tmp_path / "answer"
    example.shard(folder, 3)
    ends, started = start(3, solve_in_panels, folder, out)
    first = out / "panel-00000/certificate.json"
    deadline = time.monotonic() + 120
    while not first.exists() and time.monotonic() < deadline and all(process.is_alive() for process in started):
        time.sleep(0.02)
    assert first.exists()
    killed = time.monotonic()
    os.kill(started[1].pid, signal.SIGKILL)
    told = [pickle.loads(ends[rank].recv_bytes()) for rank in (0, 2)]
    for process in started:
        process.join()
    assert time.monotonic() - killed < 30
    for error, (sentence, _) in told:
        assert error is None
        assert f"process 1 of 3 ({socket.gethostname()}, pid {started[1].pid}) has ended" in sentence
    assert not (out / "certificate.json").exists()
    before = {path: path.stat().st_mtime_ns for path in out.glob("panel-*/certificate.json")}
    assert 1 <= len(before) < 3
    assert max(run(3, solve_in_panels, folder, out)) <= 1e-9
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())
    wanted = ohm.potentials(example.graph, example.psi, tol=1e-10).value.numpy()
    np.testing.assert_allclose(distributed.read_answer(out), wanted, atol=1e-6 * np.abs(wanted).max())
    assert json.loads((out / "certificate.json").read_text())["residual"] <= 1e-9
    other = replace(example, conductance=2 * example.conductance)
    other.shard(tmp_path / "other", 3)
    with pytest.raises(AssertionError, match="to be of the same graph and question"):
        run(3, solve_in_panels, tmp_path / "other", out)


def test_the_commands_shard_a_file_and_answer_from_the_shards(tmp_path):
    from typer.testing import CliRunner

    from ohmformer.apps.command_line.main import app

    example, said = EXAMPLES["random"], CliRunner()
    np.savez(
        tmp_path / "edges.npz", allow_pickle=False, edge_index=np.stack([example.tail, example.head]), g=example.conductance
    )
    shards, answer = str(tmp_path / "shards"), str(tmp_path / "answer")
    made = said.invoke(app, ["shard", str(tmp_path / "edges.npz"), "--parts", "1", "--out", shards, "--conductance", "g"])
    assert made.exit_code == 0, made.output
    assert "300 nodes and" in made.output
    table = said.invoke(app, ["solve", shards, "--pair", "0", "5", "--pair", "7", "7", "--tol", "1e-9"])
    assert table.exit_code == 0, table.output
    value = float(ohm.effective_resistance(example.graph, [(0, 5)]).value[0])
    assert f"0,5,{value:.7g}"[:9] in table.output
    assert "7,7,0" in table.output
    np.save(tmp_path / "demands.npy", example.psi.numpy())
    asked = ["solve", shards, "--task", "potentials", "--out", answer, "--demands", str(tmp_path / "demands.npy")]
    solved = said.invoke(app, asked)
    assert solved.exit_code == 0, solved.output
    assert "layers for a panel of up to 3 demands" in solved.output
    wanted = ohm.potentials(example.graph, example.psi, tol=1e-10).value.numpy()
    np.testing.assert_allclose(distributed.read_answer(answer), wanted, atol=1e-5 * np.abs(wanted).max())
    for wrong, sentence in {
        ("--task", "flow", "--from", "0", "--to", "1"): "expected a task among resistance, potentials",
        ("--task", "potentials", "--from", "0", "--out", answer): "expected --from NODE and --to NODE",
        ("--pair", "0", "x"): "expected a node from 0 to 299, got 'x'",
        ("--pair", "0", "300"): "expected a node from 0 to 299, got '300'",
        ("--task", "eigenvectors"): "expected --out FOLDER",
    }.items():
        refused = said.invoke(app, ["solve", shards, *wrong])
        assert refused.exit_code == 2
        assert sentence in refused.output


def test_processes_started_by_slurm_answer_together(tmp_path):
    """As ``srun`` starts them: it numbers them by its own variables."""
    example = EXAMPLES["random"]
    example.shard(tmp_path / "shards", 2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "ohmformer", "solve", str(tmp_path / "shards"), "--pair", "0", "5", "--tol", "1e-9"]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_NTASKS": "2", "OMP_NUM_THREADS": "1"}
    numbers = [os.environ | places | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    started = [subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE) for env in numbers]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    value = float(ohm.effective_resistance(example.graph, [(0, 5)]).value[0])
    assert f"0,5,{value:.7g}"[:9] in said[0]
    assert not said[1]


def test_a_folder_of_answers_is_of_one_question_and_its_numbers(tmp_path):
    distributed.shard(distributed.edge_arrays([0, 1, 2, 3, 0], [1, 2, 3, 0, 2]), tmp_path / "parts", 1)
    shard = distributed.Shard.load(tmp_path / "parts")
    one, other = torch.tensor([[1.0, 0, 0, -1], [0, 1, -1, 0]], dtype=torch.float64)[:, shard.nodes, None]

    def filtered(x, power):
        return distributed.spectral_filter(shard, lambda t: np.exp(-(t**power)), x, out=tmp_path / "filter")

    asked = {
        "potentials": lambda x: distributed.potentials(shard, x, out=tmp_path / "potentials"),
        "heat": lambda x: distributed.heat(shard, 1.0, x, out=tmp_path / "heat"),
        "filter": lambda x: filtered(x, 1),
    }
    for ask in asked.values():
        first = ask(one)
        torch.testing.assert_close(ask(one).value, first.value, rtol=0, atol=0)
        with pytest.raises(ValueError, match="same graph and question, it is of others"):
            ask(other)
    with pytest.raises(ValueError, match="same graph and question, it is of others"):
        filtered(one, 2)
