"""The weights of a program as the page draws them: matrices by named blocks, each distinct layer once."""

from __future__ import annotations

from typing import Any

import torch

from ohmformer.transformer.blocks import Blocks, Coefficient, Layer, Program

CELLS = 5
"""How many rows of a block are drawn if their number depends on the graph; there a coefficient is a multiple of I."""


def drawn_weights(program: Program) -> dict[str, Any]:
    """List the weights: ``blocks``, cells of each; ``layers``, matrices of distinct layers; ``order``, which is layer l."""
    layers: list[Any] = []

    def number(layer: Layer) -> int:
        layers.append(_matrices(layer))
        return len(layers) - 1

    return {
        "blocks": {name: width if isinstance(width, int) else CELLS for name, width in program.blocks.items()},
        "order": program.map_layers(number),
        "layers": layers,
    }


def _matrices(layer: Layer) -> list[dict[str, Any]]:
    several = len(layer.heads) > 1
    parts: list[tuple[str, str, Blocks]] = []
    for h, head in enumerate(layer.heads, 1):
        which = f", head {h}" if several else ""
        parts += [("V", f"value{which}", head.value), ("Q", f"query{which}", head.query), ("K", f"key{which}", head.key)]
    parts.append(("R", "skip", layer.skip))
    return [
        {"name": name, "role": role, "blocks": [[t, s, _plain(c)] for (t, s), c in blocks.items()]}
        for name, role, blocks in parts
    ]


def _plain(coefficient: Coefficient) -> Any:
    """Round a coefficient (number, diagonal or matrix) to six digits."""
    if isinstance(coefficient, int | float):
        return float(f"{coefficient:.6g}")
    values = torch.as_tensor(coefficient, dtype=torch.float64).tolist()
    return [[float(f"{x:.6g}") for x in row] if isinstance(row, list) else float(f"{row:.6g}") for row in values]
