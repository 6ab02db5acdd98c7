"""Learned against classical: ten numbers a layer beside the best construction of the same depth.

python benchmarks/learned.py --molecules zinc_test.smi.gz [--out results]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ohmformer import exact
from ohmformer.constructions import Chebyshev, ChebyshevCubing, Learned
from ohmformer.constructions.learned import eigenvalues, learned, relative_error
from ohmformer.graph import Graph, Spectrum
from ohmformer.graph.draw import save
from ohmformer.graph.families import family
from ohmformer.graph.files import write_text
from ohmformer.graph.smiles import bonds, read_smiles
from ohmformer.native import machine

NOTE = """Two kinds are trained for electric flow, on molecules and on weighted grids: with B as it is, beside Chebyshev's
layers, and with layers that change B, beside Chebyshev cubing (both have n x n states). The classical ones are made for the
true interval of the very graphs they are tested on; the learned ones know their training graphs only. Errors are relative,
root mean square over graphs and isotropic demands."""
DEPTHS = (1, 3, 5, 7, 9)
CLASSICAL = {False: Chebyshev, True: ChebyshevCubing}
INVERSE = Chebyshev(Spectrum(1.0, 1.0))
KINDS = {False: "B as it is", True: "B changed"}


def molecules(path: Path, first: int, count: int) -> Graph:
    """Graphs of some molecules of a file, every bond with resistance 1."""
    found = (bonds(text) for text in islice(read_smiles(path), first, first + count))
    return Graph.collate([Graph.from_edges(edges, num_nodes=n) for n, edges in found if edges])


def drawn(name: str, sizes: tuple[int, ...], spread: float, seed: int) -> Graph:
    """Graphs of a family with resistances ``exp(U[-spread, spread])``."""
    draw = torch.Generator().manual_seed(seed)
    return Graph.collate([family(name, n, generator=draw, spread=spread) for n in sizes])


def classical(evolve: bool, spectrum: Spectrum, layers: int) -> Callable[[Tensor], Tensor]:
    """The polynomial of a construction, by its plain iteration on matrices of one row."""
    built = CLASSICAL[evolve](spectrum)

    def response(values: Tensor) -> Tensor:
        x = values.flatten()[:, None, None]
        one = torch.ones_like(x)
        blocks = {"demand": one} if not evolve else {"identity": one, "residual": one, "pinv": built.start * one}
        *_, answer = built.plain(x, blocks, layers)
        return answer.view_as(values)

    return response


def main() -> None:
    """Train, measure, and write ``learned.md`` and ``learned.svg``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--molecules", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--grids", type=int, default=10, help="grids to train on, and as many to test on")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides = [10 + 20 * i // max(options.grids - 1, 1) for i in range(options.grids)]
    squares = tuple(side * side for side in sides)
    train = {"molecules": molecules(options.molecules, 0, 300), "grids": drawn("grid", squares, 1.0, 0)}
    test = {"molecules": molecules(options.molecules, 300, 300), "grids": drawn("grid", squares, 1.0, 1)}
    lines = [
        "| trained and tested on | layers | kind | learned | classical, true interval | factor |",
        "|---|---|---|---|---|---|",
    ]
    built: dict[tuple[str, int, bool], Learned] = {}
    curves: dict[tuple[str, str], list[float]] = {}
    begun = time.process_time()
    for name, graphs in test.items():
        spectrum, known = exact.spectrum(graphs), eigenvalues(graphs, INVERSE)
        for layers in DEPTHS:
            for evolve in KINDS:
                one = built[name, layers, evolve] = learned("electric", train[name], layers=layers, evolve=evolve)
                mine, other = (relative_error(h, *known) for h in (one.response, classical(evolve, spectrum, layers)))
                row = [name, str(layers), KINDS[evolve], f"{mine:.2e}", f"{other:.2e}", f"{other / mine:.2f}"]
                lines.append(f"| {' | '.join(row)} |")
                print(lines[-1], flush=True)
                curves.setdefault((name, f"learned, {KINDS[evolve]}"), []).append(mine)
                curves.setdefault((name, CLASSICAL[evolve].__name__), []).append(other)
    trained = time.process_time() - begun
    outside = _outside(built, test)
    draw_curves(curves, options.out / "learned.svg")
    text = [
        "# Learned against classical",
        f"`python benchmarks/learned.py`, {machine.one_line()}; {trained:.0f} s of processor time.",
        NOTE, "![error against depth](learned.svg)", "\n".join(lines),
        "Outside of what they were trained on, 9 layers (classical: for the true interval of the row's graphs):", outside,
    ]  # fmt: skip
    write_text(options.out / "learned.md", "\n\n".join(text) + "\n")


def _outside(built: dict[tuple[str, int, bool], Learned], test: dict[str, Graph]) -> str:
    """Errors on other sizes, families and weights."""
    other = {f"grids, {n} nodes": drawn("grid", (n,) * 4, 1.0, 2) for n in (16, 100, 400, 1024)}
    other |= {f"grids, 400 nodes, spread {spread:g}": drawn("grid", (400,) * 4, spread, 3) for spread in (0.0, 2.0, 3.0)}
    other |= {
        f"{name}, {n} nodes": drawn(name, (n,) * 6, 0.0, 4)
        for name in ("path", "tree", "erdos-renyi", "barabasi-albert")
        for n in (10, 100, 1000)
    }
    heads = [f"{name}, {KINDS[evolve]}" for name in test for evolve in KINDS]
    lines = [f"| graphs | {' | '.join(heads)} | Chebyshev | ChebyshevCubing |", f"|{'---|' * (3 + len(heads))}"]
    for name, graphs in {**test, **other}.items():
        spectrum, known = exact.spectrum(graphs), eigenvalues(graphs, INVERSE)
        ours = [built[trained, DEPTHS[-1], evolve].response for trained in test for evolve in KINDS]
        theirs = [classical(evolve, spectrum, DEPTHS[-1]) for evolve in KINDS]
        cells = [relative_error(h, *known) for h in (*ours, *theirs)]
        lines.append(f"| {name} | {' | '.join(f'{x:.2e}' if x == x else 'overflow' for x in cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def draw_curves(curves: dict[tuple[str, str], list[float]], path: Path) -> None:
    """Draw errors against depth, a panel for each family."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, _ in curves))
    figure = Figure(figsize=(4.5 * len(names), 4), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for (where, what), values in curves.items():
            if where == name:
                axis.plot(DEPTHS, [max(x, 1e-16) for x in values], marker="o", label=what)
        axis.set(title=name, xlabel="layers", ylabel="relative error", yscale="log", xticks=DEPTHS)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    save(figure, path)


if __name__ == "__main__":
    main()
