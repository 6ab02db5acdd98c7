"""``ohmformer pretrain`` and ``ohmformer encode``."""

from __future__ import annotations

import gzip
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from ohmformer.apps.command_line.errors import one_sentence
from ohmformer.apps.command_line.progress import on_terminal, progress

COLUMN = "Column of a table that holds SMILES; without it a table is SMILES if it has a column named smiles, else edges."
UNWEIGHTED = "Leave out all columns of edge lists but the first two."


def pretrain(
    source: Annotated[Path, typer.Argument(help="SMILES (.smi, .csv) or edge lists, .gz or not; or a PyG dataset folder.")],
    out: Annotated[Path, typer.Option(help="Folder for config.json and model.safetensors.")],
    targets: Annotated[str, typer.Option(help="eigenvectors or multi.")] = "eigenvectors",
    first: Annotated[int, typer.Option(help="Graphs to train on, from the start.")] = 20_000,
    validate: Annotated[int, typer.Option(help="Graphs after those to report the loss on.")] = 2_000,
    dim: Annotated[int, typer.Option(help="Numbers per node: eigenvectors 2 to dim + 1.")] = 6,
    hidden: Annotated[int, typer.Option(help="Channels.")] = 8,
    groups: Annotated[int, typer.Option(help="Sets of weights.")] = 9,
    loops: Annotated[int, typer.Option(help="How often each is applied.")] = 1,
    phi0: Annotated[str, typer.Option(help="random, diagonal.")] = "random",
    evolve: Annotated[bool, typer.Option(help="Whether layers move B too.")] = True,
    epochs: Annotated[int, typer.Option(help="Passes over the graphs.")] = 40,
    batch: Annotated[int, typer.Option(help="Graphs per step.")] = 200,
    lr: Annotated[float, typer.Option(help="Largest learning rate.")] = 0.01,
    last: Annotated[str | None, typer.Option(help="Model that the last layers are taken from, by name or folder.")] = None,
    seed: Annotated[int, typer.Option(help="Of weights, starts and order.")] = 0,
    column: Annotated[str | None, typer.Option(help=COLUMN)] = None,
    unweighted: Annotated[bool, typer.Option("--unweighted", help=UNWEIGHTED)] = False,
) -> None:
    """Pretrain the learned encoding on your own graphs; an interrupted run continues when it is started again."""
    with one_sentence():
        import torch

        from ohmformer.encoding.bulk import Reading, read_graphs
        from ohmformer.encoding.pe import LinearTransformerPE
        from ohmformer.encoding.pretrain import (
            GraphTable,
            Settings,
            edges_once,
            evaluate,
            start_as_subspace_iteration,
            subspace_iteration,
        )
        from ohmformer.encoding.pretrain import pretrain as run

        torch.set_num_threads(1)
        model = LinearTransformerPE(
            dim, norm=None, hidden=hidden, groups=groups, loops=loops, phi0=phi0, evolve=evolve, seed=seed
        )
        if targets == "eigenvectors" and phi0 == "random":
            start_as_subspace_iteration(model, LinearTransformerPE.from_pretrained(last) if last else None)
        elif last:
            raise ValueError(f"expected --last with eigenvectors and random starts, got {targets} and {phi0}")
        entries = list(islice(read_graphs(source, Reading(column, unweighted=unweighted)), first + validate))
        pairs = [edges_once(entry.data) for entry in entries if entry.data is not None]
        if not pairs:
            reason = entries[0].error if entries else "it is empty"
            raise ValueError(f"expected at least one graph in {source.name}, got none: {reason}")
        if len(pairs) < len(entries):
            typer.echo(f"{len(entries) - len(pairs)} of {len(entries)} graphs could not be read", err=True)
        train = GraphTable.of(pairs[:first], targets, dim)
        with progress("pretraining") as show:

            def tell(done: int, steps: int, loss: float) -> None:
                show(done, steps, f"pretraining, loss {loss:.3f}")

            loss = run(model, train, Settings(targets, epochs, batch, lr, seed), progress=tell, checkpoint=out)
    model.save_pretrained(out)
    typer.echo(f"{len(train)} graphs, loss {loss:.4f} in the last epoch, model in {out}")
    if targets == "eigenvectors" and pairs[first:]:
        table, depth = GraphTable.of(pairs[first:], targets, dim), groups * loops
        plain = partial(subspace_iteration, layers=depth, k=dim, columns=hidden)
        typer.echo(
            f"sign-free loss of eigenvectors 2 to {dim + 1} and its mean on {len(table)} other graphs, {depth} layers:"
        )
        for name, encoding in (("learned", model), ("subspace iteration", plain)):
            loss = evaluate(encoding, table, seed=seed)
            typer.echo(f"  {name:20}" + "  ".join(f"{x:.3f}" for x in [*loss.tolist(), float(loss.mean())]))


def _lines(source: Path) -> int | None:
    """Return the number of lines of a file, about the number of molecules; None for a folder."""
    if not source.is_file():
        return None
    with gzip.open(source) if source.suffix.lower() == ".gz" else source.open("rb") as file:
        return sum(1 for _ in file)


def encode(
    source: Annotated[Path, typer.Argument(help="SMILES (.smi, .csv) or edge lists, .gz or not; or a PyG dataset folder.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    encoding: Annotated[
        str, typer.Option(help="zinc, zinc-27, a model's folder, resistance, resistive-embedding, heat or eigenvectors.")
    ] = "zinc",
    column: Annotated[str | None, typer.Option(help=COLUMN)] = None,
    resistance: Annotated[str | None, typer.Option(help="Column of edge lists that holds resistances.")] = None,
    conductance: Annotated[str | None, typer.Option(help="Column of edge lists that holds conductances.")] = None,
    unweighted: Annotated[bool, typer.Option("--unweighted", help=UNWEIGHTED)] = False,
    exact: Annotated[
        list[str] | None,
        typer.Option(help="Exact quantity to write as well: resistances, heat, eigenvalues; again for more."),
    ] = None,
    s: Annotated[float, typer.Option(help="Time of the heat kernel of --exact heat.")] = 0.5,
    chunk: Annotated[int, typer.Option(help="Graphs that are encoded and saved together.")] = 2000,
    cluster: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local.")] = None,
) -> None:
    """Encode every graph of a file; an interrupted run continues when it is started again."""
    import torch

    torch.set_num_threads(1)
    with one_sentence(), progress("encoding") as show:
        from ohmformer.encoding.bulk import Reading, encode_file

        reading = Reading(column, resistance, conductance, unweighted)
        lines = _lines(source) if on_terminal() else None
        rows, bad = encode_file(
            source, out, encoding, reading=reading, exact=exact or (), s=s, chunk=chunk, cluster=cluster,
            progress=lambda rows, bad: show(rows, lines, f"encoding, {bad} graphs bad"),
        )  # fmt: skip
    unread = f", {bad} that could not be read in {out.with_suffix('.bad.csv')}" if bad else ""
    typer.echo(f"{rows - bad} graph{'' if rows - bad == 1 else 's'} in {out}{unread}")
