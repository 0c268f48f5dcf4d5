"""The proof of scale: what only a module shows is what the loss reads if the pull has the form that it says.

A loss of probabilities p = sigmoid(z) pulls at z as its derivative says: p on negatives and 1 − p on positives for a
cross-entropy, p(1 − p) for absolute differences or Dice, and so on, each times a number per label or per sample. A loss
of sigmoid(3z), or of another link, has another form, and the values of one gradient tell them apart: what is left of
it beside the best form is 1e-8 of its variance or less where p is right, and 1e-4 or more where it is not
(``tests/reading/test_scale.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

# What may be left of the variance of the pull: rounding, and small numbers added before a logarithm. Forms with a free
# constant (smoothed labels) fit more, so less may be left.
_LEFT, _LEFT_BESIDE_CONSTANT = 1e-5, 1e-6
# Beyond so many times what may be left it is another scale; in between nothing is decided.
_TOO_MUCH = 10
# So many elements beyond the numbers that are fitted must have been seen on a side, by every form, or so many by one.
_ENOUGH, _PLENTY = 16, 320
# Where rounding is more than this share of the variance, the pull is constant as far as can be seen.
_BLURRED = 0.02
# Where probabilities differ by less (standard deviation), a constant makes up for another scale.
_SPREAD = 0.05
_MARGIN = 0.05  # of the asymmetric loss, as its authors set it


class Scale(Enum):
    """What the values of the pull say of the scale of logits."""

    SHOWN = "shown"
    OTHER = "other"
    NONE = "none"  # the pull does not depend on how large they are
    OPEN = "open"


@dataclass(frozen=True)
class Fit:
    """How well forms fit the pull so far: one number per side (negatives, positives), or per side and form.

    Args:
        left: What is left of the variance of the pull beside a form.
        variance: Variance of the pull within labels or samples, as a form groups it.
        rounding: How much of that may be rounding.
        seen: Elements beyond the numbers that are fitted.
        is_relative: Whether the loss minds only how the labels of a sample differ, in every step.
    """

    left: tuple[tuple[float, ...], ...] = ()
    variance: tuple[tuple[float, ...], ...] = ()
    rounding: tuple[float, ...] = (0.0, 0.0)
    seen: tuple[tuple[float, ...], ...] = ()
    is_relative: bool = field(default=True)

    def __add__(self, other: Fit) -> Fit:
        """What several steps or processes saw."""
        if not (self.left and other.left) or len(self.left[0]) != len(other.left[0]):
            return other if other.left else self
        left, variance, seen = (
            tuple(tuple(a + b for a, b in zip(x, y, strict=True)) for x, y in zip(one, more, strict=True))
            for one, more in ((self.left, other.left), (self.variance, other.variance), (self.seen, other.seen))
        )
        rounding = tuple(a + b for a, b in zip(self.rounding, other.rounding, strict=True))
        return Fit(left, variance, rounding, seen, self.is_relative and other.is_relative)

    @property
    def scale(self) -> Scale:
        """The scale, if both sides that the loss pulls tell it."""
        sides = [self._side(side) for side in range(len(self.left))]
        told = [one for one in sides if one is not None]
        if Scale.OTHER in told:
            return Scale.NONE if self.is_relative and len(self.left) > 1 else Scale.OTHER
        if not told or Scale.OPEN in told:
            return Scale.OPEN
        return Scale.NONE if Scale.NONE in told else Scale.SHOWN

    def _side(self, side: int) -> Scale | None:
        """What one side tells; None where the loss does not pull."""
        if not any(self.seen[side]) and not any(self.variance[side]):
            return None
        verdicts = set()
        for form, (left, variance, seen) in enumerate(
            zip(self.left[side], self.variance[side], self.seen[side], strict=True)
        ):
            may_be_left = (_LEFT_BESIDE_CONSTANT if form == 0 else _LEFT) * variance + self.rounding[side]
            if seen < _ENOUGH:
                # Samples with several positives, say, may be too rare to wait for.
                if max(self.seen[side]) < _PLENTY:
                    verdicts.add(Scale.OPEN)
            elif self.rounding[side] >= _BLURRED * variance:
                verdicts.add(Scale.NONE)
            elif left <= may_be_left:
                return Scale.SHOWN
            else:
                verdicts.add(Scale.OTHER if left > _TOO_MUCH * may_be_left else Scale.OPEN)
        return verdicts.pop() if len(verdicts) == 1 else Scale.OPEN


def fit_forms(logits: Tensor, pull: Tensor, labels: Tensor, exclusive: bool) -> Fit:
    """See which forms the pull of one step has; waits for the device.

    Args:
        logits: (rows, q) that a module returned.
        pull: The gradient of the loss with respect to them.
        labels: (rows, q) of 0 and 1, NaN where they are not known.
        exclusive: Whether they are logits of exclusive classes.

    >>> z, y = torch.linspace(-2, 2, 120).reshape(40, 3), (torch.arange(120.0) % 2).reshape(40, 3)
    >>> [fit_forms(z, (t * z).sigmoid() - y, y, exclusive=False).scale for t in (1, 3)]
    [<Scale.SHOWN: 'shown'>, <Scale.OTHER: 'other'>]
    """
    eps = max(torch.finfo(one.dtype).eps for one in (logits, pull))
    # In half precision the last rounding counts, in others the operations before it add up.
    unit = eps if eps > 1e-4 else 8 * eps
    z, pull, labels = (one.detach().double().cpu() for one in (logits, pull, labels))
    pull = pull.nan_to_num(0.0, 0.0, 0.0)
    total = pull.abs().sum(1)
    is_relative = bool((pull.sum(1).abs() <= 1e-4 * total.clamp(min=1e-300)).all()) and pull.shape[1] > 1
    left, variance, seen, rounding = [], [], [], []
    # Of exclusive classes any loss pulls the others in proportion to their probabilities; that is enough.
    for side in (0,) if exclusive else (0, 1):
        used = (labels == side) & (pull != 0) & z.isfinite()
        size = (pull if side == 0 else -pull) * used
        size = size / size.square().sum().sqrt().clamp(min=1e-300)
        fits = [
            one
            for forms, along, with_constant in _forms(z if side == 0 else -z, exclusive)
            for one in _fitted(size, forms * used, used, along, with_constant)
        ]
        left.append(tuple(one[0] for one in fits))
        variance.append(tuple(one[1] for one in fits))
        seen.append(tuple(one[2] for one in fits))
        rounding.append(float((unit * (1 + z.nan_to_num(0.0, 0.0, 0.0).abs()) * size).square().sum()))
    return Fit(tuple(left), tuple(variance), tuple(rounding), tuple(seen), is_relative)


def _forms(z: Tensor, exclusive: bool) -> list[tuple[Tensor, int, bool]]:
    """(forms (f, rows, q) of the pull on negatives, axis along which factors are the same, if a constant is added)."""
    if exclusive:
        p = z.softmax(1).unsqueeze(0)
        return [(p, 0, True), (p, 0, False), (p, 1, False)]
    p, q = z.sigmoid(), (-z).sigmoid()
    forms = [p, p * q, p * p * q]  # cross-entropy; absolute differences and Dice; squares
    log = torch.nn.functional.logsigmoid(-z)
    powers = [p**g for g in (0.5, 1, 2, 3, 4, 5)]
    forms += [power * (p - g * q * log) for g, power in zip((0.5, 1, 2, 3, 4, 5), powers, strict=True)]  # focal
    forms += [p * power for power in powers]  # focal with weights that are no part of the gradient
    shifted = (p - _MARGIN).clamp(min=0)
    forms += [p * q / (q + _MARGIN) * shifted**g for g in (1, 2, 3, 4)]  # asymmetric, likewise
    by_label = [(p.unsqueeze(0), 0, True), (torch.stack(forms), 0, False)]
    if z.shape[1] < 2:
        return by_label
    # Per sample: weights of samples, and losses of all negatives or positives together, as ZLPR.
    return [*by_label, (torch.stack([*forms[:3], z.clamp(max=80).exp()]), 1, False)]


def _fitted(
    size: Tensor, forms: Tensor, used: Tensor, along: int, with_constant: bool
) -> list[tuple[float, float, float]]:
    """(what is left of the variance, the variance, elements beyond the fitted numbers) for each form."""
    axis, count = along + 1, used.sum(along, keepdim=True)
    spread = (size - size.sum(along, keepdim=True) / count.clamp(min=1)) * used
    variance, seen = spread.square().sum(), (count - (2 if with_constant else 1)).clamp(min=0).sum()
    target = size
    if with_constant:
        forms, target = (forms - forms.sum(axis, keepdim=True) / count.clamp(min=1)) * used, spread
    squares = forms.square().sum(axis, keepdim=True)
    if with_constant and bool(squares.sum() < _SPREAD**2 * count.sum()):
        return [(0.0, 0.0, 0.0)] * len(forms)
    factors = (target * forms).sum(axis, keepdim=True) / squares.clamp(min=1e-300)
    left = (target - factors * forms).square().sum((1, 2)).tolist()
    return [(one, float(variance), float(seen)) for one in left]
