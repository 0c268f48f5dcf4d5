"""What is done to data before training: the paper's selections, repairs of published files, and scaling."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.entries import View
from lightning_ubs.data.types import Features, MultiLabelData, is_sparse


class MinMax(NamedTuple):
    """The column minima and ranges (d,), float32, that scale features to [0, 1]."""

    minimum: npt.NDArray[np.float32]
    span: npt.NDArray[np.float32]

    @classmethod
    def fit(cls, features: Features) -> MinMax:
        """Return the scaling by the minimum and the range of each column; the zeros of a sparse matrix count."""
        if is_sparse(features):
            low, high = (part.toarray().ravel() for part in (features.min(axis=0), features.max(axis=0)))
        else:
            low, high = features.min(axis=0), features.max(axis=0)
        return cls(low, high - low)

    def apply(self, features: Features) -> Features:
        """Return (x - minimum) / range; a column without range becomes 0.

        Rows that were not fitted on may leave [0, 1]. A sparse matrix stays sparse; only columns whose minimum is not
        0 lose their zeros.

        >>> MinMax.fit(np.float32([[0, 3], [2, 3]])).apply(np.float32([[1, 9], [4, 3]]))
        array([[0.5, 0. ],
               [2. , 0. ]], dtype=float32)
        """
        if not is_sparse(features):
            return self._dense(features, slice(None))
        scaled = features.tocsr(copy=True)
        span = self.span[scaled.indices]
        scaled.data = np.divide(scaled.data, span, out=np.zeros_like(scaled.data), where=span > 0)
        moved = np.flatnonzero((self.minimum != 0) & (self.span > 0))
        if moved.size:
            sparse = optional_import("scipy.sparse")
            kept = np.setdiff1d(np.arange(scaled.shape[1]), moved)
            shifted = sparse.csr_matrix(self._dense(features[:, moved].toarray(), moved))
            back = np.argsort(np.concatenate([kept, moved]))
            scaled = sparse.hstack([scaled[:, kept], shifted], format="csr")[:, back]
        scaled.eliminate_zeros()
        return scaled

    def _dense(self, values: Any, columns: Any) -> Any:
        low, span = self.minimum[columns], self.span[columns]
        result = np.zeros(values.shape, dtype=np.float32)
        return np.divide(values - low, span, out=result, where=span > 0)


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
