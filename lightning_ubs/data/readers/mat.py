"""MATLAB files (version 5 to 7) with the variables ``data`` and ``target``.

Their bytes are read here, and with every size checked, because SciPy's reader trusts the file: a damaged type code
crashes the process.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import NAME, OBJECT, Budget
from lightning_ubs.data.readers.stream import CHUNK, open_decompressed
from lightning_ubs.data.types import MultiLabelData, binary_labels, is_sparse, numbered
from lightning_ubs.errors import DataError


def read_mat(path: Path, budget: Budget) -> MultiLabelData:
    """Return ``data`` (n, d) and ``target`` (q, n), either of them possibly transposed.

    Where the shapes fit in more than one way, the reading with more samples is taken, and rows of a square ``data``
    are samples. A square ``target`` says nothing about its orientation and is refused.
    """
    with open_decompressed(path, budget) as stream:
        variables = read_matrices(stream.read(), budget)
    if "data" not in variables or "target" not in variables:
        raise DataError(f"{path.name}: the numeric matrices 'data' and 'target' are needed; save both in the file.")
    features, labels = _samples_first(variables["data"], variables["target"], path.name)
    (n, d), q = features.shape, labels.shape[1]
    budget.hold(n * q * (labels.dtype.itemsize + 4) + NAME * (d + q))
    if is_sparse(labels):
        labels = labels.toarray()
    if is_sparse(features):
        budget.hold(8 * (n + 1) + 16 * features.nnz)
        features = features.tocsr()
    else:
        budget.hold(4 * n * d)
    with np.errstate(over="ignore"):
        features = features.astype(np.float32) if is_sparse(features) else np.ascontiguousarray(features, np.float32)
    return MultiLabelData(features, binary_labels(labels, path.name), numbered("label", q), numbered("feature", d))


def _samples_first(features: Any, labels: Any, source: str) -> tuple[Any, Any]:
    fits = [
        (n, features if rows == 0 else features.T, labels if labels.shape[0] == n else labels.T)
        for rows, n in enumerate(features.shape)
        if n in labels.shape
    ]
    if not fits or labels.shape[0] == labels.shape[1]:
        raise DataError(
            f"{source}: data {features.shape} and target {labels.shape} do not say which side holds the samples; "
            "give one row or one column per sample in both."
        )
    _, features, labels = max(fits, key=lambda fit: fit[0])
    return features, labels


_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_SPARSE_CLASS, _NUMERIC_CLASSES = 5, range(6, 16)
_COMPLEX = 0x0800


class _Element(NamedTuple):
    kind: int
    data: memoryview
    end: int


def read_matrices(content: bytes, budget: Budget) -> dict[str, Any]:
    """Return the real, two-dimensional numeric variables by name: arrays, or CSC matrices where stored sparse.

    Other variables (text, cells, structures, complex numbers) are left out.

    Args:
        content: The file.
        budget: Counts what is unpacked and allocated.

    Raises:
        ValueError: The file contradicts itself or ends too early.
    """
    marks = {b"IM": "<", b"MI": ">"}
    order = marks.get(content[126:128])
    if order is None:
        raise ValueError("not a MATLAB file of version 5 to 7")
    found: dict[str, Any] = {}
    view, position = memoryview(content), 128
    while position < len(view):
        element = _element(view, position, order)
        position = element.end
        if element.kind == _COMPRESSED:
            element = _element(memoryview(_inflated(element.data, budget)), 0, order)
        if element.kind == _MATRIX:
            budget.hold(OBJECT)
            found.update(_matrix(element.data, order, budget))
    return found


def _inflated(data: memoryview, budget: Budget) -> bytes:
    engine, parts, rest = zlib.decompressobj(), list[bytes](), bytes(data)
    while rest and not engine.eof:
        parts.append(engine.decompress(rest, CHUNK))
        budget.unpack(len(parts[-1]))
        rest = engine.unconsumed_tail
    if not engine.eof:
        raise ValueError("the file ends too early")
    return b"".join(parts)


def _element(view: memoryview, position: int, order: str) -> _Element:
    if position + 8 > len(view):
        raise ValueError("the file ends too early")
    first, size = (int(word) for word in np.frombuffer(view[position : position + 8], dtype=order + "u4"))
    if first >> 16:  # a small element keeps its data, at most 4 bytes, in the tag
        kind, size, start, end = first & 0xFFFF, first >> 16, position + 4, position + 8
    else:
        kind, start = first, position + 8
        padding = 0 if kind == _COMPRESSED else -size % 8
        end = start + size + padding
    if start + size > min(len(view), end):
        raise ValueError("the file ends too early")
    return _Element(kind, view[start : start + size], end)


def _matrix(view: memoryview, order: str, budget: Budget) -> dict[str, Any]:
    if not view:
        return {}
    parts, position = list[_Element](), 0
    while position < len(view) and len(parts) < 6:
        parts.append(_element(view, position, order))
        position = parts[-1].end
    if len(parts) < 3:
        raise ValueError("a variable lacks its header")
    flags = int(_numbers(parts[0], order, budget)[0])
    shape = tuple(int(side) for side in _numbers(parts[1], order, budget))
    name = bytes(parts[2].data).decode("latin-1")
    kind = flags & 0xFF
    if flags & _COMPLEX or len(shape) != 2 or min(shape) < 0 or kind not in (_SPARSE_CLASS, *_NUMERIC_CLASSES):
        return {}
    values = [_numbers(part, order, budget) for part in parts[3:]]
    return {name: _sparse(values, shape, budget) if kind == _SPARSE_CLASS else _dense(values, shape)}


def _numbers(part: _Element, order: str, budget: Budget) -> Any:
    if len(part.data) == 0:
        return np.zeros(0)
    if part.kind not in _DTYPES:
        raise ValueError(f"unknown number type {part.kind}")
    budget.hold(len(part.data))
    return np.frombuffer(part.data, dtype=order + _DTYPES[part.kind]).astype(_DTYPES[part.kind])


def _dense(values: list[Any], shape: tuple[int, ...]) -> Any:
    if not values or values[0].size != math.prod(shape):
        raise ValueError("a variable's size contradicts its shape")
    return values[0].reshape(shape, order="F")


def _sparse(values: list[Any], shape: tuple[int, ...], budget: Budget) -> Any:
    # The sides are claims that few bytes back; whoever turns the matrix round or names its columns fills them.
    budget.hold(8 * sum(shape) + 8 * sum(part.size for part in values[:2]))
    if len(values) < 3:
        raise ValueError("a sparse variable lacks a part")
    rows, ends, data = (part.astype(np.int64) if j < 2 else part for j, part in enumerate(values[:3]))
    sound = ends.size == shape[1] + 1 and ends[0] == 0 and (np.diff(ends) >= 0).all()
    if not sound or not 0 <= ends[-1] <= min(rows.size, data.size):
        raise ValueError("a sparse variable contradicts itself")
    rows, data = rows[: ends[-1]], data[: ends[-1]]
    if rows.size and not (rows.min() >= 0 and rows.max() < shape[0]):
        raise ValueError("a sparse variable exceeds its shape")
    return optional_import("scipy.sparse").csc_matrix((data, rows, ends), shape=shape)
