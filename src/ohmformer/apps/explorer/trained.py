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

from ohmformer.constructions import scalars
from ohmformer.experiments.learn.checkpoint import Checkpoint, load
from ohmformer.experiments.learn.models import PHI, run_model, trained_model, trained_program
from ohmformer.experiments.learn.tasks import EIGENVECTORS, HEAT_TIME
from ohmformer.graph import Graph
from ohmformer.transformer.blocks import INCIDENCE, Program
from ohmformer.transformer.dense import LinearTransformer
from ohmformer.transformer.efficient import EfficientTransformer
from ohmformer.transformer.trace import Trace

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
        return trained_model(self.run, SEED)

    @cached_property
    def program(self) -> Program:
        """Read its weights by named blocks."""
        return trained_program(self.run, SEED)

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
            return self._trace(graph, {scalars.DEMAND: demands})[scalars.ANSWER]
        if k > nodes:
            raise ValueError(f"expected at most {nodes} demands at once, as in training, got {k}: take a smaller graph")
        all_demands = torch.nn.functional.pad(demands, (0, nodes - k))
        return self._trace(graph, {scalars.DEMAND: all_demands})[scalars.ANSWER][..., :k]

    def eigenvectors(self, graph: Graph) -> Float[Tensor, "states nodes nodes"]:
        """Return the columns that were trained to be eigenvectors, ascending, the null space first."""
        nodes = self.run.setting.nodes
        if graph.num_nodes != nodes:
            raise ValueError(f"expected a graph of {nodes} nodes, as in training, got {graph.num_nodes}")
        start = self.run.weights["start"][SEED].double()
        return self._trace(graph, {PHI: start})[PHI][..., nodes:]

    def _trace(self, graph: Graph, features: dict[str, Tensor]) -> Trace:
        incidence = graph.incidence()
        if self.run.setting.distribution.unit:
            incidence = incidence / incidence.norm().clamp(min=1e-300)
        width = self.program.blocks[INCIDENCE]
        if width not in ("edges", incidence.shape[1]):
            raise ValueError(f"expected a graph of {width} edges, as in training, got {incidence.shape[1]}")
        return run_model(self.model, incidence, features)
