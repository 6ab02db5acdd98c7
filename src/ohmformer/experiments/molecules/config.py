"""``RunConfig``: everything the result of a run depends on, in one frozen object, and the name of its folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

ENCODINGS = (
    "none", "lappe", "signnet", "rwse", "resistance", "resistive-embedding", "heat", "rrwp",
    "lt-index", "lt-random", "lt-features", "lt-diagonal", "lt-pairs", "lt-all-pairs",
)  # fmt: skip
"""``lt`` is the linear Transformer: ``diagonal`` is the public encoder with its default start, ``pairs`` the same read on
bonds too, ``all-pairs`` on all pairs of atoms too; the others are named by their start Phi_0.
"""
PAIRWISE = ("rrwp", "lt-all-pairs")
"""Encodings of atom pairs, which only the attention of ``gps`` can use."""
PRETRAINED = ("lt-index", "lt-random")
"""Encodings that presets pretrain on eigenvectors."""
BACKBONES = ("gt", "gps", "gine")
READOUTS = ("paper", "mean", "sum")
SCHEDULES = ("one-cycle", "halving", "steps")
ORDERS = ("canonical", "shuffled")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run: everything its result depends on."""

    data: str = "drugs"
    """The name of a dataset, or the path of a table of SMILES; for ``csl`` the seed selects the test fold."""
    target: str | None = None
    """The column to predict; by default the penalised logP."""
    rings: str = "smallest"
    """The cycle basis whose longest ring enters the penalised logP: ``smallest``, or ``networkx`` as in ZINC's benchmark."""
    train: int | None = None
    """Number of training molecules; all by default."""
    valid: int | None = None
    """Number of validation molecules."""
    test: int | None = None
    """Number of test molecules."""
    order: str = "canonical"
    """The order of atoms: as in canonical SMILES, or ``shuffled``, as in SMILES written from a random atom."""
    relabel: bool = False
    """Whether the atoms of training molecules are renumbered at random in every epoch."""

    encoding: str = "lt-diagonal"
    columns: int = 6
    """Columns per atom of ``lappe``, ``resistive-embedding``, ``lt-index``, ``lt-random`` and ``lt-features``."""
    walk: int = 16
    """Length of the longest random walk of ``rwse``."""
    channels: int = 16
    """Channels of ``lt-diagonal`` and ``lt-pairs``; the other linear Transformers have 8, as in the paper."""
    groups: int = 3
    """Number of sets of weights of a linear Transformer."""
    loops: int = 3
    """How often each set is applied in a row."""
    pretrain: int = 0
    """Epochs of pretraining of a linear Transformer, on eigenvectors (``diagonal``: on diagonals)."""

    backbone: str = "gt"
    width: int = 64
    heads: int = 8
    layers: int = 4
    readout: str = "mean"
    dropout: float = 0.0
    """Dropout rate of ``gine`` and ``gps``, after every residual branch."""

    epochs: int = 40
    batch: int = 50
    lr: float = 2e-3
    encoding_lr: float = 5e-3
    weight_decay: float = 1e-4
    adam: bool = False
    """Whether the backbone is trained by Adam instead of AdamW."""
    schedule: str = "one-cycle"
    half_life: int = 800
    """Epochs after which the rate is halved, for ``halving`` (smoothly) and ``steps``."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    precision: str = "float32"
    """Dtype of matrix products in the backbone in training: ``float32``, or ``bfloat16`` by torch's autocast."""
    average: float = 0.0
    """Decay of the exponential moving average of the weights, which is then validated and tested; 0 for none."""
    starts: int = 1
    """Number of initialisations to train for one epoch each; training continues with the best."""
    patience: int | None = None
    """Epochs without a better validation error after which training stops; never by default."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"expected {name} among {', '.join(known)}, got {getattr(self, name)!r}")
        for name in (
            "epochs",
            "batch",
            "width",
            "heads",
            "layers",
            "channels",
            "columns",
            "walk",
            "groups",
            "loops",
            "starts",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
        if self.encoding in PAIRWISE and self.backbone != "gps":
            raise ValueError(f"expected backbone gps with {self.encoding}, which encodes pairs, got {self.backbone!r}")
        for name in ("average", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"expected {name} in [0, 1), got {getattr(self, name)}")

    @property
    def name(self) -> str:
        """The name of the run's folder: readable, and unique to the configuration."""
        digest = hashlib.sha256(self.json().encode()).hexdigest()[:8]
        return f"{Path(self.data).name.split('.')[0]}-{self.encoding}-{self.backbone}{self.width}-seed{self.seed}-{digest}"

    def json(self) -> str:
        """Return the configuration as JSON, with fields in their order."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def of(cls, values: dict[str, Any]) -> RunConfig:
        """Read the output of :meth:`json`; raise a ValueError that names unknown fields."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"expected fields of a run, got {', '.join(sorted(unknown))}")
        return cls(**values)

    def differences(self, other: RunConfig) -> str:
        """Return the names of fields in which another run differs."""
        mine, theirs = asdict(self), asdict(other)
        return ", ".join(f"{k} {theirs[k]!r} instead of {v!r}" for k, v in mine.items() if theirs[k] != v)


