"""Random-walker segmentation of a picture as a harmonic function, compared with scikit-image's.

python examples/segment_image.py --out segments.png

Needs scikit-image. Every pixel is a node, and an edge conducts well where two pixels are alike. Pixels that are surely coin
or surely background have fixed potentials; a potential elsewhere is the probability that a random walk ends on a coin.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import ohmformer as ohm
from ohmformer.graph.draw import save


def main() -> None:
    """Solve, compare, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=int, default=2, help="take every so many pixels")
    parser.add_argument("--beta", type=float, default=130.0)
    parser.add_argument("--out", type=Path, default=Path("segments.png"))
    options = parser.parse_args()
    from skimage import data, filters, segmentation  # pyright: ignore[reportMissingImports]

    image = data.coins()[:: options.step, :: options.step] / 255
    above = image - filters.gaussian(image, 40 / options.step)  # the light is not the same everywhere
    seeds = np.zeros(image.shape, dtype=np.int64)  # 1: background, 2: coin, 0: not known
    seeds[above < -0.1], seeds[above > 0.2] = 1, 2

    pixels = ohm.Raster.of(np.ones(image.shape))
    tail, head = pixels.graph.edge_index
    value = torch.as_tensor(image.ravel())
    slope = (value[tail] - value[head]) ** 2
    conductance = torch.exp(-options.beta * slope / (10 * image.std())) + 1e-10  # as scikit-image has it
    pixels = replace(pixels, graph=replace(pixels.graph, resistance=1 / conductance))

    known = seeds > 0
    answer = ohm.harmonic(pixels, known, (seeds[known] == 2).astype(float))
    probability = pixels.image(answer.value[:, 0]).numpy()
    print(f"{pixels.graph}; {answer.method}, no probability is off by more than {answer.residual:.1e}")
    print(f"probabilities from {probability.min():.9f} to {probability.max():.9f}")
    theirs = segmentation.random_walker(image, seeds, beta=options.beta, mode="bf", return_full_prob=True)[1]
    print(f"same label as scikit-image: {np.mean((probability > 0.5) == (theirs > 0.5)):.4%} of pixels")
    print(f"largest difference of probabilities: {np.abs(probability - theirs).max():.1e}")

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    axes[0].imshow(image, cmap="gray")
    axes[0].contour(probability, [0.5], colors="orange", linewidths=1)
    axes[0].set_title("coins, and where the probability is one half")
    shown = axes[1].imshow(probability, cmap="magma")
    axes[1].set_title("probability that a walk ends on a coin")
    figure.colorbar(shown, ax=axes[1], shrink=0.8)
    for axis in axes:
        axis.axis("off")
    print(f"picture: {save(figure, options.out)}")


if __name__ == "__main__":
    main()
