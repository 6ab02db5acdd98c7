"""Functions of a Laplacian that processes share: filters, the heat kernel and its embedding, and the lowest eigenvectors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ohmformer.constructions import SpectralFilter
from ohmformer.graph import Spectrum
from ohmformer.solve.answer import Answer, EigenAnswer, check_reached, check_tolerance
from ohmformer.solve.costs import PANEL
from ohmformer.solve.distributed.answers import AnswerFiles, Asked, Tell, certificate_of, fingerprint, in_panels, say
from ohmformer.solve.distributed.noise import node_noise
from ohmformer.solve.distributed.shard import Shard

DEGREE = 40
"""Products with L between two orthogonalizations of subspace iteration."""
STEPS = 200


def spectral_filter(
    shard: Shard,
    f: Callable[[np.ndarray], np.ndarray],
    signals: Float[Tensor, "rows k"],
    *,
    tol: float = 1e-6,
    panel: int = PANEL,
    out: Path | str | None = None,
    tell: Tell | None = None,
    name: str = "filter",
) -> Answer:
    """Apply ``f(L)`` to signals for any smooth f, with one term of its Chebyshev series on ``[0, lmax]`` per layer.

    As :func:`ohmformer.spectral_filter` with ``null=True``. With ``out``, ``name`` stands in the certificate.
    """
    x = signals.to(shard.group.device, torch.float64)
    points = f(np.linspace(0.0, shard.largest, 1001))  # tells functions of the same name apart
    function = hashlib.sha256(np.asarray(points, dtype=np.float64).tobytes()).hexdigest()
    question = {"ask": name, "function": function, "signals": None if out is None else fingerprint(shard, x)}
    return _filtered(Asked(shard, question, tol, panel, out, tell), f, x.shape[1], lambda some: x[:, some])


def _filtered(
    asked: Asked,
    f: Callable[[np.ndarray], np.ndarray],
    columns: int,
    signals: Callable[[slice], Float[Tensor, "rows k"]],
) -> Answer:
    shard, tol = asked.shard, asked.tol
    check_tolerance(tol, "auto", ("auto",))
    compiled = SpectralFilter(Spectrum(shard.largest, shard.largest), f, null=True)
    layers = compiled.layers_for(tol * compiled.size)
    asked.say(f"chebyshev series, {layers} layers")
    bound = compiled.error_bound(layers) / compiled.size if compiled.size else 0.0

    def run(x: Tensor, layers: int) -> Tensor:
        answer, before, now = torch.zeros_like(x), torch.zeros_like(x), x
        for c, first, a, b in compiled.recurrence(layers):
            answer = answer.add_(now, alpha=first)
            now, before = shard.times_laplacian(now).mul_(b).add_(now, alpha=a).sub_(before), now
            answer = answer.add_(now, alpha=c)
        return answer

    def answer(some: slice) -> Answer:
        x = signals(some)
        probe = x.sum(1, keepdim=True)
        change = run(probe, layers) - run(probe, layers + layers // 4 + 1)
        size = float(shard.norms(probe)) * compiled.size
        residual = float(shard.norms(change)) / size if size > 0 else 0.0
        return Answer(run(x, layers), "chebyshev series", layers, residual, bound, compiled.spectrum)

    return check_reached(in_panels(asked, columns, answer), tol)


def heat(
    shard: Shard,
    s: float,
    signals: Float[Tensor, "rows k"],
    *,
    tol: float = 1e-6,
    panel: int = PANEL,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Apply the heat kernel ``exp(-s L)`` to signals."""
    _check_time(s)
    return spectral_filter(
        shard, lambda t: np.exp(-s * t), signals, tol=tol, panel=panel, out=out, tell=tell, name=f"heat {s}"
    )


