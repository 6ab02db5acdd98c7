"""Factors and memory, each in a process of its own: too little of it, and how much a question takes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ohmformer as ohm
from ohmformer import native
from ohmformer.solve.factor import prepared
from tests.solve.test_solve import random_graph
from tests.strategies import demands_for

pytestmark = [
    pytest.mark.skipif(native.active() is None, reason="SuperLU has its own limits"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what Linux says of a process"),
]

BEFORE = """
import os, resource, sys
import torch
torch.set_num_threads(1)
import ohmformer as ohm
from ohmformer.graph import Graph

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def peak():  # getrusage counts what the parent had when this process was forked
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

side = 300
node = torch.arange(side * side).view(side, side)
ends = [torch.stack([a.flatten(), b.flatten()]) for a, b in ((node[:, :-1], node[:, 1:]), (node[:-1], node[1:]))]
grid = Graph.from_edges(torch.cat(ends, dim=1).t())
one = torch.zeros(side * side, 1, dtype=torch.float64)
one[0], one[-1] = 1.0, -1.0
small = Graph.from_edges([(i, i + 1) for i in range(500)])
for method in ("direct", "elimination", "conjugate"):
    ohm.potentials(small, torch.eye(501, 2, dtype=torch.float64), method=method, center=True)
"""
LITTLE = """
mapped = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (mapped + 60 * 2**20, resource.RLIM_INFINITY))
"""
ASKED = """
try:
    print(ohm.potentials(grid, one, method="direct").method)
except (MemoryError, ValueError) as error:
    print(type(error).__name__, error)
answer = ohm.potentials(grid, one)
print(answer.method, answer.residual < 1e-6)
"""


def run(*parts: str) -> list[str]:
    """What a process prints."""
    found = subprocess.run([sys.executable, "-c", "".join([BEFORE, *parts])], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_a_factor_beyond_the_memory_of_the_process_is_refused_in_a_sentence_and_left_to_another_engine():
    direct, auto = run(LITTLE, ASKED)
    assert direct.startswith("ValueError expected a factor of at most ")
    assert direct.endswith("use method='elimination'")
    assert auto == "elimination True"


@pytest.mark.parametrize("error", [MemoryError("of a kernel"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_is_gone_when_the_factor_is_made_is_said_in_a_sentence(monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    graph = random_graph(900, 1000)
    with monkeypatch.context() as patched:
        patched.setattr("ohmformer.solve.factor.factorise", fail)
        with pytest.raises(MemoryError, match=r"expected \d+ MB for a factor of \d+ entries, there is no such memory; use"):
            ohm.potentials(graph, demands_for(graph), method="direct")
    assert ohm.potentials(graph, demands_for(graph), method="direct").residual < 1e-6  # nothing half-made is kept


def test_a_question_takes_at_most_one_and_a_half_times_the_memory_of_its_factor_and_four_blocks():
    asked = """
import gc
gc.collect()
before = resident()
b = torch.randn(side * side, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
answer = ohm.potentials(grid, b, center=True)
from ohmformer.solve.factor import look
from ohmformer.solve.costs import BYTES
print(answer.method, peak() - before, len(look(grid).row) * BYTES + 4 * b.numel() * 8)
"""
    method, taken, fair = run(asked)[0].split()
    assert method == "direct"
    assert int(taken) <= 1.5 * int(fair)


def test_no_demands_have_no_potentials():
    graph = random_graph(900, 1000)
    factor = prepared(graph)
    assert factor is not None
    assert factor.solve(torch.zeros(900, 0, dtype=torch.float64)).shape == (900, 0)
