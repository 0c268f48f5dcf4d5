"""Worker processes that survive each other: one that dies takes only its own task with it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from lightning_ubs.experiment.worker import serve

_TRIES = 2


@dataclass
class Died:
    """What is given back for a task whose worker died, as often as it was tried."""

    reason: str


class _Worker:
    """A process, the pipe to it, and the task that it has."""

    def __init__(self, log: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, str(log), threads), daemon=True)
        self.task: int | None = None
        with _threads(threads):
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def run_tasks(
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    threads: int,
    logs: Path,
    started: Callable[[int], None],
) -> Iterator[tuple[int, Any]]:
    """Call ``function(*task)`` for every task in worker processes; yield (number, result) as they come.

    A task whose worker dies is tried once more with a new worker, then its result is :class:`Died`.

    Args:
        function: importable by name.
        tasks: its arguments, picklable.
        jobs: processes at a time.
        threads: of each.
        logs: folder for what the workers print.
        started: is told the number of each task that begins.
    """
    waiting, tries = deque(range(len(tasks))), [0] * len(tasks)
    logs.mkdir(parents=True, exist_ok=True)
    workers = [_Worker(logs / f"worker-{number}.log", threads) for number in range(min(jobs, len(tasks)))]
    try:
        while waiting or any(worker.task is not None for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    tries[worker.task] += 1
                    started(worker.task)
                    with contextlib.suppress(OSError):  # a dead worker is noticed below
                        worker.pipe.send((function, tasks[worker.task]))
            ready = wait([worker.pipe for worker in workers if worker.task is not None])
            for number, worker in enumerate(workers):
                if worker.task is None or worker.pipe not in ready:
                    continue
                task, worker.task = worker.task, None
                try:
                    result = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.stop()
                    result = Died(_reason(worker.process.exitcode, logs / f"worker-{number}.log"))
                    workers[number] = _Worker(logs / f"worker-{number}.log", threads)
                    if tries[task] < _TRIES:
                        waiting.appendleft(task)
                        continue
                yield task, result
    finally:
        for worker in workers:
            worker.stop()


def _reason(code: int | None, log: Path) -> str:
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    return f"its process {how}, {_TRIES} times; too little memory is the usual cause (fewer jobs= help), see {log}"


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let a process that starts now see the number of threads; numerical libraries read it when they load."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(count)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
