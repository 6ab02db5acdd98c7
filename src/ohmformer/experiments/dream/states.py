"""Record the node states of every layer of a PyG model over a dataset, by forward hooks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ohmformer.encoding.pyg import Batch, Data

AT_ONCE = 64
"""Graphs per batch."""
MOST_LABELS = 64
"""Most distinct values of an integer column that is one-hot encoded."""

Forward = Callable[[nn.Module, Any], Any]
"""Runs a model on a batch."""


def node_states(
    model: nn.Module, graphs: Sequence[Data], layers: Sequence[str] | None = None, forward: Forward | None = None
) -> dict[str, Float[Tensor, "nodes width"]]:
    """Run a model on all graphs and return the states after every layer, in the order of computation.

    ``layers`` are names of submodules whose output, or its first element, has a row for every node. The default is the
    entries of the model's largest module list with such outputs, or else its children. A submodule that is called several
    times in a forward pass has several states. ``forward(model, batch)`` runs the model; by default the arguments are taken
    from the batch by name, or the model gets the batch itself if that is its only required argument.
    """
    batches: list[Any] = [Batch.from_data_list([*graphs[i : i + AT_ONCE]]) for i in range(0, len(graphs), AT_ONCE)]
    run = call if forward is None else forward
    if layers is None:
        layers = _layers_of(model, batches[0], run)
    found: dict[str, list[Tensor]] = {}
    for batch in batches:
        for name, x in record(model, layers, lambda batch=batch: run(model, batch)):
            if x.ndim != 2 or len(x) != batch.num_nodes:
                raise ValueError(f"expected a row for each of {batch.num_nodes} nodes from {name}, got {tuple(x.shape)}")
            found.setdefault(name, []).append(x)
    return {name: torch.cat(parts) for name, parts in found.items()}


def record(model: nn.Module, layers: Sequence[str], run: Callable[[], Any]) -> list[tuple[str, Tensor]]:
    """Run a callable and return the outputs of some submodules, in call order."""
    known = dict(model.named_modules())
    missing = [name for name in layers if name not in known]
    if missing:
        raise ValueError(f"expected names of submodules, got {missing[0]!r}; there are {', '.join(list(known)[1:9])}, ...")
    found: list[tuple[str, Tensor]] = []
    calls: dict[str, int] = {}

    def keep(name: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor):
            calls[name] = calls.get(name, 0) + 1
            label = name if calls[name] == 1 else f"{name}, call {calls[name]}"
            found.append((label, first.detach().to("cpu", torch.float32)))

    hooks = [known[name].register_forward_hook(lambda m, i, out, name=name: keep(name, out)) for name in layers]
    try:
        with evaluating(model), torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; restore the mode of every submodule afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def call(model: nn.Module, batch: Any) -> Any:
    """Run a model on a batch: arguments by name (``x``, ``edge_index``, ...), or the whole batch if it takes only one."""
    wanted = [
        p for p in inspect.signature(model.forward).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    needed = [p for p in wanted if p.default is p.empty]
    if len(needed) == 1 and needed[0].name not in ("x", "edge_index"):
        return model(batch)
    missing = [p.name for p in needed if p.name not in batch]
    if missing:
        raise ValueError(f"expected forward=, as the model asks for {missing[0]!r}, which the graphs do not have")
    return model(**{p.name: batch[p.name] for p in wanted if p.name in batch})


def untrained(model: nn.Module, seed: int) -> nn.Module:
    """Copy a model and redraw its weights with the ``reset_parameters`` of its submodules."""
    fresh = copy.deepcopy(model)
    parts = [m for m in fresh.modules() if callable(getattr(m, "reset_parameters", None))]
    reset = {p for m in parts for p in m.parameters()}
    missing = [name for name, p in fresh.named_parameters() if p not in reset]
    if missing:
        raise ValueError(f"expected untrained=, a model with initial weights, as {missing[0]!r} cannot be reset")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for part in reversed(parts):  # inner modules first: an outer one may override their initialisation
            part.reset_parameters()  # pyright: ignore[reportCallIssue]
    return fresh


def input_features(graphs: Sequence[Data]) -> Float[Tensor, "nodes columns"]:
    """Return ``x`` of all nodes, with integers one-hot encoded; one column of ones if there is no x."""
    given: list[Any] = [graph.x for graph in graphs]
    if any(x is None for x in given):
        return torch.ones(sum(graph.num_nodes or 0 for graph in graphs), 1)
    x = torch.cat([x.flatten(1) if x.ndim > 1 else x[:, None] for x in given])
    if x.is_floating_point():
        return x.float()
    columns = [column.unique(return_inverse=True) for column in x.mT]
    return torch.cat([one_hot(i).float() if len(v) <= MOST_LABELS else v[i][:, None].float() for v, i in columns], 1)


def _layers_of(model: nn.Module, batch: Any, run: Forward) -> list[str]:
    """Find the layers by a trial run: entries of the module list with most parameters, or children."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    lists.sort(key=lambda item: -sum(p.numel() for p in item[1].parameters()))  # an outer list sorts before inner ones
    candidates = [[f"{name}.{i}" if name else str(i) for i in range(len(m))] for name, m in lists]
    for names in (*candidates, [name for name, _ in model.named_children()]):
        rows = {name: x.shape for name, x in record(model, names, lambda: run(model, batch))}
        seen = [name for name in names if name in rows and len(rows[name]) == 2 and rows[name][0] == batch.num_nodes]
        if seen:
            return seen
    raise ValueError("expected layers= with names of submodules whose output has a row for every node, found none")
