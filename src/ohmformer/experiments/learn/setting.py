"""One setting of an experiment: everything a result depends on, except how long it was trained."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch

from ohmformer.experiments.learn.graphs import GraphDistribution
from ohmformer.experiments.learn.tasks import EIGENVECTORS, LOSSES, SCALE_FREE, TASKS
from ohmformer.transformer.normalize import COLUMNS_AND_INCIDENCE, FROBENIUS, Normalization

FEATURES_ONLY = Normalization(features="frobenius")


@dataclass(frozen=True)
class Stage:
    """A stage of training."""

    until: float
    """The fraction of all steps at which it ends."""
    starts: int
    """Number of perturbed copies of the start that are still trained per seed."""
    batches: float
    """Graphs per step, as a multiple of ``Setting.batch``."""


WHOLE = Stage(1.0, 1, 1.0)
TOURNAMENT = (Stage(0.2, 32, 0.03), Stage(0.77, 16, 0.075), Stage(0.97, 2, 1.0), Stage(1.0, 1, 8.0))
"""Stages for scalars: few graphs suffice to find the basins of attraction, but ranking them takes many, because rare graphs
dominate the loss of a good model."""

GROWN = 0.3
"""From random weights, layers are added in pairs until this fraction of all steps; added layers are identities at first."""


@dataclass(frozen=True)
class Setting:
    """Task, graphs, model, depth, start, loss and seeds.

    >>> Setting("heat", layers=2).name
    'heat-csl-efficient-2-random-demand'
    """

    task: str
    graphs: str = "csl"
    model: str = "efficient"
    layers: int = 3
    init: str = "random"
    """``"random"``, or ``"construction"``: the lemma of the task, slightly perturbed."""
    loss: str = ""
    """``"demand"`` (the paper's, the default) or ``"frobenius"``; for eigenvectors ``"1-10"`` (the default) or ``"1-5"``."""
    seeds: int = 3
    first_seed: int = 0
    nodes: int = 10
    spread: int | float = 2.0
    batch: int = 0
    """Graphs per step and seed; the default is 100 for matrices and 500 for scalars."""
    normalize: str = ""
    """``"paper"``, or ``"features"``: B is not normalised. The latter is the default for heat from its lemma, because the
    answer depends on the scale of B."""

    def __post_init__(self) -> None:
        eigenvectors = self.task == EIGENVECTORS
        defaults = {
            "loss": "1-10" if eigenvectors else "demand",
            "normalize": "features" if self.task == "heat" and self.init == "construction" else "paper",
            "batch": 500 if self.scalars else 100,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        _among("task", self.task, TASKS)
        _among("model", self.model, ("efficient", "dense"))
        _among("init", self.init, ("random", "construction"))
        _among("loss", self.loss, [name for name in LOSSES if name.startswith("1-") == eigenvectors])
        _among("normalize", self.normalize, ("paper", "features"))
        for name in ("layers", "seeds", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name} >= 1, got {getattr(self, name)}")
        if self.first_seed < 0:
            raise ValueError(f"expected a seed >= 0, got {self.first_seed}")
        if eigenvectors and self.nodes < int(self.loss.split("-")[1]):
            raise ValueError(f"expected at least {self.loss.split('-')[1]} nodes for loss {self.loss}, got {self.nodes}")
        _ = self.distribution  # raises an error for a bad family or size

    @property
    def scalars(self) -> bool:
        """Whether the weights remain multiples of the identity, as from a construction (see ``scalars.py``)."""
        return self.model == "efficient" and self.init == "construction" and self.task != EIGENVECTORS

    @property
    def normalization(self) -> Normalization:
        """The normalisation after every layer."""
        if self.normalize == "features":
            return FEATURES_ONLY if self.task != EIGENVECTORS else Normalization(features="columns")
        return COLUMNS_AND_INCIDENCE if self.task == EIGENVECTORS else FROBENIUS

    @cached_property
    def distribution(self) -> GraphDistribution:
        """The distribution of the graphs."""
        return GraphDistribution(self.graphs, self.nodes, self.spread, unit=self.task in SCALE_FREE)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of training: float64 for scalars, float32 for matrices."""
        return torch.float64 if self.scalars else torch.float32

    @property
    def all_seeds(self) -> range:
        """The seeds that are trained together."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def name(self) -> str:
        """The setting as a file name; a short hash at its end encodes the other differences from the defaults."""
        head = f"{self.task}-{self.graphs}-{self.model}-{self.layers}-{self.init}-{self.loss}"
        plain = Setting(self.task, self.graphs, self.model, self.layers, self.init, self.loss)
        if self == plain:
            return head
        return f"{head}-{blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=4).hexdigest()}"

    def stage(self, step: int, steps: int) -> Stage:
        """Return the stage of a step; only scalars have several."""
        return next(s for s in TOURNAMENT if step < s.until * steps or s is TOURNAMENT[-1]) if self.scalars else WHOLE

    def depth(self, step: int, steps: int) -> int:
        """Return the number of layers that are run at a step: the first three, then two more at regular intervals.

        >>> [Setting("electric", layers=9).depth(step, 100) for step in (0, 9, 10, 20, 30, 99)]
        [3, 3, 5, 7, 9, 9]
        """
        if self.init != "random" or self.layers <= 3:
            return self.layers
        additions = math.ceil((self.layers - 3) / 2)
        return min(3 + 2 * int(additions * step / (GROWN * steps)), self.layers)

    def samples(self, step: int, steps: int) -> int:
        """Return the number of graphs per seed at a step."""
        return max(round(self.batch * self.stage(step, steps).batches), 1)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain types, for JSON."""
        return asdict(self)


def seconds(text: str) -> float:
    """Convert a budget such as ``40s``, ``5m`` or ``1h`` to seconds.

    >>> seconds("1.5m")
    90.0
    """
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        value = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"expected a budget such as 40s, 5m or 1h, got {text!r}")
    return value


def _among(what: str, got: str, allowed: list[str] | tuple[str, ...]) -> None:
    if got not in allowed:
        raise ValueError(f"expected {what} among {', '.join(allowed)}, got {got!r}")
