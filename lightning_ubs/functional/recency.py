"""Recency Bias: how mixed the recent yes/no predictions of a sample are (Eq. 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.functional.uncertainty import binary_entropy


def recency_entropy(history: Tensor, counts: Tensor) -> Tensor:
    r"""Recency Bias, Eq. (3): entropy in bits of the recent yes/no predictions :math:`[p>1/2]`.

    Args:
        history: (n, T, q); only the last ``counts[i]`` of the T rows of sample i are valid.
        counts: (n,) number of valid predictions, by which the frequency is divided.

    >>> recency_entropy(torch.tensor([0.2, 0.8, 0.3, 0.7, 0.6]).reshape(1, 5, 1), torch.tensor([5]))
    tensor([[0.9710]])
    """
    window = history.shape[1]
    counts = counts.clamp(max=window)
    valid = torch.arange(window, device=history.device).reshape(1, -1, 1) >= (window - counts).reshape(-1, 1, 1)
    positive = ((history > 0.5) & valid).sum(1)
    counts = counts.reshape(-1, 1)
    # One yes in three is as uncertain as two; in floats 1 - 2/3 is not quite 1/3.
    rarer = torch.minimum(positive, counts - positive)
    return binary_entropy(rarer / counts.clamp(min=1))
