"""Linear attention (equation ``e:linear_attn``), with several heads.

The paper writes ``Attn(Z) = W^V Z Z^T W^Q^T W^K Z`` for features x nodes. With tokens as rows, ``X = Z^T``, this is
``(X W_K^T)(X W_Q^T)^T (X W_V^T) = K Q^T V``: the paper's *key* is what is usually called query, and vice versa.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def linear_attention(
    x: Float[Tensor, "*graphs nodes features"],
    value: Float[Tensor, "heads features features"],
    query: Float[Tensor, "heads features features"],
    key: Float[Tensor, "heads features features"],
    seen: Float[Tensor, "*graphs nodes features"] | None = None,
) -> Float[Tensor, "*graphs nodes features"]:
    """Compute ``K Q^T V``, summed over heads; queries and keys are made from ``seen`` if given, values always from ``x``."""
    per_head = x.unsqueeze(-3)
    compared = per_head if seen is None else seen.unsqueeze(-3)
    return apply_similarity(compared @ key.mT, compared @ query.mT, per_head @ value.mT).sum(-3)


def apply_similarity(
    k: Float[Tensor, "*batch nodes width"], q: Float[Tensor, "*batch nodes width"], v: Float[Tensor, "*batch nodes out"]
) -> Float[Tensor, "*batch nodes out"]:
    """Compute ``K Q^T V`` as ``(K Q^T) V`` or ``K (Q^T V)``, whichever takes fewer multiplications."""
    if forming_is_cheaper(k.shape[-2], k.shape[-1], v.shape[-1]):
        return (k @ q.mT) @ v
    return k @ (q.mT @ v)


def forming_is_cheaper(nodes: int, width: int, out: int) -> bool:
    """Tell whether ``(K Q^T) V`` takes fewer multiplications than ``K (Q^T V)``."""
    return nodes * (width + out) < 2 * width * out
