"""Two processes train as one does, as ``torchrun`` or ``--devices 2`` would start them."""

import json
import multiprocessing
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ohmformer.experiments.molecules import training
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.sources import Tables
from ohmformer.experiments.molecules.table import MoleculeTable

MOLECULES = {"train": 33, "valid": 7, "test": 8}
"""Batches of 16 and of 3 leave one molecule over, of which the second process has nothing."""


def _run(folder: Path, devices: int, out: Path) -> dict:
    """Train the run in a folder, and list the seeds of all random numbers drawn in steps."""
    config = RunConfig.of(json.loads((folder / "config.json").read_text()))
    tables = Tables(*(MoleculeTable.load(folder / f"{part}.safetensors") for part in MOLECULES))
    seeds: list[int] = []
    draw_of = training.draw_of

    def listed(seed: int, what: int, number: int) -> torch.Generator:
        draw = draw_of(seed, what, number)
        if what == training.STEP:
            seeds.append(draw.initial_seed())
        return draw

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "draw_of", listed)
        patch.setattr(training, "EVALUATED", 3)
        result = training.train(config, RunData(config, tables), out, devices=devices, accelerator="cpu")
    return {**result, "seeds": seeds}


def _worker(rank: int, port: int, folder: Path, out: Path) -> None:
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in (ranks | where).items()})
    torch.set_num_threads(1)
    (folder / f"process-{rank}.json").write_text(json.dumps(_run(folder, 2, out)))


def _run_two(folder: Path) -> list[dict]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # Lightning is imported once, not twice
    workers = [context.Process(target=_worker, args=(rank, port, folder, folder / "two")) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    alive = [worker for worker in workers if worker.is_alive()]
    for worker in alive:
        worker.kill()
    assert not alive
    assert [worker.exitcode for worker in workers] == [0, 0]
    return [json.loads((folder / f"process-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_as_one_does(small: RunConfig, table: MoleculeTable, tmp_path: Path):
    config = replace(small, encoding="lt-pairs", batch=16, epochs=2)
    (tmp_path / "config.json").write_text(config.json())
    for part, count in MOLECULES.items():
        table.rows(torch.arange(count) % len(table)).save(tmp_path / f"{part}.safetensors")
    one, two = _run(tmp_path, 1, tmp_path / "one"), _run_two(tmp_path)
    assert two[0]["processes"] == 2
    for name in ("valid", "test", "test_relabelled"):
        assert two[0][name] == pytest.approx(one[name], abs=1e-4)
    assert len(one["seeds"]) == len(two[0]["seeds"]) == 2 * 3
    assert not set(two[0]["seeds"]) & set(two[1]["seeds"])  # what one process draws the other does not
