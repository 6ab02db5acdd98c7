"""One graph over several processes: a layer by one, two and four of them, a large solve, and many molecules, killed twice.

    python benchmarks/distributed.py layer --edges 10000000          # results/distributed.md: seconds, bytes, memory, model
    python benchmarks/distributed.py large --edges 100000000         # results/distributed-large.md
    python benchmarks/distributed.py encode molecules.smi            # results/distributed-encode.md
    python benchmarks/distributed.py model                           # results/distributed-model.md: larger graphs, on paper

The cost model of ``docs/scale.md``: a layer of k demands takes ``max(c k I, X) + c k B``, c seconds for an entry of the
Laplacian and a demand (measured by one process on a graph of half the edges), I and B the entries of interior and of other
rows, ``X = l q + b / w`` the exchange of b bytes with q neighbours (l and w measured by exchanges alone).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from measure import megabytes, write_table
from ohmformer.constructions import Chebyshev
from ohmformer.graph import Spectrum
from ohmformer.solve import distributed
from ohmformer.solve.distributed.streams import CHUNK, Columns
from ohmformer.solve.engines.base import Watch
from ohmformer.solve.engines.chebyshev import chebyshev_round, layers_for
from ohmformer.solve.engines.chebyshev_native import one_round
from ohmformer.solve.scaled import empty_huge_pages

FOLDER = Path("runs/distributed")
LAYERS = 10


def grid_edges(edges: int) -> distributed.EdgeStream:
    """A square grid of about so many edges, in the order of its rows."""
    side = math.isqrt(edges // 2)

    def read() -> Iterator[Columns]:
        step = max(CHUNK // (2 * side), 1)
        for first in range(0, side, step):
            number = np.arange(first * side, min(first + step, side) * side)
            right, down = number[number % side < side - 1], number[number < side * (side - 1)]
            yield np.concatenate([right, down]), np.concatenate([right + 1, down + side]), None

    return distributed.EdgeStream(f"grid of {side} x {side}", read, 2 * side * (side - 1))


def random_edges(edges: int, degree: int = 20) -> distributed.EdgeStream:
    """Random edges, so many ends a node on average."""
    nodes = 2 * edges // degree

    def read() -> Iterator[Columns]:
        for first in range(0, edges, CHUNK):
            ends = np.random.default_rng(first).integers(0, nodes, (2, min(CHUNK, edges - first)))
            yield ends[0], ends[1], None

    name = "random edges" if degree == 20 else f"random edges, {degree} ends a node"
    return distributed.EdgeStream(name, read, edges)


def smaller(make: Callable[..., distributed.EdgeStream], edges: int) -> distributed.EdgeStream:
    """A graph of half the edges in which an entry takes as long: of as many nodes, if the cache cannot hold them."""
    return make(edges // 2) if make is grid_edges else make(edges // 2, 10)


def run(processes: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work`` returns in each of so many processes of one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    started = [
        context.Process(target=_process, args=(theirs, rank, processes, port, work, arguments))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    for process in started:
        process.start()
    for _, theirs in pipes:
        theirs.close()
    found = [ours.recv() for ours, _ in pipes]
    for process in started:
        process.join()
    return found


def _process(pipe: Any, rank: int, processes: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    pipe.send(work(*arguments))
    dist.destroy_process_group()


def peak() -> float:
    """The largest memory of this process so far, in bytes; ``getrusage`` would count its parent's as well."""
    return 2.0**20 * megabytes("VmHWM")


def time_layers(folder: Path, demands: int, repeats: int) -> dict[str, float]:
    """Seconds of a layer and of an exchange, and what this process holds and sends."""
    base = peak()
    shard = distributed.Shard.load(folder)
    construction = Chebyshev(Spectrum(0.5, 1.5))
    step, in_c = shard.step(construction.gamma, torch.float32), demands >= 17
    state = empty_huge_pages(3, shard.width, demands, dtype=torch.float32, device=torch.device("cpu"))
    times, exchanges, sent = [], [], 0
    for i in range(repeats + 1):
        state[0] = torch.randn(shard.width, demands, generator=torch.Generator().manual_seed(0))
        shard.group.gather(None)
        before, start = shard.group.sent, time.perf_counter()
        (one_round if in_c else chebyshev_round)(step, state, construction, LAYERS, Watch(None))
        shard.group.gather(None)
        if i:
            times.append((time.perf_counter() - start) / LAYERS)
        sent = (shard.group.sent - before) // LAYERS
    x = state[0].view(torch.int8)[:, :demands].contiguous() if in_c else state[0]
    for _ in range(repeats):
        shard.group.gather(None)
        start = time.perf_counter()
        for _ in range(LAYERS):
            shard.group.finish(shard.begin_exchange(x))
        shard.group.gather(None)
        exchanges.append((time.perf_counter() - start) / LAYERS)
    boundary = int(shard.laplacian.crow_indices()[shard.interior])
    return {
        "layer": statistics.median(times), "exchange": statistics.median(exchanges), "sent": sent,
        "interior": boundary, "other": shard.laplacian.values().numel() - boundary, "rows": len(shard.nodes),
        "halo": len(shard.halo), "memory": peak() - base,
    }  # fmt: skip


