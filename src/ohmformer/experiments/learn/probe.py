"""Examine a trained model: what function it computes, how far it is from the lemma, and whether more layers help.

- **Spectral response.** If the answer is ``h(L) psi``, then along every eigenvector it is ``h(lambda)`` times the demand.
  The gain is fitted by least squares, ``h_j = <v_j^T phi, v_j^T psi> / |v_j^T psi|^2``, and the residual of the fit
  measures how far the model is from being a function of the Laplacian.
- **Distance to the lemma**, at the same depth and with the same normalisation: in prediction (the loss between both
  answers), in sensitivity (the cosine between the Jacobians of an answer in its demand) and in weights
  (relative, minimised over all scales of the answer block, which no answer depends on; matrices are first projected onto
  multiples of the identity, and the share of their norm that remains is reported).
- **Depth beyond training.** The last layer, or the last two, repeated several times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions import scalars
from ohmformer.experiments.learn.checkpoint import Checkpoint
from ohmformer.experiments.learn.start import lemma
from ohmformer.experiments.learn.tasks import EIGENVECTORS, FUNCTIONS, Problems, demand_loss, draw, generator
from ohmformer.experiments.learn.train import answers, evaluate
from ohmformer.graph.draw import save_both
from ohmformer.graph.extras import require
from ohmformer.graph.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = 200
LOOPS = (0, 1, 2, 4, 8)


@dataclass(frozen=True)
class Response:
    """Gains of one seed on every nonzero eigenvalue of some graphs, each graph scaled for the best fit to the target."""

    eigenvalues: Float[Tensor, "graphs m"]
    gains: Float[Tensor, "graphs m"]
    target: Float[Tensor, "graphs m"]
    unexplained: float
    """Share of the squared norm of the answer that no function of the Laplacian explains."""

    @property
    def error(self) -> float:
        """Root mean square of gain / target - 1 over graphs and eigenvalues."""
        return float((self.gains / self.target - 1).square().mean().sqrt())


@dataclass(frozen=True)
class Distance:
    """Distance of one seed from the lemma of its task at the same depth."""

    log_prediction: float
    """Log of the paper's loss between both answers."""
    sensitivity: float
    """Mean cosine between the Jacobians of an answer in its demand; 1 if they are parallel."""
    weights: float
    """Relative distance of the block multiples up to symmetries, see :func:`weight_distance`."""
    identity_share: float
    """Norm of the multiples of the identity over the norm of the blocks of W^V and W^R."""


def spectral_response(run: Checkpoint, index: int, graphs: int = GRAPHS) -> Response:
    """Measure the response of one seed on new random graphs."""
    batch = _batch(run, graphs)
    assert batch.demands is not None
    values, vectors = torch.linalg.eigh(batch.gram[0])
    values, vectors = values[:, 1:], vectors[..., 1:]
    answer, demands = vectors.mT @ answers(run, index, batch), vectors.mT @ batch.demands[0]
    gains = (answer * demands).sum(-1) / demands.square().sum(-1)
    left = (answer - gains[..., None] * demands).square().sum() / answer.square().sum()
    target = FUNCTIONS[run.setting.task](values)
    scale = (gains * target).sum(-1, keepdim=True) / gains.square().sum(-1, keepdim=True)
    return Response(values, scale * gains, target, float(left))


def lemma_run(run: Checkpoint) -> Checkpoint:
    """Return the task's lemma as a run of the same depth."""
    setting = replace(run.setting, model="efficient", init="construction", seeds=1)
    numbers = scalars.from_program(lemma(setting).program(setting.layers))
    return Checkpoint(setting, {"weights.scalars": numbers[None, None]}, 0, 1, 0.0)


def lemma_distance(run: Checkpoint, index: int, graphs: int = GRAPHS) -> Distance:
    """Measure the distance of one seed to the lemma."""
    built, batch = lemma_run(run), _batch(run, graphs)
    prediction = demand_loss(answers(run, index, batch), answers(built, 0, batch))
    mine, theirs = (jacobians(*which, _batch(run, 20)) for which in ((run, index), (built, 0)))
    cosine = (mine * theirs).sum((-2, -1)) / (mine.norm(dim=(-2, -1)) * theirs.norm(dim=(-2, -1)))
    numbers, share = block_multiples(run, index)
    weights = weight_distance(numbers, built.weights["scalars"][0, 0])
    return Distance(float(prediction.log()), float(cosine.mean()), weights, share)


