import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ohmformer.experiments.molecules import training
from ohmformer.experiments.molecules.config import RunConfig, changes, preset
from ohmformer.experiments.molecules.data import RunData, Target
from ohmformer.experiments.molecules.sources import Tables
from ohmformer.experiments.molecules.table import MoleculeTable
from ohmformer.experiments.molecules.table2 import finished
from ohmformer.experiments.molecules.training import measure_norms, predict, rate, train
from ohmformer.graph.files import PARTIAL

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers, folders and intervals


class Killed(Exception):
    pass


def _kill_after(epochs: int):
    def progress(row: dict[str, float], total: int) -> None:
        if row["epoch"] + 1 == epochs:
            raise Killed

    return progress


def test_a_run_leaves_a_result_a_history_and_two_checkpoints(small: RunConfig, data: RunData, tmp_path: Path):
    result = train(small, data, tmp_path, accelerator="cpu")
    assert {"config.json", "history.csv", "best.ckpt", "last.ckpt", "result.json"} <= {p.name for p in tmp_path.iterdir()}
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert result["epochs"] == 3
    assert RunConfig.of(result["config"]) == small
    best = torch.load(tmp_path / "best.ckpt", weights_only=True)
    module = training.Training(small, data)
    module.load_state_dict(best["state_dict"])
    test = data.split(data.table("test"))
    assert result["test"] == pytest.approx(float((predict(module.model, test) - test.y).abs().mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("encoding", "average", "backbone"),
    [
        ("lt-diagonal", 0.9, "gt"),
        ("lt-random", 0.0, "gt"),
        ("lappe", 0.0, "gt"),
        ("lt-pairs", 0.9, "gine"),
        ("lt-all-pairs", 0.9, "gps"),
    ],
)
def test_a_killed_run_ends_as_it_would_have(
    encoding: str, average: float, backbone: str, small: RunConfig, tables: Tables, tmp_path: Path
):
    config = replace(small, encoding=encoding, average=average, backbone=backbone, dropout=0.1)
    whole = train(config, RunData(config, tables), tmp_path / "whole", accelerator="cpu")
    with pytest.raises(Killed):
        train(config, RunData(config, tables), tmp_path / "killed", accelerator="cpu", progress=_kill_after(2))
    resumed = train(config, RunData(config, tables), tmp_path / "killed", accelerator="cpu")
    for name in ("test", "valid", "best_epoch", "epochs"):
        assert resumed[name] == whole[name]


def test_a_run_of_the_best_of_several_starts_keeps_its_own_config_and_resumes_as_it_would_have(
    small: RunConfig, tables: Tables, tmp_path: Path
):
    # lt-random also encodes by its seed in evaluation, which is not among the weights
    config = replace(small, encoding="lt-random", starts=2, seed=1)
    whole = train(config, RunData(config, tables), tmp_path / config.name, accelerator="cpu")
    assert whole["start_seed"] != config.seed  # another start than the first was best
    assert [run.config for run in finished(tmp_path)] == [config]
    with pytest.raises(Killed):
        train(config, RunData(config, tables), tmp_path / "killed", accelerator="cpu", progress=_kill_after(2))
    resumed = train(config, RunData(config, tables), tmp_path / "killed", accelerator="cpu")
    for name in ("test", "valid", "best_epoch", "epochs", "start_seed", "config"):
        assert resumed[name] == whole[name]


def test_a_finished_run_is_not_trained_again(small: RunConfig, data: RunData, tmp_path: Path, monkeypatch):
    first = train(small, data, tmp_path, accelerator="cpu")
    monkeypatch.setattr(training, "_trainer", lambda *args, **kw: pytest.fail("trained again"))
    assert train(small, data, tmp_path, accelerator="cpu") == first


def test_a_folder_of_another_run_is_refused(small: RunConfig, data: RunData, tmp_path: Path):
    (tmp_path / "config.json").write_text(replace(small, width=16).json())
    with pytest.raises(ValueError, match="got another: width 8 instead of 16"):
        train(small, data, tmp_path, accelerator="cpu")


def test_a_checkpoint_with_other_weights_is_refused(small: RunConfig, data: RunData, tmp_path: Path):
    with pytest.raises(Killed):
        train(small, data, tmp_path, accelerator="cpu", progress=_kill_after(2))
    kept = torch.load(tmp_path / "last.ckpt", weights_only=True)
    kept["state_dict"] = {name.replace("readout", "head"): x for name, x in kept["state_dict"].items()}
    torch.save(kept, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=r"expected the weights of this run .* got others \(model\."):
        train(small, data, tmp_path, accelerator="cpu")


def test_a_full_disk_leaves_earlier_checkpoints_intact(small: RunConfig, data: RunData, tmp_path: Path, monkeypatch):
    with pytest.raises(Killed):
        train(small, data, tmp_path, accelerator="cpu", progress=_kill_after(2))
    before = (tmp_path / "last.ckpt").read_bytes()

    def full(checkpoint: object, path: Path) -> None:
        Path(path).write_bytes(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training.torch, "save", full)
    with pytest.raises(ValueError, match="No space left on device; earlier files are intact"):
        train(small, data, tmp_path, accelerator="cpu")
    assert (tmp_path / "last.ckpt").read_bytes() == before
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(PARTIAL)]


