"""Effective resistances of all edges of a graph that processes share, by random projections.

As in :mod:`ohmformer.solve.projections`, with the contribution of one-step walks (:mod:`ohmformer.solve.walks`), which needs
only a row's own entries. Demands depend on edges, so for a given seed results do not depend on the number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ohmformer.solve.answer import Answer, check_reached
from ohmformer.solve.costs import SPREAD
from ohmformer.solve.distributed.answers import AnswerFiles, Tell, answer_of, certificate_of, say
from ohmformer.solve.distributed.engine import plan_for, solve
from ohmformer.solve.distributed.noise import Noise, entry_blocks
from ohmformer.solve.distributed.shard import Shard
from ohmformer.solve.projections import FAILURE, check_eps, default_tolerance, excess, interval, projections

EDGES = "edges"
"""The folder of the finished answer."""


@dataclass(frozen=True)
class EdgeAnswer(Answer):
    """Resistances of the edges whose lower-numbered end is on this process, with parallel edges merged."""

    tail: Int[Tensor, " edges"] = field(kw_only=True)
    head: Int[Tensor, " edges"] = field(kw_only=True)


def edge_resistances(
    shard: Shard,
    eps: float = 0.1,
    *,
    seed: int = 0,
    tol: float | None = None,
    panel: int | None = None,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> EdgeAnswer:
    """Estimate effective resistances of all edges within ``1 +- eps``, all of them with a probability of 99 %.

    Every panel of projections is added to the sum in ``out``, so the same call resumes after an interruption.
    """
    check_eps(eps)
    tol = default_tolerance(eps) if tol is None else tol
    ends, local, h, share = _local_part(shard)
    count = int(shard.total(torch.tensor(float(len(local)), dtype=torch.float64, device=shard.group.device)))
    wanted = projections(eps, max(count, 1), min(SPREAD * share, 1.0))
    most, noise = projections(eps, max(count, 1)), Noise(shard, seed)
    plan = plan_for(shard, wanted, tol, panel)
    say(shard, tell, f"{plan}; {wanted} projections at first, {most} at most")
    files = AnswerFiles(shard, out, {"ask": "edges", "eps": eps, "seed": seed, "tol": tol, "panel": plan.panel})
    ids = torch.cat([shard.nodes, shard.halo])
    answer = files.finished(EDGES)
    if answer is not None:
        return _answer(answer_of(files.load(EDGES)["resistance"], answer), ids[ends[0]], ids[ends[1]])
    total, done, failure, worst, panels = torch.zeros_like(local), 0, FAILURE, None, 0
    if (last := files.last()) is not None:
        kept = files.finished(last) or {}
        total, panels = files.load(last)["sum"], last + 1
        done, wanted, failure, worst = kept["done"], kept["wanted"], kept["failure"], answer_of(total, kept)
    while count:
        while done < wanted:
            columns = slice(done, min(done + plan.panel, wanted))
            found = solve(shard, _filtered(shard, noise.demands(columns), h), tol, plan)
            total, done = total + _squares(shard, found.value, ends), columns.stop
            worst = found if worst is None or found.residual > worst.residual else worst
            more = {"done": done, "wanted": wanted, "failure": failure}
            files.save(panels, {"sum": total}, {**certificate_of(worst), **more})
            files.remove(panels - 1)
            panels += 1
            say(shard, tell, f"{done} projections: residual {found.residual:.1e}")
        failure /= 2  # every check is a chance to be wrong
        unsure = (eps * local * done < excess(eps, done, count, failure) * total).sum().double()
        if not float(shard.total(unsure)) or done >= most:
            break
        wanted = min(2 * done, most)
    rest = total / max(done, 1)
    low, high = interval(max(done, 1), max(count, 1), failure)
    value = (local + rest).clamp(min=(1 - eps) * (local + rest / low)).clamp(max=(1 + eps) * (local + rest / high))
    note = f"estimated within {eps:g}, all of them with probability {1 - FAILURE:g}, from {done} random projections"
    base = worst or Answer(value, plan.method, 0, 0.0, None, plan.spectrum)
    found = replace(base, value=value, bound=None, note=note, error=eps, error_kind="estimate")
    tail, head = ids[ends[0]], ids[ends[1]]
    files.save(EDGES, {"tail": tail, "head": head, "resistance": value}, certificate_of(found))
    files.close(found)
    return _answer(check_reached(found, tol), tail, head)


def _answer(answer: Answer, tail: Tensor, head: Tensor) -> EdgeAnswer:
    return EdgeAnswer(**{x.name: getattr(answer, x.name) for x in fields(Answer)}, tail=tail, head=head)


def _local_part(shard: Shard) -> tuple[Int[Tensor, "2 edges"], Float[Tensor, " edges"], tuple[float, float], float]:
    """Return ends of edges as rows and columns, their local part from one-step walks, h, and the remaining share."""
    ids, root = torch.cat([shard.nodes, shard.halo]), torch.cat([shard.root, shard.halo_root])[:, 0]
    column, value = shard.laplacian.col_indices(), shard.laplacian.values()
    square, kept, between = torch.zeros_like(shard.root[:, 0]), [], []
    for _, entries, row in entry_blocks(shard):
        row, other = row.to(ids.device), column[entries].long()
        step = torch.where(row == other, 0.0, -value[entries]) * root[row] * root[other]
        square.index_add_(0, row, step.square())
        upward = (ids[row] < ids[other]) & (step > 0)
        kept.append(torch.stack([row, other])[:, upward])
        between.append(step[upward])
    real = (shard.root > 0).sum().double()
    sums = shard.total(torch.stack([real, square.sum()]))
    components = shard.manifest.components - (shard.manifest.nodes - float(sums[0]))  # with more than one node
    traces = np.array([float(sums[0]), 0.0, float(sums[1])]) - components
    gram = np.array([[traces[0], traces[1]], [traces[1], traces[2]]])
    h = np.linalg.solve(gram + 1e-12 * max(traces[0], 1.0) * np.eye(2), np.ones(2))
    h /= h.sum()
    p = (1 - np.cumsum(np.convolve(h, h)))[:-1]
    share = float(h @ gram @ h / max(traces[0], 1.0))
    ends = torch.cat(kept, dim=1) if kept else torch.zeros(2, 0, dtype=torch.long, device=ids.device)
    joined = torch.cat(between) if between else root.new_zeros(0)
    u, v = root[ends[0]], root[ends[1]]
    return ends, p[0] * (u.square() + v.square()) - 2 * p[1] * joined * u * v, (float(h[0]), float(h[1])), share


def _filtered(shard: Shard, psi: Float[Tensor, "rows k"], h: tuple[float, float]) -> Float[Tensor, "rows k"]:
    """Compute ``h(W D^-1) psi``, as ``W D^-1 = I - L D^-1``."""
    return shard.center(shard.residual(psi, shard.root.square() * psi).mul_(h[1]).add_(psi, alpha=h[0]))


def _squares(shard: Shard, phi: Float[Tensor, "rows k"], ends: Int[Tensor, "2 edges"]) -> Float[Tensor, " edges"]:
    """Compute the sum over all columns of squared differences along edges."""
    wide = shard.with_halo(phi)
    some = zip(ends[0].split(2**18), ends[1].split(2**18), strict=True)
    found = [(wide[u] - wide[v]).square_().sum(1) for u, v in some]
    return torch.cat(found) if found else phi.new_zeros(0)
