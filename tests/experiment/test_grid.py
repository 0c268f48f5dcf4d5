"""Grids in real processes: dying workers, killed grids, several grids in one folder."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from light_run import begun, light_runs
from torch.utils.data import DataLoader

from lightning_ubs._utils.files import lock_file
from lightning_ubs.experiment import worker
from lightning_ubs.experiment.claims import Claims
from lightning_ubs.experiment.config import ConfigError
from lightning_ubs.experiment.engine import EngineError
from lightning_ubs.experiment.grid import RunsFailed, result_text, run_grid
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore

HERE = Path(__file__).parent


def start(folder: Path, count: int = 6, seconds: float = 0.2, jobs: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "light_run.py"), str(folder), str(count), str(seconds), str(jobs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_whole(folder: Path, count: int) -> None:
    """Every run is there once, and nothing else is left."""
    records = ResultsStore(folder).records()
    assert Counter(record.key for record in records) == Counter(run.key for run in light_runs(folder, count))
    assert all(record.finished for record in records)
    assert {path.name for path in folder.iterdir()} == {"runs.jsonl"}


def test_runs_go_to_the_store_and_are_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    for _ in range(2):
        outcome = run_grid(light_runs(folder, 3), ResultsStore(folder), 1)
    assert (outcome.total, outcome.known, outcome.finished) == (3, 3, 3)
    check_whole(folder, 3)
    assert len(begun(folder)) == 3
    out = capsys.readouterr().out
    assert "3 runs; 1 at a time" in out
    assert "[3/3] none none Random fold 2 seed 0" in out
    assert "all 3 runs are already done" in out


def test_a_worker_that_dies_takes_only_its_own_run_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    runs = light_runs(folder, 5, 0.1, fates={1: "dies", 3: "raises"})
    outcome = run_grid(runs, ResultsStore(folder), 2)
    told = {record.fold: record.error for record in outcome.failed}
    assert set(told) == {1, 3}
    assert "its process was killed 2 times, usually for lack of memory" in str(told[1])
    assert told[3] == "no such luck."
    assert ResultsStore(folder).keys() == {runs[number].key for number in (0, 2, 4)}
    assert begun(folder).count(runs[1].key) == 2
    with pytest.raises(RunsFailed, match=r"2 of 5 runs failed, the last .*The others are kept; the same command"):
        outcome.check()
    (log,) = (folder / "logs").iterdir()
    assert "no such luck" in log.read_text()
    again = run_grid(light_runs(folder, 5), ResultsStore(folder), 2)
    assert (again.known, again.failed) == (3, [])


def test_a_full_disk_is_named_with_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    outcome = run_grid(light_runs(folder, 1, fates={0: "full"}), ResultsStore(folder), 1, "sequential")
    assert str(outcome.failed[0].error).startswith(f"the disk is full: '{folder}' cannot be written; free")


def test_what_no_run_can_do_stops_the_grid_after_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    runs = light_runs(folder, 8, 0.1, fates=dict.fromkeys(range(8), "misfit"))
    with pytest.raises(ConfigError, match=r"^nothing fits; change it\.$"):
        run_grid(runs, ResultsStore(folder), 1)
    assert len(begun(folder)) == 1
    assert not (folder / "claims").exists()


def test_what_cannot_be_sent_to_a_process_is_said_before_anything_runs(tmp_path: Path) -> None:
    (run,) = light_runs(tmp_path / "results", 1)
    object.__setattr__(run, "seconds", threading.Lock())
    with pytest.raises(ConfigError, match=r"'none none Random fold 0 seed 0' cannot be sent to another process"):
        run_grid([run], ResultsStore(tmp_path / "results"), 1)
    assert not (tmp_path / "results").exists()


def test_an_engine_that_there_is_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine='rya' is unknown; did you mean ray"):
        run_grid([], ResultsStore(tmp_path), 1, "rya")  # type: ignore[arg-type]
    assert issubclass(EngineError, RuntimeError)


def test_three_grids_at_once_do_every_run_once_and_all_end_with_all_runs(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    grids = [start(folder, 8) for _ in range(3)]
    for grid in grids:
        out, err = grid.communicate()
        assert grid.returncode == 0, err
        assert "8/8]" in out
    assert Counter(begun(folder)) == Counter(run.key for run in light_runs(folder, 8))
    check_whole(folder, 8)


def test_a_finished_grid_started_again_beside_a_running_one_leaves_it_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    run_grid(light_runs(folder, 2), ResultsStore(folder), 1, "sequential")
    running = start(folder, 6, 0.3)
    wait_for(lambda: len(begun(folder)) >= 3, running)
    while running.poll() is None:
        run_grid(light_runs(folder, 2), ResultsStore(folder), 1, "sequential", say=lambda line: None)
    assert running.communicate()[1] == ""
    assert running.returncode == 0
    assert len(begun(folder)) == 6
    check_whole(folder, 6)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def offspring(pid: int) -> list[int]:
    """Processes that a process started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds worker processes in /proc")
