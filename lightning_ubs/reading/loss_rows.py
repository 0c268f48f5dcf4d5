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
# Of the batches that are compared together, those whose targets are searched for mixed ones.
_SOFT_BATCHES = 4
# Of targets of the same label, beyond rounding.
_SPREAD = 1e-2
# Odd, so that products with it tell all numbers apart.
_MIX = 0x9E3779B97F4A7C15 - 2**64


@dataclass
class Differences:
    """What was seen of the loss's rows in some steps.

    Attributes:
        batches: Batches that were compared.
        moved: Batches whose rows stood in another order.
        moved_rows: Rows in these that did not stand in their place.
        changed: Batches with other targets than the labels of the batch.
        soft: Batches of labels of 0 and 1 whose targets are not one number for each, as where samples are mixed.
        own: Labels that differ in changed batches.
        other: Labels by which other samples differ in these.
    """

    batches: int = 0
    moved: int = 0
    moved_rows: int = 0
    changed: int = 0
    soft: int = 0
    own: int = 0
    other: int = 0

    def __add__(self, more: Differences) -> Differences:
        return Differences(*(a + b for a, b in zip(astuple(self), astuple(more), strict=True)))

    @property
    def share(self) -> float:
        """How far changed targets are from the labels: 0 for the same, about 1 for those of other samples."""
        return self.own / max(self.own, self.other, 1)


