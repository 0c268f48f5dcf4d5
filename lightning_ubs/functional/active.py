"""Active Bias: how widely the predictions of a sample spread (Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def prediction_spread(variance: Tensor, counts: Tensor) -> Tensor:
    r"""Active Bias, Eq. (2): :math:`\sqrt{v+v^2/(|H|-1)}`, 0 for fewer than two predictions.

    Args:
        variance: v, (n, q), of all predictions of a sample for a label.
        counts: \|H\|, (n,).

    >>> prediction_spread(torch.tensor([[0.25]]), torch.tensor([2]))
    tensor([[0.5590]])
    """
    counts = counts.reshape(-1, 1)
    spread = (variance + variance.square() / (counts - 1).clamp(min=1)).sqrt()
    return torch.where(counts > 1, spread, 0.0)


def proportional_probabilities(spread: Tensor, smoothing: float | Tensor | None = None) -> Tensor:
    r"""Active Bias by sampling: :math:`P_i\propto a_i+\epsilon`; ε defaults to the mean of a.

    >>> proportional_probabilities(torch.tensor([0.0, 2.0])).tolist()
    [0.25, 0.75]
    """
    spread = spread.double()
    shifted = spread + (spread.mean() if smoothing is None else smoothing)
    total = shifted.sum()
    uniform = torch.full_like(shifted, 1 / shifted.numel())
    return torch.where(total > 0, shifted / torch.where(total > 0, total, 1.0), uniform)
