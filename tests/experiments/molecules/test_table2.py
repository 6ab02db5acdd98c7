import csv
import json
from pathlib import Path

import pytest

from ohmformer.apps.command_line.learn import TABLES
from ohmformer.experiments.molecules.config import RunConfig, preset
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.table2 import BENCHMARKS, GRID, finished, grid, markdown, write


def _finish(folder: Path, config: RunConfig, test: float) -> None:
    run = folder / config.name
    run.mkdir(parents=True)
    result = {
        "test": test, "test_relabelled": 2 * test, "valid": test, "epochs": 2, "parameters": 1000, "encoding_parameters": 10,
        "seconds_per_epoch": 1.5, "config": json.loads(config.json()),
    }  # fmt: skip
    (run / "result.json").write_text(json.dumps(result))
    with (run / "history.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("epoch", "train", "valid", "seconds"), (0, 1, 2 * test, 1), (1, 1, test, 1)])


def test_the_grid_is_every_encoding_for_every_seed_seed_by_seed():
    runs = grid("zinc", GRID, 2, "standard", width=16)
    assert [run.encoding for run in runs] == [*GRID, *GRID]
    assert [run.seed for run in runs] == [0] * len(GRID) + [1] * len(GRID)
    assert {(run.train, run.valid, run.width) for run in runs} == {(20000, 2000, 16)}


def test_changes_of_one_encoding_follow_its_name():
    plain, pretrained = grid("zinc22k", ("lt-index", "lt-index pretrain=40"), 1, "standard", width=16)
    assert (plain.pretrain, pretrained.pretrain, pretrained.width) == (0, 40, 16)
    assert {run.encoding for run in (plain, pretrained)} == {"lt-index"}


def test_table_2_is_the_paper_s_model_for_forty_epochs_and_three_seeds():
    for name in ("table2-zinc", "table2-qm9"):
        table = BENCHMARKS[name]
        runs = grid(table.data, table.encodings, table.seeds, table.preset)
        assert len(runs) == 3 * 6
        assert {(run.backbone, run.width, run.epochs) for run in runs} == {("gt", 64, 40)}
        assert sorted(run.pretrain for run in runs if run.encoding == "lt-index") == [0, 0, 0, 40, 40, 40]


def test_every_table_of_the_command_line_is_one():
    assert {*TABLES} == {"table2", *BENCHMARKS}


def test_pretraining_is_for_the_encodings_it_applies_to():
    runs = grid("zinc", GRID, 1, "standard", pretrain=2)
    assert {run.encoding for run in runs if run.pretrain} == {"lt-index", "lt-random"}


def test_a_row_has_mean_and_spread_over_seeds_and_the_paper_s_number(tmp_path: Path):
    for seed, test in enumerate((0.1, 0.2)):
        _finish(tmp_path, RunConfig(data="zinc", encoding="lappe", seed=seed), test)
    _finish(tmp_path, RunConfig(data="zinc", encoding="rwse"), 0.05)
    rows = [line.split(" | ") for line in markdown(finished(tmp_path)).splitlines()[2:]]
    assert [row[1] for row in rows] == ["lappe", "rwse"]
    assert rows[0][4:7] == ["2", "0.150 ± 0.071", "0.300 ± 0.141"]
    assert "0.201" in rows[0][-1]


def test_table_and_picture_are_written(tmp_path: Path):
    _finish(tmp_path / "runs", RunConfig(data="zinc", encoding="rwse"), 0.05)
    table, picture = write(finished(tmp_path / "runs"), tmp_path, name="table2-zinc", note="By hand.")
    assert "0.050" in table.read_text()
    assert picture.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("name", ["zinc12k", "zinc12k-pairs"])
def test_the_benchmark_s_grids_have_one_schedule_and_at_most_half_a_million_parameters(name: str):
    table = BENCHMARKS[name]
    runs = grid(table.data, table.encodings, table.seeds, table.preset)
    assert [run.encoding for run in runs] == [*table.encodings] * 3
    about = ("backbone", "layers", "width", "epochs", "batch", "lr", "encoding_lr", "weight_decay", "average", "schedule")
    assert len({tuple(getattr(run, name) for name in about) for run in runs}) == 1
    assert {(run.train, run.valid, run.test) for run in runs} == {(None, None, None)}
    for run in runs[: len(table.encodings)]:
        assert MoleculeModel(run, 21, 37).parameter_counts()["parameters"] < 500_000


def test_runs_of_the_benchmark_keep_their_names():
    """Their folders are found by them: a field that is added later must not change them."""
    assert preset("gine", "zinc12k", "lt-pairs").name == "zinc12k-lt-pairs-gine64-seed0-700f4f97"


def test_the_literature_stands_beside_the_benchmark_and_nowhere_else(tmp_path: Path):
    for data in ("zinc12k", "zinc"):
        _finish(tmp_path / data, RunConfig(data=data, encoding="rwse"), 0.05)
        table, _ = write(finished(tmp_path / data), tmp_path, name=data, note="By hand.")
        assert ("GRIT, RRWP | 0.059 ± 0.002" in table.read_text()) == (data == "zinc12k")


def test_classes_are_reported_as_accuracies(tmp_path: Path):
    for seed, test in enumerate((0.0, 0.1)):
        _finish(tmp_path, preset("csl", "csl", "rwse", seed=seed), test)
    table = markdown(finished(tmp_path)).splitlines()
    assert "test accuracy" in table[0]
    assert "| 95.0 ± 7.1 % |" in table[2]
