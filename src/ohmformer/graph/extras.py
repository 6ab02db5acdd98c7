"""Optional packages: imported where they are needed, and a missing one names the extra that brings it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


class MissingPackage(ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or raise a :class:`MissingPackage` that names the extra that brings it."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise MissingPackage(
            f"expected the package {package}, which `pip install ohmformer[{extra}]` brings, got none", name=package
        )
    return import_module(module)
