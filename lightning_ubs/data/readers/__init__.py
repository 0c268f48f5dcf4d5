"""One function that reads every published multi-label format."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lightning_ubs.data.readers.arff import Header, read_arff
from lightning_ubs.data.readers.mat import read_mat
from lightning_ubs.data.readers.npz import read_npz, write_npz
from lightning_ubs.data.readers.rda import read_rda
from lightning_ubs.data.readers.stream import detect_format, sha256
from lightning_ubs.data.readers.xml import read_label_names
from lightning_ubs.data.types import DataError, MultiLabelData, checked

log = logging.getLogger(__name__)

LabelSpec: TypeAlias = str | Path | int | Sequence[str] | None

_CACHE_VERSION = 1


def read_dataset(path: str | Path, labels: LabelSpec = None, *, cache: bool = True) -> MultiLabelData:
    """Read a multi-label dataset; its format is told by its content.

    Read are ARFF as Mulan (with an XML list of labels) and MEKA (``-C`` in the relation) write it, dense or sparse,
    plain or compressed (``.gz``, ``.bz2``); MATLAB files up to version 7 with ``data`` and ``target``; R files with an
    object of the package mldr; and the ``.npz`` format of this package. Sparse files give a CSR matrix.

    Args:
        path: The file.
        labels: For ARFF, which attributes are labels: the path of an XML list, a list of names, or a count (positive:
            the first attributes, negative: the last). Default: MEKA's ``-C``, else the XML file beside the ARFF file,
            of the same name or of that name without ``-train``, ``-test`` and ``-sparse``.
        cache: Keep what was parsed in ``NAME.cache.npz`` beside the source, for as long as the source is unchanged.

    Returns:
        X, Y, label_names and feature_names; labels in the order of the file, nominal features coded by level.

    Raises:
        DataError: The file is missing, damaged, of another format, or its labels are not binary.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path.")
    try:
        return _read(path, labels, cache)
    except (DataError, ModuleNotFoundError):
        raise
    except Exception as error:
        log.debug("reading %s failed", path, exc_info=True)
        told = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise DataError(f"{path.name}: cannot be read ({told}); it is damaged, so fetch or write it again.") from None


def _read(path: Path, labels: LabelSpec, cache: bool) -> MultiLabelData:
    kind = detect_format(path)
    if labels is not None and kind != "arff":
        raise DataError(f"{path.name}: labels={labels!r} is for ARFF; a file of type {kind} names its own labels.")
    if kind == "npz":
        return read_npz(path)
    xml = _label_list(path, labels) if kind == "arff" else None
    stored = path.with_name(path.name + ".cache.npz")
    key = _cache_key(path, xml, labels) if cache else ""
    kept = _from_cache(stored, key) if cache else None
    if kept is not None:
        return kept
    log.info("reading %s", path)
    if kind == "arff":
        data = read_arff(path, lambda header: _choose(header, path.name, labels, xml))
    else:
        data = read_mat(path) if kind == "mat" else read_rda(path)
    data = checked(data, path.name)
    if cache:
        _to_cache(stored, key, data)
    return data


def _label_list(path: Path, labels: LabelSpec) -> Path | None:
    """Return the XML list of labels, or None where none is given or found."""
    if isinstance(labels, str | Path):
        if not Path(labels).is_file():
            raise DataError(f"labels={str(labels)!r}: no such file; give the XML list of labels, names, or a count.")
        return Path(labels)
    if labels is not None:
        return None
    cut = path.name.lower().find(".arff")
    stem = path.stem if cut < 0 else path.name[:cut]
    while True:
        beside = path.with_name(stem + ".xml")
        if beside.is_file():
            return beside
        shorter = next((stem[: -len(end)] for end in ("-train", "-test", "-sparse") if stem.endswith(end)), "")
        if not shorter:
            return None
        stem = shorter


def _choose(header: Header, source: str, labels: LabelSpec, xml: Path | None) -> list[int]:
    """Return the columns that are labels, ascending."""
    width = len(header.attributes)
    count = labels if isinstance(labels, int) else header.label_count if labels is None else None
    if count is not None:
        if not 1 <= abs(count) < width:
            raise DataError(f"{source}: {count} labels do not fit {width} attributes; give labels= a fitting count.")
        return list(range(count)) if count > 0 else list(range(width + count, width))
    if xml is None and labels is None:
        raise DataError(
            f"{source}: its labels are not known; put Mulan's XML list beside it, or give labels= (XML, names, count)."
        )
    names = read_label_names(xml) if xml is not None else [str(name) for name in labels]  # type: ignore[union-attr]
    position = {attribute.name: column for column, attribute in enumerate(header.attributes)}
    unknown = [name for name in names if name not in position]
    if unknown or len(set(names)) != len(names) or not 1 <= len(names) < width:
        reason = f"{str(unknown)[:100]} are not among them" if unknown else "a label repeats or no feature is left"
        raise DataError(
            f"{source}: the {len(names)} labels do not fit its {width} attributes, {reason}; correct the list."
        )
    return sorted(position[name] for name in names)


def _cache_key(path: Path, xml: Path | None, labels: LabelSpec) -> str:
    digests = [sha256(file) for file in (path, xml) if file is not None]
    spec = labels if labels is None or isinstance(labels, int) else [] if xml is not None else [*map(str, labels)]  # type: ignore[arg-type]
    return json.dumps([_CACHE_VERSION, digests, spec])


def _from_cache(stored: Path, key: str) -> MultiLabelData | None:
    if not stored.is_file():
        return None
    try:
        with np.load(stored, allow_pickle=False) as archive:
            fresh = str(archive["source"]) == key
        return read_npz(stored) if fresh else None
    except Exception as error:  # whatever is wrong with a cache, the source is still there
        log.debug("ignoring the cache %s: %s", stored, error)
        return None


def _to_cache(stored: Path, key: str, data: MultiLabelData) -> None:
    try:
        write_npz(stored, data, source=np.asarray(key))
    except OSError as error:
        log.debug("not cached beside the source: %s", error)
