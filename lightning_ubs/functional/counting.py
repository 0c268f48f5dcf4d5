"""How often each two bins of two labels occur together: exact counts, in bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

Chunks = Callable[[], Iterable[Tensor]]
Total = Callable[[Tensor], Tensor]

# Labels in a block: few enough that little of the symmetric other half is counted, enough for a fast product.
_BLOCK_LABELS = 64
# One-hot cells of a chunk of rows: they should fit into a cache, but a product needs some rows to be fast.
_HOT_CELLS, _HOT_ROWS, _MOST_HOT_CELLS = 2**19, 1024, 2**23
# Counts are exact up to here in float32, and in float16.
_EXACT_SINGLE, _EXACT_HALF = 2**24, 2**11
# A product with fewer multiplications is done before its density is measured.
_WORTH_MEASURING = 2**30
# Where a smaller share of values lies outside their label's most frequent bin, adding rows beats multiplying.
_SPARSE_SHARE = 0.3


@dataclass(frozen=True)
class PairCounts:
    """Counts of two blocks of labels; one bin of each label is left out, because it follows from the margins.

    Attributes:
        rows: labels of the first block.
        columns: labels of the second block, the same or a later one.
        joint: (k, k, rows, columns), k = bins - 1; float32 or float64, exact.
        row_margin: (k, rows), how often each bin occurs at all.
        column_margin: (k, columns).
    """

    rows: slice
    columns: slice
    joint: Tensor
    row_margin: Tensor
    column_margin: Tensor


def as_they_are(counts: Tensor) -> Tensor:
    """The counts of one process that has all samples."""
    return counts


def count_pairs(
    chunks: Chunks, num_samples: int, num_labels: int, bins: int, memory: int, total: Total = as_they_are
) -> Iterator[PairCounts]:
    """Counts of all pairs of blocks of labels, the second block not before the first.

    Args:
        chunks: gives U in chunks of rows, each (rows, q); called once per pass over the samples.
        num_samples: n.
        num_labels: q.
        bins: number of bins (τ).
        memory: bytes that counting may use; what it bounds is the number of labels counted in one pass.
        total: adds the counts of all processes, each of which has chunks of its own, the first one perhaps empty.
    """
    exact = torch.float64 if num_samples > _EXACT_SINGLE else torch.float32
    blocks, panels = _panels(num_labels, bins - 1, memory // 4)
    binned = _BinnedRows(chunks, bins, total)
    if len(panels) > 1:
        binned.keep_if_below(memory // 2, num_samples * num_labels)
    counts: type[_Counts] = _DenseCounts
    if num_samples * ((bins - 1) * num_labels) ** 2 >= _WORTH_MEASURING and binned.mostly_in_one_bin():
        binned.leave_out_most_frequent()
        counts = _SparseCounts
    margin = binned.margin() if len(panels) > 1 else None
    for panel in panels:
        counted = counts(blocks, panel, bins - 1)
        for slots in binned:
            counted.add(slots)
        yield from counted.pairs(margin, lambda counts: total(counts.to(exact)))


class _BinnedRows:
    """Chunks of U as bins."""

    def __init__(self, chunks: Chunks, bins: int, total: Total) -> None:
        self._chunks, self._bins, self._total = chunks, bins, total
        self._kept: list[Tensor] | None = None
        self._left_out: Tensor | None = None
        self._sample = torch.empty(0)

    def keep_if_below(self, memory: int, cells: int) -> None:
        """Keep the bins for further passes if they fit; else U is asked for again in each."""
        dtype = torch.uint8 if self._bins <= 256 else torch.int32
        if cells * dtype.itemsize <= memory:
            self._kept = [self._bin(chunk).to(dtype) for chunk in self._chunks()]

    def mostly_in_one_bin(self) -> bool:
        """Whether most values of the first chunk lie in one bin of their label; on a CPU, where no device waits."""
        sample = next(iter(self))
        if sample.device.type != "cpu":
            return False
        self._sample = self._total(self._counts(sample))
        return float(self._sample.max(0).values.sum()) > (1 - _SPARSE_SHARE) * float(self._sample.sum())

    def leave_out_most_frequent(self) -> None:
        """Number bins from each label's most frequent one on, so that it is the one left out."""
        self._left_out = self._sample.argmax(0).float()

    def margin(self) -> Tensor:
        """How often each bin but the one left out occurs, (bins - 1, q)."""
        return self._total(torch.stack([self._counts(chunk) for chunk in self]).sum(0)[1:])

    def __iter__(self) -> Iterator[Tensor]:
        """Bins as (rows, q) float32, in chunks; bin 0 is left out."""
        for chunk in self._chunks() if self._kept is None else self._kept:
            binned = self._bin(chunk) if self._kept is None else chunk.float()
            if self._left_out is not None:
                binned = binned - self._left_out
                binned.add_(binned < 0, alpha=self._bins)
            yield binned

    def _bin(self, chunk: Tensor) -> Tensor:
        return (chunk * self._bins).floor_().clamp_(0, self._bins - 1).float()

    def _counts(self, binned: Tensor) -> Tensor:
        return torch.stack([(binned == number).sum(0, dtype=torch.float64) for number in range(self._bins)])