def heat_embedding(
    shard: Shard,
    dim: int,
    s: float,
    *,
    seed: int = 0,
    tol: float = 1e-6,
    panel: int = PANEL,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> Answer:
    """Compute ``dim`` coordinates of every node, whose inner products are entries of ``exp(-s L)`` on average.

    They are the rows of ``exp(-s L / 2) Q / sqrt(dim)``, Q Gaussian; an entry is off by up to about ``sqrt(2 / dim)`` of the
    geometric mean of the two diagonal ones. For a given seed the same for any number of processes.
    """
    _check_time(s)
    if dim < 1:
        raise ValueError(f"expected dim >= 1, got {dim}")

    def signals(some: slice) -> Tensor:
        return node_noise(shard, seed, some) / math.sqrt(dim)

    asked = Asked(shard, {"ask": "heat embedding", "s": s, "seed": seed}, tol, panel, out, tell)
    return _filtered(asked, lambda t: np.exp(-s * t / 2), dim, signals)


def _check_time(s: float) -> None:
    if not 0 < s < math.inf:
        raise ValueError(f"the heat kernel needs s > 0, got {s!r}")


# ---------------------------------------------------------------------------------------------------- eigenvectors


def eigenvectors(
    shard: Shard,
    k: int = 6,
    *,
    tol: float = 1e-6,
    seed: int = 0,
    out: Path | str | None = None,
    tell: Tell | None = None,
) -> EigenAnswer:
    """Compute eigenvectors of the ``k`` smallest nonzero eigenvalues, as :func:`ohmformer.eigenvectors`.


    By subspace iteration (Corollary 7) with a few additional columns: Chebyshev polynomials of ``mu I - L`` that are small
    on the eigenvalues above the subspace, and orthogonalization by the Gram matrix of all columns, which is summed over all
    processes. ``residual`` is ``|L v - lambda v| / lmax`` of the worst.
    """
    check_tolerance(tol, "auto", ("auto",))
    if k < 1:
        raise ValueError(f"expected k >= 1 eigenvectors, got {k}")
    found = min(k, shard.manifest.nodes - shard.manifest.components)
    columns = min(k + max(8, k // 2), shard.manifest.nodes - shard.manifest.components)
    files = AnswerFiles(shard, out, {"ask": "eigenvectors", "columns": k, "tol": tol, "seed": seed})
    top, layers, residual = shard.largest, 0, 0.0
    x = _orthonormal(shard, shard.center(node_noise(shard, seed, slice(0, columns))))
    values = x.new_zeros(columns)
    for step in range(STEPS if found else 0):
        product = shard.times_laplacian(x)
        values, turn = torch.linalg.eigh(shard.total(x.mT @ product))
        x, product = x @ turn, product @ turn
        residual = float(shard.norms(product - x * values)[:found].max()) / top
        say(shard, tell, f"step {step + 1} of subspace iteration: residual {residual:.1e}, {layers} layers")
        if residual <= tol:
            break
        low = max(float(values[-1]), 1e-12 * top)
        x = _orthonormal(shard, shard.center(_damped(shard, x, min(low, 0.9 * top), top)))
        layers += DEGREE
    vectors, eigenvalues = x.new_zeros(len(shard.nodes), k), x.new_full((k,), math.nan)
    vectors[:, :found], eigenvalues[:found] = x[:, :found], values[:found]
    answer = EigenAnswer(vectors, "subspace", layers, residual, None, Spectrum(top, top), eigenvalues=eigenvalues)
    certificate = {**certificate_of(answer), "eigenvalues": eigenvalues.tolist()}
    files.save(0, {"nodes": shard.nodes, "value": vectors}, certificate)
    files.close(answer)
    return check_reached(answer, tol)


def _damped(shard: Shard, x: Float[Tensor, "rows k"], low: float, high: float) -> Float[Tensor, "rows k"]:
    """Apply a Chebyshev polynomial of L that is small on ``[low, high]`` to x, with one product per step."""
    middle, half = (high + low) / 2, (high - low) / 2
    before, now = x, (shard.times_laplacian(x) - middle * x) / half
    for step in range(1, DEGREE):
        before, now = now, (shard.times_laplacian(now) - middle * now).mul_(2 / half).sub_(before)
        if step % 10 == 0:
            size = shard.norms(now).clamp(min=1e-300)
            before, now = before / size, now / size
    return now


def _orthonormal(shard: Shard, x: Float[Tensor, "rows k"]) -> Float[Tensor, "rows k"]:
    """Return an orthonormal basis of the columns by eigenvectors of their Gram matrix; three times because of rounding."""
    for _ in range(3):
        x = x / shard.norms(x).clamp(min=1e-300)
        values, vectors = torch.linalg.eigh(shard.total(x.mT @ x))
        x = x @ (vectors / values.clamp(min=1e-15 * len(values)).sqrt())
    return x
