"""Where runs happen: joblib's backends, here or on a cluster that the user has."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs._utils.extras import optional_import
from lightning_ubs.errors import ConfigError, EngineError

Engine = Literal["loky", "sequential", "ray", "dask"]


def check_engine(engine: str) -> None:
    """Reject unknown engines and missing packages."""
    if engine not in get_args(Engine):
        known = get_args(Engine)
        hint = did_you_mean(engine, known, f"choose from {', '.join(known)}.")
        raise ConfigError(f"engine={engine!r} is unknown; {hint}")
    optional_import("joblib")
    if engine == "ray":
        optional_import("ray", "ray")
    elif engine == "dask":
        optional_import("distributed", "dask")


def share_processors(jobs: int | None, runs: int) -> tuple[int, int]:
    """How many processes at a time, and how many threads each; OMP_NUM_THREADS, if set, is the most they get.

    Threads change the last digits of a sum. So they depend on ``jobs`` and the machine, not on the number of runs:
    a run that is repeated, or done when the others are there already, gives the same number.

    >>> share_processors(None, 10)[1] == share_processors(None, 1)[1] == 1
    True
    """
    check_jobs(jobs)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    threads = min(processors // (jobs or processors), int(limit) if limit.isdigit() else processors)
    return max(1, min(jobs or processors, runs)), max(1, threads)


def check_jobs(jobs: int | None) -> None:
    """Refuse a number of processes that cannot be."""
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise ConfigError(f"jobs={jobs!r} is out of range; it must be at least 1, or null for one per processor.")


@contextlib.contextmanager
def started(engine: Engine, jobs: int | None, runs: int) -> Iterator[tuple[int, Callable[..., list[Any]]]]:
    """An engine that is ready: how many runs it does at a time, and its map.

    The map calls a function with each of many arguments, in processes that end with this block, so that a notebook
    that changes its code never meets processes that know the old one. It raises :class:`EngineError` if one of them
    dies; what the function itself raises comes through.
    """
    check_jobs(jobs)
    if engine == "sequential":  # in this process, for a debugger
        with _threads(share_processors(jobs, runs)[1]):
            yield 1, lambda function, arguments, jobs: [function(one) for one in arguments]
    elif engine == "ray":
        with _ray() as processors:
            yield min(jobs or processors, runs) or 1, partial(_map, "ray", None)
    elif engine == "dask":
        with _dask() as processors:
            yield min(jobs or processors, runs) or 1, partial(_map, "dask", None)
    else:
        count, threads = share_processors(jobs, runs)
        try:
            yield count, partial(_map, "loky", threads)
        finally:
            loky = optional_import("joblib.externals.loky")
            loky.get_reusable_executor().shutdown(wait=True, kill_workers=True)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """As many threads as a run has with the other engines."""
    import torch  # runs need it, the grid does not

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _map(
    backend: Engine, threads: int | None, function: Callable[..., Any], arguments: Sequence[Any], jobs: int
) -> list[Any]:
    joblib = optional_import("joblib")
    inner: dict[str, Any] = {}
    if backend == "loky":
        inner = {"inner_max_num_threads": threads, "initializer": _end_with, "initargs": (os.getpid(),)}
    if backend == "ray":
        # Spread over the nodes, and with room left where a node was lost: Ray waits for ever for what cannot be placed.
        inner = {"ray_remote_args": {"num_cpus": 0.5, "scheduling_strategy": "SPREAD"}}
        processors = _ray_processors()
        jobs = min(jobs, processors)
    # With one job joblib would not start a process; a run must be able to die without the grid.
    options = {"n_jobs": max(2, jobs), "pre_dispatch": jobs, "batch_size": 1, "max_nbytes": None}
    try:
        if backend == "ray" and processors == 1:
            return _ray_one_by_one(function, arguments)
        with joblib.parallel_config(backend, **inner):
            return list(joblib.Parallel(**options)(joblib.delayed(_guarded)(function, one) for one in arguments))
    except _Raised as raised:
        raise raised.error from None
    except Exception as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error


def _end_with(parent: int) -> None:
    """End this worker when the process of its grid ends: what it does would be done again by the next grid."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its grid", daemon=True).start()


class _Raised(Exception):
    """Carrier of what the function raised past the engine, whose own errors are of any type."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def _guarded(function: Callable[..., Any], argument: Any) -> Any:
    try:
        return function(argument)
    except Exception as error:
        raise _Raised(error) from None


def _ray_processors() -> int:
    return max(1, int(optional_import("ray", "ray").cluster_resources().get("CPU", 1)))


def _ray_one_by_one(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """For a cluster with one processor, which Ray's pool refuses to give two processes."""
    ray = optional_import("ray", "ray")
    remote = ray.remote(num_cpus=1, max_retries=0)(_guarded)
    return [ray.get(remote.remote(function, one)) for one in arguments]


@contextlib.contextmanager
def _ray() -> Iterator[int]:
    """Connect to the cluster that RAY_ADDRESS names or that runs here, else start one here."""
    ray = optional_import("ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False)
    optional_import("ray.util.joblib", "ray").register_ray()
    try:
        yield _ray_processors()
    finally:
        if ours:
            ray.shutdown()


@contextlib.contextmanager
def _dask() -> Iterator[int]:
    """Use the client that there is, else connect to DASK_SCHEDULER_ADDRESS, else start workers here."""
    distributed = optional_import("distributed", "dask")
    try:
        client, ours = distributed.get_client(), False
    except ValueError:
        client, ours = distributed.Client(), True
    try:
        with client.as_current():
            yield len(client.ncores()) or 1
    finally:
        if ours:
            client.close()
