"""Answers are computed where the graph is, on any device; here on one that only pretends to be one."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = """
import sys, pytest, torch
from tests.elsewhere import second_device
with second_device() as device, pytest.raises(RuntimeError, match="expected all tensors on one device"):
    torch.zeros(3, device=device) + torch.ones(3)
sys.exit(pytest.main(["-n", "0", "tests/solve/test_engines.py", "-k", "stays_on_its_device"]))
"""


def test_every_question_runs_on_a_second_device_and_mixing_devices_is_found():
    """In a process of its own: a device stays registered, and its threads would keep others from forking."""
    environment = os.environ | {"OHMFORMER_TEST_DEVICE": "elsewhere"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)
