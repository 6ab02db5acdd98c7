"""The training loop: deterministic steps, regular checkpoints, an evaluation on fresh graphs at the end.

A step depends only on the setting, the state, its number and the number of steps: random numbers come from ``(seed, step)``.
So a run that was killed and resumed gives bitwise the same result as an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions import newton, scalars
from ohmformer.experiments.learn import checkpoint, muon
from ohmformer.experiments.learn.checkpoint import Checkpoint
from ohmformer.experiments.learn.models import PHI, loss_and_gradients, run_model, trained_model
from ohmformer.experiments.learn.setting import TOURNAMENT, WHOLE, Setting
from ohmformer.experiments.learn.start import initial_weights
from ohmformer.experiments.learn.tasks import (
    EIGENVECTORS,
    FUNCTIONS,
    LOSSES,
    Problems,
    demand_loss,
    draw,
    eigenvector_losses,
    frobenius_loss,
    generator,
)
from ohmformer.graph.files import sweep

State = dict[str, Tensor]
TEST_GRAPHS = 4000
FIRST_DAMPING = 1e-2
EVERY = 5.0
"""Seconds between checkpoints."""


@dataclass(frozen=True)
class Progress:
    """The state of a run, for progress reports."""

    step: int
    steps: int
    loss: list[float]
    """The loss of every seed on the graphs of this step."""
    samples: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """A finished run: natural log losses on new random graphs for every seed, and the cost of training."""

    setting: Setting
    steps: int
    samples: int
    """Number of graphs that each seed was trained on."""
    seconds: float
    losses: dict[str, list[Any]]
    """By name, one entry per seed: ``log_demand`` and ``log_frobenius``; for eigenvectors ``log_1-5``, ``log_1-10`` and
    ``each`` (loss_1 .. loss_n, not logs).
    """

    def mean(self, name: str) -> float:
        """Average a log loss over seeds."""
        values = self.losses[name]
        return sum(values) / len(values)

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain types, for JSON."""
        means = {f"mean_{name}": self.mean(name) for name in self.losses if name.startswith("log_")}
        return {
            "setting": self.setting.as_dict(), "steps": self.steps, "samples": self.samples, "seconds": self.seconds,
            "samples_per_second": self.samples * self.setting.seeds / max(self.seconds, 1e-9), **means, "seeds": self.losses,
        }  # fmt: skip


def train(
    setting: Setting,
    *,
    steps: int | None = None,
    budget: float | None = None,
    folder: Path | None = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    every: float = EVERY,
) -> Result:
    """Train all seeds of a setting for a number of steps, or as many as fit into ``budget`` seconds, and evaluate them.

    With ``folder``, a checkpoint is written there every few seconds; ``resume=True`` continues from it if it exists, with
    the number of steps that it was started with.
    """
    begun = time.perf_counter()
    at = _found(setting, folder) if resume and folder is not None else None
    if at is None:
        state = initial_state(setting)
        if (steps is None) == (budget is None):
            raise ValueError("expected either steps or a budget in seconds, got both or none")
        total = steps if steps is not None else _steps_within(setting, state, float(budget or 0.0))
        if total < 1:
            raise ValueError(f"expected at least 1 step, got {total}")
        at = Checkpoint(setting, state, 0, total, 0.0)
    before, saved = at.seconds, time.perf_counter()
    samples = sum(setting.samples(i, at.steps) for i in range(at.step))
    state = dict(at.state)
    for step in range(at.step, at.steps):
        state, losses = advance(setting, state, step, at.steps)
        samples += setting.samples(step, at.steps)
        now = time.perf_counter()
        if watch is not None:
            watch(Progress(step + 1, at.steps, losses.tolist(), samples, before + now - begun))
        if folder is not None and (now - saved >= every or step + 1 == at.steps):
            Checkpoint(setting, state, step + 1, at.steps, before + now - begun).save(folder)
            saved = now
    elapsed = before + time.perf_counter() - begun
    done = Checkpoint(setting, state, at.steps, at.steps, elapsed)
    return Result(setting, at.steps, samples, elapsed, evaluate(done))


def initial_state(setting: Setting) -> State:
    """Return the state before the first step: initial weights and optimiser state."""
    weights = initial_weights(setting)
    memory = (
        {"damping": torch.full((setting.seeds, TOURNAMENT[0].starts), FIRST_DAMPING, dtype=torch.float64)}
        if setting.scalars
        else muon.initial_moments(weights)
    )
    return {**{f"weights.{name}": w for name, w in weights.items()}, **memory}


def advance(setting: Setting, state: Mapping[str, Tensor], step: int, steps: int) -> tuple[State, Float[Tensor, " seeds"]]:
    """Perform one step; return the state after it and the loss of every seed before it."""
    generators = [generator(seed, step) for seed in setting.all_seeds]
    graphs = setting.samples(step, steps)
    run = _advance_scalars if setting.scalars else _advance_matrices
    state, losses = run(setting, state, step, steps, generators, graphs)
    return {name: x.contiguous() for name, x in state.items()}, losses  # as they are read back: rounding depends on strides