def shards(edges: distributed.EdgeStream, parts: int) -> Path:
    """The folder of a graph in so many parts, made if it is not there."""
    folder = FOLDER / f"{edges.name.replace(' ', '-')}-{edges.size}-{parts}"
    distributed.shard(edges, folder, parts, partition="ranges")
    return folder


def layer(arguments: argparse.Namespace) -> None:
    """Times of a layer by 1 and 2 processes and bytes of 4, beside what the cost model says of them."""
    rows = []
    for make in (grid_edges, random_edges):
        for demands in arguments.demands:
            half = run(1, time_layers, shards(smaller(make, arguments.edges), 1), demands, arguments.repeats)[0]
            c = half["layer"] / demands / (half["interior"] + half["other"])
            one = run(1, time_layers, shards(make(arguments.edges), 1), demands, arguments.repeats)[0]
            two = run(2, time_layers, shards(make(arguments.edges), 2), demands, arguments.repeats)
            four = run(4, time_layers, shards(make(arguments.edges), 4), demands, 1)
            wide = demands if demands >= 17 else 4 * demands  # bytes of a row
            seconds = two[0]["layer"]
            model = max(max(c * demands * x["interior"], x["exchange"]) + c * demands * x["other"] for x in two)
            share = one["memory"] / 2 + max(x["halo"] for x in two) * (3 * 4 * demands + 8)
            bytes_model = sum(x["halo"] for x in four) * wide
            rows.append([
                make(arguments.edges).name, str(demands), f"{one['layer']:.3f}",
                f"{c * demands * (one['interior'] + one['other']):.3f}", f"{seconds:.3f}", f"{model:.3f}",
                f"{one['layer'] / seconds:.2f}", f"{two[0]['exchange']:.3f}", f"{sum(x['sent'] for x in four) / 1e6:.1f}",
                f"{bytes_model / 1e6:.1f}", f"{max(x['memory'] for x in two) / share:.2f}", f"{1e9 * c:.2f}",
            ])  # fmt: skip
            print(rows[-1], flush=True)
    header = [
        "graph", "demands", "1 process, s", "model", "2 processes, s", "model", "ratio", "exchange alone, s",
        "4 processes send, MB", "model", "memory of one of 2 / (share + halo)", "ns for an entry and a demand",
    ]  # fmt: skip
    path = write_table("distributed", f"A layer of {arguments.edges:,} edges by several processes", header, rows)
    print(path)


def solve_large(folder: Path, demands: int, tol: float) -> dict[str, Any]:
    """Potentials of random demands."""
    start = time.perf_counter()
    shard = distributed.Shard.load(folder)
    loaded = time.perf_counter()
    found = shard.extremes
    spectrum = time.perf_counter()
    psi = torch.randn(
        len(shard.nodes), demands, dtype=torch.float64, generator=torch.Generator().manual_seed(shard.group.rank)
    )
    answer = distributed.potentials(shard, psi, tol=tol, center=True)
    return {
        "load": loaded - start, "lanczos": spectrum - loaded, "solve": time.perf_counter() - spectrum,
        "memory": peak(), "sent": shard.group.sent, "layers": answer.layers, "residual": answer.residual,
        "error": answer.error, "condition": found.spectrum.condition,
    }  # fmt: skip


def large(arguments: argparse.Namespace) -> None:
    """A large random graph in four processes."""
    start = time.perf_counter()
    folder = shards(random_edges(arguments.edges), arguments.processes)
    made = time.perf_counter() - start
    found = run(arguments.processes, solve_large, folder, arguments.demands[0], arguments.tol)
    worst = {name: max(x[name] for x in found) for name in found[0]}
    header = ["edges", "processes", "demands", "sharding, s", *worst]
    scale = {"memory": 1e-9, "sent": 1e-9}
    sharding = f"{made:.0f}" if made > 5 else "made before"
    row = [f"{arguments.edges:,}", str(arguments.processes), str(arguments.demands[0]), sharding]
    row += [f"{scale.get(name, 1) * value:.3g}" for name, value in worst.items()]
    notes = "Times in seconds, memory and what was sent in GB, of the process that has most of it."
    print(write_table("distributed-large", "One large graph in several processes", header, [row], notes=notes))


