"""Train many settings: on this machine's processors, or on a Ray cluster.

A job is a setting and a number of steps; its result is a JSON file. Existing results are not recomputed, and jobs
interrupted on this machine continue from their checkpoints.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ohmformer.experiments.learn.setting import Setting
from ohmformer.graph.extras import require
from ohmformer.graph.files import write_text


@dataclass(frozen=True)
class Job:
    """A setting to train for a number of steps."""

    setting: Setting
    steps: int

    @property
    def name(self) -> str:
        """Setting and steps as a file name."""
        return f"{self.setting.name}-{self.steps}"


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    *,
    cluster: str | None = None,
    workers: int = 2,
    watch: Callable[[str, dict[Job, dict[str, Any]], int], None] | None = None,
) -> dict[Job, dict[str, Any]]:
    """Return the results of all jobs, read from ``folder`` or computed.

    ``cluster`` is the address of a Ray cluster, or ``"local"`` to start one here; by default ``workers`` processes are used.
    ``watch`` is called with the name of a finished job, all results so far, and the number of all jobs.
    """
    results = {job: found for job in jobs if (found := _read(job, folder)) is not None}
    waiting = [job for job in dict.fromkeys(jobs) if job not in results]
    waiting.sort(key=lambda job: job.steps * job.setting.layers * (job.setting.model == "dense") + 1, reverse=True)
    if watch is not None:
        watch("", results, len(results) + len(waiting))
    finished = (
        ()
        if not waiting
        else _on_processes(waiting, folder, workers)
        if cluster is None
        else _on_ray(waiting, cluster, workers)
    )
    for job, result in finished:
        write_text(folder / f"{job.name}.json", json.dumps(result, indent=2) + "\n")
        results[job] = result
        if watch is not None:
            watch(job.name, results, len(set(jobs)))
    return {job: results[job] for job in jobs}


def run_one(setting: dict[str, Any], steps: int, folder: str | None) -> dict[str, Any]:
    """Train one job, given in plain types so that it can be sent to other processes; with a folder it is resumable."""
    import torch

    from ohmformer.experiments.learn.train import train

    torch.set_num_threads(1)
    place = None if folder is None else Path(folder)
    return train(Setting(**setting), steps=steps, folder=place, resume=place is not None).as_dict()


def _read(job: Job, folder: Path) -> dict[str, Any] | None:
    """Read the result of a job, or return None if there is none."""
    path = folder / f"{job.name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["setting"] != job.setting.as_dict() or found["steps"] != job.steps:
        raise ValueError(f"expected the result of {job.name} in {path}, got that of another setting")
    return found


def _on_processes(jobs: list[Job], folder: Path, workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Run jobs in processes on this machine."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {
            pool.submit(run_one, job.setting.as_dict(), job.steps, str(folder / "checkpoints" / job.name)): job
            for job in jobs
        }
        for future in as_completed(running):
            yield running[future], future.result()


def _on_ray(jobs: list[Job], address: str, workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Run jobs on a Ray cluster, each on one processor."""
    ray = require("ray", "cluster")
    started = not ray.is_initialized()
    if started:
        here = {"num_cpus": workers, "include_dashboard": False}
        where: dict[str, Any] = here if address == "local" else {"address": address}
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(run_one)
        running = {remote.remote(job.setting.as_dict(), job.steps, None): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(done), ray.get(done)
    finally:
        if started:
            ray.shutdown()
