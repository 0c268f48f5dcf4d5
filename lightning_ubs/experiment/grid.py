"""The grid: do the runs that the results folder lacks, in parallel, and keep each as soon as it is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_ubs.experiment.config import ConfigError
from lightning_ubs.experiment.plan import plan_runs
from lightning_ubs.experiment.pool import Died, run_tasks
from lightning_ubs.experiment.progress import progress_display
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.run import failure
from lightning_ubs.experiment.store import ResultsStore, StoreError
from lightning_ubs.experiment.worker import do_run


@dataclass
class GridOutcome:
    """What a grid did: runs in all, those that were there before, and the records of those that failed now."""

    total: int
    known: int
    failed: list[RunRecord] = field(default_factory=list)

    @property
    def finished(self) -> int:
        """Runs that are in the results folder."""
        return self.total - len(self.failed)


def run_grid(config: Mapping[str, Any]) -> GridOutcome:
    """Do the runs of a resolved ``compare`` configuration that are not in its results folder yet."""
    store = ResultsStore(config["results"])
    runs = plan_runs(config)
    prepare_folder(store)
    known = store.keys()
    todo = [run for run in runs if run.key not in known]
    outcome = GridOutcome(len(runs), len(runs) - len(todo))
    jobs, threads = share_processors(config["jobs"], len(todo))
    folder = store.folder.resolve()
    tasks = [(run.config, str(folder), run.names) for run in todo]
    with progress_display(outcome.total, outcome.known, jobs) as show:
        for number, result in run_tasks(
            do_run, tasks, jobs, threads, folder / "logs", lambda number: show.started(todo[number].title)
        ):
            run = todo[number]
            record = failure(run.config, result.reason, run.names) if isinstance(result, Died) else result
            store.append(record)
            show.finished(run.title, record)
            if not record.finished:
                outcome.failed.append(record)
    _tidy(folder)
    return outcome


def _tidy(folder: Path) -> None:
    """Remove what is empty: the logs of workers that had nothing to say, and the place of unfinished runs."""
    for log in (folder / "logs").glob("worker-*.log"):
        if not log.stat().st_size:
            log.unlink()
    for name in ("logs", "unfinished"):
        with contextlib.suppress(OSError):
            (folder / name).rmdir()


def prepare_folder(store: ResultsStore) -> None:
    """Make the results folder, and find out now rather than after the first run whether it can be written to."""
    probe = store.folder / f".writable-{os.getpid()}"
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"results={str(store.folder)!r} cannot be written to ({error.strerror}); choose a folder that you may "
            "write to: results=FOLDER."
        ) from None


def share_processors(jobs: int | None, runs: int) -> tuple[int, int]:
    """How many processes at a time, and how many threads each; OMP_NUM_THREADS, if set, is the most they get.

    >>> share_processors(1, 10)[0]
    1
    """
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise ConfigError(f"jobs={jobs!r} is out of range; it must be at least 1, or null for one per processor.")
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(1, min(jobs or processors, runs))
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return count, max(1, min(processors // count, int(limit) if limit.isdigit() else processors))