def jacobians(run: Checkpoint, index: int, batch: Problems, step: float = 1e-6) -> Float[Tensor, "graphs nodes nodes"]:
    """Return the Jacobian of each graph's first answer in its demand, by central differences along centred unit vectors."""
    assert batch.demands is not None
    nodes = batch.gram.shape[-1]
    directions = torch.eye(nodes, dtype=torch.float64) - 1 / nodes
    columns = []
    for direction in directions:
        ends = []
        for sign in (1.0, -1.0):
            demands = batch.demands.clone()
            demands[..., 0] += sign * step * direction
            ends.append(answers(run, index, replace(batch, demands=demands))[..., 0])
        columns.append((ends[0] - ends[1]) / (2 * step))
    return torch.stack(columns, dim=-1)


def block_multiples(run: Checkpoint, index: int) -> tuple[Float[Tensor, "layers 10"], float]:
    """Project a model onto the scalars of ``scalars.py``; return them and their share of the norm of W^V and W^R."""
    if run.setting.scalars:
        return run.weights["scalars"][index, 0], 1.0
    nodes = run.setting.nodes
    width = run.weights["value"].shape[-1]
    edges = width - 2 * nodes
    numbers, kept, total = [], 0.0, 0.0
    for name in ("skip", "value"):
        phi = run.weights[name][index].double()[:, edges:, edges:]
        blocks = phi.unflatten(1, (2, nodes)).unflatten(3, (2, nodes)).transpose(2, 3)
        multiples = blocks.diagonal(dim1=-2, dim2=-1).mean(-1)
        numbers.append(multiples.flatten(1))
        kept, total = kept + nodes * float(multiples.square().sum()), total + float(blocks.square().sum())
    alphas = _incidence_multiples(run, index, edges)
    scale = (alphas["query"] * alphas["key"])[:, None]
    numbers = [numbers[0], scale * numbers[1], alphas["skip"][:, None], scale * alphas["value"][:, None]]
    return torch.cat(numbers, dim=1), math.sqrt(kept / total) if total else 1.0


def _incidence_multiples(run: Checkpoint, index: int, edges: int) -> dict[str, Tensor]:
    names = ("value", "query", "key", "skip")
    if run.setting.model == "efficient":
        return dict(zip(names, run.weights["alphas"][index].double().unbind(-1), strict=True))
    return {n: run.weights[n][index].double()[:, :edges, :edges].diagonal(dim1=-2, dim2=-1).mean(-1) for n in names}


