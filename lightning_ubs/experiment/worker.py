"""What a worker process does with a run: claim it, do it, keep its record."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import pickle
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from lightning_ubs._utils.files import write_problem
from lightning_ubs.errors import ConfigError, LightningUBSError
from lightning_ubs.experiment.claims import Claim, Claims
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.store import ResultsStore

TRIES = 2
"""How often a run is begun whose process dies."""

Outcome = Literal["done", "busy"]

# A run seeds global generators: an engine whose workers have several threads does one at a time in each.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Order:
    """A run, and what a worker needs to know to do it.

    Attributes:
        run: The pickled `Run`, read where it is done.
        results: The results folder, absolute.
        grid: Name of the grid.
        since: Size of the store's file when the grid began; failures after it are this grid's.
        folder: Current folder of the grid, for paths of the user; None on other machines.
        path: Where Python looks for the user's modules.
        environment: Variables of this package.
    """

    run: bytes
    results: str
    grid: str
    since: int
    folder: str | None = None
    path: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def do_run(order: Order) -> Outcome:
    """Do a run unless it is there or another process does it; its record is in the store when this returns ``"done"``.

    A failure is a record too. Only a `ConfigError` is raised, after its record is kept: every other run of the grid
    would meet it as well.
    """
    _prepare(order)
    with _ONE_AT_A_TIME:
        run: Run = pickle.loads(order.run)
        store, claims = ResultsStore(order.results), Claims(Path(order.results), order.grid)
        with claims.take(run.key) as claim:
            if claim is None:
                return "busy"
            if not store.holds(run.key, order.since):
                _do(run, claim, store)
            return "done"


def died(tries: int) -> str:
    """The error of a run whose process died as often as it was tried."""
    return (
        f"its process was killed {tries} times, usually for lack of memory; run fewer jobs at a time, such as jobs=1."
    )


def _do(run: Run, claim: Claim, store: ResultsStore) -> None:
    if claim.tries > TRIES:
        store.append(run.failed(died(TRIES)))
        return
    shutil.rmtree(claim.folder, ignore_errors=True)  # of an owner that was killed
    stop: ConfigError | None = None
    with _logged(store.folder / "logs" / f"{run.key}.log"):
        try:
            record: RunRecord = run.execute(claim.folder, store, keep=False)
        except Exception as error:
            logging.getLogger(__name__).exception("run failed: %s", run.identity.title)
            record = run.failed(_disk_problem(error, store.folder) or _sentence(error))
            stop = error if isinstance(error, ConfigError) else None
        finally:
            shutil.rmtree(claim.folder, ignore_errors=True)
    store.append(record)
    if stop is not None:
        raise ConfigError(record.error)


def _sentence(error: Exception) -> str:
    """What an error says; its type is added where that is needed to understand it."""
    text = " ".join(str(error).split()) or type(error).__name__
    known = isinstance(error, ValueError | OSError | LightningUBSError)
    return text if known else f"{type(error).__name__}: {text}"


def _disk_problem(error: BaseException, folder: Path) -> str | None:
    """What a write that the disk refused means; a file that cannot be read is another matter."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
    return write_problem(error, folder) if full else None


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Send what is printed and logged to a file, which is removed if it stays empty."""
    with _opened(path) as file:
        handler = logging.StreamHandler(file)
        root = logging.getLogger()
        root.addHandler(handler)
        quiet = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
        levels = [logger.level for logger in quiet]
        for logger in quiet:
            logger.setLevel(logging.WARNING)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            root.removeHandler(handler)
            for logger, level in zip(quiet, levels, strict=True):
                logger.setLevel(level)
    if not path.stat().st_size:
        path.unlink(missing_ok=True)


def _opened(path: Path) -> IO[str]:
    """A new file; its folder may be tidied away by another process as soon as it was made."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return open(path, "w", encoding="utf-8")


def _prepare(order: Order) -> None:
    """Make the worker like the process of the grid."""
    # Workers of a DataLoader could not start in it: loky makes its own way of starting processes the default, and
    # Dask's workers may have no children. Those of a DataLoader end with their parent, so that none is left behind.
    if multiprocessing.get_start_method(allow_none=True) == "loky":
        multiprocessing.set_start_method(None, force=True)
    if multiprocessing.current_process().daemon:
        multiprocessing.current_process().daemon = False
    sys.path.extend(one for one in order.path if one not in sys.path)
    os.environ.update(order.environment)
    if order.folder is not None:
        os.chdir(order.folder)
