"""The table of kernels says what the libraries hold, and C states the same limits as the table."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ohmformer import native
from ohmformer.native import loader

SOURCES = Path(__file__).parents[2] / "src/ohmformer/native/src"
BUILT = sorted(loader.FOLDER.glob("*.so"))


def definitions() -> dict[str, int]:
    """The numbers that ``kernel.h`` defines."""
    return {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)", (SOURCES / "kernel.h").read_text())}


def test_every_kernel_of_the_sources_is_in_the_table_and_takes_as_many_arguments():
    found = {}
    for path in SOURCES.glob("*.c"):
        for name, arguments in re.findall(r"^EXPORT int (ohm_\w+)\(([^)]*)\)", path.read_text(), flags=re.MULTILINE):
            found[name] = path.name, [_kind(argument) for argument in arguments.split(",")]
    assert found == {name: (kernel.source, [ctypes.c_int64, *kernel.arguments]) for name, kernel in native.KERNELS.items()}


def _kind(argument: str) -> type:
    """The type by which an argument of C is passed."""
    if "*" in argument:
        return ctypes.c_void_p
    return {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}[argument.split()[-2]]


def test_limits_of_the_table_are_those_of_the_sources():
    defined, limits = definitions(), {name: kernel.limits for name, kernel in native.KERNELS.items()}
    small = {name: defined[f"SMALL_{name.upper()}"] for name in ("nodes", "edges", "layers", "degree")}
    assert limits["ohm_invert"] == small
    assert limits["ohm_all_pairs"] == {"nodes": small["nodes"]}
    encode = {"channels": defined["ENCODE_CHANNELS"], "evolving_nodes": defined["ENCODE_NODES"]}
    assert limits["ohm_encode"] == {**encode, "nodes": 2**29 - 1, "edges": 2**29 - 1}  # the kernel counts in int
    assert limits["ohm_eigen"] == {"nodes": defined["EIGEN_NODES"]}
    assert limits["ohm_spectrum"] == {"nodes": defined["EIGEN_NODES"]}
    assert limits["ohm_conductances"] == {"nodes": defined["CONDUCTANCE_NODES"]}
    assert limits["ohm_conjugate"]["parts"] == defined["CONJUGATE_PARTS"]
    assert limits["ohm_local"] == {"degree": defined["LOCAL_DEGREE"]}
    on_channels = "ohm_on_spectrum", "ohm_read_pairs", "ohm_functions"
    for name in (*on_channels, *(f"{name}_backward" for name in on_channels)):
        assert limits[name] == {"channels": defined["SPECTRUM_CHANNELS"]}


@pytest.mark.skipif(not BUILT or shutil.which("nm") is None, reason="needs built libraries and nm")
@pytest.mark.parametrize("path", BUILT, ids=lambda path: path.stem)
def test_a_library_exports_the_kernels_of_the_table_and_nothing_else(path):
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    functions = {line.split()[-1] for line in listed.splitlines() if line.split()[-2] == "T"}
    assert functions - {"_init", "_fini"} == {*native.KERNELS, "processor_sets", "stop_when"}


@pytest.mark.slow
@pytest.mark.skipif(not BUILT or shutil.which("cc") is None, reason="needs built libraries and a C compiler")
def test_every_kernel_repeats_its_recorded_calls_in_a_plain_c_program(tmp_path):
    here = Path(__file__).parent
    subprocess.run([sys.executable, here / "record.py", tmp_path], check=True)
    options = [
        "-std=c11",
        "-D_POSIX_C_SOURCE=200809L",
        "-O1",
        "-fno-math-errno",
        "-ffp-contract=fast",
        "-Wno-psabi",
        "-pthread",
    ]
    program = ["-o", tmp_path / "driver", f"-I{tmp_path}", here / "driver.c", *SOURCES.glob("*.c"), "-lm"]
    subprocess.run(["cc", *options, *program], check=True)
    ran = subprocess.run([tmp_path / "driver", tmp_path / "calls", "2"], capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    assert {line.split()[0] for line in ran.stdout.splitlines()[:-1]} == set(native.KERNELS)
