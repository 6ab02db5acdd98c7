import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.molecules.conftest import SMILES


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_two_processes_train_as_one_does(compiled: bool, tmp_path: Path):
    if compiled and shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = tmp_path / "m.smi"
    path.write_text("\n".join(SMILES * 10))
    fields = [
        "train=80",
        "valid=20",
        "test=20",
        "epochs=1",
        "batch=20",
        "width=32" if compiled else "width=8",
        "heads=8" if compiled else "heads=2",
        "layers=2",
        "channels=4",
        "groups=4",
    ]
    histories = []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "ohmformer.apps.command_line.main",
            "train",
            "--data",
            str(path),
            "--workers",
            "1",
        ]
        command += ["--devices", str(devices), "--out", str(out), *["--compiled"] * compiled]
        for field in fields:
            command += ["--set", field]
        environment = {**os.environ, "OHMFORMER_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        with next(out.glob("*/history.csv")).open() as file:
            histories.append(next(csv.DictReader(file)))
    one, two = histories
    assert float(two["valid"]) == pytest.approx(float(one["valid"]), abs=1e-4)
