"""Selections and repairs of published data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.entries import View
from lightning_ubs.data.types import Features, MultiLabelData, is_sparse


def most_frequent_features(features: Features, fraction: float) -> npt.NDArray[np.int64]:
    """Return the columns that are not zero in most samples, ascending; ties go to the lower column.

    >>> most_frequent_features(np.float32([[1, 0, 5, 2], [0, 0, 1, 1]]), 0.5)
    array([2, 3])
    """
    if is_sparse(features):
        counts = np.bincount(features.indices[features.data != 0], minlength=features.shape[1])
    else:
        counts = np.count_nonzero(features, axis=0)
    return np.sort(np.argsort(-counts, kind="stable")[: int(features.shape[1] * fraction)])


def frequent_labels(labels: npt.NDArray[np.uint8], positives: int) -> npt.NDArray[np.int64]:
    """Return the labels with at least ``positives`` positive samples.

    >>> frequent_labels(np.uint8([[1, 0], [1, 1]]), 2)
    array([0])
    """
    return np.flatnonzero(labels.sum(axis=0, dtype=np.int64) >= positives)


def paper_view(data: MultiLabelData, view: View) -> MultiLabelData:
    """Return the paper's selection of features and labels."""
    columns = most_frequent_features(data.X, view.feature_fraction)
    kept = frequent_labels(data.Y, view.label_positives)
    return MultiLabelData(
        data.X[:, columns],
        np.ascontiguousarray(data.Y[:, kept]),
        [data.label_names[j] for j in kept],
        [data.feature_names[j] for j in columns],
    )


def realign(data: MultiLabelData, shift: int) -> MultiLabelData:
    """Return the data with the labels of the second half of the samples moved right by ``shift`` columns.

    The last ``shift`` features of those samples are the first labels; as features they become 0.
    """
    half, d, q = len(data.Y) // 2, data.X.shape[1], data.Y.shape[1]
    displaced = data.X[half:, d - shift :]
    labels = data.Y.copy()
    labels[half:] = np.hstack([displaced.toarray() != 0, data.Y[half:]])[:, :q]
    sparse = optional_import("scipy.sparse")
    emptied = sparse.hstack([data.X[half:, : d - shift], sparse.csr_matrix(displaced.shape, dtype=np.float32)])
    return data._replace(X=sparse.vstack([data.X[:half], emptied], format="csr"), Y=labels)
