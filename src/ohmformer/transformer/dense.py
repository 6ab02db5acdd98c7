"""The paper's Transformer to the letter (equation ``e:z_dynamics``): one token per node, one matrix for all features.

    Z <- Z + sum over heads W^V Z Z^T W^Q^T W^K Z + W^R Z,   then a normalisation

The number of weights grows with the square of the number of edges; the model is here because the lemmas and Figures 1 and 2
are about it. In applications use :class:`~ohmformer.transformer.efficient.EfficientTransformer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ohmformer.transformer.attention import linear_attention
from ohmformer.transformer.blocks import INCIDENCE, Layer, Layout, Program
from ohmformer.transformer.normalize import NONE, Normalization
from ohmformer.transformer.trace import Trace


class DenseLayer(nn.Module):
    """Weights of one layer: stacked value, query and key matrices of all heads, and the skip matrix ``W^R``."""

    def __init__(self, value: Tensor, query: Tensor, key: Tensor, skip: Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)
        self.query = nn.Parameter(query)
        self.key = nn.Parameter(key)
        self.skip = nn.Parameter(skip)

    @classmethod
    def of(cls, layer: Layer, layout: Layout, dtype: torch.dtype) -> DenseLayer:
        """Build the full weight matrices of a layer of a program."""
        weights = [layout.matrices([getattr(head, kind) for head in layer.heads]) for kind in ("value", "query", "key")]
        return cls(*(w.to(dtype) for w in (*weights, layout.matrix(layer.skip))))

    def forward(
        self, x: Float[Tensor, "*graphs nodes features"], seen: Float[Tensor, "*graphs nodes features"]
    ) -> Float[Tensor, "*graphs nodes features"]:
        """Compute ``X + Attn(X) + X W_R^T``, with queries and keys computed from ``seen``."""
        skipped = x + x @ self.skip.mT  # first, so that W^R = -I zeroes a block before small terms are added
        return skipped + linear_attention(x, self.value, self.query, self.key, seen)


class LinearTransformer(nn.Module):
    """The linear Transformer on tokens ``(..., nodes, features)``; weights are trainable, leading axes batches of graphs.

    >>> layout = Layout({"incidence": 3, "phi": 2})
    >>> model = LinearTransformer.random(layout, layers=2, heads=4, generator=torch.Generator().manual_seed(0))
    >>> model(torch.ones(7, 5, 5)).shape
    torch.Size([7, 5, 5])
    """

    def __init__(self, layout: Layout, layers: Sequence[DenseLayer], normalization: Normalization = NONE) -> None:
        super().__init__()
        self.layout = layout
        distinct = {id(layer): layer for layer in layers}
        number = {key: i for i, key in enumerate(distinct)}
        self.layers = nn.ModuleList(distinct.values())
        self.order = tuple(number[id(layer)] for layer in layers)
        """Indices into ``layers`` in the order of execution; a layer that is given several times shares its weights."""
        self.normalization = normalization

    @classmethod
    def of(cls, program: Program, layout: Layout, dtype: torch.dtype = torch.float64) -> LinearTransformer:
        """Build the model of a program; layers that are the same object in the program share their weights."""
        layers = program.map_layers(lambda layer: DenseLayer.of(layer, layout, dtype))
        return cls(layout, layers, program.normalization)

    @classmethod
    def random(
        cls,
        layout: Layout,
        *,
        layers: int,
        heads: int = 1,
        normalization: Normalization = NONE,
        generator: torch.Generator,
        scale: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LinearTransformer:
        """Draw Gaussian weights of standard deviation ``scale``, 1 / features by default; ``W^R`` starts at zero."""
        h = layout.total
        scale = 1 / max(h, 1) if scale is None else scale

        def draw() -> Tensor:
            return scale * torch.randn(heads, h, h, generator=generator, dtype=dtype)

        stack = [DenseLayer(draw(), draw(), draw(), torch.zeros(h, h, dtype=dtype)) for _ in range(layers)]
        return cls(layout, stack, normalization)

    @overload
    def forward(self, tokens: Tensor, *, trace: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, tokens: Tensor, *, trace: Literal[True]) -> Trace: ...
    def forward(self, tokens: Float[Tensor, "*graphs nodes features"], *, trace: bool = False) -> Tensor | Trace:
        """Compute the tokens after the last layer, or with ``trace=True`` the named blocks after every layer."""
        if tokens.shape[-1] != self.layout.total:
            raise ValueError(f"expected tokens of {self.layout.total} features, got {tokens.shape[-1]}")
        states = [tokens]
        for i in self.order:
            tokens = self._normalize(self.layers[i](tokens, self._seen(tokens)))
            if trace:
                states.append(tokens)
        return Trace([self.layout.unpack(x) for x in states]) if trace else tokens

    def _seen(self, tokens: Tensor) -> Tensor:
        if self.normalization.degrees == "none" or INCIDENCE not in self.layout.widths:
            return tokens
        blocks = self.layout.unpack(tokens)
        return self.layout.pack(blocks | {INCIDENCE: self.normalization.seen_incidence(blocks[INCIDENCE])})

    def _normalize(self, tokens: Tensor) -> Tensor:
        if self.normalization == NONE:
            return tokens
        features = self.layout.unpack(tokens)
        incidence = {name: features.pop(name) for name in (INCIDENCE,) if name in features}
        scaled = {name: self.normalization.scale_incidence(x) for name, x in incidence.items()}
        return self.layout.pack(scaled | self.normalization.scale_features(features))
