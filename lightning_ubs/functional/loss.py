"""From the loss of each sample to the probability that it is drawn."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_cross_entropy(probs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each sample, the mean over its labels, as (b,).

    Args:
        probs: (b, q) in [0, 1].
        targets: (b, q) true labels.

    >>> sample_cross_entropy(torch.tensor([[0.5, 1.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([0.3466])
    """
    return torch.nn.functional.binary_cross_entropy(probs, targets.to(probs.dtype), reduction="none").mean(1)


def unknown_as_largest(values: Tensor) -> Tensor:
    """``values`` (n,), where NaN, which stands for "not known yet", becomes the largest known one; zeros if none is.

    >>> unknown_as_largest(torch.tensor([0.5, torch.nan, 2.0])).tolist()
    [0.5, 2.0, 2.0]
    """
    unknown = values.isnan()
    known = values.masked_fill(unknown, -torch.inf)
    return torch.where(unknown, known.max().nan_to_num(neginf=0.0), values)


def pruned_probabilities(scores: Tensor, prune: float) -> Tensor:
    r"""InfoBatch's two levels: :math:`P_i\propto 1-r` for scores below the mean, :math:`P_i\propto 1` for the others.

    Args:
        scores: (n,) not negative; NaN where it is not known yet, which counts as hard.
        prune: r, the share of the easy samples that is left out.

    Returns:
        P, (n,) float64, positive, summing to 1.

    >>> pruned_probabilities(torch.tensor([0.0, 1.0, 5.0, torch.nan]), prune=0.5)
    tensor([0.1667, 0.1667, 0.3333, 0.3333], dtype=torch.float64)
    """
    scores = scores.double()
    kept = torch.ones_like(scores).masked_fill_(scores < scores.nanmean(), 1 - prune)
    return kept / kept.sum()
