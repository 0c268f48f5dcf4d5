"""How often each two bins of two labels occur together: exact counts, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from lightning_ubs.functional.ways_of_counting import (
    EXACT_SINGLE,
    Counts,
    PairCounts,
    ProductCounts,
    SparseCounts,
    Total,
)

Chunks = Callable[[], Iterable[Tensor]]

# Labels in a block: few enough that little of the symmetric other half is counted, enough for a fast product.
_BLOCK_LABELS = 64
# A product with fewer multiplications is done before its density is measured.
_WORTH_MEASURING = 2**30
# Where a smaller share of values lies outside their label's most frequent bin, adding rows beats multiplying.
_SPARSE_SHARE = 0.3


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
            yield (chunk * self._bins).clamp_(0, self._bins - 1).to(self._dtype)

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
