"""The documented ``.npz`` format: read without pickle, written atomically.

A file holds ``X`` float32 (n, d), or the CSR parts ``X_data``, ``X_indices``, ``X_indptr``, ``X_shape``; and ``Y``
uint8 (n, q), ``label_names``, ``feature_names`` as arrays of strings. Other members are allowed and ignored.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._extras import optional_import
from lightning_ubs.data.types import DataError, Features, MultiLabelData, binary_labels, checked, is_sparse

_SPARSE_PARTS = ("X_data", "X_indices", "X_indptr", "X_shape")


def read_npz(path: Path) -> MultiLabelData:
    """Read the documented ``.npz`` format; object arrays (pickles) are never loaded."""
    with warnings.catch_warnings(), np.load(path, allow_pickle=False) as archive:
        warnings.simplefilter("ignore")  # NumPy comments on headers written by old versions
        members = {name: archive[name] for name in _wanted(archive.files)}
    return checked(from_members(members, path.name), path.name)


def _wanted(names: list[str]) -> list[str]:
    return [name for name in ("X", *_SPARSE_PARTS, "Y", "label_names", "feature_names") if name in names]


def from_members(members: dict[str, Any], source: str) -> MultiLabelData:
    """Assemble the arrays of one archive."""
    sparse = all(part in members for part in _SPARSE_PARTS)
    missing = [name for name in ("Y", "label_names", "feature_names") if name not in members]
    if not sparse and "X" not in members:
        missing.insert(0, "X (or " + ", ".join(_SPARSE_PARTS) + ")")
    if missing:
        raise DataError(f"{source}: the archive lacks {', '.join(missing)}; write it with `data convert`.")
    features = _csr(members, source) if sparse else _dense(members["X"], source)
    labels = binary_labels(members["Y"], source)
    return MultiLabelData(
        features,
        labels,
        _names(members["label_names"], "label_names", labels.shape[1], source),
        _names(members["feature_names"], "feature_names", features.shape[1], source),
    )


def _dense(values: Any, source: str) -> Features:
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise DataError(f"{source}: X must be a numeric matrix (n, d), got shape {values.shape} of {values.dtype}.")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def _csr(members: dict[str, Any], source: str) -> Features:
    data, indices, indptr, shape = (members[part] for part in _SPARSE_PARTS)
    whole = all(part.dtype.kind in "iu" and part.ndim == 1 for part in (indices, indptr, shape))
    if not whole or data.ndim != 1 or data.dtype.kind not in "biuf" or shape.size != 2:
        raise DataError(f"{source}: the CSR parts of X must be vectors, with whole numbers in all but X_data.")
    n, d = (int(size) for size in shape)
    fits = n >= 0 and d >= 0 and indptr.size == n + 1 and indices.size == data.size
    if fits:
        steps = np.diff(indptr.astype(np.int64))
        fits = indptr[0] == 0 and indptr[-1] == data.size and bool((steps >= 0).all())
        fits = fits and bool(((indices >= 0) & (indices < d)).all())
    if not fits:
        raise DataError(f"{source}: the CSR parts of X contradict each other; write the file again.")
    with np.errstate(over="ignore"):
        matrix = optional_import("scipy.sparse").csr_matrix(
            (data.astype(np.float32), indices.astype(np.int64), indptr.astype(np.int64)), shape=(n, d)
        )
    matrix.sum_duplicates()
    return matrix


def _names(values: Any, what: str, count: int, source: str) -> list[str]:
    if values.shape != (count,) or values.dtype.kind != "U":
        raise DataError(
            f"{source}: {what} must be a vector of {count} strings, got shape {values.shape} of {values.dtype}; "
            "write the file again."
        )
    return [str(name) for name in values]


def to_members(data: MultiLabelData) -> dict[str, Any]:
    """Return the arrays of the documented format."""
    members: dict[str, Any] = {
        "Y": data.Y,
        "label_names": np.asarray(data.label_names, dtype=np.str_),
        "feature_names": np.asarray(data.feature_names, dtype=np.str_),
    }
    if is_sparse(data.X):
        parts = (data.X.data, data.X.indices, data.X.indptr, np.asarray(data.X.shape, dtype=np.int64))
        members.update(zip(_SPARSE_PARTS, parts, strict=True))
    else:
        members["X"] = data.X
    return members


def write_npz(path: Path, data: MultiLabelData, **extra: Any) -> None:
    """Write the documented format; a reader sees the whole file or none of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez_compressed(stream, **to_members(data), **extra)
        os.chmod(temporary, 0o644)  # mkstemp makes it private
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
