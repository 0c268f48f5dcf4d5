from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading

import numpy as np
import pytest
from data_test_files import DENSE, DENSE_X, DENSE_Y, SPARSE, XML, write

import lightning_ubs.data.readers as stored
from lightning_ubs.data import DataError, MultiLabelData, read_dataset
from lightning_ubs.data.readers import arff, stream
from lightning_ubs.data.readers.npz import write_npz


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
def test_second_reading_comes_from_the_users_cache_folder_and_is_equal(tmp_path, parses, cache, text):
    path = write(tmp_path / "s.arff", text)
    first, second = read_dataset(path), read_dataset(path)
    assert len(parses) == 1
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml"}, "nothing is left beside the data"
    assert len(list(cache.iterdir())) == 1
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


def changed_cell(whole):
    with np.load(io.BytesIO(whole)) as archive:
        members = dict(archive)
    members["X"][0, 0] += 1
    stream = io.BytesIO()
    np.savez(stream, **members)
    return stream.getvalue()


@pytest.mark.parametrize(
    "damage", [lambda data: b"", lambda data: data[:-30], lambda data: b"PK" + data[::-1], changed_cell]
)
def test_corrupt_or_poisoned_cache_is_ignored_and_rebuilt(tmp_path, parses, cache, damage, caplog):
    path = write(tmp_path / "s.arff", DENSE)
    read_dataset(path)
    (kept,) = cache.iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)
    assert "is not used" in caplog.text
    np.testing.assert_array_equal(read_dataset(path).Y, DENSE_Y)
    assert len(parses) == 2


def test_the_cache_of_one_file_put_in_place_of_another_is_not_believed(tmp_path, parses, cache):
    path, other = write(tmp_path / "s.arff", DENSE), write(tmp_path / "t.arff", DENSE.replace("7,", "8,"))
    read_dataset(path)
    (first,) = cache.iterdir()
    read_dataset(other)
    (second,) = set(cache.iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    assert read_dataset(other).X[2, 0] == 8


def test_another_version_of_the_reader_does_not_use_the_cache(tmp_path, parses, monkeypatch):
    path = write(tmp_path / "s.arff", DENSE)
    read_dataset(path)
    monkeypatch.setattr(stored, "READER_VERSION", 99)
    read_dataset(path)
    assert len(parses) == 2


def test_files_that_older_versions_left_beside_the_data_are_not_read(tmp_path):
    path = write(tmp_path / "s.arff", DENSE)
    write_npz(tmp_path / "s.arff.cache.npz", MultiLabelData(DENSE_X + 1, DENSE_Y, list("abc"), list("xy")))
    np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)


def test_the_oldest_of_too_many_cached_files_goes(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(stored, "_KEPT", 2)
    for number in range(3):
        path = write(tmp_path / f"{number}.arff", DENSE.replace("7,", f"{number},"))
        read_dataset(path)
        for file in cache.iterdir():
            times = file.stat()
            os.utime(file, (times.st_atime - 10, times.st_mtime - 10))
    assert len(list(cache.iterdir())) == 2


def test_a_cache_that_holds_a_pickle_is_not_unpickled(tmp_path, cache):
    path = write(tmp_path / "s.arff", DENSE)
    read_dataset(path)

    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit('a pickle was executed')",)

    (kept,) = cache.iterdir()
    np.savez(kept, checksum=np.array([Bomb()]))
    np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)


def test_cache_can_be_switched_off(tmp_path, cache):
    read_dataset(write(tmp_path / "s.arff", DENSE), cache=False)
    assert {file.name for file in tmp_path.iterdir()} == {"s.arff", "s.xml"}
    assert not cache.exists()


def test_a_place_that_cannot_be_written_is_no_obstacle(tmp_path, cache, caplog):
    path = write(tmp_path / "s.arff", DENSE)
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.DEBUG):
        np.testing.assert_array_equal(read_dataset(path).X, DENSE_X)
    assert "not cached" in caplog.text


def test_refused_file_leaves_nothing_in_the_cache(tmp_path, cache):
    path = write(tmp_path / "s.arff", DENSE[:-8])
    with pytest.raises(DataError):
        read_dataset(path)
    assert not cache.exists()


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
