"""Linear Transformers that solve graph problems: verify the lemmas, ask a graph in a file, or train one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ohmformer.apps.command_line import learn as learning
from ohmformer.apps.command_line.encode import encode, pretrain
from ohmformer.apps.command_line.explore import explore
from ohmformer.apps.command_line.molecules import train
from ohmformer.apps.command_line.report import report

if TYPE_CHECKING:
    import numpy as np

    from ohmformer.graph.files import LabelledGraph
    from ohmformer.solve.answer import Answer
    from ohmformer.verify import Verification

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_show_locals=False)
app.command()(encode)
app.command()(pretrain)
app.command()(train)
app.command()(explore)


@app.command()
def verify(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    seed: Annotated[int, typer.Option(help="Which random graphs and starts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write too, for the report.")] = None,
) -> None:
    """Check every lemma and construction on 44 graphs: bounds, and Transformer against plain iteration."""
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ohmformer.verify import verify as run

    torch.set_num_threads(1)  # matrices of a dozen rows: threads would only wait for each other
    columns = (TextColumn("verifying {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        result = run(
            seed, progress=lambda done, total, name: bar.update(task, completed=done, total=total, description=name)
        )
    text = json.dumps(result.as_dict(), indent=2)
    if as_json:
        typer.echo(text)
    else:
        _print_verification(result)
    if out is not None:
        from ohmformer.graph.files import whole_file

        with whole_file(out) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
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


class Task(StrEnum):
    """What to ask of a graph."""

    resistance = "resistance"
    """Effective resistance of every edge."""
    all_pairs = "all-pairs"
    """Effective resistance of every pair of nodes."""
    kirchhoff = "kirchhoff"
    """The sum of the effective resistances of all pairs."""
    embedding = "embedding"
    """A point per node, whose squared distances are effective resistances."""
    flow = "flow"
    """The unit flow from one node to another, on the edges."""
    potentials = "potentials"
    """The potentials of that flow, on the nodes."""
    heat = "heat"
    """Where a unit of heat from one node is after some time."""
    eigenvectors = "eigenvectors"
    """The eigenvectors of the smallest nonzero eigenvalues."""


@dataclass(frozen=True)
class Question:
    """What ``ohmformer solve`` is asked."""

    task: Task
    source: str | None
    sink: str | None
    s: float
    k: int
    eps: float | None
    tol: float | None
    method: str
    plot: Path | None


@app.command()
def solve(
    file: Annotated[Path, typer.Argument(help="Edge list (.csv, .tsv, .txt), .graphml, .mtx or SciPy .npz.")],
    task: Annotated[Task, typer.Option(help="What to ask.")] = Task.resistance,
    resistance: Annotated[str | None, typer.Option(help="Column or attribute with resistances.")] = None,
    conductance: Annotated[str | None, typer.Option(help="Column or attribute with conductances.")] = None,
    source: Annotated[str | None, typer.Option("--from", help="Node that flow or heat comes from.")] = None,
    sink: Annotated[str | None, typer.Option("--to", help="Node that flow goes to.")] = None,
    s: Annotated[float, typer.Option(help="Time, for heat.")] = 0.5,
    k: Annotated[int, typer.Option(help="How many eigenvectors, or coordinates of the embedding.")] = 6,
    eps: Annotated[float | None, typer.Option(help="Estimate resistances of large graphs within 1 +- eps.")] = None,
    tol: Annotated[float | None, typer.Option(help="The largest residual that will do: 1e-6, or eps / 1000.")] = None,
    method: Annotated[str, typer.Option(help="A construction or solver by name.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Table to write: .csv, .tsv, .npz or .parquet.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to write, for flow and potentials.")] = None,
) -> None:
    """Answer a question about the graph in a file, with a certificate. Ctrl-C stops a long solve at the best so far."""
    try:
        if plot is not None and task not in (Task.flow, Task.potentials):
            raise ValueError(f"expected --task flow or potentials for --plot, got {task}")
        from ohmformer.graph.files import read_graph, write_table

        named = read_graph(file, resistance=resistance, conductance=conductance)
        typer.echo(f"{named.graph} from {file}", err=True)
        table, answer = _ask(named, Question(task, source, sink, s, k, eps, tol, method, plot))
        bound = "none" if answer.bound is None else f"{answer.bound:.1e}"
        note = f"; {answer.note}" if answer.note else ""
        certificate = f"residual {answer.residual:.1e}, proved bound {bound}"
        typer.echo(f"{answer.method}, {answer.layers} layers, {certificate}{note}", err=True)
        if out is not None:
            typer.echo(f"table: {write_table(out, table)}", err=True)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if out is None:
        typer.echo(",".join(table))
        for row in zip(*(column.tolist() for column in table.values()), strict=True):
            typer.echo(",".join(f"{cell:.9g}" if isinstance(cell, float) else str(cell) for cell in row))


def _ask(named: LabelledGraph, ask: Question) -> tuple[dict[str, np.ndarray], Answer]:
    """The answer to a question, and the table that holds it, column by column."""
    import numpy as np
    import torch

    import ohmformer as ohm
    from ohmformer.solve.resistance import projections

    graph, labels = named.graph, np.array(named.labels, dtype=str)
    certain: dict[str, Any] = {"method": ask.method} if ask.tol is None else {"method": ask.method, "tol": ask.tol}

    def node(label: str | None, option: str) -> int:
        if label is None:
            raise ValueError(f"expected {option} NODE for --task {ask.task}, got none")
        return named.number(label)

    edges = {"u": labels[graph.edge_index[0].numpy()], "v": labels[graph.edge_index[1].numpy()]}
    if ask.task is Task.resistance:
        unit, total = ("projections", projections(ask.eps, graph.num_edges)) if ask.eps else ("layers", None)
        with _bar(unit, total) as progress:
            answer = ohm.effective_resistance(graph, eps=ask.eps, progress=progress, **certain)
        return {**edges, "resistance": graph.resistance.numpy(), "effective_resistance": answer.value.numpy()}, answer
    if ask.task is Task.all_pairs:
        with _bar("layers") as progress:
            answer = ohm.effective_resistance(graph, "all", progress=progress, **certain)
        u, v = np.triu_indices(graph.num_nodes, 1)
        return {"u": labels[u], "v": labels[v], "effective_resistance": answer.value.numpy()[u, v]}, answer
    if ask.task is Task.kirchhoff:
        with _bar("random signs" if ask.eps else "layers") as progress:
            answer = ohm.kirchhoff_index(graph, eps=ask.eps, progress=progress, **certain)
        return {"kirchhoff_index": answer.value.reshape(1).numpy()}, answer
    if ask.task is Task.embedding:
        with _bar("layers") as progress:
            answer = ohm.resistive_embedding(graph, ask.k, progress=progress, **certain)
        return {"node": labels, **{f"x{i + 1}": answer.value[:, i].numpy() for i in range(ask.k)}}, answer
    if ask.task is Task.heat:
        signal = torch.zeros(graph.num_nodes, 1, dtype=torch.float64)
        signal[node(ask.source, "--from")] = 1.0
        with _bar("heat"):
            answer = ohm.heat_kernel(graph, ask.s, signal, **certain)
        return {"node": labels, "heat": answer.value[:, 0].numpy()}, answer
    if ask.task is Task.eigenvectors:
        with _bar("eigenvectors"):
            answer = ohm.eigenvectors(graph, ask.k, **certain)
        return {"node": labels, **{f"v{i + 1}": answer.value[:, i].numpy() for i in range(ask.k)}}, answer
    source, sink = node(ask.source, "--from"), node(ask.sink, "--to")
    if graph.components[source] != graph.components[sink]:
        raise ValueError(f"expected a way from {ask.source} to {ask.sink}, they are in different components")
    demands = torch.zeros(graph.num_nodes, dtype=torch.float64)
    demands[source] += 1.0
    demands[sink] -= 1.0
    with _bar("layers") as progress:
        answer = ohm.electric_flow(graph, demands, progress=progress, **certain)
    if ask.plot is not None:
        from ohmformer.graph.draw import draw_circuit, save

        title = f"One unit from {ask.source} to {ask.sink}: effective resistance {float(answer.energy[0]):.4g}"
        figure = draw_circuit(graph, answer.potential[:, 0], demands, title=title, labels=named.labels)
        typer.echo(f"picture: {save(figure, ask.plot)}", err=True)
    if ask.task is Task.potentials:
        return {"node": labels, "potential": answer.potential[:, 0].numpy()}, answer
    return {**edges, "flow": answer.flow[:, 0].numpy()}, answer


@contextmanager
def _bar(unit: str, total: int | None = None) -> Iterator[Callable[[int, float], None]]:
    """A progress bar on standard error, if that is a terminal: how many units are done, and the residual."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(unit, total=total)
        yield lambda done, residual: bar.update(task, completed=done, description=f"{unit}, residual {residual:.1e}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("runs/demo"),
) -> None:
    """Solve a small circuit with a Transformer, and draw it."""
    from rich.console import Console

    from ohmformer import exact
    from ohmformer.constructions import Chebyshev, ChebyshevCubing, GradientDescent
    from ohmformer.graph import circuit
    from ohmformer.graph.draw import draw_circuit, save, wheatstone

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


app.command()(learning.learn)
app.command()(learning.reproduce)
app.command()(learning.probe)
app.command()(report)


if __name__ == "__main__":
    app()
