"""The build backend: scikit-build-core, except that an editable install is a plain path to ``src``.

scikit-build-core's own editable installs put a hook before every import, which also hides a ``PYTHONPATH`` that names
another checkout. Here the wheel is built as always, its libraries are copied to ``src/ohmformer/native/lib``, and what is
installed is the metadata and a ``.pth`` file.
"""

import base64
import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path

from scikit_build_core.build import (
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

SOURCES = Path(__file__).resolve().parents[1] / "src"
LIBRARIES = "ohmformer/native/lib/"

get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel of metadata and a path, and put the libraries into the source tree."""
    with tempfile.TemporaryDirectory() as folder:
        name = build_wheel(folder, config_settings, metadata_directory)
        with zipfile.ZipFile(Path(folder) / name) as wheel:
            files = {path: wheel.read(path) for path in wheel.namelist()}
    shutil.rmtree(SOURCES / LIBRARIES, ignore_errors=True)
    for path, content in files.items():
        if path.startswith(LIBRARIES):
            target = SOURCES / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    kept = {path: content for path, content in files.items() if path.split("/")[0].endswith(".dist-info")}
    kept["_ohmformer_editable.pth"] = f"{SOURCES}\n".encode()
    record = next(path for path in kept if path.endswith(".dist-info/RECORD"))
    del kept[record]
    lines = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in kept.items()]
    kept[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(Path(wheel_directory) / name, "w") as wheel:
        for path, content in kept.items():
            wheel.writestr(path, content)
    return name


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