def encode(arguments: argparse.Namespace) -> None:
    """Molecules through ``ohmformer encode`` with exact quantities on a local Ray cluster, killed twice."""
    import pyarrow.parquet

    from ohmformer.graph.smiles import read_smiles

    FOLDER.mkdir(parents=True, exist_ok=True)
    source, out = FOLDER / "molecules.smi", FOLDER / "molecules.parquet"
    smiles = [x for x, _ in zip(read_smiles(arguments.molecules, "smiles"), range(arguments.first), strict=False)]
    source.write_text("smiles\n" + "\n".join(smiles) + "\n")
    shutil.rmtree(f"{out}.parts", ignore_errors=True)
    out.unlink(missing_ok=True)
    exact = [word for name in ("resistances", "heat", "eigenvalues") for word in ("--exact", name)]
    command = [sys.executable, "-m", "ohmformer", "encode", str(source), "--out", str(out), "--encoding", "heat", *exact]
    command += ["--cluster", "local", "--chunk", str(arguments.chunk)]
    start, killed = time.perf_counter(), []
    chunks = -(-len(smiles) // arguments.chunk)
    for share in (0.3, 0.6, None):
        process = subprocess.Popen(command, start_new_session=True)
        while process.poll() is None:
            time.sleep(0.2)
            parts = len(list(Path(f"{out}.parts").glob("part-*.parquet")))
            if share is not None and parts >= share * chunks:
                os.killpg(process.pid, signal.SIGKILL)
                killed.append(parts)
                break
        process.wait()
    table = pyarrow.parquet.read_table(out)
    rows = table["row"].to_pylist()
    bad = len(out.with_suffix(".bad.csv").read_text().splitlines()) - 1
    whole = len(rows) + bad == len(smiles) and len(set(rows)) == len(rows) and rows == sorted(rows)
    row = [
        f"{len(smiles):,}",
        f"{len(rows):,}",
        str(bad),
        str(whole),
        json.dumps(killed),
        f"{time.perf_counter() - start:.0f}",
    ]
    header = ["molecules", "rows", "unreadable", "nothing lost, nothing twice", "parts when killed", "seconds"]
    print(write_table("distributed-encode", "Exact quantities of many molecules, killed twice", header, [row]))
    if not whole:
        raise SystemExit("expected every molecule once")


def model(arguments: argparse.Namespace) -> None:
    """The cost model carried to graphs and clusters that are not here: 64 demands to 1e-6, 20 ends of edges a node.

    A machine is assumed to run 32 processes at the speed of 16 that have the memory to themselves, with 256 GB, a network of
    25 Gbit/s and 20 microseconds, for 2 dollars an hour. Of random edges a machine's halo is every node that an entry of its
    leads to, and the condition number is 3; of graphs that can be cut, as meshes and many web graphs, 2 % of its rows, and
    that is 1,000. Layers are those of the bound on Chebyshev's construction.
    """
    rows, demands, degree, c = [], 64, 20, arguments.entry * 1e-9
    for edges in (10**9, 10**10, 10**11):
        for machines in (8, 64, 1024):
            for kind, spectrum in (("random", Spectrum(0.5, 1.5)), ("can be cut", Spectrum(0.002, 2.0))):
                layers = layers_for(1e-6, spectrum)
                nodes, entries = 2 * edges // degree, (2 * edges + 2 * edges // degree) / machines
                far = entries * (1 - 1 / machines)
                halo = nodes * (1 - math.exp(-far / nodes)) if kind == "random" else 0.02 * nodes / machines
                memory = 16 * entries + nodes / machines * demands * (12 + 3 * 8) + halo * demands * (12 + 8)
                compute, exchange = c * demands * entries / 16, 20e-6 * min(machines - 1, 64) + halo * demands / 3.1e9
                seconds = compute + exchange if kind == "random" else max(compute, exchange)
                rows.append([
                    f"{edges:.0e}".replace("+", ""), kind, str(machines), f"{memory / 1e9:,.0f}", f"{compute:.3g}",
                    f"{exchange:.3g}", f"{halo * demands * machines / 1e9:,.0f}", f"{layers * seconds:,.3g}",
                    f"{layers * seconds * machines * 2 / 3600:,.2g}", "" if memory < 256e9 else "does not fit",
                ])  # fmt: skip
    header = [
        "edges", "kind", "machines", "GB a machine", "products of a layer, s", "exchange, s", "GB sent by all a layer",
        "64 demands, s", "dollars", "remark",
    ]  # fmt: skip
    notes = " ".join((model.__doc__ or "").split())
    print(write_table("distributed-model", "The cost model on clusters, on paper", header, rows, notes=notes))


def main() -> None:
    """Run one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["layer", "large", "encode", "model"])
    parser.add_argument("molecules", type=Path, nargs="?", help="SMILES, for encode")
    parser.add_argument("--edges", type=int, default=10**7)
    parser.add_argument("--demands", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--entry", type=float, default=0.18, help="ns for an entry and a demand, for model; as layer found")
    parser.add_argument("--first", type=int, default=100_000)
    parser.add_argument("--chunk", type=int, default=2000)
    arguments = parser.parse_args()
    {"layer": layer, "large": large, "encode": encode, "model": model}[arguments.what](arguments)


if __name__ == "__main__":
    main()
