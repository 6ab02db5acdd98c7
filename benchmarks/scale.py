"""How the sparse engine grows: the cost of a layer and peak memory."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

import ohmformer as ohm
from measure import megabytes, side_by_side, write_table
from ohmformer import Graph
from ohmformer.constructions import Chebyshev
from ohmformer.solve.engines.base import Watch
from ohmformer.solve.engines.chebyshev import chebyshev_round
from ohmformer.solve.engines.chebyshev_native import one_round
from ohmformer.solve.plan import NATIVE_NODES, PANEL, panel_width
from ohmformer.solve.scaled import LARGEST, Scaled, empty_huge_pages
from solve import random_graph, square_grid


def layer_cost(
    kind: str, make: Callable[[int], Graph], edges: list[int], demands: int, repeats: int
) -> tuple[list[list[str]], list[float]]:
    """A layer, by torch and by default, against a bare CSR product with the same demands; their slopes of log time."""
    rows, times = [], []
    for m in edges:
        graph = make(m)
        scaled = Scaled.of(graph)
        construction = Chebyshev(ohm.Spectrum(0.1, LARGEST))
        step = scaled.step(construction.gamma, torch.float32)
        x = torch.randn(graph.num_nodes, demands, generator=torch.Generator().manual_seed(0))
        space = empty_huge_pages(3, len(x), demands, dtype=torch.float32, device=x.device)
        layers = max(8, min(40, 10**7 // m))

        def ours(count: int, use: bool, x=x, space=space, step=step, construction=construction) -> None:
            in_c = use and len(x) >= NATIVE_NODES  # as the plan decides
            panels = x.split(2 * PANEL if in_c else panel_width(len(x)), dim=1)
            state = space.view(-1)[: 3 * panels[0].numel()].view(3, *panels[0].shape)
            for panel in panels:
                state[0].copy_(panel)
                (one_round if in_c else chebyshev_round)(step, state, construction, count, Watch(None))

        single = scaled.laplacian.float()

        def bare(x=x, single=single, layers=layers) -> None:
            for _ in range(layers):
                _ = single @ x

        # what is done once for all layers is in both counts of layers, and falls out
        candidates = {f"{count} {use}": partial(ours, count, use) for use in (False, True) for count in (1, 1 + layers)}
        took = side_by_side({**candidates, "product": bare}, repeats=repeats, warmup=1)
        layer, compiled = ((took[f"{1 + layers} {use}"] - took[f"1 {use}"]) / layers for use in (False, True))
        product = took["product"] / layers
        times.append([layer, compiled, product])
        each = [_ms(layer), _ms(compiled), _ms(product), f"{layer / product:.2f}", f"{compiled / product:.2f}"]
        rows.append([kind, f"{graph.num_edges:,}", f"{graph.num_nodes:,}", *each])
        print("  ".join(rows[-1]), flush=True)
    return rows, np.polyfit(np.log(edges), np.log(times), 1)[0].tolist()


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _solve_and_report(nodes: int, edges: int, demands: int, compiled: bool, send: Connection) -> None:
    if not compiled:
        os.environ["OHMFORMER_NATIVE"] = "off"
    graph = random_graph(nodes, edges, seed=0)
    psi = graph.center(torch.randn(nodes, demands, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    ohm.potentials(Graph.from_edges([(0, 1)]), torch.tensor([1.0, -1.0]))  # everything is imported and warm
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = megabytes("VmRSS")
    ohm.potentials(graph, psi)
    tensors = (graph.edge_index, graph.resistance, graph.batch, psi)
    given = sum(t.numel() * t.element_size() for t in tensors) / 2**20
    send.send((given, psi.numel() * 8 / 2**20, megabytes("VmHWM") - before))


def memory(nodes: int, edges: int, demands: int, compiled: bool) -> list[str]:
    """Peak memory of a solve in a process of its own, over the input and four blocks of nodes x demands."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe()
    process = context.Process(target=_solve_and_report, args=(nodes, edges, demands, compiled, send))
    process.start()
    given, block, taken = receive.recv()
    process.join()
    question = f"{demands} demands, {nodes:,} nodes, {edges:,} edges{'' if compiled else ', by torch'}"
    used = given + taken
    return [question, f"{given:.0f} MB", f"{block:.0f} MB", f"{used:.0f} MB", f"{used / (given + 4 * block):.2f}"]


def main() -> None:
    """Measure, print, and write results/scale.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    arguments = parser.parse_args()
    sizes = [10**k for k in range(4, round(math.log10(arguments.largest)) + 1)]
    layers, slopes = [], []
    for kind, make in (
        ("random", lambda m: random_graph(m // 5, m, seed=0)),
        ("grid", lambda m: square_grid(math.isqrt(m // 2))),
    ):
        rows, (layer, compiled, product) = layer_cost(kind, make, sizes, 64, arguments.repeats)
        layers += rows
        slopes.append(
            f"on {kind} graphs {layer:.2f} by torch, {compiled:.2f} by default, {product:.2f} of a bare CSR product"
        )
    print("slopes", *slopes, flush=True)
    held = [memory(arguments.nodes, arguments.edges, 64, compiled) for compiled in (False, True)]
    print(*("  ".join(row) for row in held), sep="\n", flush=True)
    text = [
        f"Slope of log time against log edges: {'; '.join(slopes)}.\n",
        "| solve | input | one nodes x demands block | peak | peak / (input + 4 blocks) |\n|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in held),
    ]
    header = [
        "graph",
        "edges",
        "nodes",
        "a layer by torch",
        "a layer",
        "a CSR product",
        "torch / product",
        "layer / product",
    ]
    title = "How the sparse engine grows: 64 demands on weighted graphs"
    print(write_table("scale", title, header, layers, notes="\n".join(text)))


if __name__ == "__main__":
    main()
