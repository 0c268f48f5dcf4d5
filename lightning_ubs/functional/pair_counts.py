"""How often each two bins of two labels occur together: exact counts, in bounded memory, in one of three ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

Chunks = Callable[[], Iterable[Tensor]]
Total = Callable[[Tensor], Tensor]
Way = Literal["product", "sparse", "bits"]

# Labels in a block: few enough that little of the symmetric other half is counted, enough for a fast product.
_BLOCK_LABELS = 64
# A product with fewer multiplications is done before its density is measured.
_WORTH_MEASURING = 2**30
# Where a smaller share of values lies outside their label's most frequent bin, adding rows beats multiplying.
_SPARSE_SHARE = 0.3
# One-hot cells of a chunk of rows: they should fit into a cache, but a product needs some rows to be fast.
_HOT_CELLS, _HOT_ROWS, _MOST_HOT_CELLS = 2**19, 1024, 2**23
# Up to this many one-hot columns, NumPy's one thread counts bits sooner than a product is divided among threads.
_BIT_COLUMNS = 512
# One-hot cells of a chunk of rows that are packed into bits, and the most rows that 16 bits can count.
_BIT_CELLS, _BIT_ROWS = 2**22, 2**15
# Words that are compared at a time: they should fit into a cache.
_BIT_WORDS = 2**16
# NumPy counts bits from 2.0 on.
_COUNTS_BITS = hasattr(np, "bitwise_count")
# Counts are exact up to here in float32, and in float16.
EXACT_SINGLE, EXACT_HALF = 2**24, 2**11
# Two counts of fewer than this share one float32.
_SHARE = 2**12


@dataclass(frozen=True)
class PairCounts:
    """Counts of two blocks of labels; one bin of each label is left out, because it follows from the margins.

    Attributes:
        rows: Labels of the first block.
        columns: Labels of the second block, the same or a later one.
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
        chunks: Gives U in chunks of rows, each (rows, q); called once per pass over the samples.
        num_samples: Number of samples n.
        num_labels: Number of labels q.
        bins: Number of bins (τ).
        memory: Bytes that counting may use; what it bounds is the number of labels counted in one pass.
        total: Adds the counts of all ranks, each of which has chunks of its own, the first one perhaps empty.
    """
    exact = torch.float64 if num_samples > EXACT_SINGLE else torch.float32
    # Counts are there up to three times while they are added up.
    blocks, panels = _panels(num_labels, bins - 1, memory // 8)
    binned = _BinnedRows(chunks, bins)
    if len(panels) > 1:
        binned.keep_if_below(memory // 2, num_samples * num_labels)
    sparse, most_frequent = False, torch.empty(0)
    if num_samples * ((bins - 1) * num_labels) ** 2 >= _WORTH_MEASURING:
        first = next(iter(binned))
        if first.device.type == "cpu":  # of another device it would have to wait
            counts = total(binned.counts_of(first))
            sparse = float(counts.max(0).values.sum()) > (1 - _SPARSE_SHARE) * float(counts.sum())
            most_frequent = counts.argmax(0)

    def numbers(device: torch.device) -> Tensor:
        """The bins of each label that are counted, all but the first or the most frequent one, (bins - 1, q)."""
        after = torch.arange(1, bins, device=device).view(-1, 1).expand(-1, num_labels)
        return (after + most_frequent) % bins if sparse else after

    margin = None
    if len(panels) > 1:
        counts = torch.stack([binned.counts_of(rows) for rows in binned]).sum(0)
        margin = total(counts.gather(0, numbers(counts.device)))
    for panel in panels:
        counter: _Counter | None = None
        for rows in binned:
            if counter is None:
                few = _COUNTS_BITS and num_labels * (bins - 1) <= _BIT_COLUMNS and _is_for_numpy(rows)
                way: Way = "sparse" if sparse else "bits" if few else "product"
                counter = _Counter(blocks, panel, numbers(rows.device).to(rows.dtype), exact, way)
            counter.add(rows)
        assert counter is not None
        yield from counter.pairs(margin, total)


class _BinnedRows:
    """Chunks of U as bins, in whole numbers: bytes where they suffice."""

    def __init__(self, chunks: Chunks, bins: int) -> None:
        self._chunks, self._bins = chunks, bins
        self._dtype = torch.uint8 if bins <= 256 else torch.int32
        self._kept: list[Tensor] | None = None

    def keep_if_below(self, memory: int, cells: int) -> None:
        """Keep the bins for further passes if they fit; else U is asked for again in each."""
        if cells * self._dtype.itemsize <= memory:
            self._kept = list(self)

    def counts_of(self, rows: Tensor) -> Tensor:
        """How often each bin occurs in a chunk, (bins, q)."""
        values = rows.float()
        one = values.new_ones(len(values))
        return torch.stack([one @ (values == number).float() for number in range(self._bins)]).double()

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
            binned = torch.from_numpy(scaled.astype(np.uint8 if self._dtype == torch.uint8 else np.int32))
            del scaled  # four times as large, and of no use while the chunk is counted
            yield binned


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


class _Counter:
    """Counter of some blocks of labels with all later ones, in one of three ways.

    *By product* of one-hot bins, two of them in one number: of a block's own bins, one counts as 1 and another as 4096
    in the same column. So a sum of the product is a + 4096·b, where a and b are two counts: half as many products, and
    still exact for fewer than 4096 rows.

    *Sparsely*, on a CPU: for each bin of each label, the sum of the one-hot rows of the samples that are in it.

    *By bits*, on a CPU with few labels: one-hot columns hold 64 samples in a word, and ones that two columns share are
    counted. One thread does it, because products of so few columns are too short for several: on a busy processor
    threads that wait for each other take many times as long as one.

    Args:
        blocks: All blocks of labels.
        panel: Numbers of the blocks that are counted.
        numbers: (k, q), which bins of each label are counted, all but one.
        exact: A type in which the sums of all samples are exact.
        way: Which of the three ways.
    """

    def __init__(self, blocks: list[slice], panel: list[int], numbers: Tensor, exact: torch.dtype, way: Way) -> None:
        self.way, self.exact = way, exact
        self._blocks, self._panel, self._k = blocks, panel, len(numbers)
        self._first = blocks[panel[0]].start
        self._numbers = numbers[:, self._first :]
        self._width = self._k * (blocks[-1].stop - self._first)
        most_hot = max(1, _MOST_HOT_CELLS // self._width)
        if way == "sparse":  # half precision halves what is read; float32 adds up
            self._rows, self._most_rows, own_bins = min(EXACT_HALF, most_hot), EXACT_SINGLE, self._k
        elif way == "bits":
            self._rows, self._most_rows, own_bins = min(_BIT_ROWS, _BIT_CELLS // self._width), EXACT_SINGLE, self._k
        else:  # enough rows for a fast product, few enough for a cache; and neither count reaches the other
            fast = min(max(_HOT_CELLS // self._width, _HOT_ROWS), 4 * _HOT_ROWS)
            self._rows, self._most_rows, own_bins = min(fast, most_hot), _SHARE - 1, (self._k + 1) // 2
        # Of each block from the panel's first on: its labels, and its one-hot columns, all labels for the first bin,
        # then for the next.
        self._labels: dict[int, slice] = {}
        self._columns: dict[int, slice] = {}
        self._recent: list[Tensor] = []
        for i in range(panel[0], len(blocks)):
            start, stop = blocks[i].start - self._first, blocks[i].stop - self._first
            self._labels[i], self._columns[i] = slice(start, stop), slice(self._k * start, self._k * stop)
            if i in panel:
                size = own_bins * (stop - start), self._width - self._k * start
                self._recent.append(torch.zeros(size, device=numbers.device))
        self._total: list[Tensor] = []
        self._since = 0
        self._hot = np.empty(0, np.float32)

    def add(self, binned: Tensor) -> None:
        """Count a chunk of bins, (rows, q)."""
        rows = min(self._rows, self._most_rows)
        for part in torch.split(binned[:, self._first :], rows) if len(binned) else ():
            if self._since + len(part) > self._most_rows:
                self._total, self._since = self._sums(), 0
                self._recent = [torch.zeros_like(block) for block in self._recent]
            if self.way == "sparse":
                self._add_sparsely(part)
            elif self.way == "bits":
                self._add_bits(part)
            else:
                self._add_product(part)
            self._since += len(part)

    def pairs(self, margin: Tensor | None, total: Total) -> Iterator[PairCounts]:
        """What was counted by all ranks; without a ``margin``, the diagonals of all blocks hold it."""
        counted = [total(block) for block in self._sums()]
        if margin is None:
            # A bin always occurs together with itself.
            margin = torch.cat([block.diagonal().view(self._k, -1) for block in counted], dim=1)
        margin = margin.to(counted[0])
        for i, block in zip(self._panel, counted, strict=True):
            for j in range(i, len(self._blocks)):
                rows, columns, start = self._blocks[i], self._blocks[j], self._columns[i].start
                joint = block[:, self._columns[j].start - start : self._columns[j].stop - start]
                joint = joint.view(self._k, rows.stop - rows.start, self._k, -1).transpose(1, 2).contiguous()
                yield PairCounts(rows, columns, joint, margin[:, rows], margin[:, columns])

    def _sums(self) -> list[Tensor]:
        """Counts of all bins of each block, so far."""
        sums = []
        for number, recent in enumerate(self._recent):
            counts = recent
            if self.way == "bits":  # of the block with itself, the half above the diagonal is the one that was counted
                own = np.from_dlpack(recent)[:, : len(recent)]
                whole = torch.from_numpy(np.triu(own) + np.triu(own, 1).T)
                counts = torch.cat([whole, recent[:, len(recent) :]], dim=1)
            elif self.way == "product":  # the two counts of each number, one behind the other
                high = (recent * (1 / _SHARE)).floor_()
                rows = self._k * len(recent) // ((self._k + 1) // 2)
                counts = torch.cat([recent.sub(high, alpha=_SHARE), high[: rows - len(recent)]])
            sums.append(self._total[number].add_(counts) if self._total else counts.to(self.exact))
        return sums

    def _add_product(self, binned: Tensor) -> None:
        """Multiply each block with itself and all later ones."""
        hot = self._one_hot(binned)
        for i, recent in zip(self._panel, self._recent, strict=True):
            own, half = hot[self._columns[i]], len(recent)
            both = len(own) - half
            shared = _shared(own[:both], own[half:])
            if both < half:  # an odd number of bins
                shared = torch.cat([shared, own[both:half]])
            recent.addmm_(shared, hot[self._columns[i].start :].T)

    def _one_hot(self, binned: Tensor) -> Tensor:
        """Which of the rows of bins is in each bin of each label that is counted, (columns, rows) float32."""
        values, numbers, rows = _transposed(binned), self._numbers, len(binned)
        if not _is_for_numpy(binned):
            one_hot = torch.empty(self._width, rows, device=binned.device)
            for block, labels in self._labels.items():
                out = one_hot[self._columns[block]].view(self._k, -1, rows)
                torch.eq(values[labels], numbers[:, labels, None], out=out)
            return one_hot
        if self._hot.size < self._width * rows:  # used again: fresh memory costs more than what is written to it
            self._hot = np.empty(self._width * rows, np.float32)
        hot = self._hot[: self._width * rows].reshape(self._width, rows)
        for block, labels in self._labels.items():
            is_in = np.from_dlpack(values[labels]) == np.from_dlpack(numbers[:, labels, None])
            hot[self._columns[block]].reshape(self._k, -1, rows)[...] = is_in
        return torch.from_numpy(hot)

    def _add_sparsely(self, binned: Tensor) -> None:
        """Find the samples of each bin and add their rows."""
        rows, columns = len(binned), np.arange(self._width + 1)
        cell = np.flatnonzero(self._is_in(binned))
        begin = np.searchsorted(cell, rows * columns)
        column = np.repeat(columns[:-1], np.diff(begin))
        row = cell - rows * column
        hot = np.zeros(rows * self._width, np.float16)
        hot[self._width * row + column] = 1
        samples, one_hot = torch.from_numpy(row), torch.from_numpy(hot).view(rows, self._width)
        for i, recent in zip(self._panel, self._recent, strict=True):
            own = self._columns[i]
            low, high = begin[own.start], begin[own.stop]
            bags = torch.from_numpy(begin[own] - low)
            recent += embedding_bag(samples[low:high], one_hot[:, own.start :], bags, mode="sum")

    def _add_bits(self, binned: Tensor) -> None:
        """Count the samples that two columns share."""
        words = np.packbits(self._is_in(binned, 64), axis=1).view(np.uint64)
        for i, recent in zip(self._panel, self._recent, strict=True):
            sums = np.zeros(recent.shape, np.float32)
            later = words[self._columns[i].start :]
            several = max(1, _BIT_WORDS // later.size)
            for first in range(0, len(recent), several):
                own = slice(first, min(first + several, len(recent)))
                shared = np.bitwise_count(later[own, None] & later[first:])
                sums[own, first:] = shared.sum(axis=2, dtype=np.uint16)
            recent += torch.from_numpy(sums)

    def _is_in(self, binned: Tensor, multiple: int = 1) -> npt.NDArray[np.bool_]:
        """Which rows are in each bin of each label that is counted, (columns, rows), rows filled up to a multiple."""
        rows = len(binned)
        is_in = np.zeros((self._width, -(-rows // multiple) * multiple), np.bool_)
        values, numbers = np.from_dlpack(_transposed(binned)), np.from_dlpack(self._numbers)
        for block, labels in self._labels.items():
            view = is_in[self._columns[block]].reshape(self._k, -1, is_in.shape[1])[:, :, :rows]
            np.equal(values[labels], numbers[:, labels, None], out=view)
        return is_in


def _is_for_numpy(values: Tensor) -> bool:
    """Whether NumPy does what goes cell by cell: its one thread waits for no other, as PyTorch's do in every step.

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
