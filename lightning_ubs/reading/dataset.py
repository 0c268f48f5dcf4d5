"""What a dataset holds with one row per sample: its columns, and which of them are labels and features.

Looking for columns never fails: what cannot be read as one row of numbers per sample is no column. Nothing but lists is
copied before rows are asked for.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.targets import LABEL_NAMES, shown_attributes

_FEATURE_NAMES = ("features", "data", "x", "X")
_LABELS, _FEATURES = "[samples, labels] of 0 and 1", "[samples, features]"
# Rows that are looked at before a whole column is, and numbers that are read at a time.
_PEEK, _CHUNK = 1000, 2**22
# Numbers of a list of lists that are copied into an array; a list of images is no column.
_LISTED = 2**27


class Column(ABC):
    """One value per sample."""

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

    def is_binary(self) -> bool:
        """Whether all values are 0 or 1; reads no more than it must to tell."""
        whole = max(1, _CHUNK // max(1, math.prod(self.shape)))
        first, step = 0, min(_PEEK, whole)
        while first < self.length:
            if not _is_binary(self.rows(torch.arange(first, min(first + step, self.length)))):
                return False
            first, step = first + step, whole
        return True

    def __str__(self) -> str:
        return f"{self.name} {[self.length, *self.shape]}"


class ArrayColumn(Column):
    """A tensor, an array, or a sparse matrix of torch or scipy."""

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        self._values = _by_row(values)
        self.length, *shape = self._values.shape
        self.shape = tuple(shape)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        values = self._values
        if isinstance(values, Tensor):
            picked = values.detach().index_select(0, ids.to(values.device))
            return (picked.to_dense() if picked.is_sparse else picked).cpu()
        chosen = values[ids.numpy()]
        return torch.as_tensor(chosen.toarray() if hasattr(chosen, "toarray") else np.asarray(chosen))

    def is_binary(self) -> bool:
        """Whether all values are 0 or 1; of a sparse matrix, those that are stored."""
        if isinstance(self._values, Tensor) and self._values.is_sparse:
            return _is_binary(self._values.detach().coalesce().values())
        if hasattr(self._values, "toarray"):
            return _is_binary(torch.as_tensor(self._values.data))
        if isinstance(self._values, np.memmap):  # a file, which may be huge
            return _is_binary(self.rows(torch.linspace(0, self.length - 1, min(self.length, _PEEK)).long()))
        return super().is_binary()


class PickedColumn(Column):
    """A column of a dataset of which a ``Subset`` is taken."""

    def __init__(self, column: Column, indices: Sequence[int]) -> None:
        self.name, self.shape = column.name, column.shape
        self._column = column
        self._indices = torch.as_tensor(indices, dtype=torch.int64) % max(1, column.length)
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
    """A column of a Hugging Face dataset; lists of class labels become rows of 0 and 1.

    Args:
        name: Name of the column.
        dataset: The table.
        classes: Number of classes that its lists are of; None if its rows are numbers, or equally long lists of them.
    """

    def __init__(self, name: str, dataset: Any, classes: int | None) -> None:
        self.name = name
        self._classes = classes
        self._dataset = dataset.select_columns([name]).with_format("numpy" if classes is None else None)
        self.length = len(dataset)
        self.shape = np.asarray(self._dataset[:1][name]).shape[1:] if classes is None else (classes,)

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of these samples, on the CPU."""
        return self._read(ids.tolist())

    def all(self) -> Tensor:
        """The rows of all samples, on the CPU."""
        return self._read(slice(None))

    def _read(self, which: Any) -> Tensor:
        values = self._dataset[which][self.name]
        if self._classes is None:
            return torch.as_tensor(np.asarray(values))
        rows = torch.zeros(len(values), self._classes)
        sizes = torch.tensor([len(one or ()) for one in values], dtype=torch.int64)
        positive = torch.tensor([label for one in values for label in one or ()], dtype=torch.int64)
        rows[torch.arange(len(values)).repeat_interleave(sizes), positive] = 1
        return rows


