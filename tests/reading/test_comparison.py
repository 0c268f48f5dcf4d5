"""Whether the targets of a batch are the labels of the planned samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values

Y = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]])
ONE_HOT = torch.eye(3)[[0, 2, 1, 2]]
CLASSES = torch.tensor([0, 2, 1, 2])
NAN = torch.nan


def changed(rows: Tensor, place: tuple[int, int], value: float) -> Tensor:
    rows = rows.clone()
    rows[place] = value
    return rows


SAME = {
    "themselves": (Y, Y),
    "as whole numbers": (Y.long(), Y),
    "of minus one and one": (Y, 2 * Y - 1),
    "a rounding error": (Y + 5e-5, Y),
    "smoothed": (Y * 0.8 + 0.1, Y),
    "smoothed, another amount in each column": (Y * torch.tensor([0.8, 0.6, 0.9]) + 0.05, Y),
    "unknown in places": (changed(Y, (0, 1), NAN), Y),
    "unknown on both sides": (changed(Y, (0, 1), NAN), changed(Y, (0, 1), NAN)),
    "real numbers": (Y * 3.7, Y * 3.7),
    "class indices of one-hot labels": (CLASSES, ONE_HOT),
    "one-hot rows of class indices": (ONE_HOT, CLASSES),
    "smoothed one-hot rows of class indices": (ONE_HOT * 0.7 + 0.1, CLASSES),
    "class indices": (CLASSES, CLASSES),
    "class indices, one ignored": (torch.tensor([0, -100, 1, 2]), CLASSES),
    "one label": (Y[:, 0], Y[:, :1]),
    "one label of another shape": (Y[:, :1], Y[:, 0]),
    "one smoothed label": (Y[:, 0] * 0.8 + 0.1, Y[:, 0].long()),
}
DIFFERENT = {
    "of other samples": (Y.roll(1, 0)[:, [0, 1, 2]], Y.index_fill(1, torch.tensor([0]), 1)),
    "one value": (changed(Y, (0, 1), 1.0), Y),
    "class indices of one-hot labels": (CLASSES.flip(0), ONE_HOT),
    "class indices": (torch.tensor([0, 2, 1, 1]), CLASSES),
    "one label": (1 - Y[:, 0], Y[:, 0]),
    "one-hot rows of class indices": (changed(changed(ONE_HOT, (0, 0), 0), (0, 1), 1), CLASSES),
}
MIXED = {
    "on the right side": (Y * torch.tensor([[0.9], [0.6], [0.7], [0.8]]), Y),
    "positives alike, negatives not": (torch.where(Y > 0, 1.0, torch.tensor([[0.1], [0.2], [0.3], [0.4]])), Y),
    "on the wrong side": (changed(0.6 * Y + 0.4 * Y.flip(0), (0, 0), 0.3), Y),
}
INCOMPARABLE = {
    "columns in another order": (Y[:, [2, 0, 1]], Y),
    "another number of columns": (Y[:, :2], Y),
    "class indices of labels that are not one-hot": (CLASSES, Y),
    "class indices of rows that sum to one": (CLASSES, torch.full((4, 2), 0.5)),
    "real numbers": (Y * 3.7 + 1, Y * 3.7),
    "more than two values": (Y.roll(1, 0), Y + torch.eye(3)[[0, 1, 2, 0]]),
    "three allowed values": (Y.roll(1, 0), changed(Y, (0, 0), -1.0)),
    "class indices beyond the columns": (ONE_HOT, torch.tensor([0, 3, 1, 2])),
    "negative class indices": (ONE_HOT, torch.tensor([0, -1, 1, 2])),
    "numbers that are no class indices": (ONE_HOT, torch.tensor([0.0, 2.0, 1.0, 2.0])),
    "images": (torch.zeros(4, 3, 2), torch.zeros(4, 3, 2)),
}
CASES = [
    pytest.param(verdict, *pair, id=f"{verdict.value}: {name}")
    for verdict, cases in zip(Verdict, (SAME, DIFFERENT, MIXED, INCOMPARABLE), strict=True)
    for name, pair in cases.items()
]


@pytest.mark.parametrize(("verdict", "targets", "labels"), CASES)
def test_targets_are_judged(verdict: Verdict, targets: Tensor, labels: Tensor) -> None:
    assert compare(targets, labels) is verdict


def test_numbers_in_between_are_mixed_unless_smoothing_explains_them() -> None:
    assert has_mixed_values(torch.tensor([0.0, 0.3, 1.0]))
    assert has_mixed_values(torch.tensor([0.2, 0.5, 0.8]))
    assert not has_mixed_values(torch.tensor([0.1, 0.9, 0.1]))
    assert not has_mixed_values(torch.tensor([0.0, 1.0, 0.005, 0.995])), "a rounding error is no mixture"
    assert not has_mixed_values(torch.tensor([0.0, 0.010, 0.990, 1.0])), "up to a hundredth"
    assert has_mixed_values(torch.tensor([0.0, 0.011, 1.0]))
    assert has_mixed_values(torch.tensor([0.0, 0.989, 1.0]))
    assert not has_mixed_values(torch.tensor([0.0, 1.0, NAN])), "unknown is no mixture"
    assert not has_mixed_values(torch.tensor([-1.0, 2.0, 3.0]))
    assert not has_mixed_values(torch.tensor([0, 1, 2]))


def test_the_two_halves_of_a_mixup_are_recognized() -> None:
    order = torch.tensor([2, 0, 3, 1])
    assert are_rows_permuted(Y, Y[order]) is True
    assert are_rows_permuted(CLASSES, CLASSES[order]) is True
    assert are_rows_permuted(Y, Y) is False
    assert are_rows_permuted(Y, changed(Y, (0, 2), 1.0)) is False
    assert are_rows_permuted(Y, Y[:, :2]) is False
    assert are_rows_permuted(Y, Y[[0, 0, 2, 3]]) is False
    twice = Y[[0, 0, 1, 2]]
    assert are_rows_permuted(twice, Y[[0, 1, 1, 2]]) is False, "as many of each"
    # The same values, but not the same rows.
    assert are_rows_permuted(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[1.0, 1], [0, 0]])) is False
