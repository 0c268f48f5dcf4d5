"""The measures of the methods that the paper compares with (Eqs. 2 and 3, Appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_ubs.functional.uncertainty import binary_entropy


def prediction_spread(variance: Tensor, counts: Tensor) -> Tensor:
    r"""Active Bias, Eq. (2): :math:`\sqrt{v+v^2/(|H|-1)}`, 0 for fewer than two predictions.

    Args:
        variance: v, (n, q), of all predictions of a sample for a label.
        counts: |H|, (n,).

    >>> prediction_spread(torch.tensor([[0.25]]), torch.tensor([2]))
    tensor([[0.5590]])
    """
    counts = counts.reshape(-1, 1)
    spread = (variance + variance.square() / (counts - 1).clamp(min=1)).sqrt()
    return torch.where(counts > 1, spread, 0.0)


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


def proportional_probabilities(spread: Tensor, smoothing: float | None = None) -> Tensor:
    r"""Active Bias by sampling: :math:`P_i\propto a_i+\epsilon`; ε defaults to the mean of a.

    >>> proportional_probabilities(torch.tensor([0.0, 2.0])).tolist()
    [0.25, 0.75]
    """
    spread = spread.double()
    shifted = spread + (spread.mean() if smoothing is None else smoothing)
    total = shifted.sum()
    uniform = torch.full_like(shifted, 1 / shifted.numel())
    return torch.where(total > 0, shifted / torch.where(total > 0, total, 1.0), uniform)


def hardness_probabilities(hardness: Tensor, pressure: float) -> Tensor:
    r"""Hard-Imbalance: :math:`P_i\propto s_e^{Q_i/n}` with :math:`Q_i=\lceil h_i n/\max h\rceil`.

    >>> hardness_probabilities(torch.tensor([0.1, 0.2, 0.4, 0.8]), 8.0).round(decimals=4).tolist()
    [0.1185, 0.1185, 0.1993, 0.5637]
    """
    n = hardness.numel()
    hardness = hardness.double()
    largest = hardness.max()
    scaled = hardness / torch.where(largest > 0, largest, 1.0)
    index = (scaled * n - 1e-9).ceil().clamp(min=0)
    return torch.softmax(index * (math.log(pressure) / n), dim=0)


def imbalance_weights(labels: Tensor, features: Tensor, neighbours: int = 5) -> Tensor:
    r"""Hard-Imbalance: :math:`W_i=1+\sum_j\hat C_{ij}` over minority labels.

    A label is a minority if its imbalance ratio :math:`\max_kN_k/N_j` exceeds the mean ratio. For a sample that
    has it, :math:`C_{ij}` is the share of its nearest neighbours without it; 1 marks an outlier and is
    dropped; :math:`\hat C` is C divided by its column sum.

    Args:
        labels: (n, q) of 0 and 1.
        features: (n, d).
        neighbours: k, Euclidean, the sample itself left out.

    Returns:
        W, (n,) float32.
    """
    labels = labels.float()
    positives = labels.sum(0)
    ratio = positives.max() / (positives + 1e-6)
    minority = ratio > ratio.mean()
    share = _share_of_neighbours_without(labels, features.float(), neighbours)
    share = torch.where((labels > 0) & minority & (share < 1), share, 0.0)
    total = share.sum(0)
    return 1 + (share / torch.where(total > 0, total, 1.0)).sum(1)


def _share_of_neighbours_without(labels: Tensor, features: Tensor, neighbours: int) -> Tensor:
    n = len(features)
    # Distances are computed from products, which lose their digits far from the origin.
    features = features - features.mean(0)
    neighbours = min(neighbours, n - 1)
    if neighbours < 1:
        return torch.zeros_like(labels)
    rows = max(1, 2**24 // n)
    shares = []
    for first in range(0, n, rows):
        block = features[first : first + rows]
        distance = torch.cdist(block, features)
        own = torch.arange(len(block), device=features.device)
        distance[own, first + own] = torch.inf
        nearest = distance.topk(neighbours, dim=1, largest=False).indices
        shares.append(1 - labels[nearest].mean(1))
    return torch.cat(shares)
