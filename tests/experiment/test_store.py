"""The results store, with real files and real processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.experiment.store import ResultsStore, StoreError

LOAD = """
import os, sys
from lightning_ubs.experiment import store
from lightning_ubs.experiment.record import RunRecord
"""
KEY = "0123456789abcdef"


def record(key: str = KEY, status: str = "ok", **more: Any) -> RunRecord:
    error = None if status == "ok" else "out of memory"
    identity: dict[str, Any] = {"data": "yeast", "model": "mlp", "selection": "ubs", "fold": 0, "seed": 0}
    return RunRecord(**identity | {"key": key, "status": status, "error": error} | more)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "new" / "folder")
    written = record(label="UBS λ1=0.6", metrics={"macro_auc": MetricValue(0.1 + 0.2, True)})
    store.append(written)
    assert ResultsStore(store.folder).records() == [written]


def test_a_folder_that_does_not_exist_has_no_records_and_is_not_made(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "none")
    assert (store.records(), store.keys()) == ([], set())
    assert not store.folder.exists()


def test_a_run_that_failed_first_and_finished_later_counts_as_finished(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(record("a" * 16, "failed"))
    store.append(record("b" * 16, "failed"))
    store.append(record("a" * 16))
    assert store.keys() == {"a" * 16}


@pytest.mark.parametrize("fragment", [b'{"schema": 1, "key": "ffff', b'{"key": "\xce', b"nu"])
def test_a_fragment_of_a_killed_writer_is_ignored_by_readers_and_cut_by_the_next_writer(
    tmp_path: Path, fragment: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = ResultsStore(tmp_path)
    store.append(record("a" * 16))
    with open(store.path, "ab") as file:
        file.write(fragment)
    with caplog.at_level(logging.WARNING):
        assert store.keys() == {"a" * 16}
    assert "incomplete" in caplog.text
    store.append(record("b" * 16))
    assert store.keys() == {"a" * 16, "b" * 16}
    assert all(json.loads(line) for line in store.path.read_bytes().splitlines())


def test_a_fragment_longer_than_one_read_is_cut_whole(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(record("a" * 16))
    before = store.path.read_bytes()
    with open(store.path, "ab") as file:
        file.write(b'{"key": "' + b"x" * 200_000)
    store.append(record("b" * 16))
    assert store.path.read_bytes().startswith(before + b'{"schema"')
    assert len(store.records()) == 2


def test_a_whole_last_record_without_a_line_end_is_kept(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.path.write_text(record("a" * 16).to_json())
    assert store.keys() == {"a" * 16}
    store.append(record("b" * 16))
    assert store.keys() == {"a" * 16, "b" * 16}


def test_a_broken_line_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(record())
    with open(store.path, "a") as file:
        file.write("garbage\n")
    store.append(record("b" * 16))
    with pytest.raises(StoreError, match=r"line 2 of .*runs\.jsonl"):
        store.records()


WRITER = """
folder, worker, runs = store.ResultsStore(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for run in range(runs):
    folder.append(RunRecord(key=f"{worker:04x}{run:012x}", status="ok", data="yeast", model="mlp", selection="ubs",
                            fold=run, seed=worker, label="x" * (50_000 if runs > 1000 else 500)))
    if run == 2:
        print("going", flush=True)
"""


def writer(folder: Path, worker: int, runs: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD + WRITER, str(folder), str(worker), str(runs)], stdout=subprocess.PIPE, text=True
    )


def test_many_processes_append_at_once_and_one_is_killed_and_no_line_is_lost(tmp_path: Path) -> None:
    runs = 40
    victim = writer(tmp_path, 9, 10**9)
    workers = [writer(tmp_path, number, runs) for number in range(3)]
    assert victim.stdout is not None
    assert [victim.stdout.readline().strip() for _ in range(2)] == ["ready", "going"]
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    for process in workers:
        assert process.wait() == 0
        assert process.stdout is not None
        process.stdout.close()
    victim.stdout.close()
    store = ResultsStore(tmp_path)
    keys = [line.key for line in store.records()]
    assert len(keys) == len(set(keys))
    for number in range(3):
        mine = [key for key in keys if key.startswith(f"{number:04x}")]
        assert mine == [f"{number:04x}{run:012x}" for run in range(runs)]
    killed = [key for key in keys if key.startswith("0009")]
    assert killed == [f"0009{run:012x}" for run in range(len(killed))]
    assert len(killed) >= 3


def test_a_folder_without_write_permission_is_one_clear_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    code = (
        "if os.geteuid() == 0: os.setuid(65534)\n"  # root may write everywhere
        "for write in (lambda s, r: s.append(r), lambda s, r: s.write_trace(r.key, a=[1])):\n"
        "    try: write(store.ResultsStore(sys.argv[1]), RunRecord.from_json(sys.argv[2]))\n"
        "    except store.StoreError as error: print(error)\n"
    )
    for parent in [tmp_path, *tmp_path.parents[:2]]:
        parent.chmod(parent.stat().st_mode | 0o555)
    done = subprocess.run(
        [sys.executable, "-c", LOAD + code, str(folder), record().to_json()], capture_output=True, text=True, check=True
    )
    sentences = done.stdout.strip().splitlines()
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith(
            f"cannot write to the results folder '{folder}' (Permission denied); choose a folder"
        )


def test_packed_runs_come_back_and_later_ones_stand_beside_them(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    written = [record(digit * 16, curves={"epoch": list(range(100))}) for digit in "abc"]
    for one in written[:2]:
        store.append(one)
    size = store.path.stat().st_size
    assert store.pack() == tmp_path / "runs.jsonl.xz"
    assert store.packed.stat().st_size < size / 2
    assert store.records() == written[:2]
    assert store.holds("a" * 16)
    assert not store.holds("c" * 16)
    place = store.size()
    store.append(written[2])
    assert store.after(place)[0] == [written[2]]
    assert store.records() == written
    store.pack()
    assert (store.records(), store.path.read_bytes()) == (written, b"")


def test_a_packed_failure_is_not_held_and_may_be_tried_again(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(record("a" * 16, "failed"))
    store.pack()
    assert not store.holds("a" * 16)
    assert store.keys() == set()


@pytest.mark.parametrize("moment", ["lzma.compress", "os.replace", "truncate"])
def test_a_packing_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, moment: str) -> None:
    store = ResultsStore(tmp_path)
    written = [record(digit * 16) for digit in "ab"]
    for one in written:
        store.append(one)
    dies = {
        "lzma.compress": "import lzma; lzma.compress = die",
        "os.replace": "os.replace = die",
        "truncate": "write = store.atomic_write; store.atomic_write = lambda path: Then(write(path))",
    }[moment]
    code = f"""{LOAD}
def die(*_, **__): os.kill(os.getpid(), 9)
class Then:
    def __init__(self, block): self.block = block
    def __enter__(self): return self.block.__enter__()
    def __exit__(self, *error): self.block.__exit__(*error); die()
{dies}
store.ResultsStore({str(tmp_path)!r}).pack()
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert store.packed.exists() == (moment == "truncate")
    assert store.records() == written
    store.pack()
    assert (store.records(), store.path.read_bytes()) == (written, b"")


def test_what_cannot_be_packed_or_unpacked_is_one_clear_sentence(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path / "none")
    with pytest.raises(StoreError, match="there are no runs in"):
        store.pack()
    assert not store.folder.exists()
    store = ResultsStore(tmp_path)
    store.path.write_text("broken\n" + record().to_json() + "\n")
    with pytest.raises(StoreError, match="line 1 of"):
        store.pack()
    assert not store.packed.exists()
    store.path.unlink()
    store.packed.write_bytes(b"no xz")
    with pytest.raises(StoreError, match=r"cannot read .*xz.*restore that file"):
        store.records()


def test_a_trace_comes_back_and_leaves_no_other_file(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    names = np.array(["Grün", "<b>"])
    path = store.write_trace(KEY, correlations=np.ones((2, 3, 3), np.float32), label_names=names, empty=np.zeros(0))
    back = store.read_trace(KEY)
    assert back["correlations"].dtype == np.float32
    assert back["correlations"].shape == (2, 3, 3)
    assert back["label_names"].tolist() == ["Grün", "<b>"]
    assert [file.name for file in path.parent.iterdir()] == [f"{KEY}.npz"]


def test_a_trace_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.write_trace(KEY, a=[1, 2])
    with pytest.raises(ValueError, match="dtype object"):
        store.write_trace(KEY, a=np.array([1, "x", None], dtype=object))
    assert store.read_trace(KEY)["a"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        store.write_trace("../escape", a=[1])


def test_a_missing_or_broken_trace_is_one_clear_sentence(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    with pytest.raises(StoreError, match="has no trace"):
        store.read_trace(KEY)
    path = store.write_trace(KEY, a=np.arange(1000))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match="delete it"):
        store.read_trace(KEY)
