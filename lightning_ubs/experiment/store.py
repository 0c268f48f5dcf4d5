"""Results store: one folder, one JSON line per run, safe for many writers and for writers that are killed.

``runs.jsonl`` is append-only. A record (schema 1) holds:

===================  ===============================================================================
``schema``           1
``key``              16 hexadecimal digits, the identity of the configuration of this run
``status``           ``"ok"`` or ``"failed"``; ``error`` is the message of a failed run, else null
``data``             dataset name; ``model`` and ``selection`` likewise (``"yeast"``, ``"clif"``, ``"ubs"``)
``label``            name to display, for example ``"UBS λ1=0.6"``
``variant``          ``""``, or the ablation: ``"A" "B" "C" "D" "Active_LC" "Recent_LC"``
``parameters``       of the selection: ``{"lambda1": 0.5, "window": 5, "s0": 100.0, ...}``
``fold``, ``seed``   integers; runs that share data, model, fold and seed are paired
``config_hash``      of the whole configuration
``metrics``          test metrics at the best validation epoch: ``macro_auc ranking_loss hamming_loss
                     one_error coverage micro_f1 macro_f1 map``
``best_epoch``       epoch of the best validation Macro-AUC
``curves``           lists of equal length: ``epoch train_loss val_macro_auc epoch_seconds
                     selection_seconds pressure effective_sample_size correlation_drift``; a missing
                     value is null; ``epoch_seconds`` contains ``selection_seconds``
``seconds``          of the whole run
``shape``            ``{"n": .., "d": .., "q": .., "batches": ..}``
``versions``         ``{"lightning_ubs": .., "torch": .., "lightning": .., "python": ..}``
``started``          time in ISO format
``trace``            whether ``traces/<key>.npz`` was written
===================  ===============================================================================

A trace may hold: ``correlation_epochs`` int (k,), ``correlations`` float32 (k, q, q),
``mean_uncertainty`` (n,), ``fluctuation`` (n,), ``times_selected`` int (n,), ``labels`` uint8 (n, q),
``label_names`` str (q,) and ``sample_rows`` int (n,), the row of each training sample in the full dataset.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lightning_ubs._files import atomic_write

try:
    import fcntl
except ImportError:  # Windows has no fcntl; an append is one write there too, only unlocked
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

SCHEMA = 1
_REQUIRED = ("schema", "key", "status", "data", "model", "selection", "fold", "seed")


class StoreError(RuntimeError):
    """The results folder cannot be read or written; the message says why and what to do."""


class ResultsStore:
    """Append-only runs of an experiment, and their traces.

    Args:
        folder: made at the first write; reading a folder that does not exist gives no records.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ResultsStore(folder)
    ...     store.append({"schema": 1, "key": "0123456789abcdef", "status": "ok", "data": "yeast",
    ...                   "model": "mlp", "selection": "ubs", "fold": 0, "seed": 0})
    ...     store.keys()
    {'0123456789abcdef'}
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @property
    def path(self) -> Path:
        """The file of records, one JSON line per run."""
        return self.folder / "runs.jsonl"

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one run; it is on the disk when this returns. NumPy values become plain, NaN becomes null."""
        _check_record(record)
        line = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._writing(self.folder), open(self.path, "a+b", buffering=0) as file, _locked(file):
            end = _cut_fragment(file)
            try:
                _write_all(file, line)
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise

    def records(self) -> list[dict[str, Any]]:
        """All records in the order of writing.

        A broken last line (its writer was killed) is left out with a warning; one before it is an error.
        """
        try:
            with open(self.path, "rb") as file, _locked(file, shared=True):
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(
                f"cannot read {str(self.path)!r} ({error.strerror}); check the path and its permissions"
            ) from error
        records = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record = _parse(line)
            if record is not None:
                records.append(record)
            elif number == len(lines):
                log.warning(
                    "%s: the last line is incomplete (a run was stopped while it wrote); it is left out",
                    self.path,
                )
            else:
                raise StoreError(
                    f"line {number} of {str(self.path)!r} is not a JSON record; "
                    "delete that line (its run is then done again) or restore the file"
                )
        return records

    def keys(self) -> set[str]:
        """Keys of the runs that finished."""
        return {record["key"] for record in self.records() if record.get("status") == "ok"}

    def failed(self) -> list[dict[str, Any]]:
        """The last record of each run that failed and did not finish later."""
        records = self.records()
        finished = {record["key"] for record in records if record.get("status") == "ok"}
        last = {record["key"]: record for record in records if record["key"] not in finished}
        return list(last.values())

    def trace_path(self, key: str) -> Path:
        """Where the arrays of the run ``key`` are kept."""
        _check_key(key)
        return self.folder / "traces" / f"{key}.npz"

    def write_trace(self, key: str, **arrays: Any) -> Path:
        """Keep the arrays of a run. A reader sees all of them or none."""
        path = self.trace_path(key)
        plain: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
        objects = [name for name, array in plain.items() if array.dtype == object]
        if objects:
            raise ValueError(f"trace array {objects[0]!r} has dtype object; pass numbers or strings")
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
            raise StoreError(f"run {key} has no trace at {str(path)!r}; run it again with its trace on") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(f"cannot read the trace {str(path)!r} ({error}); delete it and run again") from error

    @contextmanager
    def _writing(self, folder: Path) -> Iterator[None]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise StoreError(
                f"cannot write to the results folder {str(self.folder)!r} ({error.strerror}); "
                "choose a folder you may write to, with free space"
            ) from error


@contextmanager
def _locked(file: BinaryIO | Any, shared: bool = False) -> Iterator[None]:
    """Hold the lock of ``file``. The system frees it when a process dies."""
    if fcntl is None:
        yield
        return
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


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
    if _parse(fragment) is not None:
        _write_all(file, b"\n")
        return end + 1
    log.warning("%s ended in an incomplete line (a run was stopped while it wrote); it is cut off", file.name)
    file.truncate(end - len(fragment))
    return end - len(fragment)


def _write_all(file: Any, data: bytes) -> None:
    written = file.write(data)
    while written < len(data):
        written += file.write(data[written:])


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("key"), str) else None


def _check_key(key: object) -> None:
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{16}", key)):
        raise ValueError(f"key={key!r} must be 16 hexadecimal digits; take the first 16 of a SHA-256 in hex")


def _check_record(record: Mapping[str, Any]) -> None:
    missing = [name for name in _REQUIRED if name not in record]
    if missing:
        raise ValueError(f"the record lacks {', '.join(missing)}; every run must name them")
    _check_key(record["key"])
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema={record['schema']!r} must be {SCHEMA}; this version writes no other")
    if record["status"] not in ("ok", "failed"):
        raise ValueError(f"status={record['status']!r} must be 'ok' or 'failed'")


def _plain(value: Any) -> Any:
    """``value`` as JSON can say it: plain numbers, no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
