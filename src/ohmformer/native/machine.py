"""Which machine, which versions, what a number needs beside it; and the folder of what is kept on it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "torch_geometric", "numpy", "scipy", "networkx", "lightning", "rdkit", "ray")


def cache() -> Path:
    """Return the folder of cached files: ``$OHMFORMER_CACHE``, or ``~/.cache/ohmformer``."""
    return Path(os.environ.get("OHMFORMER_CACHE", Path.home() / ".cache" / "ohmformer"))


def processor() -> str:
    """Return the processor's name as reported by Linux, or else by Python."""
    return _told("model name") or platform.processor() or platform.machine()


def _told(name: str) -> str:
    """Return the value of this field for the first processor in ``/proc/cpuinfo``, or an empty string."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or less if it has limits; zero if unknown."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    group, mapped = Path("/sys/fs/cgroup/memory.max"), Path("/proc/self/statm")
    if group.exists() and (most := group.read_text().strip()).isdigit():
        found = min(found, int(most))
    if mapped.exists():
        import resource  # not available on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        left = limit - int(mapped.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        found = found if limit == resource.RLIM_INFINITY else min(found, max(left, 0))
    return found


def today() -> str:
    """Return the date, in UTC."""
    return str(datetime.datetime.now(tz=datetime.UTC).date())


def commit() -> str:
    """Return the commit of the checkout that contains this file, plus ``with changes`` if it has any, or the version."""
    file = Path(__file__)

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(file.parent), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)  # the environment may lie in the checkout of another project
        changed = " with changes" if git("status", "--porcelain", "--", "../..") else ""
        return f"commit {git('rev-parse', '--short', 'HEAD')}{changed}"
    except (OSError, subprocess.CalledProcessError):
        return f"version {version('ohmformer')}"


def one_line() -> str:
    """Describe commit, date, processor, cores and versions in one line, to accompany a table of measurements."""
    python = f"Python {platform.python_version()}, torch {version('torch')}"
    return f"{commit()}, {today()}, {processor()}, {os.cpu_count()} cores, {python}"


def facts() -> dict[str, str]:
    """Return the same in detail: system, memory, and the versions of the main packages."""
    found = {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory() / 2**30:.1f} GiB" if memory() else "unknown",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
    for package in ("ohmformer", *PACKAGES):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
