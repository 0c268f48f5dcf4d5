"""One function that reads every multi-label format."""

from __future__ import annotations

import logging
from pathlib import Path

from lightning_ubs.data.readers.arff import read_arff
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.cache import cache_key, cached, keep
from lightning_ubs.data.readers.csv import read_csv
from lightning_ubs.data.readers.formats import TEXT, Format, detect_format
from lightning_ubs.data.readers.mat import read_mat
from lightning_ubs.data.readers.npz import read_npz
from lightning_ubs.data.readers.parquet import read_parquet
from lightning_ubs.data.readers.rda import read_rda
from lightning_ubs.data.readers.stream import require_file
from lightning_ubs.data.readers.svmlight import read_svmlight
from lightning_ubs.data.readers.table import LabelChoice, LabelSpec, label_list
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
