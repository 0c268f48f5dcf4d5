"""Label and feature matrices, as arguments give them or as a dataset holds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from lightning_ubs.errors import SelectionError

_LABEL_NAMES = ("labels", "targets", "y", "Y")
_FEATURE_NAMES = ("features", "data", "x", "X")


def label_matrix(given: Any, dataset: Any, num_samples: int, needed_by: str) -> Tensor:
    """The (n, q) labels, from the argument or the dataset."""
    found = given if given is not None else _from_dataset(dataset, 1, _LABEL_NAMES)
    return _checked("labels", found, num_samples, needed_by, "[samples, labels] of 0 and 1")


def visible_labels(given: Any, dataset: Any, num_samples: int) -> Tensor | None:
    """The labels of all samples as given or as the dataset shows them, of any shape; None if there are none."""
    found = given if given is not None else _from_dataset(dataset, 1, _LABEL_NAMES)
    try:
        labels = None if found is None else _tensor(found)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels is not None and len(labels) == num_samples else None


def feature_matrix(given: Any, dataset: Any, num_samples: int, needed_by: str) -> Tensor:
    """The (n, d) features, from the argument or the dataset; images and the like are flattened."""
    found = given if given is not None else _from_dataset(dataset, 0, _FEATURE_NAMES)
    return _checked("features", found, num_samples, needed_by, "[samples, features]")


def _from_dataset(dataset: Any, position: int, names: tuple[str, ...]) -> Any:
    if isinstance(dataset, Subset):
        whole = _from_dataset(dataset.dataset, position, names)
        return None if whole is None else _tensor(whole)[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[position] if len(dataset.tensors) > position else None
    return next((value for name in names if (value := getattr(dataset, name, None)) is not None), None)


def _tensor(value: Any) -> Tensor:
    """A dense tensor of an array, a tensor, nested lists or a SciPy sparse matrix."""
    return torch.as_tensor(value.toarray() if hasattr(value, "toarray") else value)


def _checked(name: str, found: Any, num_samples: int, needed_by: str, shape: str) -> Tensor:
    if found is None:
        raise SelectionError(
            f"{needed_by} needs the {name} of all training samples and the dataset does not show them; pass "
            f"BatchSelection(..., {name}=matrix) with shape {shape}."
        )
    try:
        matrix = _tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SelectionError(f"{name} of type {type(found).__name__} is not a matrix; pass {shape}.") from error
    matrix = matrix.flatten(1) if name == "features" and matrix.ndim > 2 else matrix
    if matrix.ndim != 2 or len(matrix) != num_samples:
        raise SelectionError(
            f"{name} has shape {list(matrix.shape)}, but {needed_by} needs {shape} for {num_samples} samples; pass "
            f"{name}= in that shape."
        )
    if name == "labels" and not bool(((matrix == 0) | (matrix == 1)).all()):
        raise SelectionError(f"labels hold values other than 0 and 1; pass labels= as {shape}.")
    return matrix.float()
