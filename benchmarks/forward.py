"""The efficient Transformer's forward pass against the plain iteration it implements, in one run, as a ratio."""

from __future__ import annotations

import argparse

import torch

from measure import side_by_side, write_table
from ohmformer import exact
from ohmformer.constructions import (
    Chebyshev,
    ChebyshevCubing,
    GradientDescent,
    NewtonSchulzRoot,
    PowerSeriesRoot,
    SpectralFilter,
    Squaring,
    TaylorHeat,
)
from ohmformer.graph.families import family


def main() -> None:
    """Measure, print, and write results/forward.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--demands", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()

    draw = torch.Generator().manual_seed(0)
    graph = family("erdos-renyi", arguments.nodes, generator=draw, spread=2.0)
    spectrum = exact.spectrum(graph)
    psi = graph.center(torch.randn(arguments.nodes, arguments.demands, generator=draw, dtype=torch.float64))
    laplacian = graph.laplacian()
    deep, shallow = 100, 10
    rows = []
    for construction, layers in (
        (GradientDescent(spectrum), deep),
        (Chebyshev(spectrum), deep),
        (PowerSeriesRoot(spectrum), deep),
        (TaylorHeat(spectrum, 0.1), deep),
        (SpectralFilter(spectrum, lambda x: x**-1.5), deep),
        (Squaring(spectrum), shallow),
        (ChebyshevCubing(spectrum), shallow),
        (NewtonSchulzRoot(spectrum), shallow),
    ):
        blocks = construction.inputs(graph, psi)
        model = construction.efficient(layers).requires_grad_(False)

        def transformer(model=model, blocks=blocks):
            return model(laplacian, blocks)

        def plain(construction=construction, blocks=blocks, layers=layers):
            *_, answer = construction.plain(laplacian, blocks, layers)
            return answer

        gap = float((transformer()[construction.answer] - plain()).abs().max())
        each = {"transformer": transformer, "plain": plain}
        median = side_by_side(each, repeats=3, in_a_row=max(1, arguments.repeats // 3), warmup=2)
        ratio = median["transformer"] / median["plain"]
        rows.append(
            [
                type(construction).__name__, str(layers), f"{1e6 * median['plain'] / layers:.1f}",
                f"{1e6 * median['transformer'] / layers:.1f}", f"{ratio:.2f}", f"{gap:.0e}",
            ]
        )  # fmt: skip
        print("  ".join(rows[-1]))
    title = f"Transformer against plain iteration, {arguments.nodes} nodes, {arguments.demands} demands"
    header = ["construction", "layers", "plain, us a layer", "Transformer, us a layer", "ratio", "difference"]
    notes = (
        f"Medians of {arguments.repeats} alternating runs, float64. The last three keep an n x n state, whatever the number "
        "of demands. A ratio below 1 means that the forward pass saves an addition over the iteration as usually written. "
        "Where it is well above 1, the iteration multiplies by a matrix directly, for which attention needs a product with "
        "an identity block too."
    )
    print(write_table("forward", title, header, rows, notes=notes))


if __name__ == "__main__":
    main()
