"""The parameter-efficient Transformer (equation ``e:z_dynamics_efficient``): scalars on ``B``, blocks on ``Phi``.

    S   = alpha_K alpha_Q G + K Q^T                          similarity, one per head
    Phi <- Phi + sum over heads S Phi W_V^T + Phi W_R^T
    B   <- A B,   A = (1 + alpha_R) I + sum over heads alpha_V S

``B`` enters only as ``G = B B^T``, with ``G <- A G A^T``, so the edge axis is not part of the state. In every construction
alpha_V = alpha_R = 0: then ``G`` stays the input Laplacian, ``S`` is never formed, and a layer takes one product with ``G``
per block that attention reads. Weight blocks that a program leaves out cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ohmformer.transformer.attention import apply_similarity, forming_is_cheaper
from ohmformer.transformer.blocks import INCIDENCE, Blocks, Coefficient, Head, Layer, Program, Width, as_matrix, map_layer
from ohmformer.transformer.normalize import NONE, Normalization
from ohmformer.transformer.trace import Trace

GRAM = "gram"
"""Name of ``G`` in a trace."""


class EfficientTransformer(nn.Module):
    """The efficient linear Transformer of a :class:`Program`, for constructed and for trained weights.

    All multiples of the identity are in one parameter vector, ``scalars``; diagonals and full matrices are in ``tensors``.

    >>> from ohmformer import Graph
    >>> model = EfficientTransformer.random({"phi": 3}, layers=2, generator=torch.Generator().manual_seed(0))
    >>> g = Graph.from_edges([(0, 1), (1, 2)]).to(dtype=torch.float32)
    >>> model(g.laplacian(), {"phi": torch.ones(3, 3)})["phi"].shape
    torch.Size([3, 3])
    """

    def __init__(self, program: Program, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.blocks = program.blocks
        self.normalization = program.normalization
        scalars: list[float] = []
        tensors: list[Tensor] = []
        for layer in program.layers:
            _check(layer, program.blocks)
        store = partial(_store, scalars, tensors, dtype)
        self._layers = program.map_layers(lambda layer: map_layer(layer, store))
        self._steps = Program(self.blocks, self._layers).map_layers(_Step)
        self.scalars = nn.Parameter(torch.tensor(scalars, dtype=dtype))
        self.tensors = nn.ParameterList(t.clone() for t in tensors)

    @classmethod
    def random(
        cls,
        blocks: Mapping[str, int],
        *,
        layers: int,
        heads: int = 1,
        normalization: Normalization = NONE,
        generator: torch.Generator,
        scale: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> EfficientTransformer:
        """Draw Gaussian weights of standard deviation ``scale``, 1 / features by default, for all scalars and blocks."""
        scale = 1 / max(sum(blocks.values()), 1) if scale is None else scale

        def draw(*shape: int) -> Tensor:
            return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

        def weights() -> Blocks:
            on_incidence: dict[tuple[str, str], Coefficient] = {(INCIDENCE, INCIDENCE): float(draw())}
            return on_incidence | {(t, s): draw(blocks[t], blocks[s]) for t in blocks for s in blocks}

        def layer() -> Layer:
            return Layer(tuple(Head(weights(), weights(), weights()) for _ in range(heads)), weights())

        return cls(Program({INCIDENCE: "edges", **blocks}, [layer() for _ in range(layers)], normalization), dtype)

    def program(self) -> Program:
        """Return the current weights by blocks; another model, dense or efficient, can be built from them."""
        values = [*self.scalars.tolist(), *(t.detach().clone() for t in reversed(list(self.tensors)))]
        layers = Program(self.blocks, self._layers).map_layers(lambda layer: map_layer(layer, values.__getitem__))
        return Program(self.blocks, layers, self.normalization)

    @overload
    def forward(
        self,
        gram: Tensor,
        features: Mapping[str, Tensor],
        *,
        incidence: Tensor | None = None,
        trace: Literal[False] = False,
    ) -> dict[str, Tensor]: ...
    @overload
    def forward(
        self, gram: Tensor, features: Mapping[str, Tensor], *, incidence: Tensor | None = None, trace: Literal[True]
    ) -> Trace: ...
    def forward(
        self,
        gram: Tensor,
        features: Mapping[str, Tensor],
        *,
        incidence: Tensor | None = None,
        trace: bool = False,
    ) -> dict[str, Tensor] | Trace:
        """Compute the named blocks after the last layer, or with ``trace=True`` after every layer, including ``G``.

        Args:
            gram: ``G = B B^T``, ``(..., nodes, nodes)``; may be a sparse CSR matrix if neither weights nor normalisation
                change ``B``.
            features: the blocks of Phi, ``(..., nodes, width)``; missing blocks start at zero.
            incidence: ``B`` itself, needed for l1 degrees only.
            trace: return every state.
        """
        state = self._start(features)
        coefficients = self._coefficients()
        seen = self.normalization.seen_gram(gram, incidence)
        states: list[Mapping[str, Tensor]] = [{**state, GRAM: gram}]
        for step in self._steps:
            state, mover = step(seen, state, coefficients)
            if self.normalization.features != "none":
                state = self.normalization.scale_features(state)
            if mover is not None:
                gram = mover @ gram @ mover.mT
                incidence = None if incidence is None else mover @ incidence
            if mover is not None or self.normalization.incidence != "none":
                gram = self.normalization.scale_gram(gram)
                incidence = None if incidence is None else self.normalization.scale_incidence(incidence)
                seen = self.normalization.seen_gram(gram, incidence)
            if trace:
                states.append({**state, GRAM: gram})
        return Trace(states) if trace else state

    def _start(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = [name for name in self.blocks if name != INCIDENCE]
        unknown = [name for name in features if name not in names]
        if unknown or not features:
            raise ValueError(f"expected blocks among {', '.join(names)}, got {', '.join(unknown) or 'none'}")
        first = next(iter(features.values()))
        widths: dict[Width, int] = {width: width for width in self.blocks.values() if isinstance(width, int)}
        for name, x in features.items():
            width = widths.setdefault(self.blocks[name], x.shape[-1])
            if x.shape[-1] != width:
                raise ValueError(f"expected block {name!r} of width {width}, got {x.shape[-1]}")
        for name in names:
            if self.blocks[name] not in widths:
                raise ValueError(
                    f"expected a block of width {self.blocks[name]!r} to be given, so that {name!r} has a width"
                )
        return {
            name: features[name] if name in features else first.new_zeros(*first.shape[:-1], widths[self.blocks[name]])
            for name in names
        }

    def _coefficients(self) -> list[Any]:
        """Return all coefficients by index: scalars as numbers, or as 0-dimensional tensors if they need derivatives."""
        scalars, tensors = self.scalars, list(self.tensors)[::-1]
        if not (torch.is_grad_enabled() and scalars.requires_grad):
            try:
                if forward_ad.unpack_dual(scalars).tangent is None:
                    return [*scalars.tolist(), *tensors]
            except RuntimeError:  # in vmap, where every copy of the model has its own scalars
                pass
        return [*scalars.unbind(), *tensors]


class _Step:
    """An executable layer: blocks are grouped so that no product is computed twice. Coefficients are passed by index."""

    def __init__(self, layer: Layer) -> None:
        self.heads = [_Attend(head) for head in layer.heads]
        self.skip_own = [(target, i) for (target, source), i in layer.skip.items() if target == source != INCIDENCE]
        self.skip_other = [(target, source, i) for (target, source), i in layer.skip.items() if target != source]
        self.alpha_skip = layer.skip.get((INCIDENCE, INCIDENCE))
        self.evolves = self.alpha_skip is not None or any(head.alpha_value is not None for head in self.heads)

    def __call__(self, seen: Tensor, state: dict[str, Tensor], coefficients: Any) -> tuple[dict[str, Tensor], Tensor | None]:
        """Compute ``Phi + sum over heads S Phi W_V^T + Phi W_R^T``, and ``A`` in ``B <- A B``, or None if ``B`` is fixed.

        Blocks to which nothing is added are returned unchanged.
        """
        out: dict[str, Tensor | None] = dict(state)
        for name, i in self.skip_own:
            coefficient = coefficients[i]
            if not isinstance(coefficient, float):
                out[name] = _add(state[name], coefficient, state[name])
            elif coefficient == -1:  # the block is set to zero
                out[name] = None
            else:
                out[name] = (1 + coefficient) * state[name]
        for target, source, i in self.skip_other:
            out[target] = _add(out[target], coefficients[i], state[source])
        mover = self._skip_of_incidence(seen, coefficients) if self.evolves else None
        for head in self.heads:
            moves = head.alpha_value is not None
            similarity = head.similarity(seen, state, coefficients) if moves or head.prefers_similarity(state) else None
            if mover is not None and moves:
                mover = mover + coefficients[head.alpha_value] * similarity
            for source, targets in head.value.items():
                x = state[source]
                product = head.apply(seen, state, x, coefficients) if similarity is None else similarity @ x
                for target, i in targets:
                    out[target] = _add(out[target], coefficients[i], product)
        filled = {name: torch.zeros_like(state[name]) if x is None else x for name, x in out.items()}
        return filled, mover

    def _skip_of_incidence(self, seen: Tensor, coefficients: Any) -> Tensor:
        identity = torch.eye(seen.shape[-1], dtype=seen.dtype, device=seen.device)
        return identity if self.alpha_skip is None else (1 + coefficients[self.alpha_skip]) * identity


class _Attend:
    """An executable head: ``S = alpha_K alpha_Q G + sum over slots K Q^T``."""

    def __init__(self, head: Head) -> None:
        pair = (INCIDENCE, INCIDENCE)
        self.alpha_value = head.value.get(pair)
        self.alphas = (head.key[pair], head.query[pair]) if pair in head.key and pair in head.query else None
        self.value = _grouped(head.value, by="source")
        key, query = _grouped(head.key, by="target"), _grouped(head.query, by="target")
        self.slots = [(key[slot], query[slot]) for slot in key if slot in query]

    def prefers_similarity(self, state: dict[str, Tensor]) -> bool:
        """Tell whether forming ``S`` saves multiplications: it does if the blocks that are read are many or wide."""
        if self.alphas is not None or not self.slots:
            return False
        nodes = next(iter(state.values())).shape[-2]
        width = sum(state[key_terms[0][0]].shape[-1] for key_terms, _ in self.slots)
        out = sum(state[source].shape[-1] for source in self.value)
        return forming_is_cheaper(nodes, width, out)

    def apply(self, seen: Tensor, state: dict[str, Tensor], x: Tensor, coefficients: Any) -> Tensor:
        """Compute ``S x`` without forming ``S``."""
        total = None
        if self.alphas is not None:
            key, query = self.alphas
            total = _add(None, coefficients[key] * coefficients[query], seen @ x)
            if not self.slots:
                return total
        for k, q in self._keys_and_queries(state, coefficients):
            product = apply_similarity(k, q, x)
            total = product if total is None else total + product
        return torch.zeros_like(x) if total is None else total

    def similarity(self, seen: Tensor, state: dict[str, Tensor], coefficients: Any) -> Tensor:
        """Compute ``S`` explicitly, which a layer that changes ``B`` requires."""
        total = None
        if self.alphas is not None:
            key, query = self.alphas
            total = _add(None, coefficients[key] * coefficients[query], seen)
        for k, q in self._keys_and_queries(state, coefficients):
            total = k @ q.mT if total is None else total + k @ q.mT
        return torch.zeros_like(seen) if total is None else total

    def _keys_and_queries(self, state: dict[str, Tensor], coefficients: Any) -> Iterator[tuple[Tensor, Tensor]]:
        for key_terms, query_terms in self.slots:
            yield _combine(key_terms, state, coefficients), _combine(query_terms, state, coefficients)


def _grouped(blocks: Blocks, by: Literal["source", "target"]) -> dict[str, list[tuple[str, Any]]]:
    """Group all blocks but the incidence's as source -> [(target, coefficient)], or by target."""
    groups: dict[str, list[tuple[str, Any]]] = {}
    for (target, source), coefficient in blocks.items():
        if target != INCIDENCE:
            name, other = (source, target) if by == "source" else (target, source)
            groups.setdefault(name, []).append((other, coefficient))
    return groups


