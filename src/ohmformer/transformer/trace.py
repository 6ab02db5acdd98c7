"""The states of a forward pass: every block after every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Trace:
    """The named blocks before the first layer and after each layer."""

    states: Sequence[Mapping[str, Tensor]]

    def __getitem__(self, block: str) -> Float[Tensor, "states *graphs nodes _"]:
        """Return one block after every layer, stacked; entry 0 is the input."""
        return torch.stack([state[block] for state in self.states])

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.states) - 1

    @property
    def final(self) -> Mapping[str, Tensor]:
        """The state after the last layer."""
        return self.states[-1]