def weight_distance(numbers: Float[Tensor, "layers 10"], reference: Float[Tensor, "layers 10"], rounds: int = 200) -> float:
    """Compute the relative distance of two models' scalars, minimised over the symmetries of the model.

    A layer is ``x <- (M + g N) x`` on ``x = [p; q]`` with ``M = I + W_R`` and ``N = W_V``, and ``g <- (b + a g)^2 g``. The
    answers are invariant to ``T' M T^-1, T' N T^-1`` for any bases T between the layers (the input stays ``[1; 0]``, and
    only the direction of q in the output matters), and to scaling ``(b, a)`` if G is normalised. The minimum is searched by
    L-BFGS from the identity, so the result is an upper bound.
    """
    layers = len(numbers)
    (m, n, moves), (m_ref, n_ref, moves_ref) = _layer_maps(numbers), _layer_maps(reference)
    identity = torch.eye(2, dtype=torch.float64).repeat(layers + 1, 1, 1)
    bases = identity.clone().requires_grad_()
    scales = torch.ones(layers, 1, dtype=torch.float64, requires_grad=True)
    fixed_input = torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # free entries of the first basis
    counted = torch.ones(layers, 2, 2, dtype=torch.float64)
    counted[-1, 0] = 0.0  # p and G of the last layer are not used

    def square() -> Tensor:
        first = identity[:1] + (bases[:1] - identity[:1]) * fixed_input
        t = torch.cat([first, bases[1:-1], torch.diag_embed(bases[-1].diagonal())[None]])
        inverse = torch.linalg.inv_ex(t[:-1])[0]
        parts = [
            (counted * (t[1:] @ m @ inverse - m_ref)).square().sum(),
            (counted * (t[1:] @ n @ inverse - n_ref)).square().sum(),
            (scales * moves - moves_ref)[:-1].square().sum(),
        ]
        return torch.stack(parts).sum()

    optimizer = torch.optim.LBFGS([bases, scales], max_iter=rounds, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        value = square()
        value.backward()
        return float(value.detach())

    optimizer.step(closure)
    size = (counted * m_ref).square().sum() + (counted * n_ref).square().sum() + moves_ref[:-1].square().sum()
    return float((square().detach() / size).sqrt())


def _layer_maps(numbers: Float[Tensor, "layers 10"]) -> tuple[Tensor, Tensor, Tensor]:
    """Extract ``M``, ``N`` and ``(1 + alpha_R, alpha_V)`` of every layer."""
    skip, value = numbers[:, :4].view(-1, 2, 2), numbers[:, 4:8].view(-1, 2, 2)
    moves = torch.stack([1 + numbers[:, 8], numbers[:, 9]], dim=-1)
    return torch.eye(2, dtype=torch.float64) + skip, value, moves


def looped(run: Checkpoint, last: int, times: int) -> Checkpoint:
    """Return a run with the last layers repeated."""
    axis = 2 if run.setting.scalars else 1
    extended = {
        f"weights.{name}": w
        if name == "start"
        else torch.cat([w, *[w.narrow(axis, w.shape[axis] - last, last)] * times], axis)
        for name, w in run.weights.items()
    }
    return replace(run, setting=replace(run.setting, layers=run.setting.layers + last * times), state=extended)


def beyond(run: Checkpoint, loops: Sequence[int] = LOOPS, graphs: int = 1000) -> dict[int, list[tuple[int, float]]]:
    """Measure the loss with the last one or two layers repeated: ``last -> [(depth, mean log loss)]``."""
    name = f"log_{run.setting.loss}"
    found: dict[int, list[tuple[int, float]]] = {}
    for last in (1, 2):
        if last <= run.setting.layers:
            for times in loops:
                values = evaluate(looped(run, last, times), graphs)[name]
                found.setdefault(last, []).append((run.setting.layers + last * times, sum(values) / len(values)))
    return found


def report(run: Checkpoint) -> tuple[str, Figure]:
    """Summarise all measurements as a Markdown text and a figure."""
    functions = run.setting.task != EIGENVECTORS
    canvas = require("matplotlib.figure", "plot").Figure(figsize=(11 if functions else 5.5, 4.2), layout="constrained")
    axes: Any = canvas.subplots(1, 2 if functions else 1, squeeze=False)[0]
    lines = [f"# {run.setting.name}, after {run.step} of {run.steps} steps", ""]
    if functions:
        responses = [spectral_response(run, i) for i in range(run.setting.seeds)]
        _draw_response(axes[0], run.setting.task, responses[0])
        lines += [
            "| seed | rms error of the response | not a function of L | log prediction distance | sensitivity cosine | "
            "weight distance | share of identity |",
            f"|{'---|' * 7}",
        ]
        for i, seed in enumerate(run.setting.all_seeds):
            far = lemma_distance(run, i)
            lines.append(
                f"| {seed} | {responses[i].error:.2e} | {responses[i].unexplained:.1e} | {far.log_prediction:.2f} | "
                f"{far.sensitivity:.4f} | {far.weights:.2f} | {far.identity_share:.3f} |"
            )
        lines += ["", f"Distances are to {lemma(run.setting).statement} at the same depth.", ""]
    deeper = beyond(run)
    lines += [f"| layers repeated | {' | '.join(f'{times} times' for times in LOOPS)} |", f"|{'---|' * (1 + len(LOOPS))}"]
    for last, points in deeper.items():
        axes[-1].plot(*zip(*points, strict=True), marker="o", label=f"last {last} repeated")
        lines.append(f"| last {last} | {' | '.join(f'{value:.2f}' for _, value in points)} |")
    axes[-1].axvline(run.setting.layers, color="grey", linestyle=":", label="depth it was trained at")
    axes[-1].set(xlabel="layers", ylabel=f"log loss ({run.setting.loss})", title="depth beyond training")
    axes[-1].legend(fontsize=8)
    lines += ["", "Natural logs of the loss it was trained on, mean over seeds, 1,000 fresh graphs.", ""]
    return "\n".join(lines), canvas


def write(run: Checkpoint, folder: Path) -> list[Path]:
    """Write ``probe.md``, ``probe.svg`` and ``probe.png`` into a folder."""
    text, canvas = report(run)
    pictures = save_both(canvas, folder / "probe")
    return [write_text(folder / "probe.md", text), *pictures]


def _draw_response(axis: Any, task: str, response: Response) -> None:
    x = torch.linspace(float(response.eigenvalues.min()), float(response.eigenvalues.max()), 400, dtype=torch.float64)
    name = {"electric": "1/x", "resistive": "x^(-1/2)", "heat": "exp(-x/2)"}[task]
    axis.plot(response.eigenvalues.flatten(), response.gains.flatten(), ".", markersize=2, label="trained")
    axis.plot(x, FUNCTIONS[task](x), "k-", linewidth=1, label=name)
    axis.set(xlabel="eigenvalue of the Laplacian it is given", ylabel="response", title="spectral response", yscale="symlog")
    axis.set_yscale("symlog", linthresh=float(response.target.min()))
    axis.legend(fontsize=8)


def _batch(run: Checkpoint, graphs: int) -> Problems:
    return draw(run.setting.task, run.setting.distribution, [generator(0, 1, "test")], graphs, torch.float64)
