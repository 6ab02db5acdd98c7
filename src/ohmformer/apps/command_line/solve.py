"""``ohmformer solve``: a graph in a file and a question in, a table with a certificate out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import print_table
from ohmformer.apps.command_line.questions import ASK, Question, Solved, Task, check_flags, explain, in_flags
from ohmformer.apps.command_line.shards import solve_shards

if TYPE_CHECKING:
    from ohmformer.graph.edge_list import NamedGraph

PAIR = "--pair"


class SolveCommand(TyperCommand):
    """A command whose ``--pair`` takes two values and can be given several times."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the two values after every ``--pair`` into one, which :func:`solve` takes apart."""
        joined: list[str] = []
        rest = list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                joined += [word, *rest]
                break
            if word.startswith(f"{PAIR}="):
                rest.insert(0, word.removeprefix(f"{PAIR}="))
                word = PAIR
            joined.append(word)
            if word == PAIR:
                joined.append(json.dumps([rest.pop(0) for _ in rest[:2]]))
        return super().parse_args(ctx, joined)


def solve(
    file: Annotated[
        Path, typer.Argument(help="Edges (.csv, .tsv, .txt), .graphml, .mtx, SciPy .npz, MATPOWER .m; or shards.")
    ],
    task: Annotated[Task, typer.Option(help="What to ask.")] = Task.resistance,
    resistance: Annotated[
        str | None, typer.Option(help="Column (name or number) or attribute with resistances; 'entries' of a matrix.")
    ] = None,
    conductance: Annotated[str | None, typer.Option(help="The same for conductances.")] = None,
    unit: Annotated[bool, typer.Option("--unit", help="One ohm for every edge, whatever the file holds.")] = False,
    source_column: Annotated[
        str | None, typer.Option("--source", help="Column (name or number) that edges run from, if the header's is unusual.")
    ] = None,
    target_column: Annotated[str | None, typer.Option("--target", help="Column that edges run to.")] = None,
    sep: Annotated[str | None, typer.Option(help="Between columns: ',' ';' tab space or one character.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether the first line names columns, if it is unclear.")
    ] = None,
    symmetrize: Annotated[
        bool, typer.Option("--symmetrize", help="Merge edges listed in both directions; take directed edges as undirected.")
    ] = False,
    source: Annotated[str | None, typer.Option("--from", help="Node that flow or heat comes from.")] = None,
    sink: Annotated[str | None, typer.Option("--to", help="Node that flow goes to.")] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(PAIR, metavar="A B", help="Two nodes, for their resistance or current; again for more pairs."),
    ] = None,
    pairs: Annotated[Path | None, typer.Option(help="File with two columns of nodes: pairs, as --pair.")] = None,
    demands: Annotated[Path | None, typer.Option(help="Array of nodes x demands (.npy), for potentials of shards.")] = None,
    fixed: Annotated[
        Path | None, typer.Option(help="File with a column of nodes and columns of values, for harmonic.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="NaN on components without a fixed node, instead of an error.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Node to keep, or file with a column of them; again for more.")
    ] = None,
    outage: Annotated[int | None, typer.Option(help="Row of the branch that is out, from 1, for lodf.")] = None,
    s: Annotated[float | None, typer.Option(help="Time, for heat: 0.5 unless given.")] = None,
    k: Annotated[int | None, typer.Option(help="How many eigenvectors, or coordinates of the embedding: 6.")] = None,
    eps: Annotated[
        float | None, typer.Option(help="Estimate resistances of large graphs, or sparsify, within 1 +- eps.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the samples of sparsify: 0.")] = None,
    tol: Annotated[float | None, typer.Option(help="The largest residual that will do: 1e-6, or eps / 1000.")] = None,
    tol_of: Annotated[
        str | None, typer.Option(help="What --tol is for: 'residual', or 'error' in energy norm or of any resistance.")
    ] = None,
    method: Annotated[str, typer.Option(help="A construction or solver by name.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Table to write: .csv, .tsv, .npz or .parquet.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture to write, for flow and potentials.")] = None,
    explained: Annotated[bool, typer.Option("--explain", help="Show how it would be solved, and stop.")] = False,
) -> None:
    """Answer a question about the graph in a file, with a certificate. Ctrl-C stops a long solve at the best so far."""
    with one_sentence(OSError):
        given = {
            "--from": source, "--to": sink, "--pair": pair or None, "--pairs": pairs, "--s": s, "--k": k, "--eps": eps,
            "--tol": tol, "--tol-of": tol_of,
            "--plot": plot, "--explain": explained, "--outage": outage, "--fixed": fixed, "--partial": partial,
            "--keep": keep or None, "--seed": seed, "--method": None if method == "auto" else method, "--demands": demands,
        }  # fmt: skip
        if file.is_dir():
            solve_shards(file, task, given, out)
            return
        check_flags(task, given)
        _check_outputs(out, plot, explained)
        from ohmformer.graph.files import DELIMITERS, read_graph, read_values

        others = pairs is not None or fixed is not None or bool(keep)
        has_columns = not others or file.suffix.lower() in DELIMITERS  # otherwise --sep is for the others alone
        named = read_graph(
            file, resistance=resistance, conductance=conductance, unit=unit, source=source_column, target=target_column,
            sep=sep if has_columns else None, header=header, symmetrize=symmetrize,
        )  # fmt: skip
        typer.echo(f"{named.graph} from {file}", err=True)
        for note in named.notes:
            typer.echo(f"note: {note}", err=True)
        asked = _asked_pairs(named, pair, pairs, sep)
        ask = Question(
            task, source, sink, asked, 0.5 if s is None else s, 6 if k is None else k, eps, tol, method, outage, seed or 0,
            _kept_nodes(named, keep, sep), None if fixed is None else read_values(fixed, named, sep=sep), partial, tol_of,
        )  # fmt: skip
        for node in (source, sink):
            if node is not None:
                named.number(node)
        if explained:
            typer.echo(explain(named.graph, ask))
            return
        if plot is not None:
            from ohmformer.graph.draw import check_picture

            check_picture(plot, named.graph)
        solved = _solved(named, ask)
        _print_certificate(solved)
        _write(solved, named, ask, out, plot)


