"""Kills ``compare`` and ``train`` with -9 at random moments: nothing is lost, done twice, orphaned or left locked.

Run ``python benchmarks/kills.py --compare 100 --train 30``. Real trainings on the embedded digits, in real processes.
Moments are counted in processor time since a command's first run was begun, so that they fall into the runs on a loaded
machine, too. Commands are forked from this process, which has imported everything: start-up touches no results.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path

import psutil
import torch

from lightning_ubs.cli import main as command_line
from lightning_ubs.experiment import command, train  # noqa: F401 - imported once, for all commands
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report import build_report  # noqa: F401

RUNS = 8
GRID = ["data=digits", "selection=[random,ubs]", "fold=[0,1,2,3]", "trainer.max_epochs=12", "report.formats=[csv]"]
ORPHANS_END_WITHIN = 60.0


def start(arguments: list[str]) -> ForkProcess:
    """A command in a session of its own, so that its descendants can be found."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(arguments,))
    process.start()
    return process


def _run(arguments: list[str]) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os._exit(command_line(arguments))


def members(session: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def spent(session: int) -> float:
    """Processor time that the living processes of a session have used, in seconds."""
    total = 0.0
    for member in members(session):
        try:
            total += sum(psutil.Process(member).cpu_times()[:2])
        except psutil.Error:
            continue
    return total


def killed(arguments: list[str], folder: Path, after: float) -> bool:
    """Start a command and kill it ``after`` seconds of work on runs; False if it ended by itself before."""
    process = start(arguments)
    pid = process.pid or 0
    begun: float | None = None
    while process.is_alive():
        now = spent(pid)
        if begun is None and (arguments[0] == "train" or _at_work(pid, folder)):
            begun = now
        if begun is not None and now - begun >= after:
            process.kill()
            break
        time.sleep(0.1)
    process.join()
    if process.exitcode is not None and process.exitcode >= 0:
        if process.exitcode:
            raise AssertionError(f"{arguments} ended with {process.exitcode}.")
        return False
    deadline = time.monotonic() + ORPHANS_END_WITHIN
    while left := members(pid):
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {left} outlived the killed command by {ORPHANS_END_WITHIN:.0f} s.")
        time.sleep(0.2)
    return True


def _at_work(session: int, folder: Path) -> bool:
    """Whether a process of the session has a run of the grid; claims of dead owners may lie there, too."""
    for member in members(session):
        try:
            if any(Path(file.path).parent == folder / "claims" for file in psutil.Process(member).open_files()):
                return True
        except psutil.Error:
            continue
    return False


def kept(folder: Path) -> bytes:
    """The whole lines of the results: what was kept so far."""
    path = ResultsStore(folder).path
    text = path.read_bytes() if path.exists() else b""
    return text[: text.rfind(b"\n") + 1]


def finish(arguments: list[str], folder: Path, runs: int) -> None:
    """Let the command end, and check that every run is there once and nothing is left behind."""
    process = start(arguments)
    process.join()
    if process.exitcode != 0:
        raise AssertionError(f"the command did not finish in {folder} after the kills.")
    records = ResultsStore(folder).records()
    counts = Counter(record.key for record in records if record.finished)
    assert len(counts) == runs, f"{len(counts)} of {runs} runs are there."
    assert set(counts.values()) == {1}, f"some runs were recorded twice: {counts}."
    assert all(record.finished for record in records), "a killed run was recorded as failed."
    left = [str(path) for name in ("claims", "unfinished") for path in [folder / name] if path.exists()]
    assert not left, f"left behind: {left}."


def rounds(kills: int, make: Callable[[Path], list[str]], runs: int, longest: float, chance: random.Random) -> None:
    """Kill in one folder after the other until there were ``kills``, and print how many runs were there at each."""
    moments, folders = Counter[int](), 0
    while moments.total() < kills:
        folders += 1
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "results"
            arguments, before = make(folder), b""
            while moments.total() < kills and killed(arguments, folder, chance.uniform(0.0, longest)):
                now = kept(folder)
                assert now.startswith(before), f"a run that was kept is lost in {folder}."
                before = now
                moments[now.count(b"\n")] += 1
                print(f"\r{arguments[0]}: {moments.total()} of {kills} kills", end="", flush=True)
            finish(arguments, folder, runs)
            assert kept(folder).startswith(before), f"a run that was kept is lost in {folder}."
    if kills:
        told = dict(sorted(moments.items()))
        print(f" in {folders} folders of {runs} runs; runs that were there, and kills: {told}")


def main() -> None:
    """Kill, count and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=int, default=100, help="kills of compare (default: %(default)s)")
    parser.add_argument("--train", type=int, default=30, help="kills of train (default: %(default)s)")
    parser.add_argument("--engine", default="loky", help="of compare (default: %(default)s)")
    parser.add_argument("--longest", type=float, default=10.0, help="latest kill, in seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    grid = [*GRID, f"engine={options.engine}", "jobs=2"]
    rounds(options.train, _train, 1, options.longest, chance)
    rounds(options.compare, lambda folder: ["compare", *grid, f"results={folder}"], RUNS, options.longest, chance)


def _train(folder: Path) -> list[str]:
    run = f"hydra.run.dir={folder.parent / 'run'}"
    return ["train", "data=digits", "trainer.max_epochs=12", f"results={folder}", run]


if __name__ == "__main__":
    main()
