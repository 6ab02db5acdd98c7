"""Save and load models as ``config.json`` and ``model.safetensors``, in folders and on the Hugging Face hub.

Loading executes no code from files; an invalid file raises a ValueError that names it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from ohmformer.graph.extras import require
from ohmformer.graph.files import whole_file, write_text

if TYPE_CHECKING:
    from ohmformer.encoding.pe import LinearTransformerPE

SHIPPED = Path(__file__).parent / "pretrained"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def shipped() -> list[str]:
    """Return the names of the models shipped with the package."""
    return sorted(folder.name for folder in SHIPPED.iterdir()) if SHIPPED.is_dir() else []


def save(model: LinearTransformerPE, folder: Path) -> None:
    """Write both files, each through a temporary file."""
    write_text(folder / CONFIG, json.dumps(model.config, indent=2) + "\n")
    with whole_file(folder / WEIGHTS) as temporary:
        temporary.write_bytes(to_bytes({name: x.detach().cpu().contiguous() for name, x in _state(model).items()}))


def load(kind: type[LinearTransformerPE], name: str | Path, **options: Any) -> LinearTransformerPE:
    """Load a model of class ``kind`` from a shipped name, a folder, or a repository on the Hugging Face hub."""
    folder = SHIPPED / name if str(name) in shipped() else Path(name)
    if not folder.is_dir():
        folder = _download(str(name), options)
    config = folder / CONFIG
    try:
        arguments = json.loads(config.read_text())
        model = kind(**{"norm": None, "pace": 1, **arguments})  # files of version 0.1 name neither argument and use neither
    except OSError as error:
        raise ValueError(f"expected {CONFIG} in {folder}, there is none") from error
    except (TypeError, ValueError, json.JSONDecodeError) as error:
        raise ValueError(f"expected the arguments of LinearTransformerPE in {config}: {error}") from error
    weights = folder / WEIGHTS
    try:
        found = load_file(weights)
    except FileNotFoundError as error:
        raise ValueError(f"expected {WEIGHTS} in {folder}, there is none") from error
    except (OSError, SafetensorError) as error:
        raise ValueError(f"expected safetensors in {weights}: {error}") from error
    wanted = {key: tuple(x.shape) for key, x in _state(model).items()}
    got = {key: tuple(x.shape) for key, x in found.items()}
    if wanted != got:
        raise ValueError(f"expected {wanted} in {weights}, got {got}")
    bad = [key for key, x in found.items() if not bool(x.isfinite().all())]
    if bad:
        raise ValueError(f"expected finite weights in {weights}, {', '.join(bad)} has NaN or infinity")
    model.load_state_dict(found)
    return model.eval()


def check_state(model: Any, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Raise a ValueError for weights of a wrong shape; a missing count of random starts begins at zero."""
    for name, wanted in model.state_dict().items():
        if name == "calls":
            state.setdefault(f"{prefix}calls", torch.zeros_like(wanted))
        got = state.get(prefix + name, wanted)
        if got.shape != wanted.shape:
            raise ValueError(
                f"expected {prefix}{name} of shape {tuple(wanted.shape)} for LinearTransformerPE({model.extra_repr()}), got "
                f"{tuple(got.shape)}: make the model with the arguments of the one that was saved"
            )


def _state(model: LinearTransformerPE) -> dict[str, Any]:
    """Return weights and running statistics, without the count of random starts."""
    return {name: x for name, x in model.state_dict().items() if name != "calls"}


def push(model: LinearTransformerPE, repo_id: str, *, private: bool | None = None, token: Any = None, **options: Any) -> str:
    """Upload a model to a Hugging Face hub repository, created if missing; return the commit's address."""
    api = require("huggingface_hub", "hub").HfApi(token=token, endpoint=options.pop("endpoint", None))
    repo_id = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory() as folder:
        save(model, Path(folder))
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder, **options))


def _download(name: str, options: dict[str, Any]) -> Path:
    """Download only the two model files of a hub repository; return their folder."""
    hub, errors = require("huggingface_hub", "hub"), require("huggingface_hub.errors", "hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS], **options))
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.LocalEntryNotFoundError, OSError) as error:
        known = ", ".join(shipped()) or "none"
        raise ValueError(f"expected a shipped model ({known}), a folder or a repository on the hub, got {name!r}") from error


class Saved:
    """Mixin for models that are saved to and loaded from folders and the hub."""

    def save_pretrained(self: Any, save_directory: str | Path, *, push_to_hub: bool = False, **options: Any) -> str | None:
        """Write ``config.json`` and ``model.safetensors`` into a folder; an interrupted run leaves no partial file.

        With ``push_to_hub=True`` also upload them; ``options`` are then those of :meth:`push_to_hub`.
        """
        save(self, Path(save_directory))
        return self.push_to_hub(**options) if push_to_hub else None

    def push_to_hub(self: Any, repo_id: str, **options: Any) -> str:
        """Upload the files of :meth:`save_pretrained` to a repository on the Hugging Face hub; return the commit's address.

        Args:
            repo_id: ``owner/name``; created if it does not exist.
            options: ``private=`` and ``token=``, and the options of ``huggingface_hub.HfApi.upload_folder``.
        """
        return push(self, repo_id, **options)

    @classmethod
    def from_pretrained(cls: Any, name: str | Path, **options: Any) -> Any:
        """Load a model: one shipped with the package, a folder, or a repository on the Hugging Face hub.

        ``"zinc"`` has nine layers, ``"zinc-27"`` twenty-seven. ``options`` are those of
        ``huggingface_hub.snapshot_download``.
        """
        return load(cls, name, **options)
