"""Models as ``config.json`` and ``model.safetensors``: loading runs no code, and a bad file is named in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ohmformer.graph.files import whole_file

if TYPE_CHECKING:
    from ohmformer.encoding.pe import LinearTransformerPE

SHIPPED = Path(__file__).parent / "pretrained"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def shipped() -> list[str]:
    """The names of the models inside the package."""
    return sorted(folder.name for folder in SHIPPED.iterdir()) if SHIPPED.is_dir() else []


def save(model: LinearTransformerPE, folder: Path) -> None:
    """Both files, each under a temporary name first."""
    from safetensors.torch import save as as_bytes

    with whole_file(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(model.config, indent=2) + "\n")
    with whole_file(folder / WEIGHTS) as temporary:
        temporary.write_bytes(as_bytes({name: x.detach().cpu().contiguous() for name, x in model.named_parameters()}))


def load(name: str | Path, **hub: Any) -> LinearTransformerPE:
    """A model by the name of a shipped one, by folder, or by its repository on the Hugging Face hub."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from ohmformer.encoding.pe import LinearTransformerPE

    folder = SHIPPED / name if str(name) in shipped() else Path(name)
    if not folder.is_dir():
        folder = _from_hub(str(name), hub)
    config = folder / CONFIG
    try:
        arguments = json.loads(config.read_text())
        model = LinearTransformerPE(**arguments)
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
    wanted = {key: tuple(x.shape) for key, x in model.named_parameters()}
    got = {key: tuple(x.shape) for key, x in found.items()}
    if wanted != got:
        raise ValueError(f"expected {wanted} in {weights}, got {got}")
    bad = [key for key, x in found.items() if not bool(x.isfinite().all())]
    if bad:
        raise ValueError(f"expected finite weights in {weights}, {', '.join(bad)} has NaN or infinity")
    model.load_state_dict(found)
    return model.eval()


def _from_hub(name: str, hub: dict[str, Any]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS], **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        known = ", ".join(shipped()) or "none"
        raise ValueError(f"expected a shipped model ({known}), a folder or a repository on the hub, got {name!r}") from error
