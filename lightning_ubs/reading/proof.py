"""The proof that something is what the model predicts for these samples: the loss falls when it moves to their labels.

For each candidate the share of its gradient with the right sign is taken, over the positive labels and over the
negative ones apart, and the smaller of the two counts. Random weights, 25 losses and 5 layouts
(``tests/reading/test_proof.py``): right candidates have 0.98 to 1.00, also under mixup; the wrong ones (rows in
another order, heads of other tasks, teachers, gates, rankings) have 0.00 to 0.66 in a batch of 32, because what pulls
them knows nothing of the labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from lightning_ubs.reading.comparison import Verdict as Rows
from lightning_ubs.reading.comparison import compare
from lightning_ubs.reading.predictions import Kind, to_probabilities
from lightning_ubs.reading.scale import Fit

# Right candidates have 1.00, mixed or noisy labels somewhat less; what chance or a teacher pulls has 0.5 to 0.7. Where
# ENOUGH elements of like weight were seen on a side, a coin passes PASSED once in 28,000 times (at least 22 of 24), and
# one that is right in seven of ten cases once in 80. Between the two limits nothing is decided yet.
PASSED, THRESHOLD = 0.9, 0.75
ENOUGH = 24
# Targets that equal the labels by chance are as rare as one order of the rows among this many (as a logarithm).
SURE = math.log(1_000)
# A prediction this near to its label is right already: smoothed or soft targets pull it back once it is fitted.
_FITTED = 0.2
# What is pulled back on the side of its label proves nothing, but says nothing against a fitted model either.
_ON_ITS_SIDE = 0.5


class Proof(Enum):
    """What is known of a candidate."""

    PROVEN = "proven"
    REFUTED = "refuted"
    OPEN = "open"


@dataclass
class Evidence:
    """How the loss pulled at a candidate so far: sums over elements of negatives (0) and positives (1).

    Args:
        right: Gradient with the right sign, or of what is right already.
        mass: All gradient.
        squares: Squares of the gradient's elements, which tell how many count.
        labels: Number of elements.
        back: Gradient that pulls back what is on the side of its label.
        told: How sure it is that the loss compares the candidate with the very labels: the logarithm of the number of
            orders of the rows that would look alike no more, minus infinity if it compares it with others.
        fit: How well the pull has the form that logits give it; None for what is not known to hold logits.
        is_changed: Whether the loss compares with the labels what it makes of the candidate, not the candidate.
        is_moved: Whether the candidate was moved by the labels, as by a margin, so that it knows them.

    >>> y = torch.tensor([[1.0, 0.0]] * 24)
    >>> seen = Evidence().add(0.5 - y, y, None)
    >>> seen.value, seen.proof, Evidence().add(y - 0.5, y, None).proof
    (1.0, <Proof.PROVEN: 'proven'>, <Proof.REFUTED: 'refuted'>)
    """

    right: tuple[float, float] = (0.0, 0.0)
    mass: tuple[float, float] = (0.0, 0.0)
    squares: tuple[float, float] = (0.0, 0.0)
    labels: tuple[float, float] = (0.0, 0.0)
    back: tuple[float, float] = (0.0, 0.0)
    told: float = 0.0
    fit: Fit | None = None
    is_changed: bool = False
    is_moved: bool = False

    def add(self, gradient: Tensor, labels: Tensor, probs: Tensor | None, told: float = 0.0) -> Evidence:
        """With one more step; waits for the device.

        Args:
            gradient: Gradient of the loss with respect to the candidate, (rows, q).
            labels: (rows, q), NaN where a label is not known.
            probs: What the candidate predicts, if that can be told.
            told: See above.
        """
        weight = gradient.detach().double().nan_to_num(0.0, 0.0, 0.0).abs()
        # A scaled loss of half precision may be large: only ratios count.
        weight = weight / weight.max().clamp(min=torch.finfo(torch.float64).tiny)
        is_right = gradient * (labels - 0.5) < 0
        back = torch.zeros_like(is_right)
        if probs is not None:
            away = (probs - labels).abs()
            is_right |= away < _FITTED
            back = ~is_right & (away < _ON_ITS_SIDE)
        sides = torch.stack([labels < 0.5, labels >= 0.5]).flatten(1)
        parts = torch.stack([weight * is_right, weight, weight.square(), torch.ones_like(weight), weight * back])
        # Row by row, so that equal rows have equal sums.
        sums = (parts.flatten(1).unsqueeze(1) * sides).sum(2).tolist()
        right, mass, squares, counts, pulled_back = ((side[0], side[1]) for side in sums)
        return self + Evidence(right, mass, squares, counts, pulled_back, told)

    def __add__(self, other: Evidence) -> Evidence:
        """What several steps or processes saw."""

        def total(one: tuple[float, float], more: tuple[float, float]) -> tuple[float, float]:
            return one[0] + more[0], one[1] + more[1]

        return Evidence(
            total(self.right, other.right),
            total(self.mass, other.mass),
            total(self.squares, other.squares),
            total(self.labels, other.labels),
            total(self.back, other.back),
            self.told + other.told,
            self.fit + other.fit if self.fit and other.fit else self.fit or other.fit,
            self.is_changed or other.is_changed,
            self.is_moved or other.is_moved,
        )

    @property
    def matched(self) -> bool:
        """Whether the loss compares it with the labels, as far as is known."""
        return self.told > 0

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Share of the gradient with the right sign over negatives and over positives; None where there is none."""
        negatives, positives = (
            right / mass if mass > 0 else None for right, mass in zip(self.right, self.mass, strict=True)
        )
        return negatives, positives

    @property
    def value(self) -> float | None:
        """The smaller share."""
        return min((share for share in self.shares if share is not None), default=None)

    @property
    def decisive(self) -> float | None:
        """The share that decides: the smaller one, of what is not on the side of its label already."""
        counted = [mass - back for mass, back in zip(self.mass, self.back, strict=True)]
        shares = [right / mass for right, mass in zip(self.right, counted, strict=True) if mass > 0]
        return min(shares, default=None) if self.proof is Proof.REFUTED else self.value

    @property
    def proof(self) -> Proof:
        """Whether it is enough."""
        if self.told >= SURE:
            return Proof.PROVEN
        enough = [self._elements(side) >= ENOUGH for side in (0, 1)]
        if any(enough[side] and self._contradicts(side) for side in (0, 1)):
            return Proof.REFUTED
        # A side on which the loss does not pull at all (only positives are known, say) proves and refutes nothing.
        silent = [self.mass[side] == 0 and self.labels[side] >= ENOUGH for side in (0, 1)]
        done = [enough[side] or silent[side] for side in (0, 1)]
        return Proof.PROVEN if all(done) and any(enough) and (self.value or 0.0) >= PASSED else Proof.OPEN

    def _contradicts(self, side: int) -> bool:
        """Whether too much of the gradient is wrong, of what is not on the side of its label already."""
        counted = self.mass[side] - self.back[side]
        return counted > 1e-9 * self.mass[side] and self.right[side] < THRESHOLD * counted

    def _elements(self, side: int) -> float:
        """How many elements of like weight there were (Kish)."""
        return self.mass[side] ** 2 / self.squares[side] if self.squares[side] > 0 else 0.0


