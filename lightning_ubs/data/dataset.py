"""A dataset that hands out whole batches, and makes sparse features dense only there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from lightning_ubs.data.types import Features, is_sparse

Sample: TypeAlias = tuple[Tensor, Tensor]


class ReadyBatch(Sequence[Sample]):
    """The samples of one batch, already stacked: ``x`` (b, d) and ``y`` (b, q).

    It is also a sequence of samples, so that a plain ``DataLoader`` without :func:`collate` still works.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        """Return the batch size b."""
        return len(self.x)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        """Return one sample (d,), (q,), or a part of the batch."""
        if isinstance(index, slice):
            return ReadyBatch(self.x[index], self.y[index])
        return self.x[index], self.y[index]


def collate(samples: Sequence[Any]) -> Any:
    """Return a ready batch as it is; stack anything else as PyTorch does."""
    if isinstance(samples, ReadyBatch):
        return samples.x, samples.y
    return default_collate(list(samples))


class MultiLabelDataset(Dataset[Sample]):
    """Features and labels; sample i is ``(x, y)``, float32 of shapes (d,) and (q,).

    Attributes:
        features: X (n, d), a float32 tensor, or a CSR matrix that becomes dense one batch at a time.
        labels: Y (n, q), a float32 tensor.
    """

    def __init__(self, features: Features, labels: npt.NDArray[np.uint8]) -> None:
        self.features = features if is_sparse(features) else torch.from_numpy(features)
        self.labels = torch.from_numpy(labels).float()

    def __len__(self) -> int:
        """Return the number of samples n."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is out of range for {len(self)} samples")
        index %= len(self)
        x, y = self._rows([index])
        return x[0], y[0]

    def __getitems__(self, indices: Sequence[int]) -> ReadyBatch:
        """Return one batch at once; PyTorch's loader asks for it."""
        return ReadyBatch(*self._rows(indices))

    def _rows(self, indices: Sequence[int]) -> Sample:
        ids = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self.features, Tensor):
            return self.features[ids], self.labels[ids]
        return torch.from_numpy(self.features[ids.numpy()].toarray()), self.labels[ids]
