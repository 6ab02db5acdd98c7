"""Modules under the names they had in version 0.1, for one version more."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "answer": "solve.answer",
    "circuit": "graph.circuit",
    "draw": "graph.draw",
    "encoding.graphgym": "integrations.graphgym",
    "families": "graph.families",
    "files": "graph.files",
    "learn": "experiments.learn",
    "molecules": "experiments.molecules",
    "resistance": "solve.resistance",
    "spectrum": "graph.spectrum",
}
"""Old names and new ones, below ``ohmformer``; modules inside a moved package moved along."""


class _Alias(MetaPathFinder, Loader):
    """Finds an old name by importing the new one, and hands back that very module."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """A spec whose ``loader_state`` is the new name, for old names only."""
        package, _, name = fullname.partition(".")
        old = next((old for old in MOVED if name == old or name.startswith(f"{old}.")), None)
        if package != "ohmformer" or old is None:
            return None
        return ModuleSpec(fullname, self, loader_state=f"ohmformer.{MOVED[old]}{name.removeprefix(old)}")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name, with a warning that says it."""
        warnings.warn(f"{spec.name} has moved to {spec.loader_state}", DeprecationWarning, stacklevel=2)
        module = import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run again; the module's own spec, which the import replaced, is put back."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Let old names be imported."""
    if not any(isinstance(finder, _Alias) for finder in sys.meta_path):
        sys.meta_path.append(_Alias())