def columns_of(dataset: Any, names: Sequence[str]) -> list[Column]:
    """Every column that a dataset shows, those called one of ``names`` first, in that order.

    >>> data = TensorDataset(torch.arange(3), torch.zeros(3, 2))
    >>> [(column.name, column.shape) for column in columns_of(Subset(data, [2, 0]), ())]
    [('tensors[0]', ()), ('tensors[1]', (2,))]
    """
    # Whatever a dataset keeps may raise whatever it likes when it is looked at or converted.
    with contextlib.suppress(Exception):
        return list(_columns_of(dataset, names))
    return []


def _columns_of(dataset: Any, names: Sequence[str]) -> Iterator[Column]:
    if isinstance(dataset, Subset):
        for inner in columns_of(dataset.dataset, names):
            yield PickedColumn(inner, dataset.indices)
        return
    if isinstance(dataset, ConcatDataset):
        yield from _joined(dataset, names)
        return
    if isinstance(dataset, TensorDataset):
        for i, tensor in enumerate(dataset.tensors):
            yield ArrayColumn(f"tensors[{i}]", tensor)
        return
    is_table = hasattr(dataset, "select_columns") and hasattr(dataset, "column_names")
    shown = dict.fromkeys(dataset.column_names) if is_table else _attributes(dataset, names)
    for name in [name for name in names if name in shown] + [name for name in shown if name not in names]:
        with contextlib.suppress(Exception):
            column = _table_column(name, dataset) if is_table else _column(name, shown[name], len(dataset))
            if column is not None and (column.length == 0 or len(column.rows(torch.tensor([0])))):
                yield column


def _joined(dataset: ConcatDataset[Any], names: Sequence[str]) -> Iterator[Column]:
    parts = [{column.name: column for column in columns_of(part, names)} for part in dataset.datasets]
    for name, first in parts[0].items():
        same = [part[name] for part in parts if name in part and part[name].shape == first.shape]
        if len(same) == len(parts):
            yield JoinedColumn(same, dataset.cumulative_sizes)


def _attributes(dataset: Any, names: Sequence[str]) -> dict[str, Any]:
    """Attributes and properties called one of ``names``, and all other attributes."""
    return shown_attributes(dataset, names) | dict(getattr(dataset, "__dict__", {}))


def _column(name: str, value: Any, rows: int) -> Column | None:
    """``value`` as a column; None if it is none. Only what is known to be an array in memory is touched."""
    kind = type(value)
    if issubclass(kind, list | tuple):
        value = _as_array(value) if len(value) == rows else None
    elif kind.__module__.split(".")[0] in ("pandas", "polars") and hasattr(kind, "to_numpy"):
        value = value.to_numpy() if len(value) == rows and _is_numeric(value[:1].to_numpy()) else None
    elif not (issubclass(kind, Tensor | np.ndarray) or hasattr(kind, "toarray")):
        return None
    if value is None or not value.shape or value.shape[0] != rows:
        return None
    is_numeric = not value.is_complex() if isinstance(value, Tensor) else _is_numeric(value)
    return ArrayColumn(name, value) if is_numeric else None


def _as_array(values: Sequence[Any]) -> Any:
    """A list of numbers, or of equally long rows of numbers, as an array; None if it is none."""
    first = values[0] if values else None
    if isinstance(first, Tensor):
        same = all(isinstance(row, Tensor) and row.shape == first.shape for row in values)
        return torch.stack(list(values)) if same and first.numel() * len(values) <= _LISTED else None
    if isinstance(first, list | tuple | np.ndarray):
        alike = all(isinstance(row, list | tuple | np.ndarray) and len(row) == len(first) for row in values)
        head = np.asarray(first)
        if not alike or not _is_numeric(head) or head.size * len(values) > _LISTED:
            return None
    elif not isinstance(first, int | float | np.number | np.bool_):
        return None
    return np.asarray(values)