def _combine(terms: list[tuple[str, int]], state: dict[str, Tensor], coefficients: Any) -> Tensor:
    out = None
    for source, i in terms:
        out = _add(out, coefficients[i], state[source])
    assert out is not None  # a slot has at least one term
    return out


def _add(base: Tensor | None, coefficient: Any, x: Tensor) -> Tensor:
    """Compute ``base + x W^T`` for a coefficient that is a number, a 0-dimensional tensor, a diagonal or a matrix."""
    if isinstance(coefficient, float):
        if base is None:
            return x if coefficient == 1 else coefficient * x
        return torch.add(base, x, alpha=coefficient)
    term = x @ coefficient.mT if coefficient.ndim == 2 else coefficient * x
    return term if base is None else base + term


def _store(scalars: list[float], tensors: list[Tensor], dtype: torch.dtype, coefficient: Coefficient) -> int:
    """Append a coefficient to the list of its kind; return its index, which for tensors is -1, -2, ..."""
    if isinstance(coefficient, int | float):
        scalars.append(float(coefficient))
        return len(scalars) - 1
    tensors.append(torch.as_tensor(coefficient, dtype=dtype))
    return -len(tensors)


def _check(layer: Layer, names: Mapping[str, Any]) -> None:
    for blocks in (layer.skip, *(b for head in layer.heads for b in (head.value, head.query, head.key))):
        for (target, source), coefficient in blocks.items():
            for name in (target, source):
                if name not in names:
                    raise ValueError(f"expected blocks among {', '.join(names)}, got {name!r}")
            if (target == INCIDENCE) != (source == INCIDENCE):
                raise ValueError(f"the efficient model cannot mix incidence and features, got {source!r} -> {target!r}")
            if target == INCIDENCE and not isinstance(coefficient, int | float):
                raise ValueError("the efficient model has scalars on the incidence block, got a diagonal or a matrix")
            if names[target] != names[source] or (
                isinstance(names[target], int) and not isinstance(coefficient, int | float)
            ):
                rows, columns = names[target], names[source]
                if not (isinstance(rows, int) and isinstance(columns, int)):
                    raise ValueError(f"expected blocks of equal width, got {target!r} ({rows}) from {source!r} ({columns})")
                as_matrix(coefficient, rows, columns)
