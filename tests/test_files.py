"""The one atomic write, what a failed write means, and hashing once."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_ubs._utils.files import atomic_write, sha256, write_problem
from lightning_ubs.data import MultiLabelData
from lightning_ubs.data.readers.npz import write_npz
from lightning_ubs.experiment.store import ResultsStore


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as stream:
            stream.write(b"half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]
    with atomic_write(path) as stream:
        stream.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_written_files_have_the_permissions_that_the_umask_gives(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with atomic_write(tmp_path / "plain"):
            pass
        trace = ResultsStore(tmp_path / "results").write_trace("0123456789abcdef", a=np.zeros(3))
        write_npz(
            tmp_path / "s.npz", MultiLabelData(np.ones((1, 1), np.float32), np.ones((1, 1), np.uint8), ["l"], ["x"])
        )
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "plain", trace, tmp_path / "s.npz")} == {mode}


def test_the_longest_name_that_a_file_may_have_can_be_written(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("n" * 255)) as stream:
        stream.write(b"x")
    assert names(tmp_path) == ["n" * 255]


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_writer_that_is_killed_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    code = (
        "import sys, time\nfrom lightning_ubs._utils.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as stream:\n"
        "    stream.write(b'half'); stream.flush(); print('now', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"now\n"
        writer.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_in_words_with_its_folder() -> None:
    with pytest.raises(OSError) as caught, open("/dev/full", "wb") as stream:  # noqa: PT011 - its number is checked
        stream.write(b"x")
    told = write_problem(caught.value, "results/mine/unfinished")
    assert told is not None
    assert "the disk is full: 'results/mine/unfinished' cannot be written; free some space" in told


def test_an_error_of_the_disk_is_found_below_others_and_others_are_left_alone() -> None:
    error = RuntimeError("a library's own words")
    error.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    assert "quota is used up: 'here'" in str(write_problem(error, Path("here")))
    assert "is read-only: 'here'" in str(write_problem(OSError(errno.EROFS, "x"), "here"))
    assert write_problem(RuntimeError("something else"), "here") is None
    assert write_problem(OSError("no number"), "here") is None


def test_a_file_is_hashed_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"one", b"two", b"three"):
        path.write_bytes(content)
        assert sha256(path) == hashlib.sha256(content).hexdigest()
    other = tmp_path / "b"
    other.write_bytes(b"four!")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert sha256(path) == hashlib.sha256(b"four!").hexdigest()
