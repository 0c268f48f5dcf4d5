"""Predictions of many shapes as one row per sample."""

from __future__ import annotations

from typing import Any

from torch import Tensor

# What comes from one of these autograd nodes holds picked elements, not one label of each sample.
PICKING = ("Index", "MaskedSelect", "Gather", "Take", "Nonzero")


def as_rows(tensor: Tensor, rows: int, made_by: Any = None) -> Tensor | None:
    """The tensor as (rows, q); None if it is no floating-point matrix with a row per sample.

    ``[rows]`` is one label, axes of length one are dropped, and a flattened matrix is unfolded where the graph node
    that made it (``made_by``) tells that it was one.

    Args:
        tensor: the predictions as they came.
        rows: number of samples.
        made_by: the autograd node whose result it is.

    >>> import torch
    >>> as_rows(torch.zeros(4, 3, 1), 4).shape, as_rows(torch.zeros(4), 4).shape, as_rows(torch.zeros(12), 4)
    (torch.Size([4, 3]), torch.Size([4, 1]), None)
    """
    if not tensor.is_floating_point() or tensor.ndim == 0:
        return None
    if tensor.ndim == 1:
        return _unfolded(tensor, rows, made_by)
    if tensor.ndim == 2:
        return tensor if tensor.shape[0] == rows else None
    wide = [size for size in tensor.shape[1:] if size != 1]
    if tensor.shape[0] != rows or len(wide) > 1:
        return None
    return tensor.reshape(rows, wide[0] if wide else 1)


def _unfolded(tensor: Tensor, rows: int, made_by: Any) -> Tensor | None:
    name = made_by.name() if made_by is not None else ""
    before = getattr(made_by, "_saved_self_sym_sizes", None)
    if name.startswith(PICKING) or (before is not None and before[0] != rows):
        return None
    if len(tensor) == rows and (rows > 1 or before is None):
        return tensor.unsqueeze(1)
    if before is None or len(tensor) % rows:
        return None
    return tensor.reshape(rows, -1)
