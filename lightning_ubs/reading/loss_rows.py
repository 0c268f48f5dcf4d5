"""Whether the rows of the loss are those of the batch: in every step, without waiting for the device.

The first steps of a fit show where in the loss's graph the labels of the batch stand. From then on what stands there is
compared with the labels of each batch. Mostly it is the very tensor that came with the batch, which costs nothing to
tell; else several batches are compared together.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from lightning_ubs.reading.loss_graph import SavedPlace, saved_at, saved_constants
from lightning_ubs.reading.signatures import Recoding, bits, hold_classes, signatures

# Batches that are compared together: a few small kernels in a row cost less than after each step.
_BATCHES = 32
# Labels of fewer kinds are in many parts of a loss.
_KINDS = 3
# Odd, so that products with it tell all numbers apart.
_MIX = 0x9E3779B97F4A7C15 - 2**64


@dataclass
class Differences:
    """What was seen of the loss's rows in some steps.

    Attributes:
        batches: that were compared.
        moved: batches whose rows stood in another order.
        moved_rows: rows in these that did not stand in their place.
        changed: batches with other targets than the labels of the batch.
        own: labels that differ in these.
        other: labels by which other samples differ in these.
    """

    batches: int = 0
    moved: int = 0
    moved_rows: int = 0
    changed: int = 0
    own: int = 0
    other: int = 0

    def __add__(self, more: Differences) -> Differences:
        return Differences(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))

    @property
    def share(self) -> float:
        """How far changed targets are from the labels: 0 for the same, about 1 for those of other samples."""
        return self.own / max(self.own, self.other, 1)


class LossRows:
    """Compares the targets that the loss saved with the labels of the batch, row by row."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A fit begins: it is not known where in the loss the labels stand."""
        self._place: tuple[int, SavedPlace] | None = None  # with the number of the backward pass in its step
        self._is_over = False
        self._classes = False, False  # of the labels, of what stands in the loss
        self._code: Recoding | None = None
        self._jumbled: set[SavedPlace] = set()
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._counts: Tensor | None = None
        self._batches = 0
        self.start_step()

    def start_step(self, rows: Tensor | None = None, kept: Tensor | None = None) -> None:
        """A step begins.

        Args:
            rows: its labels in the batch, which the step may change; None if they are not known.
            kept: a copy of them.
        """
        is_known = rows is not None and self._place is not None and not rows.is_inference()
        self._rows, self._kept = (rows, kept) if is_known else (None, None)
        self._version = 0 if self._rows is None else self._rows._version
        #: The number of samples if the step is verified, so that everything is kept that may be targets.
        self.verified = 0
        self._passes = 0
        self._found: list[tuple[int, SavedPlace, Tensor]] = []

    def see(self, loss: Tensor) -> None:
        """Before a backward pass: keep what stands where the labels stood."""
        number, self._passes = self._passes, self._passes + 1
        if self.verified and not self._is_over:
            self._found += [(number, *one) for one in saved_constants(loss, self.verified)]
        rows, kept = self._rows, self._kept
        if self._place is None or rows is None or kept is None or number != self._place[0]:
            return
        target = saved_at(loss, self._place[1])
        if target is None or target.numel() % len(rows):
            return
        self._batches += 1
        is_same = target.data_ptr() == rows.data_ptr() and target.shape == rows.shape
        if is_same and rows._version == self._version and target.stride() == rows.stride():
            return
        self._waiting.append((kept, _by_row(target, len(rows)).clone()))
        if len(self._waiting) >= _BATCHES:
            self.settle()

    def learn(self, rows: Tensor, is_first: bool) -> tuple[bool, tuple[Tensor, ...]]:
        """A step was verified: where in its loss the labels stand.

        Args:
            rows: the labels of the batch, on the CPU.
            is_first: whether this is one of the first steps of the fit, all of which must agree.

        Returns:
            Whether the loss shows the labels row by row, and what shows them in another order.
        """
        found, self._found = self._found, []
        if self._is_over or not found:
            return False, ()
        classes = hold_classes(rows)
        labels = signatures(rows, classes)
        kinds = len(torch.unique(labels))
        same: list[tuple[int, SavedPlace, bool]] = []
        coded: list[tuple[int, SavedPlace, bool, Recoding]] = []
        moved = []
        for number, place, target in found:
            target = _by_row(target, len(rows)).cpu()
            holds = hold_classes(target)
            signed = signatures(target, holds)
            code = Recoding(labels, signed)
            if torch.equal(signed, labels):
                same.append((number, place, holds))
            elif code.tells and code.fits:
                coded.append((number, place, holds, code))
            elif code.tells and place.is_target and target.ndim > rows.ndim:
                # Such as levels of classes, in another order: twice is no chance.
                moved += [target] if place in self._jumbled else []
                self._jumbled.add(place)
            elif kinds >= _KINDS and torch.equal(signed.sort().values, labels.sort().values):
                moved.append(target)
        places = [one[:2] for one in (same if self._code is None else coded)]
        if self._place is None and same and kinds >= _KINDS:
            self._place, self._classes = places[0], (classes, same[0][2])
        elif self._place is None and coded:
            self._place, self._classes, self._code = coded[0][:2], (classes, coded[0][2]), coded[0][3]
        elif self._place is not None and is_first and self._place not in places:
            self._place, self._is_over = None, True  # what stands there is not always the labels
        return bool(same or coded), tuple(moved)

    def settle(self) -> None:
        """Compare what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        sizes = [len(rows) for rows, _ in waiting]
        rows, found = (torch.cat(parts) for parts in zip(*waiting, strict=True))
        labels, targets = signatures(rows, self._classes[0]), signatures(found, self._classes[1]).to(rows.device)
        labels = labels if self._code is None else self._code.of(labels, targets)
        if labels.device.type == "cpu" and torch.equal(labels, targets):
            return
        of_batch = torch.repeat_interleave(torch.tensor(sizes)).to(labels.device, non_blocking=True)
        firsts = (torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)).to(labels.device, non_blocking=True)

        def sums(values: Tensor) -> Tensor:
            return values.new_zeros(len(sizes)).index_add_(0, of_batch, values)

        differs, known = (labels != targets).long(), ~_is_hidden(found).to(labels.device)
        count = sums(differs)
        # The sum of mixed numbers does not depend on their order; where all are alike, the target is no label.
        mixed, total = sums(_mixed(labels)), sums(_mixed(targets))
        is_constant = sums((targets != targets[firsts][of_batch]).long()) == 0
        moved = (count > 0) & (mixed == total)
        changed = (sums(differs * known) > 0) & (mixed != total) & ~is_constant
        counted = changed[of_batch] & known
        own, other = bits(labels ^ targets) * counted, bits(labels ^ targets.roll(1)) * counted
        sums_of_all = torch.stack([moved.sum(), (count * moved).sum(), changed.sum(), own.sum(), other.sum()])
        self._counts = sums_of_all if self._counts is None else self._counts + sums_of_all

    def judge(self) -> Differences:
        """What was seen since this was asked last; waits for the device."""
        self.settle()
        counts, self._counts = self._counts, None
        batches, self._batches = self._batches, 0
        return Differences(batches, *([] if counts is None else counts.tolist()))


def _by_row(target: Tensor, rows: int) -> Tensor:
    return target if target.ndim == 1 and len(target) == rows else target.reshape(rows, -1)


def _is_hidden(found: Tensor) -> Tensor:
    """Which rows of targets may be masked: all alike, they tell nothing of the labels."""
    if found.ndim == 1 or found.shape[1] == 1:
        return torch.zeros(len(found), dtype=torch.bool, device=found.device)
    return (found == found[:, :1]).all(1)


def _mixed(numbers: Tensor) -> Tensor:
    mixed = (numbers ^ (numbers >> 31)).mul(_MIX)
    return (mixed ^ (mixed >> 27)).mul(_MIX)