def test_grids_killed_at_random_moments_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    folder, moments = tmp_path / "results", random.Random(0)
    for _ in range(6):
        grid = start(folder, 12, 0.15, 2)
        assert grid.stdout is not None
        grid.stdout.readline()
        time.sleep(moments.uniform(0.0, 1.2))
        workers = offspring(grid.pid)
        victim = moments.choice([grid.pid, *workers])
        os.kill(victim, signal.SIGKILL)
        time.sleep(0.1)
        grid.kill()
        grid.communicate()
        deadline = time.monotonic() + 10
        while any(is_alive(worker) for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(is_alive(worker) for worker in workers), "an orphan goes on"
    last = start(folder, 12, 0.0, 2)
    _, err = last.communicate()
    assert last.returncode == 0, err
    check_whole(folder, 12)


def test_a_claim_has_one_owner_and_counts_the_tries_of_its_own_grid(tmp_path: Path) -> None:
    key = "0" * 16
    claims = Claims(tmp_path, "one")
    with claims.take(key) as claim, Claims(tmp_path, "two").take(key) as other:
        assert claim is not None
        assert (claim.tries, other) == (1, None)
        assert not claims.is_free(key)
    assert claims.is_free(key)
    (tmp_path / "claims" / key).write_text("one 1\n")  # as an owner that died leaves it
    assert (claims.tries(key), Claims(tmp_path, "two").tries(key)) == (1, 0)
    with claims.take(key) as claim:
        assert claim is not None
        assert claim.tries == 2
    claims.tidy()
    assert not (tmp_path / "claims").exists()


def test_a_lock_is_refused_while_it_is_held_and_free_after_its_owner_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "a.lock"
    code = (
        "import sys, time, pathlib\n"
        "from lightning_ubs._utils.files import lock_file\n"
        "with lock_file(pathlib.Path(sys.argv[1])) as held:\n"
        "    print(held, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "True\n"
    with lock_file(path, wait=False) as held:
        assert not held
    assert path.exists(), "a refused process leaves the owner's lock alone"
    owner.kill()
    owner.wait()
    with lock_file(path, wait=False) as held:
        assert held
        with lock_file(path, wait=False) as again:
            assert not again
    assert not path.exists()


def record(**changes: object) -> RunRecord:
    (run,) = light_runs(Path("x"), 1)
    curves = {"epoch": [0], "val_macro_auc": [0.5]}
    return RunRecord(**{**vars(run.identity), "status": "ok", "curves": curves, "seconds": 61.0} | changes)  # type: ignore[arg-type]


def test_what_came_out_of_a_run_is_told_in_few_words() -> None:
    assert result_text(record()) == "best val_macro_auc 0.5000 in 1 min 1 s"
    assert result_text(record(status="failed", error="Traceback\nout of memory")) == "FAILED: out of memory"


def loaded_in_a_worker(sent: Any) -> None:
    worker._prepare(worker.Order(b"", "", "", since=0))
    sent.send([int(batch) for batch in DataLoader(range(3), num_workers=1)])


def test_a_process_that_may_have_no_children_can_load_data_with_workers() -> None:
    """Dask's workers are such processes."""
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=loaded_in_a_worker, args=(sent,), daemon=True)
    process.start()
    sent.close()
    assert received.poll(60)
    assert received.recv() == [0, 1, 2]
    process.join(60)
    assert process.exitcode == 0
