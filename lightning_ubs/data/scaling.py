"""Min-max scaling of features, fitted on some rows and sparse-aware."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.types import Features, is_sparse


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