_CHOICES = {
    "encoding": ENCODINGS, "backbone": BACKBONES, "readout": READOUTS, "schedule": SCHEDULES, "order": ORDERS,
    "rings": ("smallest", "networkx"), "precision": ("float32", "bfloat16"),
}  # fmt: skip

_PAPER = {
    "width": 128, "readout": "paper", "batch": 200, "lr": 1e-3, "encoding_lr": 1e-2, "epochs": 2000, "clip": 10.0,
    "rings": "networkx", "pretrain": 120,
}  # fmt: skip
_GINE = {
    "backbone": "gine", "layers": 8, "readout": "sum", "batch": 64, "lr": 1e-3, "encoding_lr": 1e-3, "weight_decay": 1e-5,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"width": 32, "epochs": 15, "average": 0.999},
    "standard": {"epochs": 40, "average": 0.999},
    "best": {"width": 128, "epochs": 100, "lr": 5e-4, "average": 0.999},
    "gine": {**_GINE, "epochs": 100, "average": 0.999},
    "gps": {**_GINE, "backbone": "gps", "layers": 4, "heads": 4, "epochs": 40, "average": 0.999},
    "csl": {**_GINE, "layers": 4, "width": 32, "batch": 10, "readout": "mean", "epochs": 40},
    "paper": {**_PAPER, "schedule": "steps"},
    "notebook": {**_PAPER, "schedule": "halving", "adam": True, "starts": 3},
}
"""Settings of ``--preset``; ``paper`` follows the paper's appendix E, ``notebook`` the authors' code."""


def preset(name: str, data: str, encoding: str, **changes: Any) -> RunConfig:
    """Return a configuration from a preset with changes; QM9's paper rates are halved after 400 of 1,000 epochs.

    The public encoder has the learning rate of the backbone, as in a plain training loop, unless the preset says otherwise.
    """
    if name not in PRESETS:
        raise ValueError(f"expected a preset among {', '.join(PRESETS)}, got {name!r}")
    values = {**PRESETS[name], "data": data, "encoding": encoding}
    if data == "qm9" and "pretrain" in values:
        values |= {"epochs": 1000, "half_life": 400, "columns": 3}
    if encoding not in PRETRAINED:
        values.pop("pretrain", None)
    if encoding in ("lt-diagonal", "lt-pairs", "lt-all-pairs"):
        values = {"encoding_lr": values.get("lr", RunConfig.lr), "groups": 16, "loops": 1, **values}
    return replace(RunConfig(), **{**values, **changes})


def changes(settings: list[str]) -> dict[str, Any]:
    """Parse ``["epochs=10", "relabel=true"]`` to a dict of field values, each of the field's type.

    >>> changes(["epochs=10", "relabel=true", "target=none"])
    {'epochs': 10, 'relabel': True, 'target': None}
    """
    kinds = {f.name: str(f.type) for f in fields(RunConfig)}
    values: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in kinds:
            raise ValueError(f"expected FIELD=VALUE with a field among {', '.join(kinds)}, got {setting!r}")
        values[name] = _value(name, kinds[name], text)
    return values


def _value(name: str, kind: str, text: str) -> Any:
    if "None" in kind and text.lower() == "none":
        return None
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        return float(text) if kind == "float" else int(text) if kind.startswith("int") else text
    except (KeyError, ValueError):
        raise ValueError(f"expected {name} as {kind}, got {text!r}") from None
