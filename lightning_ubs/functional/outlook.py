"""What an epoch drawn with P will look like, before it is drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_ubs.functional.drawing import Replacement, check_replacement

_STEPS = 100


def effective_sample_size(probabilities: Tensor) -> float:
    r"""How many equally likely samples would be as spread as P: :math:`1/\sum_i P_i^2`, from 1 to n.

    >>> effective_sample_size(torch.tensor([0.5, 0.5, 0.0]))
    2.0
    """
    return 1 / float(probabilities.double().square().sum())


def distinct_share(ids: Tensor, num_samples: int) -> float:
    """Which share of the samples is among ``ids``.

    >>> distinct_share(torch.tensor([0, 2, 0]), 4)
    0.5
    """
    seen = torch.zeros(num_samples, dtype=torch.bool).index_fill_(0, ids, True)
    return int(seen.count_nonzero()) / max(1, num_samples)


def expected_distinct(probabilities: Tensor, batch_size: int, num_draws: int, replacement: Replacement) -> float:
    r"""Expected number of distinct samples in an epoch of m draws.

    With ``"full"`` it is :math:`\sum_i 1-(1-P_i)^m`, with ``"systematic"`` :math:`\sum_i\min(1,mP_i)`, with ``"none"``
    m. With ``"batch"``, a batch of b distinct samples holds sample i with probability :math:`1-e^{-cP_i}`, where c
    makes these sum to b (exact as n grows).

    Args:
        probabilities: P, (n,), summing to 1.
        batch_size: b, in all processes together.
        num_draws: m, samples in the epoch.
        replacement: how samples are drawn.

    >>> round(expected_distinct(torch.full((1000,), 1e-3), 100, 1000, "full"))
    632
    """
    check_replacement(replacement)
    p = probabilities.double()
    if replacement == "none":
        return float(min(num_draws, int((p > 0).sum())))
    if replacement == "systematic":
        return float((num_draws * p).clamp(max=1).sum())
    if replacement == "full":
        return float(-torch.expm1(num_draws * torch.log1p(-p.clamp(max=1 - 1e-15))).sum())
    whole, rest = divmod(num_draws, batch_size)
    rate = sum(count * _arrivals(p, size) for count, size in ((whole, batch_size), (1, rest)) if count and size)
    return float(torch.where(p > 0, -torch.expm1(-rate * p), 0.0).sum())


def _arrivals(probabilities: Tensor, batch_size: int) -> float:
    """The c with Σ 1 - exp(-cP) = b; drawing one after the other is a race of arrivals with rates P.

    The sum is concave in c and at most c, so Newton's steps from c = b rise to the solution and never pass it.
    """
    positive = probabilities[probabilities > 0]
    if batch_size >= len(positive):
        return math.inf
    rate = float(batch_size)
    for _ in range(_STEPS):
        absent = torch.exp(-rate * positive)
        step = (batch_size - len(positive) + float(absent.sum())) / float(positive @ absent)
        rate += step
        if step <= 1e-9 * rate:
            break
    return rate