def test_relabelling_every_epoch_changes_what_lt_index_learns_and_nothing_else(
    small: RunConfig, tables: Tables, tmp_path: Path
):
    for encoding, same in (("rwse", True), ("lt-index", False)):
        results = []
        for relabel in (False, True):
            config = replace(small, encoding=encoding, relabel=relabel, epochs=1)
            folder = tmp_path / f"{encoding}-{relabel}"
            results.append(train(config, RunData(config, tables), folder, accelerator="cpu")["valid"])
        assert (abs(results[0] - results[1]) < 1e-4) == same


def test_early_stopping_counts_epochs_without_a_better_validation_error(small: RunConfig, tables: Tables, tmp_path: Path):
    config = replace(small, epochs=50, patience=1, lr=0.5)
    result = train(config, RunData(config, tables), tmp_path, accelerator="cpu")
    assert result["epochs"] < 50
    assert result["best_epoch"] < result["epochs"] - 1


def test_evaluation_after_measuring_norms_does_not_depend_on_running_statistics(small: RunConfig, data: RunData):
    module = training.Training(small, data)
    measure_norms(module.model, data.train, 0)
    once = predict(module.model, data.valid)
    for name, buffer in module.model.named_buffers():
        if name.endswith("running_mean"):
            buffer.add_(7.0)
    assert not torch.allclose(predict(module.model, data.valid), once)
    measure_norms(module.model, data.train, 0)
    assert torch.equal(predict(module.model, data.valid), once)


def test_what_is_validated_and_tested_is_the_running_mean_of_the_weights(
    small: RunConfig, tables: Tables, tmp_path: Path, monkeypatch
):
    config = replace(small, average=0.8)
    data = RunData(config, tables)
    weights: list[torch.Tensor] = []
    took = training.Training.on_train_batch_end

    def watched(module, *args):
        weights.append(torch.nn.utils.parameters_to_vector(module.model.parameters()).detach().double())
        took(module, *args)

    monkeypatch.setattr(training.Training, "on_train_batch_end", watched)
    result = train(config, data, tmp_path, accelerator="cpu")
    mean = weights[0]
    for n, x in enumerate(weights[1:], start=1):
        stays = min(0.8, (1 + n) / (10 + n))
        mean = stays * mean + (1 - stays) * x
    module = training.Training(config, data)
    module.load_state_dict(torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(
        torch.nn.utils.parameters_to_vector(module.judged.parameters()).double(), mean, rtol=1e-5, atol=1e-6
    )
    module.load_state_dict(torch.load(tmp_path / "best.ckpt", weights_only=True)["state_dict"])
    test = data.split(data.table("test"))
    assert result["test"] == pytest.approx(float((predict(module.judged, test) - test.y).abs().mean()), rel=1e-6)
    assert result["parameters"] == sum(p.numel() for p in module.model.parameters())


def test_targets_are_standardised_on_training_molecules(table: MoleculeTable):
    target = Target.of(table, 2)
    parts = table.parts.double()
    expected = sum(
        (x - x.mean()) / x.std(correction=0) for x in (parts[:, 0], -parts[:, 1], -(parts[:, 2] - 6).clamp(min=0))
    )
    assert isinstance(expected, torch.Tensor)
    assert torch.allclose(target.values(table).double(), expected, atol=1e-5)


def test_a_target_that_is_not_finite_is_refused(table: MoleculeTable):
    broken = replace(table, parts=table.parts.clone().fill_(torch.nan))
    with pytest.raises(ValueError, match="expected finite targets"):
        Target.of(broken, 2)


def test_rates_rise_and_fall_in_one_cycle_and_halve_as_the_paper_s():
    cycle = [rate(RunConfig(), step, 100) for step in range(100)]
    assert max(cycle) == pytest.approx(1.0)
    assert cycle[0] == pytest.approx(0.04)
    assert cycle[-1] < 0.01
    paper = preset("paper", "zinc", "lt-index")
    assert [rate(paper, step, 2000) for step in (0, 799, 800, 1600)] == [1, 1, 0.5, 0.25]
    notebook = preset("notebook", "zinc", "lt-index")
    assert rate(notebook, 400, 2000) == pytest.approx(2**-0.5)


def test_one_config_names_a_run_completely():
    a, b = RunConfig(), RunConfig(seed=1)
    assert a.name != b.name
    assert a.name == RunConfig.of(json.loads(a.json())).name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epoch=3", "expected FIELD=VALUE"),
        ("epochs=many", "expected epochs as int"),
        ("relabel=yes", "expected relabel as bool"),
    ],
)
def test_unknown_fields_and_values_are_refused_by_name(setting: str, message: str):
    with pytest.raises(ValueError, match=message):
        changes([setting])


def test_encodings_of_pairs_need_attention_between_all_pairs():
    with pytest.raises(ValueError, match="expected backbone gps with rrwp, which encodes pairs, got 'gine'"):
        RunConfig(encoding="rrwp", backbone="gine")


@pytest.mark.parametrize("field", ["encoding", "backbone", "readout", "schedule", "order"])
def test_unknown_choices_are_refused_with_the_known_ones(field: str):
    with pytest.raises(ValueError, match=f"expected {field} among"):
        RunConfig.of({field: "other"})