def _table_column(name: str, dataset: Any) -> Column | None:
    """A column whose first row is a number or a list of numbers, and whose lists are equally long or of classes."""
    feature = dataset.features[name]
    lengths = _list_lengths(dataset, name)
    classes = getattr(getattr(feature, "feature", None), "num_classes", None) if lengths else None
    is_equally_long = len(lengths) <= 1
    if classes is not None and (classes > 2 or not is_equally_long):  # two classes of equally many: a row of no and yes
        return TableColumn(name, dataset, classes)
    head = np.asarray(dataset.select_columns([name]).with_format("numpy")[:1][name]) if len(dataset) else None
    return TableColumn(name, dataset, None) if is_equally_long and head is not None and _is_numeric(head) else None


def _list_lengths(dataset: Any, name: str) -> set[int]:
    """How long the lists of a table's column are, the shortest and the longest; empty if it holds no lists."""
    import pyarrow
    import pyarrow.compute

    column = dataset.data.column(name)
    if not (pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type)):
        return {column.type.list_size} if pyarrow.types.is_fixed_size_list(column.type) else set()
    lengths = set(pyarrow.compute.min_max(pyarrow.compute.list_value_length(column)).as_py().values())
    return lengths | ({0} if column.null_count else set())


def _by_row(values: Any) -> Any:
    """A matrix whose rows can be picked."""
    if isinstance(values, Tensor):
        values = values.dequantize() if values.is_quantized else values
        return values if values.layout is torch.strided else values.to_sparse(layout=torch.sparse_coo).coalesce()
    return values.tocsr() if hasattr(values, "toarray") else values


def _is_numeric(array: Any) -> bool:
    return np.dtype(array.dtype).kind in "biuf"


def _is_binary(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 1)).all())


class DatasetLabels:
    """The labels of all training samples, as far as they can be seen.

    Known names come first; without a name, the one column that is a matrix of zeros and ones. If features are such a
    matrix as well, the second of two tensors. Where several are left, ``column`` is None.

    Args:
        given: Labels that the user passed, or None.
        dataset: The train dataset.

    Attributes:
        dataset: The train dataset.
        column: The labels, or None.
        others: The other columns.
        is_given: Whether the user passed them.
        is_used: Whether a strategy works with these labels.
    """

    is_used = False

    def __init__(self, given: Any, dataset: Any) -> None:
        self.dataset = dataset
        self.is_given = given is not None
        self.num_samples = len(dataset)
        self.others = columns_of(dataset, LABEL_NAMES)
        self.column = self._choose() if given is None else _given("labels", given, self.num_samples, _LABELS)
        self.others = [column for column in self.others if column is not self.column]

    @property
    def num_labels(self) -> int | None:
        """Number of labels q, if the labels are a matrix."""
        return self.column.shape[0] if self.column is not None and len(self.column.shape) == 1 else None

    @property
    def is_guess(self) -> bool:
        """Whether the column was taken for labels by its values alone, or holds one number for each sample."""
        column = self.column
        if column is None or self.is_given or column.name.startswith("tensors["):
            return False
        return column.name not in LABEL_NAMES or not column.shape

    def give_up(self) -> None:
        """The column turned out not to be the labels."""
        if self.is_used:
            raise SelectionError(
                f"the labels were read from the dataset's {self.column}, but its samples come with others; pass "
                "BatchSelection(..., labels=) with the right ones."
            )
        if self.column is not None:
            self.others.append(self.column)
        self.column = None

    def matrix(self, needed_by: str, class_ids: bool = False) -> Tensor:
        """The (n, q) labels of 0 and 1 as float32, for a strategy that needs them; or (n,) ``class_ids`` if it may."""
        if self.column is None:
            wanted = f"{_LABELS}, or labels=ids with one class id per sample" if class_ids else _LABELS
            raise _not_shown("labels", needed_by, self.others, wanted)
        if class_ids and not self.column.shape:
            ids = self.column.all()
            if not ids.is_floating_point():
                self.is_used = True
                return ids.long()
        if len(self.column.shape) != 1:
            way_out = "in that shape" if self.column.shape else "in that shape; for class ids, one_hot(ids.long())"
            raise SelectionError(
                f"labels has shape {[self.num_samples, *self.column.shape]}, but {needed_by} needs {_LABELS} for "
                f"{self.num_samples} samples; pass labels= {way_out}."
            )
        self.is_used = True
        labels = self.column.all()
        if not _is_binary(labels):
            raise SelectionError(
                f"labels ({self.column.name}) hold values other than 0 and 1; pass labels= as {_LABELS}."
            )
        return labels.float()

    def _choose(self) -> Column | None:
        named = [column for column in self.others if column.name in LABEL_NAMES and len(column.shape) <= 1]
        if named:
            return next((column for column in named if len(column.shape) == 1), named[0])
        matrices = [column for column in self.others if len(column.shape) == 1 and _holds_labels(column)]
        wide = [column for column in matrices if column.shape[0] > 1] or matrices
        if len(wide) > 1 and [column.name for column in self.others] == ["tensors[0]", "tensors[1]"]:
            return wide[1]
        rivals = (one for one in self.others if len(one.shape) == 1 and one not in matrices and _may_hold_labels(one))
        return wide[0] if len(wide) == 1 and not any(rivals) else None


