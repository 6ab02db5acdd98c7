"""The library in use is what was asked for, in each thread its own; without any library torch gives the same answers."""

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch_geometric

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.encoding import LinearTransformerPE
from ohmformer.native import loader
from tests.encoding.molecules import batch_of, molecules
from tests.solve.test_solve import random_graph

needs_kernels = pytest.mark.skipif(not native.available(), reason="needs native kernels")


@pytest.fixture
def forget():
    """Choose anew, as a process of its own would, and again at the end."""

    functions = loader._default, loader._processor, loader._load

    def clear() -> None:
        for function in functions:
            function.cache_clear()

    clear()
    yield clear
    clear()


@pytest.fixture
def no_library(monkeypatch, tmp_path, forget):
    """A package that was built without a compiler."""
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    monkeypatch.delenv(loader.VARIABLE, raising=False)
    yield
    monkeypatch.undo()


def name_in_use() -> str:
    library = native.active()
    return "off" if library is None else library.name


@needs_kernels
@pytest.mark.parametrize("name", ["off", *native.available()])
def test_the_environment_chooses_the_library(name, monkeypatch, forget):
    monkeypatch.setenv(loader.VARIABLE, name)
    assert name_in_use() == name


@needs_kernels
@pytest.mark.parametrize("value", [None, ""])
def test_the_fastest_library_is_used_where_nothing_is_said(value, monkeypatch, forget):
    if value is None:
        monkeypatch.delenv(loader.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(loader.VARIABLE, value)
    assert name_in_use() == native.available()[-1]


def test_an_unknown_name_is_refused_and_the_known_ones_are_named(monkeypatch, forget):
    known = "off, baseline, neon, avx2, avx512"
    monkeypatch.setenv(loader.VARIABLE, "sse9")
    with pytest.raises(ValueError, match=f"^expected OHMFORMER_NATIVE to be one of {known}, got 'sse9'$"):
        native.active()
    with pytest.raises(ValueError, match=f"to be one of {known}, got 'fast'$"), native.used("fast"):
        pass


@needs_kernels
def test_an_instruction_set_that_the_processor_lacks_is_refused(monkeypatch, forget):
    monkeypatch.setattr(loader, "_processor", lambda: 1)
    monkeypatch.setattr(loader, "_path", lambda name: Path(__file__))
    monkeypatch.setenv(loader.VARIABLE, "avx512")
    message = (
        r"^expected OHMFORMER_NATIVE to be one of off, baseline, neon, got 'avx512': this processor does not support it$"
    )
    with pytest.raises(ValueError, match=message):
        native.active()


@needs_kernels
def test_an_instruction_set_that_was_not_built_is_refused():
    other = next(name for name in loader.INSTRUCTION_SETS if not loader._path(name).is_file())
    with pytest.raises(ValueError, match=f"got '{other}': it was not built with this package$"), native.used(other):
        pass


@needs_kernels
def test_used_ends_with_its_block_and_nests():
    before = name_in_use()
    with native.used("off"):
        assert name_in_use() == "off"
        with native.used(native.available()[0]):
            assert name_in_use() == native.available()[0]
        assert name_in_use() == "off"
    assert name_in_use() == before
    with pytest.raises(KeyError), native.used("off"):
        raise KeyError
    assert name_in_use() == before


@needs_kernels
def test_threads_do_not_disturb_each_other():
    g = Graph.collate([random_graph(n, 2 * n, seed=n) for n in range(5, 40)])
    names, truth = ["off", *native.available()], ohm.effective_resistance(g, "all").value.entries
    wrong: list[str] = []
    start = threading.Barrier(8)

    def ask(number: int) -> None:
        start.wait()
        for turn in range(20):
            name = names[(number + turn) % len(names)]
            with native.used(name):
                value = ohm.effective_resistance(replace(g), "all").value.entries
                if name_in_use() != name or not torch.allclose(value, truth, rtol=1e-6, atol=1e-8):
                    wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_answers_after_its_parent_has_used_threads(threads):
    g = Graph.collate([random_graph(n, 2 * n, seed=n) for n in range(5, 60)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        library = native.active()
        wanted = _inverted(g)
    finally:
        torch.set_num_threads(before)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_forked, args=(queue, g, threads))
    worker.start()
    name, found = queue.get(timeout=60)
    worker.join()
    assert name == (library.name if library else "off")
    assert (found == wanted).all()


def _inverted(g: Graph):
    return ohm.effective_resistance(replace(g), "all").value.entries.numpy()


def _forked(queue, g: Graph, threads: int) -> None:
    """Answer as a DataLoader's worker does, torch with one thread; the kernels may have more."""
    torch.set_num_threads(1)
    real, torch.get_num_threads = torch.get_num_threads, lambda: threads
    try:
        queue.put((name_in_use(), _inverted(g)))
    finally:
        torch.get_num_threads = real


@needs_kernels
def test_kernels_answer_in_inference_mode():
    g = Graph.collate([random_graph(n, 2 * n, seed=n) for n in range(5, 40)])
    wanted = ohm.effective_resistance(g, "all").value.entries
    with torch.inference_mode():
        assert torch.equal(ohm.effective_resistance(replace(g), "all").value.entries, wanted)


@needs_kernels
def test_a_call_checks_how_many_arguments_it_is_given_and_where_tensors_are():
    with native.used(native.available()[0]):
        with pytest.raises(TypeError, match="expected 8 arguments for ohm_all_pairs, got 1"):
            native.call("ohm_all_pairs", 3)
        elsewhere = torch.empty(1, device="meta")
        with pytest.raises(ValueError, match="expected tensors on the CPU for ohm_all_pairs"):
            native.call("ohm_all_pairs", 0, 0, elsewhere, None, None, None, None, None)
    with native.used("off"), pytest.raises(RuntimeError, match="expected a native library for ohm_all_pairs, got none"):
        native.call("ohm_all_pairs", 0, 0, None, None, None, None, None, None)


@pytest.mark.usefixtures("no_library")
def test_a_package_without_libraries_says_so_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.describe().startswith("native kernels: none, torch answers everything")
    with pytest.warns(UserWarning, match="no native kernels: the package was built without a C compiler"):
        assert native.active() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native.active() is None
    assert native.describe() == (
        "native kernels: none, torch answers everything (the package was built without a C compiler)"
    )


@pytest.mark.usefixtures("no_library")
def test_a_library_that_is_missing_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, "avx2")
    with pytest.raises(ValueError, match="to be one of off, got 'avx2': it was not built with this package"):
        native.active()


@needs_kernels
@pytest.mark.usefixtures("no_library")
def test_torch_gives_the_same_answers_without_a_library(forget):
    g = Graph.collate([random_graph(n, 2 * n, seed=n) for n in range(5, 40)])
    batch, model = batch_of(molecules(20)), LinearTransformerPE(6, phi0="random").eval()

    def answers() -> list[torch.Tensor]:
        with torch.no_grad():
            encoded = model(batch.edge_index, batch=batch.batch, num_nodes=batch.num_nodes)
        return [ohm.effective_resistance(replace(g), "all", tol=1e-9).value.entries, encoded]

    with pytest.warns(UserWarning, match="no native kernels"):
        assert native.active() is None
    without = answers()
    loader.FOLDER = Path(loader.__file__).parent / "lib"
    forget()
    with native.used(native.available()[-1]):
        resistances, encoded = answers()
    torch.testing.assert_close(without[0], resistances, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(without[1], encoded, rtol=0, atol=2e-5)


@needs_kernels
def test_describe_names_what_is_used_and_what_could_be():
    names = ", ".join(native.available())
    for name in native.available():
        with native.used(name):
            assert native.describe() == f"native kernels: {name} (available: {names})"
    with native.used("off"):
        assert native.describe() == f"native kernels: off, torch answers everything (available: {names})"


def test_enable_warns_and_changes_nothing():
    with native.used("off"):
        with pytest.warns(DeprecationWarning, match="does nothing"):
            native.enable()
        assert native.active() is None


def test_choosing_a_library_does_not_import_torch():
    code = "import sys; from ohmformer import native; print(native.describe()); sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    outcome = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("native kernels: ")


@pytest.mark.skipif(native.active() is None, reason="no native kernels")
def test_a_tensor_without_memory_of_its_own_is_refused_and_read_by_no_kernel():
    wrapped = torch_geometric.EdgeIndex(torch.tensor([[0, 1], [1, 2]]))
    label = torch.empty(3, dtype=torch.long)
    with pytest.raises(ValueError, match="expected plain tensors for ohm_components, got EdgeIndex"):
        native.call("ohm_components", 3, 2, wrapped, wrapped, label)
