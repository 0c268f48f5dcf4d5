"""What every reader returns, and the one error that all of them raise."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.errors import DataError

Features: TypeAlias = Any
"""A float32 array or a SciPy CSR matrix (n, d); SciPy is optional, so its type cannot be named."""


class MultiLabelData(NamedTuple):
    """A multi-label dataset in memory.

    Attributes:
        X: Features (n, d), float32, a dense array or a SciPy CSR matrix.
        Y: Labels (n, q), uint8, each 0 or 1.
        label_names: The q names of the labels.
        feature_names: The d names of the features.
    """

    X: Features
    Y: npt.NDArray[np.uint8]
    label_names: list[str]
    feature_names: list[str]


def is_sparse(features: Any) -> bool:
    """Return whether features are a SciPy sparse matrix; SciPy is not imported to look at an array.

    >>> is_sparse(np.zeros((2, 2)))
    False
    """
    if isinstance(features, np.ndarray):
        return False
    return bool(optional_import("scipy.sparse").issparse(features))


def numbered(kind: str, count: int) -> list[str]:
    """Return names for columns that have none.

    >>> numbered("label", 2)
    ['label_0', 'label_1']
    """
    return [f"{kind}_{j}" for j in range(count)]


def binary_labels(values: Any, source: str) -> npt.NDArray[np.uint8]:
    """Return labels in {0, 1} or {-1, 1} as uint8 (n, q); anything else is refused.

    >>> binary_labels([[1, -1], [-1, -1]], "here")
    array([[1, 0],
           [0, 0]], dtype=uint8)
    """
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"{source}: labels must be a numeric matrix (n, q), got shape {array.shape} of {array.dtype}; "
            "give one column of 0 and 1 per label."
        )
    ones, zeros, minus = array == 1, array == 0, array == -1
    if not (ones | zeros).all() and not (ones | minus).all():
        bad = array[~(ones | zeros | minus)]
        shown = f"the value {bad[0]}" if bad.size else "a mixture of -1 and 0"
        raise DataError(f"{source}: labels must be 0 or 1 (or -1 and 1), found {shown}; binarize the labels.")
    return np.asarray(ones, dtype=np.uint8)


def checked(data: MultiLabelData, source: str) -> MultiLabelData:
    """Return ``data`` if its parts fit together and every feature is finite; name what does not fit."""
    features, labels, label_names, feature_names = data
    (n, d), (rows, q) = features.shape, labels.shape
    if n != rows or d != len(feature_names) or q != len(label_names):
        raise DataError(
            f"{source}: X is {n} x {d}, Y is {rows} x {q}, with {len(feature_names)} feature names and "
            f"{len(label_names)} label names; these counts must agree, so check the file or fetch it again."
        )
    if n == 0 or q == 0 or d == 0:
        raise DataError(
            f"{source}: {n} samples, {d} features and {q} labels; each must be at least 1, "
            "so check that the file is complete and that its labels are declared."
        )
    values = features.data if is_sparse(features) else features
    if not np.isfinite(values).all():
        raise DataError(f"{source}: some feature is missing or not finite in single precision; fill or drop it first.")
    return data
