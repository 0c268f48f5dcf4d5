"""From uncertainty or loss to w, the selection pressure s_t and P (Sections 3.3 and 3.4 of the paper, Appendix C)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Quantizer = Literal["floor", "ceil"]

# Two sums over the same labels may differ in their last bits; a range below this is no range.
_FLAT = 1e-12


def raw_weights(uncertainty: Tensor, correlation: Tensor | None = None) -> Tensor:
    r"""Unscaled sample weights :math:`w_i=\sum_j(UC)_{ij}`, Eqs. (7) and (8), as (n,) float64.

    Computed as ``U @ C.sum(1)``, so that the product U·C is never formed.
    """
    uncertainty = uncertainty.double()
    return uncertainty.sum(1) if correlation is None else uncertainty @ correlation.double().sum(1)


def min_max_scale(values: Tensor) -> Tensor:
    """Scale to [0, 1]; values that are all equal become zeros.

    >>> min_max_scale(torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)).tolist()
    [0.0, 1.0, 0.5]
    """
    low, high = values.min(), values.max()
    span = high - low
    flat = span <= _FLAT * torch.maximum(high.abs(), low.abs())
    return torch.where(flat, 0.0, (values - low) / torch.where(flat, 1.0, span))


def sample_weights(uncertainty: Tensor, correlation: Tensor | None = None) -> Tensor:
    r"""Sample weights :math:`w_i=\sum_j(UC)_{ij}`, scaled to [0, 1] (Eqs. 7 and 8).

    The paper's Eq. (8) prints the plain sum of U; its text, its figure and its ablation D need the sum of
    U·C, which is used here.

    Args:
        uncertainty: U, (n, q).
        correlation: C, (q, q), or None for the plain sum (ablation D).

    Returns:
        Weights w (n,), float64 in [0, 1]; zeros if all samples weigh the same.

    >>> sample_weights(torch.tensor([[0.1, 0.1], [0.5, 0.1], [0.5, 0.5]]))
    tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """
    return min_max_scale(raw_weights(uncertainty, correlation))


def selection_pressure(epoch: int, start: int, end: int, s0: float) -> float:
    r"""Selection pressure :math:`s_t=s_0^{1-(t-t_{start})/(t_{end}-t_{start})}`, Eq. (11).

    s0 up to and in epoch ``start``, 1 from epoch ``end`` on, geometric in between.

    >>> [round(selection_pressure(t, 6, 100, 100.0), 6) for t in (6, 53, 100, 120)]
    [100.0, 10.0, 1.0, 1.0]
    """
    if epoch <= start:
        return float(s0)
    if epoch >= end:
        return 1.0
    return float(s0 ** (1 - (epoch - start) / (end - start)))


def selection_probabilities(weights: Tensor, pressure: float, quantizer: Quantizer = "floor") -> Tensor:
    r"""Selection probabilities :math:`P_i\propto s^{-Q_i/n}` with :math:`Q_i=\lfloor(1-w_i)n\rfloor`, Eqs. (9), (10).

    Args:
        weights: Weights w (n,) in [0, 1].
        pressure: Pressure s_t ≥ 1; the largest probability is s_t times the smallest where w spans [0, 1].
        quantizer: ``"floor"`` as in the paper, ``"ceil"`` as in its released code.

    Returns:
        P, (n,) float64, positive, summing to 1.

    >>> selection_probabilities(torch.tensor([1.0, 0.5, 0.0]), pressure=4.0).round(decimals=4)
    tensor([0.5319, 0.3351, 0.1330], dtype=torch.float64)
    """
    n = weights.numel()
    # The small shift keeps a product such as (1 - 0.9)·10 = 0.9999… in its own step.
    steps = (1 - weights.double()) * n
    index = (steps + 1e-9).floor() if quantizer == "floor" else (steps - 1e-9).ceil()
    return torch.softmax(index * (-math.log(pressure) / n), dim=0)


def importance_weights(probabilities: Tensor) -> Tensor:
    r"""What a sample drawn with P must count for the mean gradient to be that of plain shuffling: :math:`1/(nP_i)`.

    Args:
        probabilities: P, (n,), summing to 1.

    Returns:
        (n,) float64; infinite where a sample is never drawn.

    >>> importance_weights(torch.tensor([0.5, 0.25, 0.125, 0.125]))
    tensor([0.5000, 1.0000, 2.0000, 2.0000], dtype=torch.float64)
    """
    return 1 / (probabilities.numel() * probabilities.double())


def effective_sample_size(probabilities: Tensor) -> float:
    r"""How many equally likely samples would be as spread as P: :math:`1/\sum_i P_i^2`, from 1 to n.

    >>> effective_sample_size(torch.tensor([0.5, 0.5, 0.0]))
    2.0
    """
    values = probabilities.double().flatten()
    return 1 / float(values @ values)


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
        prune: Share r of the easy samples that is left out.

    Returns:
        P, (n,) float64, positive, summing to 1.

    >>> pruned_probabilities(torch.tensor([0.0, 1.0, 5.0, torch.nan]), prune=0.5)
    tensor([0.1667, 0.1667, 0.3333, 0.3333], dtype=torch.float64)
    """
    scores = scores.double()
    kept = torch.ones_like(scores).masked_fill_(scores < scores.nanmean(), 1 - prune)
    return kept / kept.sum()


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
    has it, :math:`C_{ij}` is the share of its nearest neighbors without it; 1 marks an outlier and is
    dropped; :math:`\hat C` is C divided by its column sum.

    Args:
        labels: (n, q) of 0 and 1.
        features: (n, d).
        neighbours: Number of nearest neighbors k, by Euclidean distance, the sample itself left out.

    Returns:
        W, (n,) float32.
    """
    labels = labels.float()
    positives = labels.sum(0)
    ratio = positives.max() / (positives + 1e-6)
    minority = ratio > ratio.mean()
    share = _share_of_neighbors_without(labels, features.float(), neighbours)
    share = torch.where((labels > 0) & minority & (share < 1), share, 0.0)
    total = share.sum(0)
    return 1 + (share / torch.where(total > 0, total, 1.0)).sum(1)


def _share_of_neighbors_without(labels: Tensor, features: Tensor, neighbours: int) -> Tensor:
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


def repeat_factors(labels: Tensor, threshold: float, frequency: Literal["image", "instance"] = "image") -> Tensor:
    r"""Repeat factors of LVIS: :math:`r_i=\max_{j\in i}\max(1,\sqrt{t/f_j})`, 1 for a sample without labels.

    Args:
        labels: (n, q) of 0 and 1 or numbers of instances, or (n,) class ids.
        threshold: Share of samples t below which a label is rare.
        frequency: :math:`f_j` is the share of samples with label j, or (``"instance"``) the geometric mean of it and of
            the label's share of all instances.

    Returns:
        (n,) float64 of at least 1.

    >>> repeat_factors(torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]]), threshold=0.5)
    tensor([1.0000, 1.0000, 1.4142, 1.0000], dtype=torch.float64)
    """
    if labels.ndim == 1:
        counts = torch.bincount(labels.long()).double()
        return _repeats(counts / len(labels), counts / len(labels), threshold, frequency)[labels.long()]
    present = labels > 0
    instances = labels.double().sum(0)
    factors = _repeats(present.double().mean(0), instances / instances.sum().clamp(min=1), threshold, frequency)
    return torch.where(present, factors, 1.0).amax(1) if labels.shape[1] else factors.new_ones(len(labels))


def _repeats(by_sample: Tensor, by_instance: Tensor, threshold: float, frequency: str) -> Tensor:
    share = by_sample if frequency == "image" else (by_sample * by_instance).sqrt()
    return torch.where(share > 0, (threshold / share).sqrt(), 1.0).clamp(min=1)


def class_aware_weights(labels: Tensor) -> Tensor:
    r"""Weights that give every label the same total: :math:`\sum_jY_{ij}/n_j`; without labels, the mean of the others.

    Args:
        labels: (n, q) of 0 and 1, or (n,) class ids.

    Returns:
        (n,) float64, positive.

    >>> class_aware_weights(torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]]))
    tensor([0.3333, 0.3333, 1.3333, 0.6667], dtype=torch.float64)
    """
    if labels.ndim == 1:
        ids = labels.long()
        return 1 / torch.bincount(ids).double()[ids]
    present = (labels > 0).double()
    weights = present @ (1 / present.sum(0).clamp(min=1))
    unlabeled = weights == 0
    labeled = len(weights) - unlabeled.sum()
    mean = torch.where(labeled > 0, weights.sum() / labeled.clamp(min=1), 1.0)
    return torch.where(unlabeled, mean, weights)


def neighborhood_labels(labels: Tensor, features: Tensor, neighbors: int) -> Tensor:
    """D2ACE: which labels a sample or one of its nearest neighbors has, (n, q) bool.

    Args:
        labels: (n, q) of 0 and 1.
        features: (n, d).
        neighbors: How many, Euclidean, the sample itself left out.

    >>> neighborhood_labels(torch.eye(3), torch.tensor([[0.0], [1.0], [5.0]]), 1).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 1, 1]]
    """
    own = labels > 0
    if min(neighbors, len(labels) - 1) < 1:
        return own
    without = _share_of_neighbors_without(own.float(), features.float(), neighbors)
    return own | (without < 1 - 0.5 / neighbors)


def label_hardness(losses: Tensor, flips: Tensor, form: Literal["paper", "code"] = "paper") -> Tensor:
    r"""D2ACE: how hard labels are, :math:`h=g(L)(1-f)` with :math:`g(L)=1-e^{-L}`, or :math:`2-e^{-L}` in its code.

    Args:
        losses: L, the latest cross-entropy of each label, any shape.
        flips: How much its predictions change, f in [0, 1].
        form: Form of g.

    >>> label_hardness(torch.tensor([0.0, 100.0]), torch.tensor([0.0, 0.25]))
    tensor([0.0000, 0.7500])
    """
    growth = -torch.expm1(-losses)
    return (growth if form == "paper" else 1 + growth) * (1 - flips)
