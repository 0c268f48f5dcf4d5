"""From uncertainty to the probability that a sample is drawn (Sections 3.3 and 3.4 of the paper)."""

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
        w, (n,) float64 in [0, 1]; zeros if all samples weigh the same.

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
        weights: w, (n,) in [0, 1].
        pressure: s_t ≥ 1; the largest probability is s_t times the smallest where w spans [0, 1].
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
