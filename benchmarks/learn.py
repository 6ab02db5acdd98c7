"""Training throughput at 9 layers: the stacked forward passes against a direct transcription of the dense formulas.

One step is forward, loss and backward on 4,000 graphs (one seed), data not counted. The transcription is what one would
write down first: einsum over the paper's Z, one term of the attention after the other.

    python benchmarks/learn.py [--batch 4000] [--layers 9] [--repeats 5]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from measure import side_by_side, write_table
from ohmformer.experiments.learn.models import ANSWERS, loss_and_gradients
from ohmformer.experiments.learn.setting import Setting
from ohmformer.experiments.learn.start import initial_weights
from ohmformer.experiments.learn.tasks import Problems, demand_loss, draw, generator
from ohmformer.transformer.normalize import Normalization


def transcription(weights: dict[str, Tensor], batch: Problems) -> Tensor:
    """``Z <- Z + W^V Z Z^T W^Q^T W^K Z + W^R Z``, then the two Frobenius norms, with einsum."""
    assert batch.demands is not None
    edges = batch.incidence.shape[-1]
    x = torch.cat([batch.incidence[0], batch.demands[0], torch.zeros_like(batch.demands[0])], dim=-1)
    z = x.mT
    for value, query, key, skip in zip(*(weights[name][0] for name in ("value", "query", "key", "skip")), strict=True):
        v = torch.einsum("fg,bgn->bfn", value, z)
        q = torch.einsum("fg,bgn->bfn", query, z)
        k = torch.einsum("fg,bgn->bfn", key, z)
        similarity = torch.einsum("bfn,bfm->bnm", q, k)
        z = z + torch.einsum("bfn,bnm->bfm", v, similarity) + torch.einsum("fg,bgn->bfn", skip, z)
        top, bottom = z[:, :edges], z[:, edges:]
        top = top / top.norm(dim=(1, 2), keepdim=True)
        bottom = bottom / bottom.norm(dim=(1, 2), keepdim=True)
        z = torch.cat([top, bottom], dim=1)
    return z[:, edges + batch.demands.shape[-1] :].mT[None]


def main() -> None:
    """Measure and write ``results/learn-throughput.md``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for graphs in ("csl", "fc"):
        settings = {m: Setting("electric", graphs, m, arguments.layers, seeds=1) for m in ("dense", "efficient")}
        weights = {m: initial_weights(s) for m, s in settings.items()}
        batch = draw("electric", settings["dense"].distribution, [generator(0, 0)], arguments.batch, torch.float32)
        normalization = settings["dense"].normalization
        dense = {name: w.detach().requires_grad_() for name, w in weights["dense"].items()}
        fast = ANSWERS["dense"](dense, batch, normalization)
        torch.testing.assert_close(fast, transcription(dense, batch), rtol=1e-3, atol=1e-4)

        def direct(weights: dict = dense, batch: Problems = batch) -> None:
            demand_loss(transcription(weights, batch), batch.target).sum().log().backward()

        def ours(
            model: str, weights: dict = weights, batch: Problems = batch, policy: Normalization = normalization
        ) -> None:
            loss_and_gradients(model, weights[model], batch, policy, demand_loss)

        steps = {"transcription": direct, **{model: lambda model=model, run=ours: run(model) for model in settings}}
        seconds = side_by_side(steps, repeats=arguments.repeats, warmup=1)
        base = seconds["transcription"]
        for name, value in seconds.items():
            rows.append([graphs, name, f"{arguments.batch / value:,.0f}", f"{base / value:.2f}"])
            print(*rows[-1])
    title = f"Training throughput, {arguments.layers} layers, {arguments.batch} graphs a step, forward and backward"
    write_table("learn-throughput", title, ["graphs", "model", "graphs per second", "against the transcription"], rows)


if __name__ == "__main__":
    main()
