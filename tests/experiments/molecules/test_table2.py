import csv
import json
from pathlib import Path

from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.model import MoleculeModel
from ohmformer.experiments.molecules.table2 import GRID, ZINC12K, finished, grid, markdown, write


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


def test_the_benchmark_s_grid_has_one_schedule_and_at_most_half_a_million_parameters():
    runs = grid("zinc12k", ZINC12K, 3, "gine")
    assert [run.encoding for run in runs] == [*ZINC12K] * 3
    about = ("backbone", "layers", "width", "epochs", "batch", "lr", "encoding_lr", "weight_decay", "average", "schedule")
    assert len({tuple(getattr(run, name) for name in about) for run in runs}) == 1
    assert {(run.train, run.valid, run.test) for run in runs} == {(None, None, None)}
    for run in runs[: len(ZINC12K)]:
        assert MoleculeModel(run, 21, 37).parameter_counts()["parameters"] < 500_000
