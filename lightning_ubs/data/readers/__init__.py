"""One function that reads every multi-label format, and keeps what it parsed in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.files import sha256, user_cache, write_problem
from lightning_ubs.data.readers.arff import read_arff
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.mat import read_mat
from lightning_ubs.data.readers.npz import MEMBERS, from_members, read_members, read_npz, to_members, write_members
from lightning_ubs.data.readers.rda import read_rda
from lightning_ubs.data.readers.stream import TEXT, Format, detect_format, require_file
from lightning_ubs.data.readers.svmlight import read_svmlight
from lightning_ubs.data.readers.table import LabelChoice, LabelSpec, label_list, read_csv, read_parquet
from lightning_ubs.data.types import MultiLabelData, checked
from lightning_ubs.errors import DataError

__all__ = ["LabelSpec", "read_dataset"]

log = logging.getLogger(__name__)

_TABLES: tuple[Format, ...] = ("arff", "csv", "parquet")


def read_dataset(
    path: str | Path, labels: LabelSpec = None, *, cache: bool = True, max_bytes: int | None = None
) -> MultiLabelData:
    """Return a multi-label dataset that is read from a file; the content tells its format.

    The formats are ARFF as Mulan (with an XML list of labels) and MEKA (``-C`` in the relation) write it, dense or
    sparse; CSV (``.csv``, ``.tsv``) with a line of names; svmlight or libsvm with ``LABEL,LABEL INDEX:VALUE ...``;
    Parquet; MATLAB up to version 7 with ``data`` and ``target``; R with an object of the package mldr; and ``.npz``
    with ``X`` and ``Y``. Texts and R files may be compressed by gzip, bzip2 or xz. Sparse files give a CSR matrix.

    Args:
        path: The file.
        labels: Which columns of an ARFF, CSV or Parquet file are labels: a list of names, the text with which their
            names begin, a count (positive: the first columns, negative: the last), or the path of an XML list.
            Default, for ARFF: MEKA's ``-C``, else the XML file beside the ARFF file, of the same name or of that name
            without ``-train``, ``-test`` and ``-sparse``.
        cache: Keep what was parsed in the user's cache folder, for as long as the source is unchanged.
        max_bytes: What the file may unpack to, and what it may fill in memory. Default: the environment variable
            LIGHTNING_UBS_MAX_BYTES, else 4 GiB, or less for a small file (16 MiB plus 100 times its size or more).

    Returns:
        X, Y, label_names and feature_names; labels in the order of the file, nominal features coded by level.

    Raises:
        DataError: The file is missing, damaged, too large, of another format, or its labels are not binary.
    """
    path = Path(path)
    require_file(path)
    try:
        return _read(path, labels, cache, max_bytes)
    except (DataError, ModuleNotFoundError):
        raise
    except MemoryError:
        log.debug("reading %s failed", path, exc_info=True)
        raise DataError(
            f"{path.name}: too little memory is left to read it; free some, or give a part of it."
        ) from None
    except PermissionError:
        raise DataError(f"{path}: you have no permission to read this file; change its permissions.") from None
    except Exception as error:
        log.debug("reading %s failed", path, exc_info=True)
        told = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(f"{path.name}: cannot be read ({told}); it is damaged, so fetch or write it again.") from None


def _read(path: Path, labels: LabelSpec, cache: bool, max_bytes: int | None) -> MultiLabelData:
    kind = detect_format(path)
    budget = Budget.of(path, max_bytes, "text" if kind in TEXT else "binary")
    if labels is not None and kind not in _TABLES:
        raise DataError(
            f"{path.name}: labels={labels!r} is for ARFF, CSV and Parquet; a file of type {kind} says itself which its "
            "labels are, so leave labels= out."
        )
    if kind == "npz":
        return read_npz(path, budget)
    xml = label_list(path, labels, beside=kind == "arff") if kind in _TABLES else None
    key = cache_key(path, xml, labels) if cache else ""
    kept = cached(key, Budget.of(path, max_bytes)) if cache else None
    if kept is not None:
        return kept
    log.info("reading %s", path)
    data = checked(_parsed(path, kind, labels, xml, budget), path.name)
    if cache:
        keep(key, data)
    return data


def _parsed(path: Path, kind: Format, labels: LabelSpec, xml: Path | None, budget: Budget) -> MultiLabelData:
    choice = LabelChoice(labels, xml, budget)
    match kind:
        case "arff":
            return read_arff(path, choice, budget)
        case "csv":
            return read_csv(path, choice, budget)
        case "parquet":
            return read_parquet(path, choice, budget)
        case "svmlight":
            return read_svmlight(path, budget)
        case "mat":
            return read_mat(path, budget)
        case "rda":
            return read_rda(path, budget)
        case _:
            return read_npz(path, budget)


READER_VERSION = 2
"""To be raised whenever a reader returns something else for the same file."""

_KEPT = 64


def cache_key(path: Path, xml: Path | None, labels: LabelSpec) -> str:
    """Return 64 hexadecimal digits for the content of the source, its list of labels, and the version of the reader."""
    digests = [sha256(file) for file in (path, xml) if file is not None]
    by_name = xml is None and isinstance(labels, Sequence) and not isinstance(labels, str)
    chosen = None if xml is not None else [str(name) for name in labels] if by_name else labels  # type: ignore[union-attr]
    text = json.dumps([READER_VERSION, digests, chosen])
    return hashlib.sha256(text.encode()).hexdigest()


def cached(key: str, budget: Budget) -> MultiLabelData | None:
    """Return what was parsed before, or None where there is nothing, or nothing sound."""
    stored = _place(key)
    try:
        members = read_members(stored, (*MEMBERS, "checksum"), budget)
        told = str(members.pop("checksum")[()])
        if told != _checksum(key, members):
            raise ValueError("its checksum is wrong")
        return checked(from_members(members, budget), budget.source)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever is wrong with a cache, the source is still there
        log.warning("the cached copy %s is not used (%s); it is written again.", stored, error)
        return None


def keep(key: str, data: MultiLabelData) -> None:
    """Keep what was parsed, and drop the oldest of too many; a cache that cannot be written is no error."""
    stored, members = _place(key), to_members(data)
    try:
        stored.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_members(stored, members | {"checksum": np.asarray(_checksum(key, members))})
        for old in sorted(stored.parent.glob("*.npz"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.debug("not cached: %s", write_problem(error, stored.parent))


def _place(key: str) -> Path:
    return user_cache() / "parsed" / f"{key}.npz"


def _checksum(key: str, members: dict[str, Any]) -> str:
    digest = hashlib.sha256(key.encode())
    for name in sorted(members):
        array = np.ascontiguousarray(members[name])
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
