"""The command line: ``ohmformer verify`` and ``ohmformer demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ohmformer.verify import Verification

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_show_locals=False)


@app.command()
def verify(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(help="Which random graphs and starts.")] = 0,
) -> None:
    """Check every lemma and construction on 44 graphs: bounds, and Transformer against plain iteration."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ohmformer.verify import verify as run

    torch.set_num_threads(1)  # matrices of a dozen rows: threads would only wait for each other
    columns = (TextColumn("verifying {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        result = run(
            seed, progress=lambda done, total, name: bar.update(task, completed=done, total=total, description=name)
        )
    if as_json:
        typer.echo(json.dumps(result.as_dict(), indent=2))
    else:
        _print_verification(result)
    if not result.holds:
        raise typer.Exit(1)


def _print_verification(result: Verification) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{result.graphs} graphs, seed {result.seed}: the worst of all graphs and depths"
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    for name in ("construction", "statement"):
        table.add_column(name, no_wrap=True)
    for name in ("depth", "error", "bound", "ratio", "plain", "dense", "bad"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(
            row.construction, row.statement, str(row.layers), f"{row.error:.1e}", f"{row.bound:.1e}",
            f"{row.ratio:.3f}", f"{row.plain:.0e}", f"{row.dense:.0e}", str(row.violations),
            style=None if row.violations == 0 else "bold red",
        )  # fmt: skip
    console.print(table)
    console.print(
        "error, bound: the worst graph at the greatest depth, relative.  ratio: error over bound, the worst of all depths, "
        "rounding counted into the bound.  plain: Transformer against plain iteration.  dense: dense against efficient.",
        style="dim",
    )
    for check in result.violated[:20]:
        console.print(f"violated: {check}", style="red")
    verdict = "0 violations" if result.holds else f"{len(result.violated)} violations"
    console.print(f"{verdict} in {sum(row.checks for row in result.rows)} checks", style="bold")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("runs/demo"),
) -> None:
    """Solve a small circuit with a Transformer, and draw it."""
    from rich.console import Console

    from ohmformer import circuit, exact
    from ohmformer.constructions import Chebyshev, ChebyshevCubing, GradientDescent
    from ohmformer.draw import draw_circuit, save, wheatstone

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


if __name__ == "__main__":
    app()
