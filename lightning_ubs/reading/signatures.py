"""Whether a sample id means the same sample at every visit, told by its labels: eight bytes per sample."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lightning_ubs._utils.distributed import gather_objects
from lightning_ubs.reading.dataset import Column

# The labels of a sample are folded into this many bits, which a product in float64 puts together exactly.
_BITS = 52
UNSEEN = -1
# Batches that are compared together: a few small kernels in a row cost less than after each step.
_BATCHES = 32
# Below this many bits by which other samples differ, nothing can be told.
_TELLING = 12
# Standard errors by which labels must be nearer than those of other samples to be noisy ones of the same.
_SURELY = 5.0
# Rows of a column that are kept to recognize a dataset by.
_SHOWN = 4096

#: Within a run, labels that are this far from those of the first visits are of other samples, unless those that differ
#: are nearer than other samples are. Measured in the second epoch: 0.84 to 1 where batches are sorted or a queue is
#: drawn anew, at most 0.55 where one label in ten is flipped at each visit and a fifth of them are positive.
MOVED = 0.8
#: Where labels do not change from visit to visit, half the way to another sample is another sample.
OTHER = 0.5
#: Labels that are less than this share away may have been corrected by hand.
NOISE = 0.05


class Distance(NamedTuple):
    """How far labels of samples are from those that were expected.

    Attributes:
        share: 0 for the same labels, about 1 for those of other samples.
        changed: Samples whose labels differ.
        compared: Samples that were compared.
        is_noise: Whether those that differ are surely nearer to what was expected than those of other samples that
            differ, as where labels are flipped at random; samples in another order are not.
    """

    share: float
    changed: int
    compared: int
    is_noise: bool = False


def hold_classes(rows: Tensor) -> bool:
    """Whether labels (b,) are class indices; waits for the device."""
    return rows.ndim == 1 and not rows.is_floating_point() and bool((rows > 1).any())


def signatures(rows: Tensor, classes: bool = False) -> Tensor:
    """Labels as int64: bit j % 52 tells whether the sample has an odd number of the labels j, j + 52, ….

    Args:
        rows: (b, q) numbers, of which those above one half are positive, or (b,) for a single label.
        classes: (b,) holds class indices; those below 0 are none.

    >>> signatures(torch.tensor([[1.0, 0, 1], [0, 0.1, 0.9]])), signatures(torch.tensor([0, 2]), classes=True)
    (tensor([5, 4]), tensor([1, 4]))
    """
    if classes:
        index = rows.flatten().long()
        return torch.where(index >= 0, torch.ones_like(index) << (index % _BITS), 0)
    rows = rows.cpu() if rows.device.type == "mps" else rows  # has no float64
    positive = rows.reshape(len(rows), -1) > 0.5
    if positive.shape[1] > _BITS:
        padded = torch.nn.functional.pad(positive, (0, -positive.shape[1] % _BITS))
        positive = padded.reshape(len(rows), -1, _BITS).sum(1, dtype=torch.uint8) % 2
    return (positive.double() @ _powers(positive.shape[1], rows.device)).long()


@cache
def _powers(count: int, device: torch.device) -> Tensor:
    return (2.0 ** torch.arange(count, dtype=torch.float64)).to(device)


def bits(differences: Tensor) -> Tensor:
    """How many bits are set in each int64.

    >>> bits(torch.tensor([0, 5, 7]))
    tensor([0, 2, 3])
    """
    # Sums in pairs, in fours and in eights of bits, all at once within each number.
    pairs = differences - (differences >> 1 & 0x5555555555555555)
    fours = (pairs & 0x3333333333333333) + (pairs >> 2 & 0x3333333333333333)
    return ((fours + (fours >> 4) & 0x0F0F0F0F0F0F0F0F) * 0x0101010101010101) >> 56


def distance(expected: Tensor, found: Tensor, telling: int = _TELLING) -> Distance | None:
    """How far signatures (n,) are from the expected ones; None where all samples are too much alike to tell."""
    return judged(counted(expected, found), telling)


def counted(expected: Tensor, found: Tensor) -> Tensor:
    """What :func:`judged` takes; counts of several batches may be added."""
    return _counts(expected, found, torch.ones_like(expected, dtype=torch.bool))


class Recoding:
    """Labels in another code, of which every kind stands for one kind of the first, such as levels for classes.

    Args:
        labels: Signatures (b,).
        codes: Signatures of the same samples in the other code.
    """

    # Orders of the rows of which fewer than this share fit a code by chance.
    _CHANCE = 1e-3

    def __init__(self, labels: Tensor, codes: Tensor) -> None:
        kinds, of_kind, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        others, other_counts = torch.unique(codes, return_counts=True)
        #: Kinds of labels, and what stands for each.
        self.kinds, self.codes = kinds, codes.new_zeros(len(kinds)).index_put_((of_kind,), codes)
        # Where most labels are the same, the others are errors and no code.
        is_alike = len(kinds) == len(others) and 2 * int((labels == codes).sum()) <= len(labels)
        is_alike = is_alike and torch.equal(counts.sort().values, other_counts.sort().values)
        fitting = sum(
            math.lgamma(1 + n) for n in [*counts.tolist(), *torch.unique(counts, return_counts=True)[1].tolist()]
        )
        #: Whether the rows tell their order: other orders rarely fit by chance.
        self.tells = is_alike and fitting - math.lgamma(1 + len(labels)) < math.log(self._CHANCE)
        #: Whether all rows stand where their labels do.
        self.fits = is_alike and torch.equal(self.codes[of_kind], codes)

    def of(self, labels: Tensor, otherwise: Tensor) -> Tensor:
        """What stands for labels on any device, (b,); ``otherwise`` (b,) for kinds that are not known."""
        kinds, codes = self.kinds.to(labels.device), self.codes.to(labels.device)
        at = torch.searchsorted(kinds, labels).clamp(max=len(kinds) - 1)
        return torch.where(kinds[at] == labels, codes[at], otherwise)


def _counts(expected: Tensor, found: Tensor, known: Tensor) -> Tensor:
    """Of this sample and of another one of the batch: bits that differ, their squares, samples that differ; samples."""
    own = bits(expected ^ found) * known
    other = bits(expected ^ found.roll(1)) * known
    both = torch.stack([own, other])
    return torch.cat([torch.stack([both, both * both, (both > 0).long()]).sum(2).flatten(), known.sum().view(1)])


def judged(counts: Tensor, telling: int = _TELLING) -> Distance | None:
    """How far labels are from what was expected; None where all samples are too much alike to tell."""
    own, other, own_squares, other_squares, changed, others, compared = counts.tolist()
    if max(own, other) < telling:
        return None
    is_noise = _surely_less((own, own_squares, changed), (other, other_squares, others))
    return Distance(own / max(own, other, 1), changed, compared, is_noise)


def _surely_less(few: tuple[int, int, int], many: tuple[int, int, int]) -> bool:
    """Whether numbers of which (sum, sum of squares, count) are known have a smaller mean than others."""
    if min(few[2], many[2]) < 2:
        return False
    means = [total / count for total, _, count in (few, many)]
    variances = [squares / count - (total / count) ** 2 for total, squares, count in (few, many)]
    squared_error = sum(max(0.0, variance) / one[2] for variance, one in zip(variances, (few, many), strict=True))
    return means[1] - means[0] > _SURELY * math.sqrt(squared_error)


class LabelMemory:
    """The labels of each sample at its first visit, compared with those of all later ones.

    A dataset whose index means another sample in each epoch, and a collate function that sorts, show other labels for
    the same id. Labels that are smoothed, or mixed by less than half, have the same signature.

    Nothing waits for the device before :meth:`judge` is asked, and processes share what they saw once per epoch.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget every sample."""
        self._table: Tensor | None = None
        self._classes: bool | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._counts: Tensor | None = None
        self._shown: Tensor | None = None
        #: Whether each sample keeps its labels, so that it can be recognized by them.
        self.is_steady = True

    @property
    def is_empty(self) -> bool:
        """Whether no sample was seen."""
        return self._table is None

    def begin(self, num_samples: int) -> None:
        """A fit begins on a dataset of this size."""
        self._waiting, self._counts = [], None
        if self._table is not None and len(self._table) != num_samples:
            self.forget()

    def expect_anew(self) -> None:
        """Count the next visit of each sample as its first, because labels were corrected."""
        self._waiting, self._counts = [], None
        if self._table is not None:
            self._table.fill_(UNSEEN)

    def expect(self, num_samples: int, rows: Tensor) -> None:
        """Expect labels that look like these of one batch; waits for the device."""
        if self._table is None:
            self._table = torch.full((num_samples,), UNSEEN, device=rows.device)
        if self._classes is None:
            self._classes = hold_classes(rows)

    def add(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Note these labels of the samples ``ids`` (b,); gives the copy of the labels that is kept for a while."""
        kept = rows.detach().clone()
        self._waiting.append((ids, kept))
        if len(self._waiting) >= _BATCHES:
            self.settle()
        return kept

    def settle(self) -> None:
        """Compare what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self._table is None:
            return
        kinds = {rows.shape[1:] for _, rows in waiting}
        parts = [torch.cat([rows for _, rows in waiting])] if len(kinds) == 1 else [rows for _, rows in waiting]
        found = torch.cat([signatures(rows, bool(self._classes)) for rows in parts])
        self._table = self._table.to(found.device)
        ids = torch.cat([ids for ids, _ in waiting]).to(found.device, non_blocking=True)
        expected = self._table[ids]
        known = expected != UNSEEN
        counts = _counts(expected, found, known)
        self._counts = counts if self._counts is None else self._counts + counts
        self._table[ids] = torch.where(known, expected, found)

    def share(self) -> bool:
        """Let each rank know what all saw, whether all saw enough; every rank calls this at the same time."""
        self.settle()
        seen = gather_objects(None if self._counts is None else self._counts.tolist())
        if self._table is None or any(counts is None for counts in seen):
            return False  # one of them could not tell where labels are
        dist.all_reduce(self._table, op=dist.ReduceOp.MAX)
        total = torch.tensor(seen).sum(0)
        if judged(total) is None:
            return False
        self._counts = total
        return True

    def judge(self) -> Distance | None:
        """How far labels were from those of the first visits; None as long as that cannot be told."""
        self.settle()
        verdict = None if self._counts is None else judged(self._counts)
        if verdict is not None:
            self._counts = None
        return verdict

    def show(self, column: Column) -> Distance | None:
        """Remember the labels that the dataset shows; how far they are from those that it showed before."""
        ids = torch.linspace(0, column.length - 1, min(column.length, _SHOWN)).long()
        rows = column.rows(ids)
        before, self._shown = self._shown, signatures(rows, hold_classes(rows))
        return None if before is None or before.shape != self._shown.shape else distance(before, self._shown)

    def state_dict(self) -> dict[str, Any]:
        """What the samples of this dataset are recognized by in a later run."""
        self.settle()
        seen = self._table.cpu() if self._table is not None and self.is_steady else None
        state = {"classes": self._classes, "seen": seen, "shown": self._shown}
        return {name: value for name, value in state.items() if value is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Expect the samples that :meth:`state_dict` told of."""
        self.forget()
        self._classes, self._shown = state.get("classes"), state.get("shown")
        self._table = None if "seen" not in state else state["seen"].clone()
