"""Record real calls of every kernel, with what they were given and what they left, for ``driver.c`` to repeat elsewhere.

    python tests/native/record.py FOLDER

writes ``calls``, the records, and ``calls.h``, by which the driver calls a kernel by its name. A record is the kernel's name
(32 bytes), the number of its arguments, and for each argument its kind and then its value: a whole number, a double, or an
array as its number of bytes, the bytes before the call and those after it. Kinds are below.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

import ohmformer as ohm
from ohmformer import Graph, native
from ohmformer.encoding import LinearTransformerPE
from ohmformer.native.loader import Library
from ohmformer.solve.distributed.partition import by_stream
from ohmformer.solve.distributed.streams import edge_arrays
from ohmformer.solve.walks import Walks

WHOLE, REAL, NULL, SINGLES, DOUBLES, LONGS, INTS, BYTES = range(8)
ARRAYS = {torch.float32: SINGLES, torch.float64: DOUBLES, torch.int64: LONGS, torch.int32: INTS, torch.int8: BYTES}
MOST = 3
"""Calls of a kernel that are recorded."""


def content(tensor: Tensor) -> bytes:
    """All bytes from a tensor's first number to its last, those between its rows included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((span if tensor.numel() else 0,), (1,)).numpy().tobytes()


def write(file: BinaryIO, name: str, values: tuple[Any, ...], before: list[bytes | None]) -> None:
    """Append one call."""
    file.write(struct.pack("<32sq", name.encode(), len(values)))
    for value, old in zip(values, before, strict=True):
        if isinstance(value, Tensor):
            assert old is not None
            file.write(struct.pack("<qq", ARRAYS[value.dtype], len(old)) + old + content(value))
        elif value is None:
            file.write(struct.pack("<q", NULL))
        elif isinstance(value, float):
            file.write(struct.pack("<qd", REAL, value))
        else:
            file.write(struct.pack("<qq", WHOLE, value))


def random_graph(nodes: int, edges: int, seed: int) -> Graph:
    """A random tree and some more edges, with conductances between 1/2 and 2."""
    draw = torch.Generator().manual_seed(seed)
    child = torch.arange(1, nodes)
    parent = (torch.rand(nodes - 1, generator=draw) * child).long()
    more = torch.randint(0, nodes, (2, edges - nodes + 1), generator=draw)
    pairs = torch.cat([torch.stack([parent, child]), more[:, more[0] != more[1]]], dim=1).t()
    conductance = 0.5 + 1.5 * torch.rand(len(pairs), generator=draw, dtype=torch.float64)
    return Graph.from_edges(pairs, num_nodes=nodes, conductance=conductance)


