"""How uncertain a model is about each label of each sample (Section 3.2 of the paper)."""

from __future__ import annotations

import torch
from torch import Tensor


def binary_entropy(probs: Tensor) -> Tensor:
    r"""Entropy of a yes/no prediction in bits, Eq. (1): :math:`-p\log_2 p-(1-p)\log_2(1-p)`.

    Args:
        probs: Probabilities in [0, 1], any shape.

    Returns:
        Values in [0, 1] of the same shape; exactly 0 where the probability is 0 or 1.

    >>> binary_entropy(torch.tensor([0.0, 0.5, 0.6, 1.0]))
    tensor([0.0000, 1.0000, 0.9710, 0.0000])
    """
    # 0 · log 0 is 0 here, because the logarithm is taken of something tiny instead.
    tiny = torch.finfo(probs.dtype).tiny
    rest = 1 - probs
    # In place from here on: what a refresh costs is how often it goes through memory.
    entropy = probs.clamp(min=tiny).log2_().mul_(probs)
    entropy.addcmul_(rest, rest.clamp(min=tiny).log2_())
    return entropy.abs_().clamp_(max=1)


def window_fluctuation(history: Tensor, counts: Tensor) -> Tensor:
    r"""Mean absolute change between successive predictions, Eq. (4).

    :math:`d_{ij}=\frac{1}{c_i-1}\sum_h|\hat y_{ij}^{h+1}-\hat y_{ij}^{h}|` over the :math:`c_i` predictions
    at hand; a window that is not full yet is divided by the changes it has, and one with fewer than two
    predictions has not fluctuated.

    Args:
        history: (n, T, q), oldest first; only the last ``counts[i]`` of the T rows of sample i are valid.
        counts: (n,) number of valid predictions.

    Returns:
        (n, q) in [0, 1].

    >>> window = torch.tensor([0.2, 0.8, 0.3, 0.7, 0.6]).reshape(1, 5, 1)
    >>> window_fluctuation(window, torch.tensor([5]))
    tensor([[0.4000]])
    """
    window = history.shape[1]
    change = (history[:, 1:] - history[:, :-1]).abs_()
    counts = counts.clamp(max=window)
    first_valid = (window - counts).reshape(-1, 1, 1)
    valid = torch.arange(window - 1, device=history.device).reshape(1, -1, 1) >= first_valid
    total, *further = _zero_where_not(valid, change).unbind(1)
    total = total.clone()
    # One by one: over an axis as short as this, sum takes longer.
    for step in further:
        total.add_(step)
    return total.div_((counts - 1).clamp(min=1).reshape(-1, 1))


def tempered(probs: Tensor, temperature: float) -> Tensor:
    r"""Probabilities at another temperature: :math:`\sigma(\mathrm{logit}(p)/t)`; above 1 they come nearer to 1/2.

    >>> tempered(torch.tensor([0.0, 0.1, 0.5, 1.0]), 2.0)
    tensor([0.0000, 0.2500, 0.5000, 1.0000])
    """
    return torch.logit(probs).div_(temperature).sigmoid_()


def label_uncertainty(history: Tensor, counts: Tensor, lambda1: float, temperature: float | None = None) -> Tensor:
    r"""Uncertainty of each label, Eq. (5): :math:`u=\lambda_1 d+(1-\lambda_1)e`, e of the latest prediction.

    A sample without any prediction counts as :math:`p=1/2`: nothing is known of it.

    Args:
        history: (n, T, q), oldest first; only the last ``counts[i]`` rows of sample i are valid.
        counts: (n,) number of valid predictions.
        lambda1: Weight of the fluctuation against the entropy, in [0, 1].
        temperature: Temperature of the prediction whose entropy is taken; None leaves it as it is.

    Returns:
        U, (n, q) in [0, 1].

    >>> window = torch.tensor([0.2, 0.3, 0.7, 0.8, 0.6]).reshape(1, 5, 1)
    >>> label_uncertainty(window, torch.tensor([5]), lambda1=0.5)
    tensor([[0.5855]])
    """
    seen = (counts > 0).reshape(-1, 1)
    latest = _zero_where_not(seen, history[:, -1].clone()).add_(~seen, alpha=0.5)
    latest = latest if temperature is None else tempered(latest, temperature)
    return binary_entropy(latest).mul_(1 - lambda1).add_(window_fluctuation(history, counts), alpha=lambda1)


def prediction_spread(variance: Tensor, counts: Tensor) -> Tensor:
    r"""Active Bias, Eq. (2): :math:`\sqrt{v+v^2/(|H|-1)}`, 0 for fewer than two predictions.

    Args:
        variance: Variance v (n, q) of all predictions of a sample for a label.
        counts: \|H\|, (n,).

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


def _zero_where_not(keep: Tensor, values: Tensor) -> Tensor:
    """Set floats to 0 in place, whatever they hold, by their bits: a mask of one value per row is slow otherwise."""
    bits = values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize])
    bits.bitwise_and_(-keep.to(bits.dtype))
    return values
