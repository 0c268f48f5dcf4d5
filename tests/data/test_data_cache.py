from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading

import numpy as np
import pytest
from data_test_files import DENSE, DENSE_X, DENSE_Y, SPARSE, XML, write

from lightning_ubs.data import DataError, read_dataset
from lightning_ubs.data.readers import arff, stream


@pytest.fixture
def parses(monkeypatch):
    """Count how often a file is really parsed."""
    calls = []
    original = arff._read_rows

    def counted(*arguments):
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(arff, "_read_rows", counted)
    return calls


@pytest.mark.parametrize("text", [DENSE, SPARSE])
def test_second_reading_comes_from_the_cache_and_is_equal(tmp_path, parses, text):
    path = write(tmp_path / "s.arff", text)
    first, second = read_dataset(path), read_dataset(path)
    assert len(parses) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml", "s.arff.cache.npz"}
    assert type(first.X) is type(second.X)
    assert first.X.dtype == second.X.dtype
    assert (first.X != second.X).sum() == 0
    np.testing.assert_array_equal(first.Y, second.Y)
    assert first[2:] == second[2:]


def test_changed_source_of_the_same_size_and_time_is_parsed_again(tmp_path, parses):
    path = write(tmp_path / "s.arff", DENSE)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    read_dataset(path)
    path.write_text(DENSE.replace("7,", "8,"))
    os.utime(path, ns=times)
    assert read_dataset(path).X[2, 0] == 8
    assert len(parses) == 2


def test_other_labels_are_not_served_from_the_cache(tmp_path, parses):
    path = write(tmp_path / "s.arff", DENSE)
    assert read_dataset(path).label_names == ["a", "b", "c d"]
    assert read_dataset(path, labels=-2).label_names == ["b", "c d"]
    assert read_dataset(path, labels=["a"]).label_names == ["a"]
    assert read_dataset(path, labels=["b"]).label_names == ["b"]
    path.with_suffix(".xml").write_text(XML.replace('<label name="b"></label>', ""))
    assert read_dataset(path).label_names == ["a", "c d"]
    assert len(parses) == 5


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-30], lambda data: b"PK" + data[::-1]])
def test_corrupt_cache_is_ignored_and_rebuilt(tmp_path, parses, damage):
    path, stored = write(tmp_path / "s.arff", DENSE), tmp_path / "s.arff.cache.npz"
    read_dataset(path)
    whole = stored.read_bytes()
    stored.write_bytes(damage(whole))
    np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)
    np.testing.assert_array_equal(read_dataset(path).Y, DENSE_Y)
    assert len(parses) == 2


def test_a_cache_that_holds_a_pickle_is_not_unpickled(tmp_path):
    path = write(tmp_path / "s.arff", DENSE)
    read_dataset(path)

    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit('a pickle was executed')",)

    np.savez(tmp_path / "s.arff.cache.npz", source=np.array([Bomb()]))
    np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)


def test_cache_can_be_switched_off(tmp_path):
    read_dataset(write(tmp_path / "s.arff", DENSE), cache=False)
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml"}


def test_a_place_that_cannot_be_written_is_no_obstacle(tmp_path, caplog):
    path = write(tmp_path / "s.arff", DENSE)
    (tmp_path / "s.arff.cache.npz").mkdir()
    with caplog.at_level(logging.DEBUG):
        np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)
    assert "not cached" in caplog.text
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml", "s.arff.cache.npz"}


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="permissions do not bind this user")
def test_a_folder_without_write_permission_is_no_obstacle(tmp_path):
    path = write(tmp_path / "s.arff", DENSE)
    tmp_path.chmod(0o555)
    try:
        np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)
    finally:
        tmp_path.chmod(0o755)


def test_refused_file_leaves_nothing_in_the_cache(tmp_path):
    path = write(tmp_path / "s.arff", DENSE[:-8])
    with pytest.raises(DataError):
        read_dataset(path)
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml"}


def test_large_file_reports_its_progress_to_the_log(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stream, "LARGE_FILE", 1000)
    path = write(tmp_path / "s.arff", DENSE + "7,green,1,1,0\n" * 20_000)
    with caplog.at_level(logging.INFO):
        assert read_dataset(path).X.shape == (20_003, 2)
    told = [record.getMessage() for record in caplog.records if "reading s.arff" in record.getMessage()]
    assert told[-1].endswith(("90 %", "100 %"))
    assert len(told) >= 9


def test_large_file_shows_a_bar_on_a_terminal(tmp_path, monkeypatch):
    pty = pytest.importorskip("pty")
    path = write(tmp_path / "s.arff", DENSE + "7,green,1,1,0\n" * 20_000)
    ours, theirs = pty.openpty()
    shown = []

    def watch():
        with contextlib.suppress(OSError):  # how a closed terminal ends on Linux
            while part := os.read(ours, 4096):
                shown.append(part)

    reader = threading.Thread(target=watch)
    reader.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(stream, "LARGE_FILE", 1000)
        patch.setenv("TERM", "xterm")
        assert read_dataset(path).X.shape == (20_003, 2)
    reader.join()
    os.close(ours)
    assert b"reading s.arff" in b"".join(shown)
