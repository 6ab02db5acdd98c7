"""Lemma 1 with weights written by hand, and a momentum term that the paper does not have.

python examples/lemma_by_hand.py
"""

from __future__ import annotations

import torch

from ohmformer import Graph, exact
from ohmformer.transformer import EfficientTransformer, Head, Layer, LinearTransformer, Program

LAYERS = 40
BLOCKS = {"incidence": "edges", "demand": "demands", "potential": "demands", "previous": "demands"}


def downhill(step: float, momentum: float) -> Layer:
    """``phi <- phi - step (L phi - psi) + momentum (phi - phi_before)`` as one layer of linear attention.

    The similarity of two nodes is the inner product of their rows of B, which is the Laplacian's entry; the value is the
    potential, times -step; the rest is done by the skip matrix, which also keeps the previous potential.
    """
    laplacian = {"query": {("incidence", "incidence"): 1.0}, "key": {("incidence", "incidence"): 1.0}}
    return Layer(
        heads=(Head(value={("potential", "potential"): -step}, **laplacian),),
        skip={
            ("potential", "demand"): step,
            ("potential", "potential"): momentum,
            ("potential", "previous"): -momentum,
            ("previous", "potential"): 1.0,
            ("previous", "previous"): -1.0,
        },
    )


def main() -> None:
    """Two settings on one ring, in both models."""
    ring = Graph.from_edges([(i, (i + 1) % 12) for i in range(12)])
    psi = torch.zeros(12, 1, dtype=torch.float64)
    psi[0], psi[5] = 1.0, -1.0
    truth = exact.potentials(ring, psi)
    spectrum = exact.spectrum(ring)
    root = spectrum.condition**0.5
    polyak = 4 / (spectrum.lmax**0.5 + spectrum.lmin**0.5) ** 2, ((root - 1) / (root + 1)) ** 2
    for name, (step, momentum) in {"Lemma 1": (1 / spectrum.lmax, 0.0), "with momentum": polyak}.items():
        program = Program(BLOCKS, [downhill(step, momentum)] * LAYERS)
        efficient = EfficientTransformer(program, torch.float64)
        dense = LinearTransformer.of(program, program.layout(nodes=12, edges=12, demands=1), torch.float64)
        with torch.no_grad():
            phi = efficient(ring.laplacian(), {"demand": psi})["potential"]
            tokens = dense.layout.pack({"incidence": ring.incidence(), "demand": psi})
            same = dense.layout.unpack(dense(tokens))["potential"]
        error = float((phi - truth).norm() / truth.norm())
        gap = float((phi - same).norm())
        print(f"{name:<14} {LAYERS} layers, relative error {error:.1e}, dense against efficient {gap:.0e}")


if __name__ == "__main__":
    main()
