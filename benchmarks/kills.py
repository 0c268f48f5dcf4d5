"""Kills ``compare`` and ``train`` with -9 at random moments: nothing is lost, done twice, orphaned or left locked.

Run ``python benchmarks/kills.py --compare 100 --train 30``. Real trainings on the embedded digits, in real processes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from lightning_ubs.experiment.store import ResultsStore

MAIN = "import sys; from lightning_ubs.cli import main; sys.exit(main(sys.argv[1:]))"
RUNS = 8
GRID = ["data=digits", "selection=[random,ubs]", "fold=[0,1,2,3]", "trainer.max_epochs=12", "report.formats=[csv]"]
ORPHANS_END_WITHIN = 30.0


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    """A command in a session of its own, so that its descendants can be found."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


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


def killed(arguments: list[str], after: float) -> bool:
    """Start a command and kill it; False if it ended by itself before."""
    process = start(arguments)
    try:
        process.wait(after)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + ORPHANS_END_WITHIN
    while left := members(process.pid):
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {left} outlived the killed command by {ORPHANS_END_WITHIN:.0f} s.")
        time.sleep(0.2)
    return True


def finish(arguments: list[str], folder: Path, runs: int) -> None:
    """Let the command end, and check that every run is there once and nothing is left behind."""
    if start(arguments).wait(900) != 0:
        raise AssertionError(f"the command did not finish in {folder} after the kills.")
    records = ResultsStore(folder).records()
    counts = Counter(record.key for record in records if record.finished)
    assert len(counts) == runs, f"{len(counts)} of {runs} runs are there."
    assert set(counts.values()) == {1}, f"some runs were recorded twice: {counts}."
    assert all(record.finished for record in records), "a killed run was recorded as failed."
    left = [path.name for path in folder.rglob("*") if path.suffix == ".lock" or path.parent.name == "unfinished"]
    assert not left, f"left behind: {left}."


def rounds(kills: int, make: object, runs: int, longest: float, chance: random.Random) -> None:
    """Kill in one folder after the other until there were ``kills``."""
    done = 0
    while done < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "results"
            arguments = make(folder)  # type: ignore[operator]
            while done < kills and killed(arguments, chance.uniform(1.0, longest)):
                done += 1
                print(f"\r{arguments[0]}: {done} of {kills} kills", end="", flush=True)
            finish(arguments, folder, runs)
    print()


def main() -> None:
    """Kill, count and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", type=int, default=100, help="kills of compare (default: %(default)s)")
    parser.add_argument("--train", type=int, default=30, help="kills of train (default: %(default)s)")
    parser.add_argument("--longest", type=float, default=25.0, help="latest kill, in seconds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    rounds(options.train, _train, 1, options.longest, chance)
    rounds(options.compare, _compare, RUNS, options.longest, chance)


def _compare(folder: Path) -> list[str]:
    return ["compare", *GRID, f"results={folder}", "jobs=2"]


def _train(folder: Path) -> list[str]:
    run = f"hydra.run.dir={folder.parent / 'run'}"
    return ["train", "data=digits", "trainer.max_epochs=12", f"results={folder}", run]


if __name__ == "__main__":
    main()