def as_label_matrix(labels: Tensor, shape: tuple[int, ...], exclusive: bool) -> Tensor | None:
    """Labels as float64 (rows, q) of 0 and 1, NaN where they are not known; None if they do not fit predictions.

    Args:
        labels: A matrix of two values, or one class index (``exclusive``) or one label per sample.
        shape: (rows, q) of the predictions.
        exclusive: Whether predictions are of exclusive classes.
    """
    labels = labels.detach()
    rows, width = shape
    if labels.numel() == rows * width and labels.shape[:1] == (rows,):
        return _binary(labels.reshape(rows, width).double())
    whole = not labels.is_floating_point() and labels.dtype != torch.bool and not labels.is_complex()
    if not exclusive or not whole or labels.numel() != rows or labels.shape[:1] != (rows,):
        return None
    index = labels.reshape(rows, 1).long()
    if bool((index >= width).any()):
        return None
    classes = torch.arange(width, device=index.device)
    return (index == classes).double().masked_fill(index < 0, torch.nan)


def in_code(labels: Tensor, targets: tuple[Tensor, ...]) -> Tensor | None:
    """One class per sample in the code in which a loss has it: one column per class, or ordinal levels that it exceeds.

    >>> in_code(torch.tensor([2, 0]), (torch.tensor([[1.0, 1.0], [0.0, 0.0]]),))
    tensor([[1., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        return None
    for target in targets:
        if target.ndim == 2 and len(target) == len(labels) and bool((labels <= target.shape[1]).all()):
            classes = torch.arange(target.shape[1], device=labels.device)
            for code in (labels.unsqueeze(1) == classes, labels.unsqueeze(1) > classes):
                if torch.equal(code, target.to(labels.device) > 0.5) and bool((code != code[:1]).any()):
                    return code.double()
    return None


def _binary(values: Tensor) -> Tensor | None:
    """Zeros and ones; −1 beside zeros is an unknown label, else a negative one; soft ones are rounded."""
    finite = values[values.isfinite()]
    low, high = (float(one) for one in finite.aminmax()) if len(finite) else (0.0, 0.0)
    if low < -1 or high > 1:
        return None
    known = torch.where(values.isfinite(), values, torch.nan)
    if low < 0:
        missing = bool((finite == 0).any())
        known = torch.where(known < 0, torch.nan if missing else 0.0, known)
    return torch.where(known.isnan(), known, (known >= 0.5).double())


def one_per_row(labels: Tensor, pull: Tensor) -> Tensor:
    """Labels of predictions of exclusive classes: of several positive ones in a row only one can be the class.

    It is the one to which the loss pulls most; rows without a positive label tell nothing.
    """
    positive = labels == 1
    chosen = pull.masked_fill(~positive, torch.inf).argmin(1, keepdim=True)
    others = positive & (torch.arange(labels.shape[1], device=labels.device) != chosen)
    return labels.masked_fill(others | ~positive.any(1, keepdim=True), torch.nan)


def told_by(targets: tuple[Tensor, ...], labels: Tensor, given: Tensor) -> float:
    """How sure it is that the loss compares its predictions with these very labels, row by row.

    Args:
        targets: Targets of the loss, NaN where it pulls at nothing.
        labels: (rows, q) as :func:`as_label_matrix` gives them.
        given: The labels as they came.

    Returns:
        The logarithm of the number of orders of the rows that look different; minus infinity for other labels.
    """
    verdicts = [compare(one.cpu(), given.cpu()) for one in targets]
    for one, verdict in zip(targets, verdicts, strict=True):
        if verdict is Rows.SAME:
            shown = labels > 0.5
            return _orders(shown & one.isfinite().to(shown.device) if one.shape == labels.shape else shown)
    return -math.inf if Rows.DIFFERENT in verdicts else 0.0


def told_at_once(targets: tuple[Tensor, ...], given: Tensor) -> float:
    """The same where the first of the targets are these numbers, bit by bit; 0 where more must be looked at."""
    if not targets or targets[0].ndim != 2 or targets[0].dtype != given.dtype or targets[0].device != given.device:
        return 0.0
    return _orders(given > 0.5) if torch.equal(targets[0], given) else 0.0


def _orders(rows: Tensor) -> float:
    """How many orders of rows of truth values look different, as a logarithm."""
    packed = np.packbits(rows.cpu().numpy(), axis=1)
    _, alike = np.unique(packed.view(f"V{packed.shape[1]}"), return_counts=True)
    return math.lgamma(len(rows) + 1) - sum(math.lgamma(count + 1) for count in alike.tolist())


def is_of_labels(values: Tensor, labels: Tensor, relative: bool) -> bool:
    """Whether values tell positives from negatives: the same on one side within each label, and others beyond it.

    Args:
        values: (rows, q) by which a loss changes logits.
        labels: (rows, q) of 0 and 1, NaN where they are not known.
        relative: Whether each row of values may have a constant added, as logits before a softmax.

    >>> y = torch.eye(4).repeat(2, 1)
    >>> is_of_labels(0.5 * y, y, False), is_of_labels(torch.arange(32.0).reshape(8, 4), y, False)
    (True, False)
    """
    values = values.to(labels.device)
    values = values - values.median(1, keepdim=True).values if relative else values
    size = float(values.amax() - values.amin())
    if not 0 < size < math.inf:
        return False
    sides = [labels < 0.5, labels >= 0.5]
    both = sides[0].any(0) & sides[1].any(0)
    sides = [side & both for side in sides]
    if min(int(side.sum()) for side in sides) < 4:
        return False
    for side, other in (sides, sides[::-1]):
        level = values.masked_fill(~side, -torch.inf).amax(0)
        if _spread(values, side) <= 1e-3 * size and bool(((values - level).abs() > 0.05 * size)[other].all()):
            return True
    return False


def is_difference(values: Tensor, probs: Tensor, labels: Tensor) -> bool | None:
    """Whether values are how probabilities differ from the labels, smoothed or not; None if from nothing of the kind.

    >>> p, y = torch.tensor([[0.1, 0.7, 0.3, 0.6]]).T, torch.tensor([[0.0, 1.0, 0.0, 1.0]]).T
    >>> is_difference(p - y, p, y), is_difference(p**2 - y, p, y), is_difference(p, p**2, y)
    (True, False, None)
    """
    sides = [labels < 0.5, labels >= 0.5]
    for one in (values, -values):
        rest = one - probs
        if all(_spread(rest, side) < 1e-2 for side in sides):
            means = [float(rest[side].mean()) if bool(side.any()) else 0.0 for side in sides]
            return True if means[0] - means[1] > 0.1 or not all(bool(side.any()) for side in sides) else None
    for one in (values, -values):
        shown = one + labels.nan_to_num(0.0)
        known = shown[labels.isfinite()]
        if bool(((known >= -1e-3) & (known <= 1 + 1e-3)).all()) and all(bool(side.any()) for side in sides):
            return False
    return None


def _spread(values: Tensor, side: Tensor) -> float:
    """How much values differ on a side within a label, at most."""
    low = values.masked_fill(~side, torch.inf).amin(0)
    high = values.masked_fill(~side, -torch.inf).amax(0)
    return float((high - low).clamp(min=0).max())


def same_values(raw: Tensor, other: Tensor, kind: Kind) -> Kind | None:
    """What ``raw`` holds, if it shows the same predictions as ``other`` of this kind; None if it does not.

    The same numbers, their probabilities or logarithms, or logits of another scale.
    """
    if raw.shape != other.shape:
        return None
    rounding = 4 * max(torch.finfo(one.dtype).eps for one in (raw, other))
    raw, other = raw.detach().float(), other.detach().float()
    if _close(raw, other, rounding):
        return kind
    probs, _ = to_probabilities(other, kind)
    kinds = {
        Kind.LOGITS: (Kind.PROBS, Kind.LOGITS, Kind.LOG_PROBS),
        Kind.SOFTMAX: (Kind.PROBS, Kind.SOFTMAX, Kind.LOG_PROBS),
    }.get(kind, tuple(Kind))
    for holds in kinds:
        shown, usable = to_probabilities(raw, holds)
        if bool(usable.all()) and _close(shown, probs, rounding):
            return holds
    scale = float((raw * other).sum() / raw.square().sum().clamp(min=1e-12))
    return kind if kind is Kind.LOGITS and scale > 0 and _close(raw * scale, other, rounding) else None


def _close(one: Tensor, other: Tensor, rounding: float) -> bool:
    return bool(((one - other).abs() <= rounding * other.abs().clamp(min=1.0) + 1e-6).all())