class _Counts(ABC):
    """Counts of some blocks of labels with all later ones."""

    def __init__(self, blocks: list[slice], panel: list[int], k: int) -> None:
        self.blocks, self.panel, self.k = blocks, panel, k
        self.first = blocks[panel[0]].start
        self.width: int = k * (blocks[-1].stop - self.first)
        self.recent: list[Tensor] = []
        self.total: list[Tensor] | None = None
        self.since = 0
        self._memory = torch.empty(0)

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows to count at a time."""

    @abstractmethod
    def count(self, slots: Tensor) -> None:
        """Add the pairs of a few rows of bins, (rows, q), to ``recent``."""

    def columns(self, block: int) -> slice:
        """The one-hot columns of a block: all its labels for the first bin, then for the next."""
        labels = self.blocks[block]
        return slice(self.k * (labels.start - self.first), self.k * (labels.stop - self.first))

    def buffer(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        """Memory for one-hot bins that is used again: fresh memory costs more than what is written to it."""
        cells = shape[0] * shape[1]
        if self._memory.numel() < cells:
            self._memory = torch.empty(cells, dtype=like.dtype, device=like.device)
        return self._memory[:cells].view(shape)

    def add(self, slots: Tensor) -> None:
        """Count a chunk of bins, (rows, q)."""
        if not self.recent:
            own = [self.columns(i) for i in self.panel]
            self.recent = [torch.zeros(c.stop - c.start, self.width - c.start, device=slots.device) for c in own]
        for part in torch.split(slots, self.rows) if len(slots) else ():
            if self.since + len(part) > _EXACT_SINGLE:
                self._carry()
            self.count(part)
            self.since += len(part)

    def pairs(self, margin: Tensor | None, total: Total) -> Iterator[PairCounts]:
        """What was counted by all processes; without a ``margin``, the diagonals of all blocks hold it."""
        if self.total is not None:
            self._carry()
        counted = [total(block) for block in (self.recent if self.total is None else self.total)]
        if margin is None:
            # A bin always occurs together with itself.
            margin = torch.cat([block.diagonal().view(self.k, -1) for block in counted], dim=1)
        margin = margin.to(counted[0])
        for i, block in zip(self.panel, counted, strict=True):
            for j in range(i, len(self.blocks)):
                rows, columns, start = self.blocks[i], self.blocks[j], self.columns(i).start
                joint = block[:, self.columns(j).start - start : self.columns(j).stop - start]
                joint = joint.view(self.k, rows.stop - rows.start, self.k, -1).transpose(1, 2).contiguous()
                yield PairCounts(rows, columns, joint, margin[:, rows], margin[:, columns])

    def _carry(self) -> None:
        total = self.total or [torch.zeros_like(block, dtype=torch.float64) for block in self.recent]
        self.total = [sums.add_(block) for sums, block in zip(total, self.recent, strict=True)]
        for block in self.recent:
            block.zero_()
        self.since = 0


class _DenseCounts(_Counts):
    """Counts as products of one-hot bins."""

    @property
    def rows(self) -> int:
        fast = min(max(_HOT_CELLS // self.width, _HOT_ROWS), 4 * _HOT_ROWS)
        return min(fast, max(1, _MOST_HOT_CELLS // self.width))

    def count(self, slots: Tensor) -> None:
        # Transposed, so that even with few labels the innermost loop is long.
        slots = slots[:, self.first :].T.contiguous()
        hot = self.buffer((self.width, slots.shape[1]), slots)
        number = torch.arange(1, self.k + 1, dtype=slots.dtype, device=slots.device).view(-1, 1, 1)
        for block in range(self.panel[0], len(self.blocks)):
            labels = slice(self.blocks[block].start - self.first, self.blocks[block].stop - self.first)
            torch.eq(slots[labels], number, out=hot[self.columns(block)].view(self.k, -1, slots.shape[1]))
        for i, block_counts in zip(self.panel, self.recent, strict=True):
            own = self.columns(i)
            block_counts.addmm_(hot[own], hot[own.start :].T)


class _SparseCounts(_Counts):
    """Counts as sums of one-hot rows: for each bin of each label, those of the samples that are in it."""

    @property
    def rows(self) -> int:
        # Half precision halves what is read, and is exact for so many rows.
        return min(_EXACT_HALF, max(1, _MOST_HOT_CELLS // self.width))

    def count(self, slots: Tensor) -> None:
        hot = self._one_hot(slots.half())
        own = [self.blocks[i] for i in self.panel]
        label, row = slots[:, self.first : own[-1].stop].T.contiguous().nonzero(as_tuple=True)
        start = torch.cat([torch.full((b.stop - b.start,), b.start - self.first) for b in own])
        size = torch.cat([torch.full((b.stop - b.start,), b.stop - b.start) for b in own])
        bag = (self.k - 1) * start[label] + label + size[label] * (slots[row, self.first + label].long() - 1)
        bag, order = bag.int().sort()
        row = row[order]
        begin = torch.searchsorted(bag, torch.arange(self.columns(self.panel[-1]).stop + 1, dtype=torch.int32))
        for i, block_counts in zip(self.panel, self.recent, strict=True):
            columns = self.columns(i)
            low, high = int(begin[columns.start]), int(begin[columns.stop])
            block_counts += embedding_bag(row[low:high], hot[:, columns.start :], begin[columns] - low, mode="sum")

    def _one_hot(self, slots: Tensor) -> Tensor:
        hot = self.buffer((len(slots), self.width), slots)
        number = torch.arange(1, self.k + 1, dtype=slots.dtype).view(-1, 1)
        for block in range(self.panel[0], len(self.blocks)):
            view = hot[:, self.columns(block)].view(len(slots), self.k, -1)
            torch.eq(slots[:, self.blocks[block]].unsqueeze(1), number, out=view)
        return hot


def _panels(num_labels: int, k: int, memory: int) -> tuple[list[slice], list[list[int]]]:
    """Blocks of labels, and the groups of blocks whose counts with all later labels fit into ``memory`` bytes."""
    cells = memory // 4
    most = min(_BLOCK_LABELS, max(1, cells // (k * k * num_labels)))
    number = -(-num_labels // most)
    size = -(-num_labels // number)
    blocks = [slice(first, min(first + size, num_labels)) for first in range(0, num_labels, size)]
    panels: list[list[int]] = []
    room = 0
    for i, block in enumerate(blocks):
        needed = k * k * (block.stop - block.start) * (num_labels - block.start)
        if needed > room:
            panels.append([])
            room = max(cells, needed)
        panels[-1].append(i)
        room -= needed
    return blocks, panels