def _solved(named: NamedGraph, ask: Question) -> Solved:
    """Answer a question about a graph; what the library says in Python's words is said in flags."""
    from ohmformer.apps.command_line import networks

    try:
        return (ASK | networks.ASK)[ask.task](named, ask)
    except ValueError as error:
        raise ValueError(in_flags(str(error), ask, named.graph.num_nodes)) from None


def _check_outputs(out: Path | None, plot: Path | None, explained: bool) -> None:
    """Refuse files that could not be written, before any work."""
    from ohmformer.graph.draw import check_picture
    from ohmformer.graph.files import check_table

    if explained and (out is not None or plot is not None):
        raise ValueError("expected --explain without --out and --plot, it writes nothing")
    if out is not None:
        check_table(out)
    if plot is not None:
        check_picture(plot)
    if out is not None and plot is not None and out.absolute() == plot.absolute():
        raise ValueError(f"expected different files for --out and --plot, got {out} twice")


def _asked_pairs(
    named: NamedGraph, pair: list[str] | None, pairs: Path | None, sep: str | None
) -> list[tuple[str, str]] | None:
    """The pairs of ``--pair`` and then those of ``--pairs``; None if neither is given."""
    if not pair and pairs is None:
        return None
    from ohmformer.graph.files import read_pairs

    asked = []
    for joined in pair or []:
        nodes = json.loads(joined)
        if len(nodes) != 2:
            raise ValueError(f"expected two nodes after {PAIR}, got {', '.join(nodes) or 'none'}")
        for node in nodes:
            named.number(node)
        asked.append((nodes[0], nodes[1]))
    return asked if pairs is None else asked + read_pairs(pairs, named, sep=sep)


def _kept_nodes(named: NamedGraph, keep: list[str] | None, sep: str | None) -> list[str] | None:
    """The nodes of every ``--keep``: its own, or those of a file if no node is called so."""
    if not keep:
        return None
    from ohmformer.graph.files import read_nodes

    found: list[str] = []
    for given in keep:
        is_file = given not in named.labels and Path(given).is_file()
        found += read_nodes(Path(given), named, sep=sep) if is_file else [named.labels[named.number(given)]]
    return list(dict.fromkeys(found))


def _print_certificate(solved: Solved) -> None:
    answer = solved.answer
    for note in solved.notes:
        typer.echo(f"note: {note}", err=True)
    bound = "none" if answer.bound is None else f"{answer.bound:.1e}"
    note = f"; {answer.note}" if answer.note else ""
    error = "" if answer.error is None else f", error {answer.error:.1e} ({answer.error_kind})"
    certificate = f"residual {answer.residual:.1e}{error}, proved bound {bound}"
    typer.echo(f"{answer.method}, {answer.layers} layers, {certificate}{note}", err=True)
    if "eigenvalues" in solved.beside:
        rows = zip(*(column.tolist() for column in solved.beside["eigenvalues"].values()), strict=True)
        typer.echo("eigenvalues: " + ", ".join(f"{name} {value:.9g}" for name, value in rows), err=True)


def _write(solved: Solved, named: NamedGraph, ask: Question, out: Path | None, plot: Path | None) -> None:
    """Draw first, then write every file under a temporary name, then print."""
    from ohmformer.graph.files import write_table

    figure = None
    if plot is not None and solved.potential is not None and solved.injected is not None:
        from ohmformer.graph.draw import draw_circuit

        drop = float(solved.potential[named.number(ask.source or "")] - solved.potential[named.number(ask.sink or "")])
        title = f"One unit from {ask.source} to {ask.sink}: effective resistance {drop:.4g}"
        figure = draw_circuit(named.graph, solved.potential, solved.injected, title=title, labels=named.labels)
    if out is not None:
        typer.echo(f"table: {write_table(out, solved.table)}", err=True)
        for name, table in solved.beside.items():
            typer.echo(f"{name}: {write_table(out.with_suffix(f'.{name}{out.suffix}'), table)}", err=True)
    if plot is not None and figure is not None:
        from ohmformer.graph.draw import save

        typer.echo(f"picture: {save(figure, plot)}", err=True)
    if out is None:
        print_table(solved.table)
        if solved.beside and "eigenvalues" not in solved.beside:
            typer.echo(f"note: --out FILE writes {' and '.join(solved.beside)}, too", err=True)
