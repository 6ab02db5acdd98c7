"""``ohmformer demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("runs/demo"),
) -> None:
    """Solve a small circuit with a Transformer and draw it."""
    with one_sentence(OSError):
        _demo(out)


def _demo(out: Path) -> None:
    from rich.console import Console

    from ohmformer import exact
    from ohmformer.constructions import Chebyshev, ChebyshevCubing, GradientDescent
    from ohmformer.graph import circuit
    from ohmformer.graph.draw import draw_circuit, save, wheatstone
    from ohmformer.graph.files import check_folder

    check_folder(out)
    console = Console()
    graph, injected, positions = wheatstone()
    spectrum = exact.spectrum(graph)
    truth = exact.potentials(graph, injected)
    console.print(f"{graph}, one ampere from node 0 to node 5, condition number {spectrum.condition:.1f}")
    for construction in (GradientDescent(spectrum), Chebyshev(spectrum), ChebyshevCubing(spectrum)):
        layers = construction.layers_for(1e-9 * construction.size)
        potential = construction.run(graph, injected, layers=layers)
        error = float((potential - truth).norm() / truth.norm())
        console.print(f"  {type(construction).__name__:<16} {layers:4d} layers   relative error {error:.1e}")
    flow = circuit.flow(graph, potential)
    resistance = float(potential[0, 0] - potential[5, 0])
    energy = float(circuit.primal_energy(graph, flow)[0])
    console.print(f"effective resistance between nodes 0 and 5: {resistance:.6f} ohm; dissipated power {energy:.6f} W")
    title = f"One ampere through a bridge: {layers} attention layers, R(0, 5) = {resistance:.4f} Ω"
    figure = draw_circuit(graph, potential[:, 0], injected, title=title, positions=positions)
    console.print(f"picture: {save(figure, out / 'circuit.png')}")
