"""Compiled code is made once for a machine, and only what nobody else could have written is loaded."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ohmformer import native
from ohmformer.native import machine

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The commands that were run, with nothing kept at first and each look for the library as in a process of its own."""
    commands, run = [], subprocess.run

    def counted(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setenv("OHMFORMER_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(subprocess, "run", counted)
    monkeypatch.setattr(native, "_compiled", native._compiled.__wrapped__)
    return commands


def only_file() -> Path:
    (found,) = machine.cache().iterdir()
    return found


def test_the_second_process_does_not_compile(compilations):
    native._compiled()
    assert len(compilations) == 1
    first = only_file()
    library = native._compiled()
    assert len(compilations) == 1
    assert only_file() == first
    assert library.ohm_encode


def test_other_options_another_processor_or_another_compiler_are_compiled_for_anew(compilations, monkeypatch, tmp_path):
    native._compiled()
    monkeypatch.setattr(native, "OPTIONS", (*native.OPTIONS, "-DNOTHING"))
    native._compiled()
    monkeypatch.setattr(machine, "instructions", lambda: "others")
    native._compiled()
    other = tmp_path / "gcc"
    other.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("CC", str(other))
    native._compiled()
    assert len(compilations) == 4
    assert len(list(machine.cache().iterdir())) == 4


def test_a_library_that_others_can_write_is_made_again(compilations):
    native._compiled()
    only_file().chmod(0o777)
    native._compiled()
    assert len(compilations) == 2
    assert only_file().stat().st_mode & 0o777 == 0o755


def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(compilations, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OHMFORMER_CACHE", str(tmp_path / "file" / "folder"))
    native._compiled()
    native._compiled()
    assert len(compilations) == 2


def test_a_compiler_that_fails_leaves_nothing_behind(compilations, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(OSError, match="expected false to compile"):
        native._compiled()
    assert list(machine.cache().iterdir()) == []
