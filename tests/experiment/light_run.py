"""A run that needs no torch: it waits, writes into its folder and says how it went. For grids, locks and engines."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.engine import Engine
from lightning_ubs.experiment.grid import run_grid
from lightning_ubs.experiment.record import RunIdentity, RunRecord
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.store import ResultsStore


def light(
    run: Run, folder: Path, store: ResultsStore | None, keep: bool, diary: str, seconds: float, fate: str
) -> RunRecord:
    """Leaves a line in ``diary`` when it begins and when it ends."""
    note(diary, f"begin {run.key} {os.getpid()}")
    folder.mkdir(parents=True)  # fails if anyone else uses it
    (folder / "owner").write_text(str(os.getpid()))
    if fate == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "raises":
        raise ValueError("no such luck.")
    if fate == "full":
        raise RuntimeError("the checkpoint was not written") from OSError(errno.ENOSPC, "No space", "a", None, "b")
    if fate == "misfit":
        raise ConfigError("nothing fits; change it.")
    time.sleep(seconds)
    assert (folder / "owner").read_text() == str(os.getpid()), "the folder has another owner"
    note(diary, f"end {run.key} {os.getpid()}")
    return run.identity.record(status="ok", seconds=seconds)


def no_part(*_: Any) -> Any:
    raise AssertionError("a light run has no parts")


def note(diary: str, line: str) -> None:
    with open(diary, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def light_runs(
    folder: Path, count: int, seconds: float = 0.0, fates: dict[int, str] | None = None, label: str = "Random"
) -> list[Run]:
    """Runs that write their diary beside the results folder."""
    found = []
    for fold in range(count):
        key = hashlib.sha256(f"{label} {fold}".encode()).hexdigest()[:16]
        identity = RunIdentity(key=key, data="none", model="none", selection="random", label=label, fold=fold, seed=0)
        fate = (fates or {}).get(fold, "ok")
        train = partial(light, diary=str(folder.parent / "diary"), seconds=seconds, fate=fate)
        parts = {"make_data": no_part, "make_module": no_part, "make_selection": no_part}
        found.append(Run(identity=identity, train=train, trainer={"accelerator": "cpu"}, **parts))
    return found


def main(folder: str, count: str, seconds: str, jobs: str, engine: Engine = "loky") -> None:
    """A grid as a program, so that it can be killed."""
    outcome = run_grid(light_runs(Path(folder), int(count), float(seconds)), ResultsStore(folder), int(jobs), engine)
    outcome.check()


def begun(folder: Path) -> Sequence[str]:
    """Keys of the runs that were begun, in order."""
    diary = folder.parent / "diary"
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [line.split()[1] for line in lines if line.startswith("begin")]


if __name__ == "__main__":
    import light_run  # workers find the class by this name

    light_run.main(*sys.argv[1:])  # type: ignore[arg-type]
