"""The Graph Transformer in compiled code: the paper's layers and gradients, in float64 by a transcription."""

import copy
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ohmformer import native
from ohmformer.experiments.molecules import compiled
from ohmformer.experiments.molecules.batches import Batch, Split
from ohmformer.experiments.molecules.config import RunConfig
from ohmformer.experiments.molecules.data import RunData
from ohmformer.experiments.molecules.graph_transformer import GraphTransformer
from ohmformer.experiments.molecules.sources import Tables
from ohmformer.experiments.molecules.training import train
from tests.experiments.molecules.reference import transcribed

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def batch(split: Split) -> Batch:
    """The molecules twice and a half, so that rows fill several blocks and part of one."""
    return split.take(torch.arange(len(split)).repeat(3)[: 5 * len(split) // 2])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(width: int, heads: int, *, nodes: int = 5, edges: int = 3, layers: int = 3) -> GraphTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return GraphTransformer(20, width=width, heads=heads, layers=layers, node_encoding=nodes, edge_encoding=edges)


def ran(model, run, batch: Batch, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What comes out, and the gradients of everything, for a drawn gradient of what comes out."""
    node, edge = (drawn(len(x), k).to(dtype).requires_grad_() for x, k in ((batch.atom, 5), (batch.bond, 3)))
    h = run(batch, node, edge)
    h.backward(drawn(*h.shape, seed=1).to(h.dtype))
    found = {"h": h, "node": node.grad, "edge": edge.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: x.detach().double() for name, x in found.items() if x is not None}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> dict[str, float]:
    """Relative to the size of the truth; of a bias before a norm, whose gradient is zero, to that of its map."""
    assert found.keys() == truth.keys()
    size = {name: float(x.norm()) for name, x in truth.items()}
    vanishing = [name for name in truth if name.endswith(("out.bias", "down.bias"))]
    size |= {name: size[name.replace("bias", "weight")] for name in vanishing}
    return {name: float((found[name] - x).norm()) / size[name] for name, x in truth.items()}


@pytest.mark.parametrize(("width", "heads"), [(32, 8), (64, 8), (96, 6), (128, 8)])
def test_layers_and_gradients_are_the_paper_s(batch: Batch, width: int, heads: int, threads: int):
    model = built(width, heads)
    exact = copy.deepcopy(model).double()
    truth = ran(exact, lambda *x: transcribed(exact, *x), batch, torch.float64)
    with native.used():
        assert compiled.takes(drawn(1, width), heads)
        ours = ran(model, model, batch)
    assert max(errors(ours, truth).values()) < 1e-4


def test_rounded_products_are_no_further_off_than_torch_s_autocast(batch: Batch):
    model = built(128, 8)
    exact = copy.deepcopy(model).double()
    truth = ran(exact, lambda *x: transcribed(exact, *x), batch, torch.float64)
    off = []
    for wanted in (True, False):
        model.zero_grad()
        with native.used(wanted), torch.autocast("cpu", torch.bfloat16):
            off.append(errors(ran(model, model, batch), truth))
    ours, theirs = off
    assert 1e-4 < ours["h"] < theirs["h"] < 2e-2
    assert sum(ours.values()) < 1.1 * sum(theirs.values())


def test_norms_in_evaluation_and_their_statistics_are_torch_s(batch: Batch):
    ours, theirs = built(32, 8), built(32, 8)
    node, edge = drawn(len(batch.atom), 5), drawn(len(batch.bond), 3)
    for training in (True, True, False):
        for model in (ours, theirs):
            model.train(training)
        with native.used():
            h = ours(batch, node, edge)
        torch.testing.assert_close(h, theirs(batch, node, edge), atol=2e-5, rtol=1e-4)
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4, msg=name)
    truth = ran(theirs, theirs, batch)
    with native.used():
        assert max(errors(ran(ours, ours, batch), truth).values()) < 1e-4


def test_atoms_without_bonds_leave_everything_finite():
    none = torch.zeros(0, dtype=torch.long)
    two = torch.arange(2)
    lonely = Batch(two, none, none, none, none, torch.zeros_like(two), two, torch.ones_like(two), torch.zeros(2))
    bond = torch.tensor([1, 0])
    beside = Batch(
        torch.arange(3), torch.ones_like(bond), bond, bond.flip(0), bond, torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]),
        torch.tensor([2, 1]), torch.zeros(2),
    )  # fmt: skip
    for batch in (lonely, beside):
        ours, theirs = built(32, 8, nodes=0, edges=0), built(32, 8, nodes=0, edges=0)
        with native.used():
            h = ours(batch)
            h.sum().backward()
        torch.testing.assert_close(h, theirs(batch), atol=1e-4, rtol=1e-4)
        assert all(bool(x.isfinite().all()) for x in ours.buffers())
        assert all(bool(p.grad.isfinite().all()) for p in ours.parameters() if p.grad is not None)


def test_the_same_bits_come_out_twice(batch: Batch, threads: int):
    model = built(64, 8)
    with native.used():
        first = ran(model, model, batch)
        model.zero_grad()
        again = ran(model, model, batch)
    assert all(torch.equal(x, again[name]) for name, x in first.items())


def test_a_second_backward_pass_is_a_sentence(batch: Batch):
    with native.used():
        h = built(32, 8, nodes=0, edges=0)(batch).sum()
    h.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="expected one backward pass, got a second"):
        h.backward()


def test_what_the_source_is_not_written_for_goes_through_torch(batch: Batch, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "run", lambda *x: pytest.fail("compiled"))
    node, edge = drawn(len(batch.atom), 5), drawn(len(batch.bond), 3)
    with native.used():
        for model in (built(48, 8), built(32, 1), built(32, 16)):
            assert model(batch, node, edge).isfinite().all()
        built(32, 8).double()(batch, node.double(), edge.double())
        with torch.autocast("cpu", torch.float16):
            built(32, 8)(batch, node, edge)


@pytest.mark.parametrize("half", [False, True])
def test_machines_without_wide_vectors_compute_the_same(
    batch: Batch, half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The same source for a plain processor: no vectors of its own, no pairs of bfloat16, no threads."""
    library = tmp_path / "plain.so"
    sources = [x for x in native.SOURCES if x.parent.name == "molecules"]
    options = ["-O2", "-fno-math-errno", "-shared", "-fPIC", "-Wno-psabi", "-Wno-unknown-pragmas"]
    cc = os.environ.get("CC") or "cc"
    subprocess.run([cc, *options, "-o", library, *sources, "-lm"], check=True, capture_output=True)
    plain = native.declared(ctypes.CDLL(str(library)), "ohm_pair", "ohm_norm", "ohm_affine", "ohm_mlp", "ohm_attend")
    assert plain.ohm_pair() == 1
    model = built(64, 8)
    exact = copy.deepcopy(model).double()
    truth = ran(exact, lambda *x: transcribed(exact, *x), batch, torch.float64)
    off = []
    for one in (native._compiled(), plain):
        model.zero_grad()
        monkeypatch.setattr(native, "_compiled", lambda one=one: one)
        with native.used(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            off.append(errors(ran(model, model, batch), truth))
    here, there = off
    assert there["h"] < (2e-2 if half else 1e-5)
    assert sum(there.values()) < 1.1 * sum(here.values()) if half else max(there.values()) < 1e-4


def test_training_goes_as_with_torch(small: RunConfig, tables: Tables, tmp_path: Path):
    config = replace(small, width=32, heads=8, channels=4)
    results = []
    for wanted in (True, False):
        with native.used(wanted):
            results.append(train(config, RunData(config, tables), tmp_path / str(wanted), accelerator="cpu"))
    ours, theirs = results
    assert ours["test"] == pytest.approx(theirs["test"], abs=1e-3)
    assert ours["valid"] == pytest.approx(theirs["valid"], abs=1e-3)


@pytest.mark.parametrize("wanted", [True, False])
def test_rounded_products_train_nearly_as_well(wanted: bool, small: RunConfig, tables: Tables, tmp_path: Path):
    config = replace(small, width=32, heads=8, epochs=10)
    results = []
    for precision in ("float32", "bfloat16"):
        one = replace(config, precision=precision)
        with native.used(wanted):
            results.append(train(one, RunData(one, tables), tmp_path / precision, accelerator="cpu"))
    exact, rounded = results
    assert exact["valid"] != rounded["valid"]
    assert rounded["valid"] < exact["valid"] + 0.1
