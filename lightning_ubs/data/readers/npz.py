"""The documented ``.npz`` format: read without pickle, written atomically.

A file holds ``X`` float32 (n, d), or the CSR parts ``X_data``, ``X_indices``, ``X_indptr``, ``X_shape``; and ``Y``
uint8 (n, q). It may hold ``label_names`` and ``feature_names`` as arrays of strings. Other members are ignored.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs._utils.files import atomic_write
from lightning_ubs.data.readers.budget import NAME, Budget
from lightning_ubs.data.readers.stream import CHUNK
from lightning_ubs.data.types import Features, MultiLabelData, binary_labels, checked, is_sparse, numbered
from lightning_ubs.errors import DataError

_SPARSE_PARTS = ("X_data", "X_indices", "X_indptr", "X_shape")
MEMBERS = ("X", *_SPARSE_PARTS, "Y", "label_names", "feature_names")


def read_npz(path: Path, budget: Budget) -> MultiLabelData:
    """Return the content of a file of the documented format; object arrays (pickles) are never loaded."""
    return checked(from_members(read_members(path, MEMBERS, budget), budget), path.name)


def read_members(path: Path, wanted: tuple[str, ...], budget: Budget) -> dict[str, Any]:
    """Return those of the wanted arrays that an archive holds."""
    with zipfile.ZipFile(path) as archive:
        listed = set(archive.namelist())
        return {name: _member(archive, f"{name}.npy", budget) for name in wanted if f"{name}.npy" in listed}


def _member(archive: zipfile.ZipFile, name: str, budget: Budget) -> Any:
    """Return one array; what is allocated is what the archive really holds, whatever its headers claim."""
    content = io.BytesIO()
    with archive.open(name) as stream:
        while part := stream.read(CHUNK):
            budget.unpack(len(part))
            content.write(part)
    content.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy comments on headers written by old versions
        version = np.lib.format.read_magic(content)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(content)
    if dtype.hasobject:
        raise DataError(
            f"{budget.source}: {name} holds pickled objects, which are never loaded because they can run code; "
            "write it as numbers or strings."
        )
    size = math.prod(shape) * dtype.itemsize
    if math.prod(shape) < 0 or dtype.itemsize == 0 or size > len(content.getbuffer()) - content.tell():
        raise ValueError(f"{name} claims more values than it holds")
    values = np.frombuffer(content.getbuffer()[content.tell() :][:size], dtype=dtype)
    return values.reshape(shape, order="F" if fortran else "C")


def from_members(members: dict[str, Any], budget: Budget) -> MultiLabelData:
    """Return the dataset that the arrays of one archive form; columns without names are numbered."""
    source = budget.source
    sparse = all(part in members for part in _SPARSE_PARTS)
    missing = [] if "Y" in members else ["Y"]
    if not sparse and "X" not in members:
        missing.insert(0, "X (or " + ", ".join(_SPARSE_PARTS) + ")")
    if missing:
        raise DataError(f"{source}: the archive lacks {', '.join(missing)}; write it with `data convert`.")
    budget.hold(4 * members["Y"].size)
    labels = binary_labels(members["Y"], source)
    features = _csr(members, budget) if sparse else _dense(members["X"], budget)
    (_, d), q = features.shape, labels.shape[1]
    budget.hold(NAME * (d + q))
    return MultiLabelData(
        features, labels, _names(members, "label", q, source), _names(members, "feature", d, source)
    )  # fmt: skip


def _dense(values: Any, budget: Budget) -> Features:
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise DataError(
            f"{budget.source}: X must be a numeric matrix (n, d), got shape {values.shape} of {values.dtype}; "
            "write it as one."
        )
    budget.hold(4 * values.size)
    with np.errstate(over="ignore"):
        return np.array(values, dtype=np.float32, order="C")


def _csr(members: dict[str, Any], budget: Budget) -> Features:
    data, indices, indptr, shape = (members[part] for part in _SPARSE_PARTS)
    whole = all(part.dtype.kind in "iu" and part.ndim == 1 for part in (indices, indptr, shape))
    if not whole or data.ndim != 1 or data.dtype.kind not in "biuf" or shape.size != 2:
        raise DataError(
            f"{budget.source}: the CSR parts of X must be vectors, with whole numbers in all but X_data; "
            "write the file again."
        )
    n, d = (int(size) for size in shape)
    budget.hold(12 * data.size + 24 * indices.size + 16 * indptr.size)
    fits = n >= 0 and d >= 0 and indptr.size == n + 1 and indices.size == data.size
    if fits:
        steps = np.diff(indptr.astype(np.int64))
        fits = indptr[0] == 0 and indptr[-1] == data.size and bool((steps >= 0).all())
        fits = fits and bool(((indices >= 0) & (indices < d)).all())
    if not fits:
        raise DataError(f"{budget.source}: the CSR parts of X contradict each other; write the file again.")
    with np.errstate(over="ignore"):
        matrix = optional_import("scipy.sparse").csr_matrix(
            (data.astype(np.float32), indices.astype(np.int64), indptr.astype(np.int64)), shape=(n, d)
        )
    matrix.sum_duplicates()
    return matrix


def _names(members: dict[str, Any], kind: str, count: int, source: str) -> list[str]:
    what = f"{kind}_names"
    if what not in members:
        return numbered(kind, count)
    values = members[what]
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


def write_npz(path: Path, data: MultiLabelData) -> None:
    """Write the documented format; a reader sees the whole file or none of it."""
    write_members(path, to_members(data))


def write_members(path: Path, members: dict[str, Any]) -> None:
    """Write an archive of arrays; a reader sees the whole file or none of it."""
    with atomic_write(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **members)
