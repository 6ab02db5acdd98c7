"""Normalise the state after each layer, as in sections 3.5, 4, 4.1 and appendix E of the paper.

A policy acts on two parts: the incidence block ``B``, and the other blocks, ``Phi``. The efficient model has ``B`` only
as ``G = B B^T``; there ``|B|_F^2 = trace(G)``.

In appendix E attention also scales ``B`` by degrees: ``B B^T`` becomes ``D^-1/2 B B^T D^-1/2``. The paper's
degrees are ``D_ii = sum_j |B_ij|``, which it equates with ``L_ii``; they are equal for unit resistances and fixed ``B``
only, so both are available: ``"l1"`` and ``"gram"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Normalization:
    """Which norms are set to one after every layer; zeros stay zero."""

    incidence: Literal["none", "frobenius"] = "none"
    """``B <- B / |B|_F``."""
    features: Literal["none", "frobenius", "columns"] = "none"
    """``Phi <- Phi / |Phi|_F``, or every column of Phi (row of Z) divided by its own norm."""
    only: tuple[str, ...] | None = None
    """The blocks that ``features`` applies to; by default all but the incidence."""
    degrees: Literal["none", "l1", "gram"] = "none"
    """How attention scales ``B``: by ``D^-1/2`` with ``D_ii = sum_j |B_ij|`` (l1) or ``(B B^T)_ii`` (gram)."""

    def scale_incidence(self, incidence: Float[Tensor, "*graphs nodes edges"]) -> Float[Tensor, "*graphs nodes edges"]:
        """Normalise ``B``."""
        return incidence if self.incidence == "none" else _unit(incidence, (-2, -1))

    def scale_gram(self, gram: Float[Tensor, "*graphs nodes nodes"]) -> Float[Tensor, "*graphs nodes nodes"]:
        """Normalise ``G = B B^T``."""
        if self.incidence == "none":
            return gram
        trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        return gram / torch.where(trace > 0, trace, 1.0)

    def scale_features(self, blocks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalise the other blocks, which share one Frobenius norm."""
        scaled = dict(blocks)
        names = [name for name in blocks if self.only is None or name in self.only]
        if self.features == "columns":
            scaled |= {name: _unit(blocks[name], (-2,)) for name in names}
        elif self.features == "frobenius" and names:
            square = torch.stack([blocks[name].square().sum(dim=(-2, -1)) for name in names]).sum(0)
            norm = torch.where(square > 0, square, 1.0).sqrt()[..., None, None]
            scaled |= {name: blocks[name] / norm for name in names}
        return scaled

    def seen_incidence(self, incidence: Float[Tensor, "*graphs nodes edges"]) -> Float[Tensor, "*graphs nodes edges"]:
        """Compute ``D^-1/2 B``, from which queries and keys are computed instead of from ``B``."""
        if self.degrees == "none":
            return incidence
        degrees = incidence.abs() if self.degrees == "l1" else incidence.square()
        return incidence * _inverse_root(degrees.sum(-1))[..., None]

    def seen_gram(
        self, gram: Float[Tensor, "*graphs nodes nodes"], incidence: Float[Tensor, "*graphs nodes edges"] | None
    ) -> Float[Tensor, "*graphs nodes nodes"]:
        """Compute ``D^-1/2 B B^T D^-1/2``; only l1 degrees require ``B`` itself."""
        if self.degrees == "none":
            return gram
        if self.degrees == "gram":
            root = _inverse_root(gram.diagonal(dim1=-2, dim2=-1))
        elif incidence is not None:
            root = _inverse_root(incidence.abs().sum(-1))
        else:
            raise ValueError("degrees='l1' needs the incidence matrix beside its Gram matrix, got none")
        return root[..., :, None] * gram * root[..., None, :]


def _inverse_root(degree: Tensor) -> Tensor:
    """Compute ``degree^-1/2``, zero for isolated nodes and padding."""
    return torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).rsqrt(), 0.0)


def _unit(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    # where() before the root keeps the gradient of a zero column finite
    square = x.square().sum(dim=dim, keepdim=True)
    return x / torch.where(square > 0, square, 1.0).sqrt()


NONE = Normalization()
"""Sections 3.2 to 3.4: the lemmas."""
FROBENIUS = Normalization(incidence="frobenius", features="frobenius")
"""Section 3.5: Figure 1."""
COLUMNS = Normalization(features="columns")
"""Section 4: Lemmas 6 and 8, Corollary 7."""
COLUMNS_AND_INCIDENCE = Normalization(incidence="frobenius", features="columns")
"""Section 4.1 and appendix E: Figure 2, Table 2."""
