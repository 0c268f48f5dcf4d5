"""How often each two bins of two labels occur together: exact counts, in bounded memory, by product or sparsely."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

Chunks = Callable[[], Iterable[Tensor]]
Total = Callable[[Tensor], Tensor]

# Labels in a block: few enough that little of the symmetric other half is counted, enough for a fast product.
_BLOCK_LABELS = 64
# A product with fewer multiplications is done before its density is measured.
_WORTH_MEASURING = 2**30
# Where a smaller share of values lies outside their label's most frequent bin, adding rows beats multiplying.
_SPARSE_SHARE = 0.3
# One-hot cells of a chunk of rows: they should fit into a cache, but a product needs some rows to be fast.
_HOT_CELLS, _HOT_ROWS, _MOST_HOT_CELLS = 2**19, 1024, 2**23
# Counts are exact up to here in float32, and in float16.
EXACT_SINGLE, EXACT_HALF = 2**24, 2**11
# Two counts of fewer than this share one float32.
_SHARE = 2**12


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
    exact = torch.float64 if num_samples > EXACT_SINGLE else torch.float32
    # Counts are there up to three times while they are added up.
    blocks, panels = _panels(num_labels, bins - 1, memory // 8)
    binned = _BinnedRows(chunks, bins, total)
    if len(panels) > 1:
        binned.keep_if_below(memory // 2, num_samples * num_labels)
    sparse = num_samples * ((bins - 1) * num_labels) ** 2 >= _WORTH_MEASURING and binned.mostly_in_one_bin()
    if sparse:
        binned.leave_out_most_frequent()
    way: type[Counts] = SparseCounts if sparse else ProductCounts
    margin = binned.margin() if len(panels) > 1 else None
    for panel in panels:
        counted: Counts | None = None
        for rows in binned:
            if counted is None:
                counted = way(blocks, panel, binned.numbers(num_labels, rows.device).to(rows.dtype), exact)
            counted.add(rows)
        assert counted is not None
        yield from counted.pairs(margin, total)


class _BinnedRows:
    """Chunks of U as bins, in whole numbers: bytes where they suffice."""

    def __init__(self, chunks: Chunks, bins: int, total: Total) -> None:
        self._chunks, self._bins, self._total = chunks, bins, total
        self._dtype = torch.uint8 if bins <= 256 else torch.int32
        self._kept: list[Tensor] | None = None
        self._left_out: Tensor | None = None
        self._sample = torch.empty(0)

    def keep_if_below(self, memory: int, cells: int) -> None:
        """Keep the bins for further passes if they fit; else U is asked for again in each."""
        if cells * self._dtype.itemsize <= memory:
            self._kept = list(self)

    def mostly_in_one_bin(self) -> bool:
        """Whether most values of the first chunk lie in one bin of their label; on a CPU, where no device waits."""
        sample = next(iter(self))
        if sample.device.type != "cpu":
            return False
        self._sample = self._total(self._counts(sample))
        return float(self._sample.max(0).values.sum()) > (1 - _SPARSE_SHARE) * float(self._sample.sum())

    def leave_out_most_frequent(self) -> None:
        """Number bins from each label's most frequent one on, so that it is the one left out."""
        self._left_out = self._sample.argmax(0)

    def numbers(self, num_labels: int, device: torch.device) -> Tensor:
        """The bins of each label that are counted, all but the first or the most frequent one: (bins - 1, q)."""
        after = torch.arange(1, self._bins, device=device).view(-1, 1).expand(-1, num_labels)
        return after if self._left_out is None else (after + self._left_out) % self._bins

    def margin(self) -> Tensor:
        """How often each bin that is counted occurs, (bins - 1, q)."""
        counted = torch.stack([self._counts(chunk) for chunk in self]).sum(0)
        return self._total(counted.gather(0, self.numbers(counted.shape[1], counted.device)))

    def __iter__(self) -> Iterator[Tensor]:
        """Bins as (rows, q), in chunks."""
        if self._kept is not None:
            yield from self._kept
            return
        for chunk in self._chunks():
            # Cut off, because what is not negative is rounded down so.
            if not _is_for_numpy(chunk):
                yield (chunk * self._bins).clamp_(0, self._bins - 1).to(self._dtype)
                continue
            scaled = np.multiply(np.from_dlpack(chunk.detach()), self._bins)
            np.clip(scaled, 0, self._bins - 1, out=scaled)
            yield torch.from_numpy(scaled.astype(np.uint8 if self._dtype == torch.uint8 else np.int32))

    def _counts(self, binned: Tensor) -> Tensor:
        values = binned.float()
        one = values.new_ones(len(values))
        return torch.stack([one @ (values == number).float() for number in range(self._bins)]).double()


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


