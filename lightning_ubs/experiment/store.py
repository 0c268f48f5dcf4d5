"""Results store: one folder, one JSON line per run, safe for many writers and for writers that are killed.

``runs.jsonl`` is append-only; a line is a `RunRecord`. ``runs.jsonl.xz`` holds the lines of runs that were packed, for
keeping; it is read before the other. ``traces/KEY.npz`` may hold, of the run KEY:
``correlation_epochs`` int (k,), ``correlations`` float32 (k, q, q), ``mean_uncertainty`` (n,), ``fluctuation`` (n,),
``times_selected`` int (n,), ``labels`` uint8 (n, q), ``label_names`` str (q,) and ``sample_rows`` int (n,), the row of
each training sample in the full dataset.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.files import atomic_write, lock_file
from lightning_ubs.errors import RecordError, StoreError
from lightning_ubs.experiment.record import RunRecord, check_key

log = logging.getLogger(__name__)


class ResultsStore:
    """Append-only runs of an experiment, and their traces.

    Args:
        folder: Made at the first write; reading a folder that does not exist gives no records.

    >>> import tempfile
    >>> record = RunRecord(key="0" * 16, status="ok", data="yeast", model="mlp", selection="ubs", fold=0, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ResultsStore(folder)
    ...     store.append(record)
    ...     store.keys() == {record.key}
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @property
    def path(self) -> Path:
        """The file of records, one JSON line per run."""
        return self.folder / "runs.jsonl"

    @property
    def packed(self) -> Path:
        """The file of records that were packed."""
        return self.folder / "runs.jsonl.xz"

    def pack(self) -> Path:
        """Compress all runs into one file, to a fifth of their size; later runs are written beside it.

        Do it when no grid writes here. Stopped at any moment, even by ``kill -9``, it loses nothing.

        Raises:
            StoreError: If there are no runs, one of them cannot be read, or the folder cannot be written.
        """
        if not self.records():
            raise StoreError(
                f"there are no runs in {str(self.folder)!r} to pack; give the folder that holds runs.jsonl."
            )
        with self._writing(self.folder), self._alone(), open(self.path, "a+b", buffering=0) as file:
            _cut_fragment(file)
            file.seek(0)
            lines = dict.fromkeys([*self._packed_lines(), *file.readall().splitlines()])
            with atomic_write(self.packed) as packed:
                packed.write(_lzma().compress(b"".join(line + b"\n" for line in lines), preset=9))
            file.truncate(0)
        return self.packed

    def append(self, record: RunRecord) -> None:
        """Add one run; it is on the disk when this returns."""
        line = record.to_json().encode() + b"\n"
        with self._writing(self.folder), self._alone(), open(self.path, "a+b", buffering=0) as file:
            end = _cut_fragment(file)
            try:
                _write_all(file, line)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise

    def records(self) -> list[RunRecord]:
        """All records in the order of writing.

        A broken last line (its writer was killed) is left out with a warning; one before it is an error.
        """
        lines = self._lines() or [b""]
        packed = self._packed_lines()  # after the others, so that a packing at this moment hides none
        if lines[-1].strip() and not _is_record(lines[-1]):
            log.warning(
                "%s: the last line is incomplete (a run was stopped while it wrote); it is left out.", self.path
            )
            lines.pop()
        known = set(packed)  # a packing that was killed leaves lines in both files
        return _records(self.packed, packed) + _records(self.path, [b"" if line in known else line for line in lines])

    def keys(self) -> set[str]:
        """Keys of the runs that finished."""
        return {record.key for record in self.records() if record.finished}

    def size(self) -> int:
        """Bytes of the whole lines in the file of records: where the next one begins."""
        return sum(len(line) + 1 for line in self._lines()[:-1])

    def holds(self, key: str, since: int = 0) -> bool:
        """Whether a run is there: finished, or failed in a record that begins at byte ``since`` or later.

        Other records are not read, so that this is fast in a large store.
        """
        mark = f'"{key}"'.encode()
        place = 0
        for line in self._lines():
            if mark in line and _is_record(line):
                record = RunRecord.from_json(line)
                if record.key == key and (record.finished or place >= since):
                    return True
            place += len(line) + 1
        packed = (line for line in self._packed_lines() if mark in line)
        return any(record.key == key and record.finished for record in map(RunRecord.from_json, packed))

    def after(self, place: int) -> tuple[list[RunRecord], int]:
        """The records that begin at byte ``place`` or later, and where the next one will begin."""
        try:
            with open(self.path, "rb") as file:
                file.seek(place)
                text = file.read()
        except FileNotFoundError:
            return [], place
        whole = text[: text.rfind(b"\n") + 1]
        return [RunRecord.from_json(line) for line in whole.splitlines() if _is_record(line)], place + len(whole)

    def trace_path(self, key: str) -> Path:
        """Where the arrays of the run ``key`` are kept."""
        check_key(key)
        return self.folder / "traces" / f"{key}.npz"

    def write_trace(self, key: str, **arrays: Any) -> Path:
        """Keep the arrays of a run. A reader sees all of them or none."""
        path = self.trace_path(key)
        plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
        objects = [name for name, array in plain.items() if array.dtype == object]
        if objects:
            raise ValueError(f"trace array {objects[0]!r} has dtype object; pass numbers or strings.")
        with self._writing(path.parent), atomic_write(path) as file:
            np.savez_compressed(file, **plain)
        return path

    def read_trace(self, key: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays of a run."""
        path = self.trace_path(key)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except FileNotFoundError:
            raise StoreError(
                f"run {key} has no trace at {str(path)!r}; with trace=true and another results folder it keeps one."
            ) from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(f"cannot read the trace {str(path)!r} ({error}); delete it.") from error

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def _packed_lines(self) -> list[bytes]:
        try:
            text = self.packed.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self.packed, error) from error
        lzma = _lzma()
        try:
            lines: list[bytes] = lzma.decompress(text).splitlines()
        except (lzma.LZMAError, EOFError) as error:
            raise StoreError(f"cannot read {str(self.packed)!r} ({error}); restore that file.") from error
        return lines

    def _alone(self) -> AbstractContextManager[bool]:
        """Keep other writers away; readers see whole lines, and leave out the one that is being written."""
        return lock_file(self.folder / ".writing")

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise StoreError(
                f"cannot write to the results folder {str(self.folder)!r} ({error.strerror}); "
                "choose a folder you may write to, with free space."
            ) from error


def _records(path: Path, lines: Sequence[bytes]) -> list[RunRecord]:
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found += [RunRecord.from_json(line)] if line.strip() else []
        except RecordError as error:
            raise StoreError(f"line {number} of {str(path)!r}: {error}") from None
    return found


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot read {str(path)!r} ({error.strerror}); check the path and its permissions.")


def _lzma() -> Any:
    try:
        return importlib.import_module("lzma")
    except ImportError:  # a Python that was built where liblzma was missing
        raise StoreError("this Python has no module lzma; unpack runs.jsonl.xz with `xz -d`, or use another.") from None


def _cut_fragment(file: Any) -> int:
    """Make the file end in a whole line, and return where it ends.

    A fragment is what a killed writer left. A whole record that lacks only its line end is kept.
    """
    end: int = file.seek(0, os.SEEK_END)
    tail, start = b"", end
    while start > 0 and b"\n" not in tail:
        step = min(1 << 16, start)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    fragment = tail[tail.rfind(b"\n") + 1 :]
    if not fragment:
        return end
    if _is_record(fragment):
        _write_all(file, b"\n")
        return end + 1
    log.warning("%s ended in an incomplete line (a run was stopped while it wrote); it is cut off.", file.name)
    file.truncate(end - len(fragment))
    return end - len(fragment)


def _write_all(file: Any, data: bytes) -> None:
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])


def _is_record(line: bytes) -> bool:
    """Whether a line is a whole record, of whatever schema."""
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and isinstance(record.get("key"), str)
