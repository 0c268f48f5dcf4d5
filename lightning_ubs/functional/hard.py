"""Hard-Imbalance: hard samples, and rare labels among unlike neighbours (Appendix C)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
