"""A trained checkpoint as one more method: its answers after every layer, on any graph that its shape allows.

Training fixes an answer up to scale, so the page shows the multiple that is nearest to the truth, layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.experiments.learn import scalars
from ohmformer.experiments.learn.checkpoint import Checkpoint, load
from ohmformer.experiments.learn.models import PHI, dense_model, efficient_model
from ohmformer.experiments.learn.tasks import EIGENVECTORS, HEAT_TIME
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Blocks, Head, Layer, Program
from ohmformer.transformer.dense import LinearTransformer
from ohmformer.transformer.efficient import EfficientTransformer

SEED = 0
"""Which of the seeds that were trained side by side is shown."""
TASKS = {
    "electric": ("electric", "resistance"),
    "resistive": ("resistance",),
    "heat": ("heat",),
    EIGENVECTORS: ("eigenvector",),
}
"""What a checkpoint of each learned task can answer on the page."""


@dataclass(frozen=True)
class Trained:
    """The trained model of one seed of a finished run."""

    run: Checkpoint

    @classmethod
    def load(cls, path: Path) -> Trained:
        """Load a checkpoint, given the file or the folder of a run."""
        return cls(load(path))

    @property
    def name(self) -> str:
        """Its name on the page."""
        return self.run.setting.name

    @property
    def layers(self) -> int:
        """Its number of layers."""
        return self.run.setting.layers

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the page that it can answer."""
        return TASKS[self.run.setting.task]

    @property
    def rooted(self) -> bool:
        """Whether it has learned the square root of ``L^+``."""
        return self.run.setting.task == "resistive"

    @cached_property
    def model(self) -> EfficientTransformer | LinearTransformer:
        """Build the library's model with its weights, in float64."""
        setting, weights = self.run.setting, self.run.weights
        if setting.scalars:
            program = scalars.to_program(weights["scalars"][SEED, 0], setting.normalization)
            return EfficientTransformer(program).requires_grad_(False)
        if setting.model == "efficient":
            return efficient_model(weights, SEED, setting.normalization).requires_grad_(False)
        edges = weights["value"].shape[-1] - 2 * setting.nodes
        return dense_model(weights, SEED, edges, setting.normalization).requires_grad_(False)

    @cached_property
    def program(self) -> Program:
        """Convert its weights to named blocks."""
        if isinstance(self.model, EfficientTransformer):
            program = self.model.program()
            return program if self.run.setting.scalars else self._split(program)
        layout = self.model.layout
        layers = [self.model.layers[i] for i in self.model.order]

        def blocks(matrix: Tensor) -> Blocks:
            return {(t, s): matrix[layout[t], layout[s]] for t in layout.widths for s in layout.widths}

        def layer(x) -> Layer:
            heads = tuple(Head(blocks(v), blocks(q), blocks(k)) for v, q, k in zip(x.value, x.query, x.key, strict=True))
            return Layer(heads, blocks(x.skip))

        return self._split(Program(dict(layout.widths), [layer(x) for x in layers], self.model.normalization))

    def _split(self, program: Program) -> Program:
        """Split the features into demands and answers; those of eigenvectors stay one block."""
        if self.run.setting.task == EIGENVECTORS:
            return program
        half = self.run.setting.nodes
        parts = {scalars.DEMAND: slice(0, half), scalars.ANSWER: slice(half, 2 * half)}

        def split(blocks: Blocks) -> Blocks:
            out = {}
            for (target, source), matrix in blocks.items():
                if not isinstance(matrix, Tensor):
                    out[target, source] = matrix
                    continue
                for t, rows in (parts if target == PHI else {target: slice(None)}).items():
                    for s, columns in (parts if source == PHI else {source: slice(None)}).items():
                        out[t, s] = matrix[rows, columns]
            return out

        layers = [
            Layer(tuple(Head(split(h.value), split(h.query), split(h.key)) for h in x.heads), split(x.skip))
            for x in program.layers
        ]
        widths = {name: w for name, w in program.blocks.items() if name != PHI} | dict.fromkeys(parts, half)
        return Program(widths, layers, program.normalization)

    def check(self, task: str, time: float) -> None:
        """Raise a ValueError if it was not trained for a task or graph."""
        if task not in self.tasks:
            raise ValueError(f"expected the task {' or '.join(self.tasks)} for {self.name}, got {task}")
        if task == "heat" and abs(time - HEAT_TIME) > 1e-9:
            raise ValueError(f"expected the time s = {HEAT_TIME} that the checkpoint was trained for, got {time:g}")

    def answers(self, graph: Graph, demands: Float[Tensor, "nodes k"]) -> Float[Tensor, "states nodes k"]:
        """Answer centred demands, before the first layer and after each."""
        k, nodes = demands.shape[1], self.run.setting.nodes
        if self.run.setting.scalars:
            return self._trace(graph, {scalars.DEMAND: demands}, scalars.ANSWER)
        if k > nodes:
            raise ValueError(f"expected at most {nodes} demands at once, as in training, got {k}: take a smaller graph")
        phi = torch.cat([demands, demands.new_zeros(len(demands), 2 * nodes - k)], dim=1)
        return self._trace(graph, {PHI: phi}, PHI)[..., nodes : nodes + k]

    def eigenvectors(self, graph: Graph) -> Float[Tensor, "states nodes nodes"]:
        """Return the columns that were trained to be eigenvectors, ascending, the null space first."""
        nodes = self.run.setting.nodes
        if graph.num_nodes != nodes:
            raise ValueError(f"expected a graph of {nodes} nodes, as in training, got {graph.num_nodes}")
        start = self.run.weights["start"][SEED].double()
        return self._trace(graph, {PHI: start}, PHI)[..., nodes:]

    def _trace(self, graph: Graph, features: dict[str, Tensor], block: str) -> Float[Tensor, "states nodes _"]:
        incidence = graph.incidence()
        if self.run.setting.distribution.unit:
            incidence = incidence / incidence.norm().clamp(min=1e-300)
        if isinstance(self.model, EfficientTransformer):
            return self.model(incidence @ incidence.mT, features, trace=True)[block]
        width = self.model.layout.widths[INCIDENCE]
        if incidence.shape[1] != width:
            raise ValueError(f"expected a graph of {width} edges, as in training, got {incidence.shape[1]}")
        return self.model(self.model.layout.pack({INCIDENCE: incidence, **features}), trace=True)[block]
