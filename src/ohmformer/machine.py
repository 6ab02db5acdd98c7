"""Which machine, which versions: what a number needs beside it."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "networkx", "lightning", "rdkit", "ray")


def processor() -> str:
    """The processor's name, as Linux tells it, or what Python knows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def today() -> str:
    """The date, in UTC."""
    return str(datetime.datetime.now(tz=datetime.UTC).date())


def one_line() -> str:
    """Date, processor, cores and versions, for a table to say where its numbers come from."""
    return f"{today()}, {processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"


def facts() -> dict[str, str]:
    """The same at length: system, memory, and the versions of the packages that do the work."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    found = {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory / 2**30:.1f} GiB" if memory else "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
    for package in ("ohmformer", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
