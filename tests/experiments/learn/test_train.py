"""Training: it learns, seeds do not meet, and a kill changes nothing."""

import itertools
import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ohmformer.experiments.learn import checkpoint
from ohmformer.experiments.learn import train as training
from ohmformer.experiments.learn.muon import orthogonal_factor
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.train import advance, initial_state, train
from ohmformer.graph.files import PARTIAL

SMALL = {
    "scalars": Setting("electric", layers=2, init="construction", seeds=2, batch=20),
    "efficient": Setting("resistive", layers=2, seeds=2, batch=20),
    "dense": Setting("electric", model="dense", layers=2, seeds=2, batch=20),
    "eigenvectors": Setting("eigenvectors", layers=2, seeds=2, batch=20),
    "grown": Setting("eigenvectors", model="dense", layers=5, seeds=2, batch=20),
    "near Corollary 7": Setting("eigenvectors", layers=2, seeds=1, batch=20, init="construction"),
    "dense near Lemma 3": Setting("heat", "fc", "dense", layers=2, seeds=1, batch=20, init="construction"),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_kind_of_model_learns(name):
    losses = []
    train(SMALL[name], steps=60, watch=lambda at: losses.append(sum(at.loss)))
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_from_a_lemma_three_layers_reach_a_log_loss_below_minus_six_in_seconds():
    setting = Setting("electric", layers=3, init="construction", seeds=1, batch=200)
    assert train(setting, steps=60).mean("log_demand") < -6


@pytest.mark.parametrize("name", ["scalars", "efficient", "dense", "eigenvectors"])
def test_seeds_train_side_by_side_as_they_would_alone(name):
    stacked = SMALL[name]
    state = initial_state(stacked)
    alone = replace(stacked, seeds=1, first_seed=1)
    single = initial_state(alone)
    for step in range(6):
        state, losses = advance(stacked, state, step, 10)
        single, loss = advance(alone, single, step, 10)
        torch.testing.assert_close(losses[1:], loss, rtol=1e-4, atol=0)
    for key, x in single.items():
        if key.startswith("weights."):
            torch.testing.assert_close(state[key][1:], x, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["scalars", "dense", "eigenvectors", "grown"])
def test_a_run_that_was_interrupted_ends_in_the_same_bits(name, tmp_path):
    setting = SMALL[name]
    whole = train(setting, steps=12, folder=tmp_path / "whole", every=1e9)

    class Interrupted(Exception):
        pass

    def stop(at):
        if at.step in (5, 9):
            raise Interrupted

    for _ in range(2):
        with pytest.raises(Interrupted):
            train(setting, steps=12, folder=tmp_path / "parts", resume=True, every=0.0, watch=stop)
    parts = train(setting, steps=12, folder=tmp_path / "parts", resume=True, every=0.0)
    assert parts.losses == whole.losses
    first, second = (checkpoint.load(tmp_path / name).state for name in ("whole", "parts"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_layers_that_were_not_added_yet_are_left_as_they_are():
    setting = SMALL["grown"]
    state = initial_state(setting)
    after, _ = advance(setting, state, 2, 10)  # of three layers, until step 3
    for name in ("value", "query", "key", "skip"):
        assert torch.equal(after[f"weights.{name}"][:, 3:], state[f"weights.{name}"][:, 3:])
    assert not torch.equal(after["weights.value"][:, :3], state["weights.value"][:, :3])


def test_resuming_keeps_the_number_of_steps_it_was_started_with(tmp_path):
    train(SMALL["dense"], steps=4, folder=tmp_path)
    assert train(SMALL["dense"], budget=60.0, folder=tmp_path, resume=True).steps == 4


def test_a_folder_of_another_setting_is_refused(tmp_path):
    train(SMALL["dense"], steps=2, folder=tmp_path)
    with pytest.raises(ValueError, match="expected a checkpoint of resistive"):
        train(SMALL["efficient"], steps=2, folder=tmp_path, resume=True)


def test_files_that_are_no_checkpoints_are_refused_with_one_message(tmp_path):
    with pytest.raises(ValueError, match="there is none"):
        checkpoint.load(tmp_path)
    (tmp_path / checkpoint.FILE).write_bytes(b"not a checkpoint at all")
    with pytest.raises(ValueError, match="got another file"):
        checkpoint.load(tmp_path)


def test_steps_and_budget_exclude_each_other():
    with pytest.raises(ValueError, match="either steps or a budget"):
        train(SMALL["dense"])


def test_a_budget_buys_as_many_steps_as_fit(monkeypatch):
    """A clock that jumps by a hundredth of a second whenever it is read: a step takes that long, two seconds are given."""
    ticks = itertools.count()
    monkeypatch.setattr(training.time, "perf_counter", lambda: 0.01 * next(ticks))
    result = train(Setting("electric", layers=1, seeds=1, batch=20), budget=2.0)
    assert 170 < result.steps < 200


def test_a_budget_is_estimated_from_steps_of_all_layers(monkeypatch):
    depths = []

    def timed(setting, state, step, steps):
        depths.append(setting.depth(step, steps))
        return advance(setting, state, step, steps)

    monkeypatch.setattr(training, "advance", timed)
    training._steps_within(SMALL["grown"], initial_state(SMALL["grown"]), 1.0)
    assert set(depths) == {5}


def test_the_orthogonal_factor_is_nearly_orthogonal():
    x = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal_factor(x))
    assert float(values.max()) < 1.3
    assert float(values.median()) > 0.6


def run_cli(*arguments: str, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "ohmformer.apps.command_line.main", "learn", *arguments, "--out", str(folder), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill_and_resume(folder: Path, kills: int, seed: int) -> None:
    arguments = ["--task", "electric", "--model", "dense", "--init", "random", "--layers", "2", "--seeds", "1"]
    arguments += ["--batch", "10", "--steps", "400", "--every", "0"]
    random_moment = random.Random(seed)
    whole = run_cli(*arguments, folder=folder / "whole")
    out, error = whole.communicate()
    assert whole.returncode == 0, error
    killed = 0
    while killed < kills:
        process = run_cli(*arguments, "--resume", folder=folder / "killed")
        try:
            process.wait(timeout=random_moment.uniform(2.0, 6.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
        if (folder / "killed" / checkpoint.FILE).exists():
            checkpoint.load(folder / "killed")  # whole at every moment
        if process.returncode == 0 and killed < kills:  # it finished before it could be killed: once more
            (folder / "killed" / checkpoint.FILE).unlink()
    last = run_cli(*arguments, "--resume", folder=folder / "killed")
    again, error = last.communicate()
    assert last.returncode == 0, error
    one, two = json.loads(out), json.loads(again)
    assert one["seeds"] == two["seeds"]
    assert one["samples"] == two["samples"]
    assert {path.name for path in (folder / "killed").iterdir()} == {checkpoint.FILE, "result.json"}


def test_what_a_kill_in_the_middle_of_a_checkpoint_leaves_is_swept_by_the_next_run(tmp_path, monkeypatch):
    found = []
    replace = Path.replace

    def look(path: Path, target: Path) -> Path:
        found.extend(p.name for p in path.parent.iterdir())
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", look)
    setting = Setting("electric", model="dense", layers=1, seeds=1, batch=10)
    train(setting, steps=2, folder=tmp_path, every=0.0)
    assert {name for name in found if not name.startswith(PARTIAL)} <= {checkpoint.FILE}
    assert any(name.startswith(PARTIAL) for name in found)
    (tmp_path / f"{PARTIAL}left.safetensors").write_bytes(b"half")
    train(setting, folder=tmp_path, every=0.0, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {checkpoint.FILE}


def test_killed_at_random_moments_and_resumed_the_numbers_are_the_same(tmp_path):
    kill_and_resume(tmp_path, kills=2, seed=0)


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_the_numbers_are_the_same(tmp_path):
    kill_and_resume(tmp_path, kills=20, seed=1)


def test_the_command_ends_with_json_of_both_losses(tmp_path):
    process = run_cli("--layers", "1", "--seeds", "2", "--steps", "10", "--batch", "50", folder=tmp_path)
    out, error = process.communicate()
    assert process.returncode == 0, error
    result = json.loads(out)
    assert {"mean_log_demand", "mean_log_frobenius", "steps", "samples", "seconds", "seeds", "setting"} <= set(result)
    assert len(result["seeds"]["log_demand"]) == 2
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_the_command_refuses_nonsense_with_one_message(tmp_path):
    process = run_cli("--task", "magnetic", folder=tmp_path)
    _, error = process.communicate()
    assert process.returncode == 2
    assert error.strip().startswith("error: expected task among electric")
