"""Label and feature matrices, as arguments give them or as a dataset holds them."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.columns import ArrayColumn, Column, columns_of
from lightning_ubs.reading.targets import LABEL_NAMES

_FEATURE_NAMES = ("features", "data", "x", "X")
_LABELS, _FEATURES = "[samples, labels] of 0 and 1", "[samples, features]"
_PEEK = 1000


class DatasetLabels:
    """The labels of all training samples, as far as they can be seen.

    Known names come first; without a name, the one column that is a matrix of zeros and ones. If features are such a
    matrix as well, the second of two tensors. Where several are left, ``column`` is None.

    Args:
        given: labels that the user passed, or None.
        dataset: the train dataset.

    Attributes:
        column: the labels, or None.
        others: the other columns.
        is_used: whether a strategy works with these labels.
    """

    is_used = False

    def __init__(self, given: Any, dataset: Any) -> None:
        self.num_samples = len(dataset)
        self.others = columns_of(dataset, LABEL_NAMES)
        self.column = self._choose() if given is None else _given("labels", given, self.num_samples, _LABELS)
        self.others = [column for column in self.others if column is not self.column]

    @property
    def num_labels(self) -> int | None:
        """q, if the labels are a matrix."""
        return self.column.shape[0] if self.column is not None and len(self.column.shape) == 1 else None

    def matrix(self, needed_by: str) -> Tensor:
        """The (n, q) labels of 0 and 1 as float32, for a strategy that needs them."""
        if self.column is None:
            raise _not_shown("labels", needed_by, self.others, _LABELS)
        if len(self.column.shape) != 1:
            raise SelectionError(
                f"labels has shape {[self.num_samples, *self.column.shape]}, but {needed_by} needs {_LABELS} for "
                f"{self.num_samples} samples; pass labels= in that shape."
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
        matrices = [column for column in self.others if len(column.shape) == 1 and self._is_binary(column)]
        wide = [column for column in matrices if column.shape[0] > 1] or matrices
        if len(wide) > 1 and [column.name for column in self.others] == ["tensors[0]", "tensors[1]"]:
            return wide[1]
        return wide[0] if len(wide) == 1 else None

    def _is_binary(self, column: Column) -> bool:
        try:
            return _is_binary(column.rows(torch.arange(min(self.num_samples, _PEEK)))) and _is_binary(column.all())
        except (TypeError, ValueError):  # a column of a table whose rows are of unlike length
            return False


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


def _is_binary(values: Tensor) -> bool:
    return bool(((values == 0) | (values == 1)).all())