def ask_everything() -> None:
    """Questions that between them use every kernel, small and large, with and without a limit nearby."""
    small = [random_graph(n, n + 3, seed=n) for n in (1, 2, 5, 17, 31, 33, 64)]
    ohm.effective_resistance(Graph.collate(small), "all", tol=1e-9)
    ohm.effective_resistance(Graph.collate([Graph.from_edges([(0, 1), (2, 3)]), *small[:4]]), "all", tol=1e-9)
    ohm.effective_resistance([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], "all", resistance=[1.0, 1e9, 1e-9, 2.0, 1e5])
    vars(import_module("ohmformer.solve.plan"))["NATIVE_NODES"] = 600
    large = random_graph(700, 2500, seed=1)
    for demands in (20, 64):
        draw = torch.Generator().manual_seed(demands)
        psi = large.center(torch.randn(700, demands, generator=draw, dtype=torch.float64))
        ohm.potentials(large, psi, tol=1e-6, method="chebyshev")
    for demands in (1, 3, 20):
        draw = torch.Generator().manual_seed(demands)
        psi = large.center(torch.randn(700, demands, generator=draw, dtype=torch.float64))
        ohm.potentials(large, psi, tol=1e-6, method="elimination")
    vars(import_module("ohmformer.solve.distances"))["NODES_OF_A_PART"] = 100
    node = torch.arange(1200)
    strip = Graph.from_edges(torch.cat([torch.stack([node[:-4], node[4:]]), torch.stack([node[:-1], node[1:]])], dim=1).t())
    ohm.potentials(strip, strip.center(node.double()[:, None]), method="elimination")
    ohm.potentials(large, psi, method="direct")
    ohm.plan(Graph.from_edges([(i, i + 1) for i in range(600)]))
    ohm.kron_reduce(large, range(0, 700, 7))
    learned = Graph.from_edges(large.edge_index.t(), resistance=large.resistance.clone().requires_grad_())
    ohm.effective_resistance(learned).value.square().sum().backward()
    ohm.effective_resistance(large, torch.randint(0, 700, (300, 2), generator=torch.Generator().manual_seed(0)), eps=0.5)
    walks = Walks(large)
    for reach in (2, 3):
        walks.local_part(large.edge_index, reach)
    by_stream(edge_arrays(*large.edge_index.numpy()), np.bincount(large.edge_index.flatten().numpy()), 3)
    batch = Graph.collate(small)
    pairs = torch.cat([batch.edge_index, batch.edge_index.flip(0)], dim=1)
    for start, evolve in (("random", False), ("random", True), ("diagonal", False)):
        model = LinearTransformerPE(6, seed=1, phi0=start, evolve=evolve)
        with torch.no_grad():
            model.eval()(pairs, batch=batch.batch, num_nodes=batch.num_nodes)
        if start == "diagonal":
            model.train()(pairs, batch=batch.batch, num_nodes=batch.num_nodes).square().sum().backward()
    every = LinearTransformerPE(4, read=("nodes", "edges", "pairs"))
    torch.stack([x.square().sum() for x in every(pairs, batch=batch.batch, num_nodes=batch.num_nodes)]).sum().backward()
    for size, mode in ((17, True), (31, False), (64, False)):
        one = random_graph(size, size + 3, seed=size).edge_index
        with torch.set_grad_enabled(mode):
            found = LinearTransformerPE(4, read=("nodes", "edges"), hidden=12).train(mode)(one, num_nodes=size)
        if mode:
            (found[0].square().sum() + found[1].square().sum()).backward()
    for graph in (Graph.from_edges([(i, i + 1) for i in range(600)]), large):
        both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
        LinearTransformerPE(4, read=("nodes", "edges"))(both, num_nodes=graph.num_nodes)
    vars(import_module("ohmformer.encoding.large"))["EXACT"] = 0.0
    LinearTransformerPE(4, read=("nodes", "edges"))(both, num_nodes=graph.num_nodes)


def header() -> str:
    """C that calls every kernel of the table by its name."""
    c = {ctypes.c_int64: ("int64_t", "whole"), ctypes.c_float: ("float", "real"), ctypes.c_double: ("double", "real")}
    declared, called = [], []
    for name, kernel in native.KERNELS.items():
        kinds = [c.get(kind, ("void *", "now")) for kind in kernel.arguments]
        declared.append(f"int {name}({', '.join(['int64_t', *(kind for kind, _ in kinds)])});")
        given = ", ".join(["threads", *(f"a[{i}].{part}" for i, (_, part) in enumerate(kinds))])
        called.append(f'    if (!strcmp(name, "{name}")) return {name}({given});')
    body = ["static int call(const char *name, int64_t threads, const Argument *a) {", *called, "    return -1;", "}", ""]
    return "\n".join([*declared, *body])


def main(folder: Path) -> None:
    """Record the first calls of every kernel of the library in use."""
    seen: Counter[str] = Counter()
    call = Library.call
    (folder / "calls.h").write_text(header())
    with (folder / "calls").open("wb") as file:

        def recorded(self: Library, name: str, *values: Any) -> None:
            before = [content(x) if isinstance(x, Tensor) else None for x in values]
            call(self, name, *values)
            shape = f"{name} {values[1] if isinstance(values[1], int) else 0}"
            seen[shape] += 1
            if seen[shape] <= MOST:
                write(file, name, values, before)

        Library.call = recorded  # pyright: ignore[reportAttributeAccessIssue]
        try:
            ask_everything()
        finally:
            Library.call = call
    missing = sorted(set(native.KERNELS) - {shape.split()[0] for shape in seen})
    if missing:
        raise SystemExit(f"expected calls of every kernel, got none of {', '.join(missing)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
