"""Where a trainer keeps the labels of its training set."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset


def dataset_labels(dataset: Any) -> Tensor | None:
    """Return the label matrix (n, q) of a dataset, through any `Subset`; None if none can be seen.

    >>> rows = TensorDataset(torch.zeros(3, 2), torch.eye(3))
    >>> dataset_labels(Subset(rows, [2]))
    tensor([[0., 0., 1.]])
    """
    if isinstance(dataset, Subset):
        labels = dataset_labels(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices)]
    candidate = None
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        candidate = dataset.tensors[1]
    for name in ("labels", "targets"):
        candidate = getattr(dataset, name, candidate) if candidate is None else candidate
    if candidate is None:
        return None
    labels = torch.as_tensor(candidate)
    return labels if labels.ndim == 2 else None


def training_labels(trainer: L.Trainer) -> Tensor | None:
    """Return the training labels (n, q) of a trainer that is about to fit; None if they cannot be found."""
    datamodule = getattr(trainer, "datamodule", None)
    labels = getattr(datamodule, "train_labels", None)
    if labels is None:
        labels = dataset_labels(getattr(datamodule, "train_dataset", None))
    if labels is not None:
        return torch.as_tensor(labels)
    trainer.fit_loop.setup_data()
    return dataset_labels(getattr(trainer.train_dataloader, "dataset", None))