class LossRows:
    """Comparison of the targets that the loss saved with the labels of the batch, row by row."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a fit: it is not known where in the loss the labels stand."""
        self._place: tuple[int, SavedPlace] | None = None  # with the number of the backward pass in its step
        self._is_over = False
        self._classes = False, False  # of the labels, of what stands in the loss
        self._code: Recoding | None = None
        self._jumbled: set[SavedPlace] = set()
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._counts: Tensor | None = None
        self._batches = 0
        self._per_row = 1  # numbers at the place for each sample
        self._passes = self._usual_passes = 0
        self._is_kept = False
        self.start_step()

    def start_step(self, rows: Tensor | None = None, kept: Tensor | None = None) -> None:
        """A step begins.

        Args:
            rows: Its labels in the batch, which the step may change; None if they are not known.
            kept: A copy of them.
        """
        if self._place is not None and self._passes:
            self._usual_passes = self._usual_passes or self._passes
            if self._is_kept and self._passes != self._usual_passes:
                # With other backward passes than usual it is not clear which is which.
                self._batches, self._waiting = self._batches - 1, self._waiting[:-1]
            if len(self._waiting) >= _BATCHES:
                self.settle()
        is_known = rows is not None and self._place is not None and not rows.is_inference()
        self._rows, self._kept = (rows, kept) if is_known else (None, None)
        self._version = 0 if self._rows is None else self._rows._version
        #: The number of samples if the step is verified, so that everything is kept that may be targets.
        self.verified = 0
        self._passes, self._is_kept = 0, False
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
        if target is None or target.numel() != self._per_row * len(rows):
            return
        self._batches += 1
        is_same = target.data_ptr() == rows.data_ptr() and target.shape == rows.shape
        if is_same and rows._version == self._version and target.stride() == rows.stride():
            return
        self._waiting.append((kept, _by_row(target, len(rows)).clone()))
        self._is_kept = True

    def learn(self, rows: Tensor, is_first: bool) -> tuple[bool, tuple[Tensor, ...]]:
        """Learn from a verified step where in its loss the labels stand.

        Args:
            rows: The labels of the batch, on the CPU.
            is_first: Whether this is one of the first steps of the fit, all of which must agree.

        Returns:
            Whether the loss shows the labels row by row, and what shows them in another order.
        """
        found, self._found = self._found, []
        if self._is_over or not found:
            return False, ()
        classes = hold_classes(rows)
        labels = signatures(rows, classes)
        kinds = len(torch.unique(labels))
        same: dict[tuple[int, SavedPlace], tuple[bool, int, Recoding | None]] = {}
        coded: dict[tuple[int, SavedPlace], tuple[bool, int, Recoding | None]] = {}
        moved = []
        for number, place, target in found:
            target = _by_row(target, len(rows)).cpu()
            holds, per_row = hold_classes(target), target.numel() // len(rows)
            signed = signatures(target, holds)
            code = Recoding(labels, signed)
            if torch.equal(signed, labels):
                same[number, place] = holds, per_row, None
            elif code.tells and code.fits:
                coded[number, place] = holds, per_row, code
            elif code.tells and place.is_target and target.ndim > rows.ndim:
                # Such as levels of classes, in another order: twice is no chance.
                moved += [target] if place in self._jumbled else []
                self._jumbled.add(place)
            elif kinds >= _KINDS and torch.equal(signed.sort().values, labels.sort().values):
                moved.append(target)
        if self._place is None:
            usable = same if same and kinds >= _KINDS else coded
            # Factors made of the predictions may look like the labels in a first batch; labels hold the fewest numbers.
            numbers = {(number, place): len(torch.unique(target)) for number, place, target in found}
            for chosen, (holds, per_row, known) in sorted(usable.items(), key=lambda one: numbers[one[0]])[:1]:
                self._place, self._classes, self._per_row, self._code = chosen, (classes, holds), per_row, known
        elif is_first and self._place not in (same if self._code is None else coded):
            self._place, self._is_over = None, True  # what stands there is not always the labels
        return bool(same or coded), tuple(moved)

    def settle(self) -> None:
        """Compare what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        sizes = [len(rows) for rows, _ in waiting]
        rows, found = (torch.cat(parts) for parts in zip(*waiting, strict=True))
        soft = _soft_batches(waiting[-_SOFT_BATCHES:])
        is_on_host = rows.device.type == found.device.type == "cpu"  # nothing is waited for
        is_plain = is_on_host and self._code is None and not any(self._classes) and rows.shape == found.shape
        if is_plain and torch.equal(rows > 0.5, found > 0.5) and not soft.any():
            return
        labels, targets = signatures(rows, self._classes[0]), signatures(found, self._classes[1]).to(rows.device)
        labels = labels if self._code is None else self._code.of(labels, targets)
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
        soft = soft & (count[-len(soft) :] == 0) & (self._code is None)  # another code is no mixture
        sums_of_all = torch.stack(
            [moved.sum(), (count * moved).sum(), changed.sum(), soft.sum(), own.sum(), other.sum()]
        )
        self._counts = sums_of_all if self._counts is None else self._counts + sums_of_all

    def judge(self) -> Differences:
        """What was seen since this was asked last; waits for the device."""
        self.start_step()
        self.settle()
        counts, self._counts = self._counts, None
        batches, self._batches = self._batches, 0
        return Differences(batches, *([] if counts is None else counts.tolist()))


def _by_row(target: Tensor, rows: int) -> Tensor:
    return target if target.ndim == 1 and len(target) == rows else target.reshape(rows, -1)


def _soft_batches(waiting: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Batches of labels of 0 and 1 whose targets vary among equal labels of a column; the last of them, of one size."""
    size = waiting[0][0].shape
    alike = [(rows, target) for rows, target in waiting if rows.shape == size]
    labels, targets = (torch.stack(parts) for parts in zip(*alike, strict=True))
    labels = labels.reshape(len(labels), size[0], -1)
    if not targets.is_floating_point() or targets.shape != labels.shape:
        return torch.zeros(len(waiting), dtype=torch.bool, device=labels.device)
    positive = (labels > 0.5).to(targets.device)
    varies = torch.zeros(len(labels), dtype=torch.bool, device=targets.device)
    for mask in (positive, ~positive):
        spread = targets.masked_fill(mask, -torch.inf).amax(1) - targets.masked_fill(mask, torch.inf).amin(1)
        varies |= (spread > _SPREAD).any(1)
    varies = varies.to(labels.device) & ((labels == 0) | (labels == 1)).all()
    return torch.cat([varies, varies.new_zeros(len(waiting) - len(varies))])


def _is_hidden(found: Tensor) -> Tensor:
    """Which rows of targets may be masked: all alike, they tell nothing of the labels."""
    if found.ndim == 1 or found.shape[1] == 1:
        return torch.zeros(len(found), dtype=torch.bool, device=found.device)
    return (found == found[:, :1]).all(1)


def _mixed(numbers: Tensor) -> Tensor:
    mixed = (numbers ^ (numbers >> 31)).mul(_MIX)
    return (mixed ^ (mixed >> 27)).mul(_MIX)
