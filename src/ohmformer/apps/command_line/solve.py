"""``ohmformer solve``: a graph in a file and a question in, a table with a certificate out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ohmformer.apps.command_line.errors import FlagCommand, one_sentence
from ohmformer.apps.command_line.questions import BESIDE, Question, Task, advise, check_flags
from ohmformer.apps.command_line.shards import solve_shards

if TYPE_CHECKING:
    from ohmformer.apps.command_line.answers import Solved
    from ohmformer.graph.edge_list import NamedGraph

PAIR = "--pair"
STDIN = Path("-")
FILE, ASKED, ANSWER = "How the file is read", "What is asked", "What is written"
"""Headings of the help text."""
CERTIFICATE = ("method", "layers", "residual", "error", "error_kind", "bound", "seconds", "stopped", "note")
"""Fields of an answer in ``--json``."""
METHODS = ("auto", "gradient-descent", "squaring", "chebyshev", "cubing", "conjugate", "elimination", "direct")
"""As in :mod:`ohmformer.solve.plan`; repeated here so that completion need not import torch; a test compares them."""


def _option(panel: str, words: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=words, rich_help_panel=panel, **more)


class SolveCommand(FlagCommand):
    """A command whose ``--pair`` takes two values and can be given several times."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the two values after every ``--pair`` into one, which :func:`solve` splits again."""
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
        Path,
        typer.Argument(
            help="Edges (.csv, .tsv, .txt), .graphml, .mtx, SciPy .npz, MATPOWER .m, each also as .gz; - for "
            "standard input; or a folder of shards.",
            show_default=False,
        ),
    ],
    task: Annotated[Task, _option(ASKED, f"What to ask: {', '.join(Task)}.", metavar="TASK")] = Task.resistance,
    resistance: Annotated[
        str | None,
        _option(FILE, "Column (name or number) or attribute with resistances; 'entries' for the values of a matrix."),
    ] = None,
    conductance: Annotated[str | None, _option(FILE, "The same for conductances.")] = None,
    unit: Annotated[bool, _option(FILE, "One ohm for every edge, whatever the file holds.", "--unit")] = False,
    source_column: Annotated[
        str | None, _option(FILE, "Column (name or number) that edges run from, if the header's is unusual.", "--source")
    ] = None,
    target_column: Annotated[str | None, _option(FILE, "Column that edges run to.", "--target")] = None,
    sep: Annotated[str | None, _option(FILE, "Between columns: ',' ';' tab space or one character.")] = None,
    header: Annotated[
        bool | None, _option(FILE, "Whether the first line names columns, if it is unclear.", "--header/--no-header")
    ] = None,
    symmetrize: Annotated[
        bool, _option(FILE, "Merge edges listed in both directions; take directed edges as undirected.", "--symmetrize")
    ] = False,
    source: Annotated[str | None, _option(ASKED, "Node that flow or heat comes from.", "--from")] = None,
    sink: Annotated[str | None, _option(ASKED, "Node that flow goes to.", "--to")] = None,
    pair: Annotated[
        list[str] | None,
        _option(ASKED, "Two nodes, for their resistance or current; again for more pairs.", PAIR, metavar="A B"),
    ] = None,
    pairs: Annotated[Path | None, _option(ASKED, "File with two columns of nodes: pairs, as --pair.")] = None,
    demands: Annotated[Path | None, _option(ASKED, "Array of nodes x demands (.npy), for potentials of shards.")] = None,
    fixed: Annotated[Path | None, _option(ASKED, "File with a column of nodes and columns of values, for harmonic.")] = None,
    partial: Annotated[
        bool, _option(ASKED, "NaN on components without a fixed node, instead of an error.", "--partial")
    ] = False,
    keep: Annotated[
        list[str] | None, _option(ASKED, "Node to keep, or file with a column of them; again for more.", metavar="NODE")
    ] = None,
    outage: Annotated[int | None, _option(ASKED, "Row of the branch that is out, from 1, for lodf.")] = None,
    s: Annotated[float | None, _option(ASKED, "Time, for heat: 0.5 unless given.")] = None,
    k: Annotated[int | None, _option(ASKED, "How many eigenvectors, or coordinates of the embedding: 6.")] = None,
    eps: Annotated[
        float | None, _option(ASKED, "Estimate resistances of large graphs, or sparsify, within 1 +- eps.")
    ] = None,
    seed: Annotated[int | None, _option(ASKED, "Of the samples of sparsify: 0.")] = None,
    tol: Annotated[float | None, _option(ASKED, "The largest residual that will do: 1e-6, or eps / 1000.")] = None,
    tol_of: Annotated[
        str | None, _option(ASKED, "What --tol is for: 'residual', or 'error' in energy norm or of any resistance.")
    ] = None,
    laplacian: Annotated[
        str | None, _option(ASKED, "Of heat and eigenvectors: 'combinatorial', or 'normalized' by degrees.")
    ] = None,
    method: Annotated[str, _option(ASKED, "A construction or solver by name.", autocompletion=lambda: [*METHODS])] = "auto",
    out: Annotated[Path | None, _option(ANSWER, "Table to write, with all digits: .csv, .tsv, .npz or .parquet.")] = None,
    plot: Annotated[Path | None, _option(ANSWER, "Picture to write, for flow and potentials.")] = None,
    as_json: Annotated[
        bool, _option(ANSWER, "Print one JSON object: certificate, and the table with all digits.", "--json")
    ] = False,
    explained: Annotated[bool, _option(ANSWER, "Show how it would be solved, and stop.", "--explain")] = False,
) -> None:
    """Answer a question about the graph in a file, with a certificate. Ctrl-C stops a long solve at the best result so far.

    The table is printed with the digits that its certificate supports; all other messages go to standard error.
    """
    with one_sentence(OSError):
        given = {
            "--from": source, "--to": sink, "--pair": pair or None, "--pairs": pairs, "--s": s, "--k": k, "--eps": eps,
            "--tol": tol, "--tol-of": tol_of, "--laplacian": laplacian,
            "--plot": plot, "--explain": explained, "--outage": outage, "--fixed": fixed, "--partial": partial,
            "--keep": keep or None, "--seed": seed, "--method": None if method == "auto" else method, "--demands": demands,
        }  # fmt: skip
        if file.is_dir():
            reading = {
                "--resistance": resistance, "--conductance": conductance, "--unit": unit, "--source": source_column,
                "--target": target_column, "--sep": sep, "--symmetrize": symmetrize,
                "--no-header" if header is False else "--header": None if header is None else True,
            }  # fmt: skip
            solve_shards(file, task, {**given, **reading, "--json": as_json}, out)
            return
        check_flags(task, given)
        inputs = [x for x in (file, pairs, fixed) if x is not None]
        if inputs.count(STDIN) > 1:
            raise ValueError("expected standard input (-) for one file, as it can be read once, got it for several")
        _check_outputs(task, out, plot, explained, as_json, [*inputs, *map(Path, keep or ())])
        from ohmformer.apps.command_line.answers import explain
        from ohmformer.graph.contents import read_contents
        from ohmformer.graph.files import LISTS, parse_graph, read_values

        contents = read_contents(file)
        others = pairs is not None or fixed is not None or bool(keep)
        has_columns = not others or contents.kind in LISTS  # otherwise --sep applies only to the other files
        named = parse_graph(
            contents, resistance=resistance, conductance=conductance, unit=unit, source=source_column, target=target_column,
            sep=sep if has_columns else None, header=header, symmetrize=symmetrize,
        )  # fmt: skip
        if not as_json:
            typer.echo(f"{named.graph} from {contents.name}", err=True)
            for note in named.notes:
                typer.echo(f"note: {note}", err=True)
        asked = _asked_pairs(named, pair, pairs, sep)
        ask = Question(
            task, source, sink, asked, 0.5 if s is None else s, 6 if k is None else k, eps, tol, method, outage, seed or 0,
            _kept_nodes(named, keep, sep), None if fixed is None else read_values(fixed, named, sep=sep), partial, tol_of,
            laplacian or "combinatorial",
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
        if not as_json:
            _print_certificate(solved)
        written = _write(solved, named, ask, out, plot)
        _tell(solved, named, ask, contents.name, written, as_json)
    if solved.answer.stopped:
        raise typer.Exit(3)


def _solved(named: NamedGraph, ask: Question) -> Solved:
    """Answer a question about a graph; error messages name flags instead of Python arguments."""
    from ohmformer.apps.command_line import answers, networks

    try:
        return (answers.ASK | networks.ASK)[ask.task](named, replace(ask, predicted=answers.predict(named.graph, ask)))
    except ValueError as error:
        raise ValueError(advise(str(error), ask, named.graph.num_nodes)) from None


def _check_outputs(
    task: Task, out: Path | None, plot: Path | None, explained: bool, as_json: bool, inputs: list[Path]
) -> None:
    """Reject output files that cannot be written or that are inputs, before any work."""
    from ohmformer.graph.draw import check_picture
    from ohmformer.graph.files import check_table

    if explained and (out is not None or plot is not None or as_json):
        raise ValueError("expected --explain without --out, --plot and --json, it writes nothing")
    tables = [] if out is None else [out, *(_beside(out, name) for name in BESIDE.get(task, ()))]
    for table in tables:
        check_table(table)
        for given in inputs:
            if given != STDIN and table.exists() and given.exists() and table.samefile(given):
                raise ValueError(f"expected --out to write other files than those that are read, {table} is one of them")
    if plot is not None:
        check_picture(plot)
    if out is not None and plot is not None and out.absolute() == plot.absolute():
        raise ValueError(f"expected different files for --out and --plot, got {out} twice")


def _beside(out: Path, name: str) -> Path:
    """Return the file for another table beside that of ``--out``."""
    return out.with_suffix(f".{name}{out.suffix}")


def _asked_pairs(
    named: NamedGraph, pair: list[str] | None, pairs: Path | None, sep: str | None
) -> list[tuple[str, str]] | None:
    """Return the pairs of ``--pair`` followed by those of ``--pairs``; None if neither is given."""
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
    """Return the nodes of every ``--keep``: a node, or those in a file if no node has that name."""
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


def _write(solved: Solved, named: NamedGraph, ask: Question, out: Path | None, plot: Path | None) -> dict[str, Path]:
    """Draw the figure, then write every file through a temporary one; return the paths by content."""
    from ohmformer.graph.files import write_table

    figure, written = None, {}
    if plot is not None and solved.potential is not None and solved.injected is not None:
        from ohmformer.graph.draw import draw_circuit

        drop = float(solved.potential[named.number(ask.source or "")] - solved.potential[named.number(ask.sink or "")])
        title = f"One unit from {ask.source} to {ask.sink}: effective resistance {drop:.4g}"
        figure = draw_circuit(named.graph, solved.potential, solved.injected, title=title, labels=named.labels)
    if out is not None:
        written["table"] = write_table(out, solved.table)
        for name, table in solved.beside.items():
            written[name] = write_table(_beside(out, name), table)
    if plot is not None and figure is not None:
        from ohmformer.graph.draw import save

        written["picture"] = save(figure, plot)
    return written


def _tell(solved: Solved, named: NamedGraph, ask: Question, name: str, written: dict[str, Path], as_json: bool) -> None:
    """Print the table unless it was written, or everything as JSON, and name the files that were written."""
    from ohmformer.apps.command_line.printing import as_json as to_json
    from ohmformer.apps.command_line.printing import print_table, rows_of

    tables = {"table": solved.table, **solved.beside}
    if as_json:
        graph, answer = named.graph, solved.answer
        told = {
            "file": name,
            "task": str(ask.task),
            "graph": {"nodes": graph.num_nodes, "edges": graph.num_edges, "components": graph.num_components},
            "certificate": {key: getattr(answer, key) for key in CERTIFICATE},
            "notes": [*named.notes, *solved.notes],
            "files": {key: str(path) for key, path in written.items()},
            **{key: rows_of(table) for key, table in tables.items() if key not in written},
        }
        typer.echo(to_json(told))
        return
    for key, path in written.items():
        typer.echo(f"{key}: {path}", err=True)
    if "table" not in written:
        print_table(solved.table, solved.uncertain(solved.table))
        if solved.beside and "eigenvalues" not in solved.beside:
            typer.echo(f"note: --out FILE writes {' and '.join(solved.beside)}, too", err=True)
