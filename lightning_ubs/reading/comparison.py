"""Comparing the targets of a batch with the labels of the planned samples."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

_TOLERANCE = 1e-2


class Verdict(Enum):
    """What comparing targets with labels says."""

    SAME = "same"
    DIFFERENT = "different"
    MIXED = "mixed"
    INCOMPARABLE = "incomparable"


def compare(targets: Tensor, labels: Tensor) -> Verdict:
    """Whether the targets (b, q) or (b,) of a batch are these labels.

    Labels of two values (0 and 1, −1 and 1, False and True) and class indices can be compared. Smoothing is no
    difference: within a column, every 0 becomes one number and every 1 a larger one. Where numbers vary within a
    column but lie on the right side of the middle, samples were mixed. Columns in another order, and labels of other
    shapes or kinds, cannot be compared.

    >>> y = torch.eye(3)
    >>> compare(y * 0.8 + 0.1, y), compare(y.flip(0), torch.tensor([[1., 0, 0], [1., 1, 0], [0, 0, 1.]]))
    (<Verdict.SAME: 'same'>, <Verdict.DIFFERENT: 'different'>)
    """
    is_alike = labels.ndim == 2 and targets.shape == labels.shape and targets.dtype == labels.dtype
    if is_alike and torch.equal(targets, labels):  # as in most batches; what follows takes ten times as long
        return Verdict.SAME
    if labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1 and targets.numel() == labels.numel()):
        return _compare_vector(targets, labels.flatten())
    if targets.ndim == 1 and labels.ndim == 2 and _is_one_hot(labels):
        return _verdict(targets.long() == labels.argmax(1))
    if targets.shape != labels.shape or labels.ndim != 2:
        return Verdict.INCOMPARABLE
    return _compare_matrix(targets.double(), labels.double())


def has_mixed_values(targets: Tensor) -> bool:
    """Whether targets hold numbers between 0 and 1 that no smoothing explains, whatever the labels are."""
    if not targets.is_floating_point():
        return False
    values = torch.unique(targets[targets.isfinite()].double().mul(1000).round())
    return len(values) > 2 and bool(((values > 10) & (values < 990)).any())


def are_rows_permuted(first: Tensor, second: Tensor) -> bool:
    """Whether two different targets hold the same rows in another order, as the two halves of a mixup do."""
    first, second = (rows.reshape(len(rows), -1) for rows in (first, second))
    if first.shape != second.shape or torch.equal(first, second):
        return False
    one, other = (torch.unique(rows.double().flatten(1), dim=0, return_counts=True) for rows in (first, second))
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _compare_vector(targets: Tensor, labels: Tensor) -> Verdict:
    """One label or class index per sample."""
    if targets.ndim == 2 and targets.shape[1] > 1:
        rows = targets.double()
        known = (labels >= 0) & (labels < targets.shape[1]) if not labels.is_floating_point() else labels < -torch.inf
        if not bool(known.all()):
            return Verdict.INCOMPARABLE
        return _compare_matrix(rows, torch.nn.functional.one_hot(labels.long(), targets.shape[1]).double())
    if targets.is_floating_point():
        return _compare_matrix(targets.reshape(-1, 1).double(), labels.reshape(-1, 1).double())
    ignored = targets.flatten() < 0
    return _verdict((targets.flatten() == labels) | ignored)


def _compare_matrix(targets: Tensor, labels: Tensor) -> Verdict:
    if torch.allclose(targets, labels, atol=1e-4, equal_nan=True):
        return Verdict.SAME
    values = torch.unique(labels)
    if len(values) > 2 or not set(values.tolist()) <= {-1.0, 0.0, 1.0}:
        return Verdict.INCOMPARABLE
    known = targets.isfinite()
    if not bool(known.any()):
        return Verdict.INCOMPARABLE
    positive = labels > 0.5
    if bool((((targets > 0.5) == positive) | ~known).all()):
        return Verdict.SAME if _is_function(targets, positive, known) else Verdict.MIXED
    if _have_same_columns(targets, labels):
        return Verdict.INCOMPARABLE
    return Verdict.MIXED if has_mixed_values(targets) else Verdict.DIFFERENT


def _is_function(targets: Tensor, positive: Tensor, known: Tensor) -> bool:
    """Whether within each column all positives have one value, and all negatives."""
    return all(_spread(targets, mask & known) <= _TOLERANCE for mask in (positive, ~positive))


def _spread(targets: Tensor, mask: Tensor) -> float:
    low = targets.masked_fill(~mask, torch.inf).amin(0)
    high = targets.masked_fill(~mask, -torch.inf).amax(0)
    return float((high - low).clamp(min=0).max())


def _have_same_columns(targets: Tensor, labels: Tensor) -> bool:
    """Whether the columns of one are those of the other in another order."""
    one, other = (torch.unique((rows > 0.5).T, dim=0, return_counts=True) for rows in (targets, labels))
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _is_one_hot(labels: Tensor) -> bool:
    return bool((labels.sum(1) == 1).all() and ((labels == 0) | (labels == 1)).all())


def _verdict(equal: Tensor) -> Verdict:
    return Verdict.SAME if bool(equal.all()) else Verdict.DIFFERENT