def _advance_scalars(
    setting: Setting, state: Mapping[str, Tensor], step: int, steps: int, generators: list[torch.Generator], graphs: int
) -> tuple[State, Tensor]:
    """Perform one step for scalars; all starts of a seed use the same graphs, and every stage keeps the best starts."""
    incidence = torch.stack([setting.distribution.incidence(graphs, g) for g in generators])
    values = torch.linalg.eigvalsh(incidence @ incidence.mT)[..., 1:]  # the graphs are connected: one null vector
    shape = (graphs, setting.nodes, setting.nodes - 1)
    squares = torch.stack([torch.randn(shape, generator=g, dtype=torch.float64) for g in generators]).square()
    if setting.loss == "frobenius":
        squares = squares.sum(dim=-2, keepdim=True)
    numbers, damping = state["weights.scalars"], state["damping"]
    starts = setting.stage(step, steps).starts
    if starts < numbers.shape[1]:
        numbers, damping = _best_starts(setting, starts, numbers, damping, values, squares)
    values, squares = values.repeat_interleave(starts, 0), squares.repeat_interleave(starts, 0)
    target = FUNCTIONS[setting.task](values)
    moved, damping, losses = newton.step(
        numbers.flatten(0, 1), damping.flatten(), values, target, squares, normalize_incidence=_coupled(setting)
    )
    best = torch.nan_to_num(losses, math.inf).view(setting.seeds, starts).amin(1)
    return {"weights.scalars": moved.view_as(numbers), "damping": damping.view_as(numbers[..., 0, 0])}, best


def _best_starts(
    setting: Setting, count: int, numbers: Tensor, damping: Tensor, values: Tensor, squares: Tensor
) -> tuple[Float[Tensor, "seeds count layers 10"], Float[Tensor, "seeds count"]]:
    """Select the starts of each seed with the smallest losses on these graphs."""
    answer = scalars.response(numbers[:, :, None], values[:, None], normalize_incidence=_coupled(setting))
    losses = scalars.loss(answer, FUNCTIONS[setting.task](values)[:, None], squares[:, None])
    best = torch.nan_to_num(losses, math.inf).argsort(1)[:, :count]
    each = torch.arange(len(best))[:, None]
    return numbers[each, best], damping[each, best]


def _coupled(setting: Setting) -> bool:
    return setting.normalization.incidence == "frobenius"


def _advance_matrices(
    setting: Setting, state: Mapping[str, Tensor], step: int, steps: int, generators: list[torch.Generator], graphs: int
) -> tuple[State, Tensor]:
    """Perform one step for matrices, by Muon."""
    batch = draw(setting.task, setting.distribution, generators, graphs, setting.dtype)
    # sorted by name: rounding of sums over weights depends on the order, and a checkpoint has its own
    weights = {name.removeprefix("weights."): state[name] for name in sorted(state) if name.startswith("weights.")}
    depth, loss = setting.depth(step, steps), LOSSES[setting.loss]
    losses, gradients = loss_and_gradients(setting.model, weights, batch, setting.normalization, loss, depth)
    weights, moments = muon.update(weights, gradients, state, step, steps)
    return {**{f"weights.{name}": w for name, w in weights.items()}, **moments}, losses


def evaluate(run: Checkpoint, graphs: int = TEST_GRAPHS, *, seed: int = 0) -> dict[str, list[Any]]:
    """Compute losses on new random graphs in float64 with the library's own models, for every seed of the run."""
    setting = run.setting
    batch = draw(setting.task, setting.distribution, [generator(seed, 0, "test")], graphs, torch.float64)
    losses: dict[str, list[Any]] = {}
    for index in range(setting.seeds):
        answer, target = answers(run, index, batch), batch.target[0]
        if setting.task == EIGENVECTORS:
            each = eigenvector_losses(answer, target)
            found = {
                "each": each.tolist(),
                "log_1-5": float(each[:5].mean().log()),
                "log_1-10": float(each[:10].mean().log()),
            }
        else:
            found = {
                "log_demand": float(demand_loss(answer, target).log()),
                "log_frobenius": float(frobenius_loss(answer, target).log()),
            }
        for name, value in found.items():
            losses.setdefault(name, []).append(value)
    return losses


def answers(run: Checkpoint, index: int, batch: Problems) -> Float[Tensor, "graphs nodes demands"]:
    """Run the trained model of one seed on the first graphs of a batch, with the library's own models."""
    incidence, nodes = batch.incidence[0], run.setting.nodes
    if batch.demands is not None:
        return run_model(trained_model(run, index), incidence, {scalars.DEMAND: batch.demands[0]}).final[scalars.ANSWER]
    start = run.weights["start"][index].double().expand(len(incidence), -1, -1)
    return run_model(trained_model(run, index), incidence, {PHI: start}).final[PHI][..., nodes:]


def _found(setting: Setting, folder: Path) -> Checkpoint | None:
    """Load the checkpoint of a folder, which must have the same setting, or return None if there is none."""
    sweep(folder)
    if not (folder / checkpoint.FILE).exists():
        return None
    found = checkpoint.load(folder)
    if found.setting != setting:
        raise ValueError(f"expected a checkpoint of {setting.name} in {folder}, got one of {found.setting.name}")
    return found


def _steps_within(setting: Setting, state: State, budget: float) -> int:
    """Estimate how many steps fit into a budget by timing two trial steps of every stage, with all layers."""
    begun = time.perf_counter()
    mean, since = 0.0, 0.0
    for stage in TOURNAMENT if setting.scalars else (WHOLE,):
        step = math.ceil(since * 20) if setting.scalars else 19
        state, _ = advance(setting, state, step, 20)  # the first step of a stage is slower than the others
        start = time.perf_counter()
        state, _ = advance(setting, state, step, 20)
        mean += (stage.until - since) * (time.perf_counter() - start)
        since = stage.until
    return max(int((0.95 * budget - (time.perf_counter() - begun)) / mean), 1)