def feature_matrix(given: Any, dataset: Any, needed_by: str, labels: DatasetLabels) -> Tensor:
    """The (n, d) features, from the argument or the dataset; images and the like are flattened."""
    if given is None:
        label_name = None if labels.column is None else labels.column.name
        columns = [column for column in columns_of(dataset, _FEATURE_NAMES) if column.name != label_name]
        wide = [column for column in columns if column.name in _FEATURE_NAMES][:1] or [c for c in columns if c.shape]
        if len(wide) != 1:
            raise _not_shown("features", needed_by, columns, _FEATURES)
        column = wide[0]
    else:
        column = _given("features", given, len(dataset), _FEATURES)
    return column.all().flatten(1).float()


def training_labels(trainer: Trainer) -> Tensor | None:
    """The training labels (n, q) of a trainer that is about to fit; None if they cannot be found."""
    datamodule = getattr(trainer, "datamodule", None)
    labels = getattr(datamodule, "train_labels", None)
    if labels is not None:
        return torch.as_tensor(labels)
    dataset = getattr(datamodule, "train_dataset", None)
    if dataset is None:
        trainer.fit_loop.setup_data()
        dataset = getattr(trainer.train_dataloader, "dataset", None)
    shown = DatasetLabels(None, dataset) if hasattr(dataset, "__len__") else None
    if shown is None or shown.column is None or shown.num_labels is None:
        return None
    return shown.column.all()


def _given(name: str, value: Any, num_samples: int, shape: str) -> Column:
    """A column of what a user passed."""
    try:
        array = value if isinstance(value, Tensor) or hasattr(value, "toarray") else torch.as_tensor(value)
        column = ArrayColumn(name, array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SelectionError(f"{name} of type {type(value).__name__} is not a matrix; pass {shape}.") from error
    if column.length != num_samples:
        raise SelectionError(
            f"{name} has shape {[column.length, *column.shape]}, but {shape} is needed for {num_samples} samples; pass "
            f"{name}= in that shape."
        )
    return column


def _not_shown(name: str, needed_by: str, columns: list[Column], shape: str) -> SelectionError:
    seen = ", ".join(map(str, columns)) or "nothing"
    return SelectionError(
        f"{needed_by} needs the {name} of all training samples and the dataset does not show which they are (it shows: "
        f"{seen}); pass BatchSelection(..., {name}=matrix) with shape {shape}."
    )


def _holds_labels(column: Column) -> bool:
    with contextlib.suppress(TypeError, ValueError, RuntimeError, IndexError):
        return column.is_binary()
    return False  # rows that turn out to be no numbers, or of unlike length


def _may_hold_labels(column: Column) -> bool:
    """Whether the first rows hold labels of which some are unknown (NaN or -1), beside which a binary matrix masks."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError, IndexError):
        rows = column.rows(torch.arange(min(column.length, _PEEK)))
        return bool(((rows == 0) | (rows == 1) | (rows == -1) | rows.isnan()).all())
    return False
