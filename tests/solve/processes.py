"""Run a function in several processes that are a process group of gloo, and get what each returns.

They are forked from a server that has imported everything once, so that a test of four processes takes a second.
"""

import multiprocessing
import pickle
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.solve.processes", "torch", "ohmformer.solve.distributed"])


def run(processes: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(rank, *arguments)`` returns in each of so many processes; their errors are raised here."""
    ends, started = start(processes, work, *arguments)
    found = [pickle.loads(end.recv_bytes()) for end in ends]
    for process in started:
        process.join()
    errors = [error for error, _ in found if error is not None]
    assert not errors, "\n".join(errors)
    return [result for _, result in found]


def start(processes: int, work: Callable[..., Any], *arguments: Any) -> tuple[list[Any], list[Any]]:
    """The pipes that results come through, (error, result) as bytes, and the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends, started = [], []
    for rank in range(processes):
        ours, theirs = _server.Pipe()
        process = _server.Process(target=_work, args=(theirs, rank, processes, port, pickle.dumps((work, arguments))))
        process.start()
        theirs.close()
        ends.append(ours)
        started.append(process)
    return ends, started


def _work(pipe: Any, rank: int, processes: int, port: int, job: bytes) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        work, arguments = pickle.loads(job)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes, timeout=timedelta(seconds=30)
        )
        pipe.send_bytes(pickle.dumps((None, work(rank, *arguments))))
    except Exception as error:
        pipe.send_bytes(pickle.dumps((traceback.format_exc(), error)))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