class Counts(ABC):
    """Counts of some blocks of labels with all later ones.

    Args:
        blocks: all blocks of labels.
        panel: numbers of the blocks that are counted.
        numbers: (k, q), which bins of each label are counted, all but one.
        exact: a type in which the sums of all samples are exact.
    """

    def __init__(self, blocks: list[slice], panel: list[int], numbers: Tensor, exact: torch.dtype) -> None:
        self.blocks, self.panel, self.k, self.exact = blocks, panel, len(numbers), exact
        self.first = blocks[panel[0]].start
        self.numbers = numbers[:, self.first :]
        self.width: int = self.k * (blocks[-1].stop - self.first)
        self.recent: list[Tensor] = []
        self.total: list[Tensor] | None = None
        self.since = 0

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows to count at a time."""

    @property
    @abstractmethod
    def most_rows(self) -> int:
        """Rows whose counts ``recent`` can hold."""

    @property
    @abstractmethod
    def recent_bins(self) -> int:
        """How many bins of each label of a block ``recent`` has rows for."""

    @abstractmethod
    def count(self, binned: Tensor) -> None:
        """Add the pairs of a few rows of bins, (rows, labels from the panel's first on), to ``recent``."""

    @abstractmethod
    def counts(self, recent: Tensor) -> Tensor:
        """A block of ``recent`` as counts of all bins."""

    def labels(self, block: int) -> slice:
        """The labels of a block, from the panel's first on."""
        return slice(self.blocks[block].start - self.first, self.blocks[block].stop - self.first)

    def columns(self, block: int) -> slice:
        """The one-hot columns of a block: all its labels for the first bin, then for the next."""
        labels = self.labels(block)
        return slice(self.k * labels.start, self.k * labels.stop)

    def add(self, binned: Tensor) -> None:
        """Count a chunk of bins, (rows, q)."""
        if not self.recent:
            self.recent = [self._zeros(block, binned.device) for block in self.panel]
        for part in torch.split(binned[:, self.first :], min(self.rows, self.most_rows)) if len(binned) else ():
            if self.since + len(part) > self.most_rows:
                self._carry()
            self.count(part)
            self.since += len(part)

    def pairs(self, margin: Tensor | None, total: Total) -> Iterator[PairCounts]:
        """What was counted by all processes; without a ``margin``, the diagonals of all blocks hold it."""
        counted = [total(block) for block in self._sums()]
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

    def _zeros(self, block: int, device: torch.device) -> Tensor:
        labels = self.labels(block)
        return torch.zeros(
            self.recent_bins * (labels.stop - labels.start), self.width - self.columns(block).start, device=device
        )

    def _sums(self) -> list[Tensor]:
        counts = (self.counts(block) for block in self.recent)
        if self.total is None:
            return [block.to(self.exact) for block in counts]
        return [sums.add_(block) for sums, block in zip(self.total, counts, strict=True)]

    def _carry(self) -> None:
        self.total = self._sums()
        self.recent = [torch.zeros_like(block) for block in self.recent]
        self.since = 0


class ProductCounts(Counts):
    """Counts as products of one-hot bins, two of them in one number.

    Of a block's own bins, one counts as 1 and another as 4096 in the same column. So a sum of the product is
    a + 4096·b, where a and b are two counts: half as many products, and still exact for fewer than 4096 rows.
    """

    def __init__(self, blocks: list[slice], panel: list[int], numbers: Tensor, exact: torch.dtype) -> None:
        super().__init__(blocks, panel, numbers, exact)
        self._memory = np.empty(0, np.float32)

    @property
    def rows(self) -> int:
        """Enough for a fast product, few enough for a cache."""
        fast = min(max(_HOT_CELLS // self.width, _HOT_ROWS), 4 * _HOT_ROWS)
        return min(fast, max(1, _MOST_HOT_CELLS // self.width))

    @property
    def most_rows(self) -> int:
        """So that neither count reaches the other."""
        return _SHARE - 1

    @property
    def recent_bins(self) -> int:
        """Half of them, rounded up."""
        return (self.k + 1) // 2

    def count(self, binned: Tensor) -> None:
        """Multiply each block with itself and all later ones."""
        hot = self._one_hot(binned)
        for i, recent in zip(self.panel, self.recent, strict=True):
            own, half = hot[self.columns(i)], len(recent)
            both = len(own) - half
            shared = _shared(own[:both], own[half:])
            if both < half:  # an odd number of bins
                shared = torch.cat([shared, own[both:half]])
            recent.addmm_(shared, hot[self.columns(i).start :].T)

    def counts(self, recent: Tensor) -> Tensor:
        """The two counts of each number, one behind the other."""
        rows = self.k * len(recent) // self.recent_bins
        high = (recent * (1 / _SHARE)).floor_()
        return torch.cat([recent.sub(high, alpha=_SHARE), high[: rows - len(recent)]])

    def _one_hot(self, binned: Tensor) -> Tensor:
        """(columns, rows), float32."""
        values, numbers, rows = _transposed(binned), self.numbers, len(binned)
        blocks = [(self.labels(block), self.columns(block)) for block in range(self.panel[0], len(self.blocks))]
        if not _is_for_numpy(binned):
            one_hot = torch.empty(self.width, rows, device=binned.device)
            for labels, columns in blocks:
                out = one_hot[columns].view(self.k, -1, rows)
                torch.eq(values[labels], numbers[:, labels, None], out=out)
            return one_hot
        if self._memory.size < self.width * rows:  # used again: fresh memory costs more than what is written to it
            self._memory = np.empty(self.width * rows, np.float32)
        hot = self._memory[: self.width * rows].reshape(self.width, rows)
        for labels, columns in blocks:
            is_in_bin = np.from_dlpack(values[labels]) == np.from_dlpack(numbers[:, labels, None])
            hot[columns].reshape(self.k, -1, rows)[...] = is_in_bin
        return torch.from_numpy(hot)


class SparseCounts(Counts):
    """Counts as sums of one-hot rows, on a CPU: for each bin of each label, those of the samples that are in it."""

    @property
    def rows(self) -> int:
        """Half precision halves what is read, and is exact for so many rows."""
        return min(EXACT_HALF, max(1, _MOST_HOT_CELLS // self.width))

    @property
    def most_rows(self) -> int:
        """What float32 can count."""
        return EXACT_SINGLE

    @property
    def recent_bins(self) -> int:
        """All of them."""
        return self.k

    def count(self, binned: Tensor) -> None:
        """Find the samples of each bin and add their rows."""
        rows, columns = len(binned), np.arange(self.width + 1)
        cell = np.flatnonzero(self._one_hot(binned))
        begin = np.searchsorted(cell, rows * columns)
        column = np.repeat(columns[:-1], np.diff(begin))
        row = cell - rows * column
        hot = np.zeros(rows * self.width, np.float16)
        hot[self.width * row + column] = 1
        samples, values = torch.from_numpy(row), torch.from_numpy(hot).view(rows, self.width)
        for i, recent in zip(self.panel, self.recent, strict=True):
            own = self.columns(i)
            low, high = begin[own.start], begin[own.stop]
            bags = torch.from_numpy(begin[own] - low)
            recent += embedding_bag(samples[low:high], values[:, own.start :], bags, mode="sum")

    def counts(self, recent: Tensor) -> Tensor:
        """They are counts."""
        return recent

    def _one_hot(self, binned: Tensor) -> NDArray[np.bool_]:
        """(columns, rows), a byte each."""
        hot = np.empty((self.width, len(binned)), np.bool_)
        values, numbers = np.from_dlpack(_transposed(binned)), np.from_dlpack(self.numbers)
        for block in range(self.panel[0], len(self.blocks)):
            labels = self.labels(block)
            view = hot[self.columns(block)].reshape(self.k, -1, len(binned))
            np.equal(values[labels], numbers[:, labels, None], out=view)
        return hot


def _is_for_numpy(values: Tensor) -> bool:
    """Whether NumPy does what goes cell by cell: its one thread waits for no other, which PyTorch's do in every step.

    The steps are so short that two threads which share a busy processor take many times as long as one.
    """
    return values.device.type == "cpu" and values.dtype != torch.bfloat16


def _shared(low: Tensor, high: Tensor) -> Tensor:
    """Two counts in one number."""
    if not _is_for_numpy(low):
        return torch.add(low, high, alpha=_SHARE)
    both = np.multiply(np.from_dlpack(high), np.float32(_SHARE))
    both += np.from_dlpack(low)
    return torch.from_numpy(both)


def _transposed(binned: Tensor) -> Tensor:
    """(labels, rows), so that even with few labels the innermost loop is long. NumPy is several times as fast."""
    if binned.device.type != "cpu":
        return binned.T.contiguous()
    return torch.from_numpy(np.ascontiguousarray(np.from_dlpack(binned).T))
