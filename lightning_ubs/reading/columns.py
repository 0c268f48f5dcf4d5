"""The columns of a dataset: everything it holds with one row per sample, read by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset


class Column(ABC):
    """One value per sample; nothing is copied before rows are asked for."""

    name: str
    #: Number of samples.
    length: int
    #: Shape of one row.
    shape: tuple[int, ...]

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""

    def all(self) -> Tensor:
        """The rows of all samples, on the CPU."""
        return self.rows(torch.arange(self.length))

    def __str__(self) -> str:
        return f"{self.name} {[self.length, *self.shape]}"


class ArrayColumn(Column):
    """A tensor, an array, a sparse matrix, or nested lists of numbers."""

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        self._values = values if hasattr(values, "shape") else np.asarray(values)
        self.length, *shape = self._values.shape
        self.shape = tuple(shape)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        if isinstance(self._values, Tensor):
            return self._values[ids.to(self._values.device)].cpu()
        picked = self._values[ids.numpy()]
        return torch.as_tensor(picked.toarray() if hasattr(picked, "toarray") else np.asarray(picked))


class PickedColumn(Column):
    """A column of a dataset of which a ``Subset`` is taken."""

    def __init__(self, column: Column, indices: Sequence[int]) -> None:
        self.name, self.shape = column.name, column.shape
        self._column = column
        self._indices = torch.as_tensor(indices)
        self.length = len(self._indices)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        return self._column.rows(self._indices[ids])


class JoinedColumn(Column):
    """A column of datasets that stand one after the other."""

    def __init__(self, columns: list[Column], ends: list[int]) -> None:
        self.name, self.shape = columns[0].name, columns[0].shape
        self._columns = columns
        self._ends = torch.tensor(ends)
        self.length = ends[-1]

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        part = torch.searchsorted(self._ends, ids, right=True)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), self._ends])
        parts = [column.rows(ids[part == i] - starts[i]) for i, column in enumerate(self._columns)]
        order = torch.cat([(part == i).nonzero().flatten() for i in range(len(self._columns))])
        return torch.cat(parts)[order.argsort()]


class TableColumn(Column):
    """A column of a Hugging Face dataset."""

    def __init__(self, name: str, dataset: Any) -> None:
        self.name = name
        self._dataset = dataset.select_columns([name]).with_format("numpy")
        self.length = len(dataset)
        self.shape = np.asarray(self._dataset[:1][name]).shape[1:]

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        return torch.as_tensor(np.asarray(self._dataset[ids.tolist()][self.name]))

    def all(self) -> Tensor:
        """The rows of all samples, on the CPU."""
        return torch.as_tensor(np.asarray(self._dataset[:][self.name]))


def columns_of(dataset: Any, names: Sequence[str]) -> list[Column]:
    """Every column that a dataset shows, those called one of ``names`` first, in that order.

    >>> data = TensorDataset(torch.arange(3), torch.zeros(3, 2))
    >>> [(column.name, column.shape) for column in columns_of(Subset(data, [2, 0]), ())]
    [('tensors[0]', ()), ('tensors[1]', (2,))]
    """
    if isinstance(dataset, Subset):
        return [PickedColumn(column, dataset.indices) for column in columns_of(dataset.dataset, names)]
    if isinstance(dataset, ConcatDataset):
        return list(_joined(dataset, names))
    if isinstance(dataset, TensorDataset):
        return [ArrayColumn(f"tensors[{i}]", tensor) for i, tensor in enumerate(dataset.tensors)]
    if hasattr(dataset, "select_columns") and hasattr(dataset, "column_names"):
        known = dataset.column_names
        return [TableColumn(name, dataset) for name in _sorted(known, names) if _is_table_column(dataset, name)]
    shown = {name: getattr(dataset, name, None) for name in names} | dict(getattr(dataset, "__dict__", {}))
    return [ArrayColumn(name, shown[name]) for name in _sorted(shown, names) if _is_array(shown[name], len(dataset))]


def _joined(dataset: ConcatDataset[Any], names: Sequence[str]) -> Iterator[Column]:
    parts = [{column.name: column for column in columns_of(part, names)} for part in dataset.datasets]
    for name, first in parts[0].items():
        same = [part[name] for part in parts if name in part and part[name].shape == first.shape]
        if len(same) == len(parts):
            yield JoinedColumn(same, dataset.cumulative_sizes)


def _sorted(known: Any, names: Sequence[str]) -> list[str]:
    return [name for name in names if name in known] + [name for name in known if name not in names]


def _is_table_column(dataset: Any, name: str) -> bool:
    """Whether the first row of a column is a number or a list of numbers."""
    return len(dataset) > 0 and _is_numeric(np.asarray(dataset.select_columns([name]).with_format("numpy")[:1][name]))


def _is_array(value: Any, rows: int) -> bool:
    if isinstance(value, list) and len(value) == rows and rows:
        width = len(value[0]) if isinstance(value[0], Sequence | np.ndarray | Tensor) else None
        if width is not None and any(not hasattr(row, "__len__") or len(row) != width for row in value):
            return False
        return not isinstance(value[0], str | Tensor) and _is_numeric(np.asarray(value[:1]))
    shape: tuple[int, ...] = tuple(getattr(value, "shape", ()))
    dense = isinstance(value, Tensor | np.ndarray) or hasattr(value, "toarray")
    return dense and len(shape) > 0 and shape[0] == rows and (isinstance(value, Tensor) or _is_numeric(value))


def _is_numeric(array: Any) -> bool:
    return array.dtype.kind in "biuf"
