"""The grid: run whatever is missing from the results folder, and keep each run as soon as it has finished."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs._utils.progress import Bar, Lines, Say, span, to_stdout
from lightning_ubs.errors import ConfigError, EngineError, RunsFailed, StoreError
from lightning_ubs.experiment import engine as engines
from lightning_ubs.experiment.claims import Claims
from lightning_ubs.experiment.engine import Engine
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.experiment.worker import TRIES, Order, Outcome, died, do_run

Map = Callable[..., list[Any]]
_PAUSE = 0.5
_LOOK = 0.3
_VAIN = 3


@dataclass
class GridOutcome:
    """What a grid did.

    Attributes:
        total: Runs in all.
        known: Those that were there before.
        failed: Records of those that failed now.
        records: Those of the finished runs, by key.
    """

    total: int
    known: int
    failed: list[RunRecord] = field(default_factory=list)
    records: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        """Runs that are in the results folder."""
        return self.total - len(self.failed)

    def check(self) -> None:
        """Raise :class:`RunsFailed` if a run failed."""
        if not self.failed:
            return
        last = self.failed[-1]
        raise RunsFailed(
            f"{len(self.failed)} of {self.total} runs failed, the last ({last.data}, {last.model}, {last.label}, fold "
            f"{last.fold}, seed {last.seed}) with: {str(last.error).splitlines()[-1]} The others are kept; the same "
            "command tries the failed ones again."
        )


def run_grid(
    runs: Sequence[Run],
    store: ResultsStore,
    jobs: int | None = None,
    engine: Engine = "loky",
    say: Say | None = None,
) -> GridOutcome:
    """Run whatever is missing from the store, and wait for runs that another grid has claimed.

    Raises:
        ConfigError: If a run cannot be done because of what was asked for, so that none can.
    """
    engines.check_engine(engine)
    engines.check_jobs(jobs)
    orders, claims = _orders(runs), Claims(store.folder.resolve(), uuid.uuid4().hex)
    prepare_folder(store)
    known, since = store.keys(), store.size()
    todo = [run for run in runs if run.key not in known]
    outcome = GridOutcome(len(runs), len(runs) - len(todo))
    try:
        with engines.started(engine, at_a_time(jobs, todo) if engine == "loky" else jobs, len(todo)) as (count, call):
            here = _here(engine)
            ready = {run.key: Order(orders[run.key], str(claims.results), claims.grid, since, **here) for run in todo}
            with _watched(store, [run.key for run in todo], outcome.total, outcome.known, count, say):
                vain = 0
                while todo:
                    vain = 0 if _pass(todo, ready, claims, store, call, count, last=vain == _VAIN) else vain + 1
                    todo = [run for run in todo if not store.holds(run.key, since)]
    finally:
        claims.tidy()
    stored, keys = store.records(), {run.key for run in runs}
    last = {record.key: record for record in stored if record.key in keys - known}
    outcome.failed = [record for record in last.values() if not record.finished]
    outcome.records = {record.key: record for record in stored if record.key in keys and record.finished}
    return outcome


@contextmanager
def _watched(
    store: ResultsStore, keys: Sequence[str], total: int, known: int, jobs: int, say: Say | None
) -> Iterator[None]:
    """Show every run of ``keys`` that appears in the store while the block lasts, whoever does it.

    Args:
        store: To watch.
        keys: Keys of the runs that are not there yet.
        total: Runs of the grid.
        known: Those that were done before.
        jobs: Runs at a time.
        say: Takes lines; None: standard output, with a live bar in a terminal.
    """
    tell = say or to_stdout()
    if not keys:
        tell(f"all {total} runs are already done")
        yield
        return
    tell(f"{total} runs{f', {known} already done' if known else ''}; {jobs} at a time")
    display = Bar(total, known) if say is None and sys.stdout.isatty() else Lines(total, known, tell)
    place, waiting, over = store.size(), set(keys), threading.Event()

    def look(place: int) -> int:
        records, place = store.after(place)
        for record in records:
            if record.key in waiting:
                waiting.discard(record.key)
                display.finished(record.title, result_text(record))
        return place

    def watch() -> None:
        reached = place
        while not over.wait(_LOOK):
            reached = look(reached)
        look(reached)

    with display:
        watcher = threading.Thread(target=watch, name="grid progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def result_text(record: RunRecord) -> str:
    """The outcome of a run in a few words."""
    if not record.finished:
        return f"FAILED: {str(record.error).splitlines()[-1]}"
    return f"best {record.monitor} {record.monitored:.4f} in {span(record.seconds or 0)}"


def at_a_time(jobs: int | None, runs: Sequence[Run]) -> int | None:
    """How many runs to do at a time: as many as asked for, else one where they share a GPU; None: one per processor."""
    return 1 if jobs is None and any(run.shares_device for run in runs) else jobs


def _pass(
    todo: Sequence[Run],
    orders: dict[str, Order],
    claims: Claims,
    store: ResultsStore,
    call: Map,
    jobs: int,
    last: bool,
) -> bool:
    """Claim and run unclaimed runs; return whether any was begun. If none was, that is an error where ``last``.

    After the death of a worker, what was under way is done again, one at a time.
    """
    free = [run for run in todo if claims.is_free(run.key)]
    if not free:
        time.sleep(_PAUSE)
        return True
    begun = {run.key: claims.tries(run.key) for run in free}
    try:
        _call(call, [orders[run.key] for run in free], jobs)
        return True
    except EngineError as error:
        suspects = [run for run in free if claims.tries(run.key) > begun[run.key]]
        if not suspects and not any(store.holds(run.key, orders[run.key].since) for run in free):
            if last:
                reason = str(error).splitlines()[0]
                raise EngineError(
                    f"no run could be started ({reason}); look at the engine, or use engine=loky."
                ) from error
            time.sleep(_PAUSE)  # a cluster that has just lost a node may need a moment
            return False
    for run in suspects:
        if not store.holds(run.key, orders[run.key].since):
            _alone(run, orders[run.key], claims, store, call)
    return True


def _alone(run: Run, order: Order, claims: Claims, store: ResultsStore, call: Map) -> None:
    try:
        _call(call, [order], 1)
    except EngineError:
        if claims.tries(run.key) >= TRIES and not store.holds(run.key, order.since):
            store.append(run.failed(died(TRIES)))


def _call(call: Map, orders: Sequence[Order], jobs: int) -> list[Outcome]:
    return call(do_run, orders, jobs)


def _orders(runs: Sequence[Run]) -> dict[str, bytes]:
    """Every run, pickled; classes and functions of a notebook or script go with it."""
    cloudpickle = optional_import("cloudpickle")
    found = {}
    for run in runs:
        try:
            found[run.key] = cloudpickle.dumps(run)
        except Exception as error:
            raise ConfigError(
                f"a part of the run {run.identity.title!r} cannot be sent to another process "
                f"({' '.join(str(error).split())}); create it inside the function that you pass, not outside."
            ) from error
    return found


def _here(engine: Engine) -> dict[str, Any]:
    """What a worker must know of this process; a worker of a cluster may be on another machine."""
    names = [name for name in os.environ if name.startswith("LIGHTNING_UBS_")]
    told: dict[str, Any] = {"path": list(sys.path), "environment": {name: os.environ[name] for name in names}}
    return told | ({"folder": os.getcwd()} if engine == "loky" else {})


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
