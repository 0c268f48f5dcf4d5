"""What a model does about rare and hard labels in its loss, where others resample: weights, focusing, or neither."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

LossName: TypeAlias = Literal["bce", "weighted", "balanced", "focal", "asymmetric"]
WEIGHTED: tuple[LossName, ...] = ("weighted", "balanced")
"""Losses that need the label frequencies of the training set."""


def positive_weights(labels: Tensor, loss: LossName) -> Tensor:
    """Weights of the positives of each label, (1 − f)/f or its root, from training labels (n, q) → (q,).

    f is the share of samples that carry the label; one without positives counts as if it had one, so that its weight is
    finite (nothing is multiplied by it).

    >>> positive_weights(torch.tensor([[1, 0], [0, 0], [0, 0], [0, 1], [0, 1]]), "weighted")
    tensor([2.0000, 1.2247])
    """
    frequency = labels.double().sum(0).clamp(min=1) / len(labels)
    ratio = (1 - frequency) / frequency
    return (ratio.sqrt() if loss == "weighted" else ratio).float()


def focal_loss(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    r"""Mean over (b, q) of (1 − p_t)^γ · BCE, p_t being the probability of what is true (Lin et al., ICCV 2017).

    >>> focal_loss(torch.zeros(1, 1), torch.ones(1, 1))  # (1 - 0.5)² ln 2
    tensor(0.1733)
    """
    cross_entropy = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    wrong = torch.sigmoid(torch.where(labels > 0.5, -logits, logits))
    return (wrong**gamma * cross_entropy).mean()


def asymmetric_loss(
    logits: Tensor, labels: Tensor, gamma_negative: float = 4.0, gamma_positive: float = 1.0, clip: float = 0.05
) -> Tensor:
    r"""Mean over (b, q) of −(1 − p)^γ⁺ log p where y = 1, −m^γ⁻ log(1 − m), m = max(p − clip, 0), where y = 0.

    Easy negatives, those below the margin ``clip``, have no loss at all (Ridnik et al., ICCV 2021).

    >>> asymmetric_loss(torch.tensor([[-4.0]]), torch.zeros(1, 1))
    tensor(0.)
    """
    cross_entropy = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    probs = torch.sigmoid(logits)
    shifted = (probs - clip).clamp(min=0)
    positive = torch.sigmoid(-logits) ** gamma_positive * cross_entropy
    negative = -(shifted**gamma_negative) * torch.log1p(-shifted)
    return torch.where(labels > 0.5, positive, negative).mean()


def label_loss(loss: LossName, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of this name, a mean over (b, q): logits, labels (b, q) and, if it is weighted, weights (q,) → scalar.

    Each is computed from one cross-entropy of the logits, so that selection can read them and weigh their gradient.
    """
    labels = labels.float()
    if loss == "focal":
        return focal_loss(logits, labels)
    if loss == "asymmetric":
        return asymmetric_loss(logits, labels)
    return binary_cross_entropy_with_logits(logits, labels, pos_weight=weights)
