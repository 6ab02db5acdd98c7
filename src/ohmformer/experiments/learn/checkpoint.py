"""Checkpoints of training runs: one safetensors file with a JSON description in its header. Nothing is unpickled.

Tensors and header are in one file, which is renamed into place when complete. So a kill at any moment leaves either the last
checkpoint or the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ohmformer.experiments.learn.setting import Setting
from ohmformer.graph.files import whole_file

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A run after ``step`` of ``steps`` steps."""

    setting: Setting
    state: Mapping[str, Tensor]
    """Weights, named ``weights.*``, and the state of the optimiser."""
    step: int
    steps: int
    seconds: float

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights by name, without the prefix."""
        return {name.removeprefix("weights."): x for name, x in self.state.items() if name.startswith("weights.")}

    def save(self, folder: Path) -> Path:
        """Write ``folder/checkpoint.safetensors``."""
        about = {"setting": self.setting.as_dict(), "step": self.step, "steps": self.steps, "seconds": self.seconds}
        path = folder / FILE
        with whole_file(path) as temporary:
            # not save_file: it has its own temporary file, which a kill would leave behind
            temporary.write_bytes(save(dict(self.state), {"ohmformer": json.dumps(about)}))
        return path


def load(path: Path) -> Checkpoint:
    """Read a checkpoint from a file or its folder."""
    path = path / FILE if path.is_dir() else path
    if not path.exists():
        raise ValueError(f"expected a checkpoint at {path}, there is none")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["ohmformer"])
            # copy to memory aligned by torch: the rounding of products depends on alignment
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return Checkpoint(Setting(**about["setting"]), state, about["step"], about["steps"], about["seconds"])
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected a checkpoint of ohmformer learn in {path}, got another file ({error})") from error
