"""Grids in real processes: killed workers, killed grids, failed runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lightning_ubs.experiment.pool import Died, run_tasks

from lightning_ubs.experiment.progress import Bar, Lines, span
from lightning_ubs.experiment.store import ResultsStore

COMPARE = [
    sys.executable, "-m", "lightning_ubs.cli", "compare", "data=synthetic", "fold=[0,1]", "trainer.max_epochs=10",
    "selection.warmup_epochs=1", "jobs=1", "report.formats=[csv]",
]  # fmt: skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def double(number: int) -> int:
    return 2 * number


def call(name: str, *arguments: Any) -> Any:
    return {"die": die, "double": double}[name](*arguments)


def test_a_worker_that_dies_takes_only_its_own_task_with_it(tmp_path: Path) -> None:
    started: list[int] = []
    results = dict(run_tasks(call, [("die",), ("double", 4)], 1, 1, tmp_path, started.append))
    assert started == [0, 0, 1]
    assert isinstance(results[0], Died)
    assert "signal 9" in results[0].reason
    assert results[1] == 8


def children(pid: int) -> list[int]:
    """Processes that a process started and that still run, but for Python's resource tracker."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == pid and state != "Z" and b"spawn_main" in command:
            found.append(int(stat.parent.name))
    return found


def runs_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds worker processes in /proc")
def test_a_killed_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    command = [*COMPARE, f"results={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as grid:
        wait_for(lambda: len(runs_in(folder)) >= 1, grid)
        (worker,) = children(grid.pid)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(runs_in(folder)) >= 2, grid)
        (worker,) = children(grid.pid)
        grid.kill()
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        time.sleep(0.02)
    before = runs_in(folder)
    assert 2 <= len(before) < 4
    with open(folder / "runs.jsonl", "a", encoding="utf-8") as file:
        file.write('{"schema": 1, "key": "cut off in the mid')
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert f"4 runs, {len(before)} there already" in again.stdout
    after = runs_in(folder)
    assert after[: len(before)] == before
    assert len(after) == len({run["key"] for run in after}) == 4
    assert all(run["status"] == "ok" for run in after)
    store = ResultsStore(folder)
    assert all(store.read_trace(run["key"])["times_selected"].size for run in after)
    assert {path.name for path in folder.iterdir()} >= {"runs.jsonl", "traces", "report"}
    assert not (folder / "unfinished").exists()


def record(**changes: Any) -> dict[str, Any]:
    return {"status": "ok", "metrics": {"macro_auc": 0.5}, "seconds": 61.0, "error": None} | changes


def test_lines_count_what_is_done_running_and_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(total=5, known=2, jobs=2)
    lines.started("a")
    lines.started("b")
    lines.started("a")
    lines.finished("a", record())
    lines.finished("b", record(status="failed", error="Traceback\nout of memory"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("[3/5] a: macro_auc 0.5000 in 1 min 1 s; 1 running, 1 left")
    assert second.startswith("[4/5] b: FAILED: out of memory; 0 running, 1 left")


def test_bar_shows_the_whole_grid_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    bar = Bar(total=3, known=1, jobs=1)
    bar._bar.live.console = Console(file=screen, force_terminal=True, width=100)
    with bar:
        bar.started("[digits] ubs")
        bar.finished("[digits] ubs", record())
    assert "[digits] ubs: macro_auc 0.5000" in screen.getvalue()
    assert "2/3 runs" in screen.getvalue()
    assert "0 running, 1 left" in screen.getvalue()


def test_spans_read_well() -> None:
    assert [span(value) for value in (0.4, 59.4, 59.6, 3599.6)] == ["0 s", "59 s", "1 min 0 s", "1 h 0 min"]
