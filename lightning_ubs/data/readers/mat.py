"""MATLAB files (version 5 to 7) with the variables ``data`` and ``target``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs.data.readers.budget import NAME, Budget
from lightning_ubs.data.readers.mat5 import read_matrices
from lightning_ubs.data.readers.stream import open_decompressed
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
