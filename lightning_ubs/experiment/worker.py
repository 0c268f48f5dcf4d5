"""What a worker process does: take a task, do it, give its result back; die when its parent does."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lightning_ubs.experiment.record import RunRecord


def serve(pipe: Connection, log: str, threads: int) -> None:
    """Do tasks until the pipe is closed. What they print goes to ``log``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    _redirect(log)
    _die_with_parent()
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(function(*arguments))


def do_run(config: dict[str, Any], results: str, names: Any) -> RunRecord:
    """One run of a grid: its record, that of a failure if it fails."""
    from lightning_ubs.experiment.config import run_key
    from lightning_ubs.experiment.run import execute, failure
    from lightning_ubs.experiment.store import ResultsStore

    folder = Path(results) / "unfinished" / run_key(config)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return execute(config, folder, ResultsStore(results), names, keep=False)
    except Exception as error:
        logging.getLogger(__name__).exception("run failed: %s", config)
        text = str(error).strip() or type(error).__name__
        known = isinstance(error, ValueError | OSError)
        return failure(config, text if known else f"{type(error).__name__}: {text}", names)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _redirect(log: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)


def _die_with_parent() -> None:
    """A run whose parent is gone must not go on: the next start of the grid does it again."""
    from multiprocessing import parent_process

    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
