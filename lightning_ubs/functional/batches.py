"""Drawing from P with repeats, and batches of distinct samples, each as if drawn one after the other."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Generator, Tensor

# Draws are made in blocks of this many, whose random order fits into a processor's cache.
_DRAWS = 2**21
# Batches are made in blocks of about this many cells, so that memory does not grow with the epoch.
_BLOCK_CELLS = 2**21
# Light samples may collide in a batch about this often per draw; heavier ones are raced instead.
_COLLISIONS = 0.25


class IndependentDraws:
    """Ids drawn with replacement by inverting the float64 cumulative sum of P.

    Looking up random numbers in a long table misses the cache every time. So the numbers are made in ascending order
    (sums of exponential gaps, divided by the last, are sorted uniform numbers), looked up in one sweep, and
    shuffled. Sorted draws in random order are independent draws.

    Args:
        probabilities: P, (n,) float64, non-negative with a positive sum, not necessarily normalized.

    >>> IndependentDraws(torch.tensor([0.0, 1.0]))(3, torch.Generator().manual_seed(0))
    tensor([1, 1, 1])
    """

    def __init__(self, probabilities: Tensor) -> None:
        self._cdf = probabilities.cumsum(0)
        self.total = self._cdf[-1]
        # Rounding may push a number onto the total itself: the last sample with a positive probability takes it.
        self._last = torch.searchsorted(self._cdf, self.total)

    def __call__(self, count: int, generator: Generator) -> Tensor:
        """``count`` ids, (count,) int64."""
        ids = torch.empty(count, dtype=torch.int64, device=self._cdf.device)
        for block in torch.split(ids, _DRAWS):
            self._fill(block, generator)
        return ids

    def _fill(self, ids: Tensor, generator: Generator) -> None:
        count, device = len(ids), ids.device
        gaps = torch.empty(count + 1, dtype=torch.float64, device=device).exponential_(generator=generator)
        ascending = gaps.cumsum(0)
        found = search_ascending(self._cdf, ascending[:-1] * (self.total / ascending[-1]))
        shuffle = torch.randperm(count, generator=generator, device=device)
        torch.index_select(torch.minimum(found, self._last), 0, shuffle, out=ids)


class DistinctBatches:
    r"""Batches drawn without replacement inside each, in O(n + m log b) for m draws and any P.

    Let sample i arrive at the times of a Poisson process of rate :math:`P_i`. The order of first arrivals is that of
    drawing one after the other without replacement. A batch needs the first b of them:

    * A *heavy* sample would arrive again and again, so only its first arrival is drawn: exponential, rate :math:`P_i`.
    * *Light* samples arrive together as one process whose rate is their total; each arrival is an independent
      draw among them. An arrival of a sample that came before is dropped.

    At most 2b samples are heavy: as few of the largest as make collisions of light ones rare, else the 2b largest. Then
    b samples have arrived about when a light one's expected number of arrivals is 0.7 or less, which is 1.4 arrivals
    for each distinct sample. So a batch costs O(b) draws whatever P is.

    Args:
        probabilities: P, (n,) float64, at least ``size`` of them positive, not necessarily normalized.
        size: Samples in a batch (b).

    >>> DistinctBatches(torch.tensor([0.9, 0.1, 0.0]).double(), 2)(1, torch.Generator().manual_seed(0)).sort().values
    tensor([[0, 1]])
    """

    def __init__(self, probabilities: Tensor, size: int) -> None:
        self.size = size
        self.heavy, collisions = _heavy_samples(probabilities, size)
        self.heavy_rates = probabilities[self.heavy]
        light = probabilities.index_fill(0, self.heavy, 0.0)
        self.light = IndependentDraws(light) if bool((light > 0).any()) else None
        self.width = size + min(math.ceil(size * collisions), size // 2) + 8

    def __call__(self, num_batches: int, generator: Generator) -> Tensor:
        """``num_batches`` independent batches, (num_batches, size) int64."""
        rows = max(1, _BLOCK_CELLS // (self.width + self.heavy.numel()))
        counts = [min(rows, num_batches - first) for first in range(0, num_batches, rows)]
        blocks = [self._block(count, generator) for count in counts]
        return torch.cat(blocks) if blocks else self.heavy.new_empty(0, self.size)

    def _block(self, count: int, generator: Generator) -> Tensor:
        if self.heavy.numel() > 0 or self.light is None:
            return self._merged(_Arrivals(self, count, generator))
        # Without heavy samples, nearly every batch is done after b draws.
        batches = self.light(count * self.size, generator).view(count, self.size)
        colliding = rows_with_repeats(batches)
        if colliding.numel() > 0:
            batches[colliding] = self._merged(_Arrivals(self, batches[colliding], generator))
        return batches

    def _merged(self, arrivals: _Arrivals) -> Tensor:
        """Let samples arrive until every batch has enough."""
        batches = self.heavy.new_empty(arrivals.count, self.size)
        while arrivals.count > 0:
            found, complete = arrivals.first_distinct(self.size)
            batches[arrivals.rows[complete]] = found[complete]
            arrivals.go_on(~complete)
        return batches


class _Arrivals:
    """First arrivals of heavy samples and all arrivals of light ones so far, for each unfinished batch."""

    def __init__(self, source: DistinctBatches, started: int | Tensor, generator: Generator) -> None:
        self.source, self.generator = source, generator
        rates = source.heavy_rates
        count = started if isinstance(started, int) else len(started)
        self.rows = torch.arange(count, device=rates.device)
        self.heavy_times = _exponential(count, rates.numel(), rates, generator) / rates
        if isinstance(started, int):
            self.ids = source.heavy.new_empty(count, 0)
            self.times = rates.new_empty(count, 0)
            self._extend()
        else:
            # Where nothing is heavy, only the order of arrivals matters.
            self.ids = started
            self.times = torch.arange(started.shape[1], device=rates.device).to(rates).expand(started.shape)

    @property
    def count(self) -> int:
        """Unfinished batches."""
        return len(self.rows)

    def first_distinct(self, size: int) -> tuple[Tensor, Tensor]:
        """The first ``size`` distinct samples of each batch, and whether so many have arrived yet."""
        times = self.times.masked_fill(repeats_in_rows(self.ids), math.inf)
        times = torch.cat([self.heavy_times, times], dim=1)
        ids = torch.cat([self.source.heavy.expand(self.count, -1), self.ids], dim=1)
        if self.source.light is None:
            complete = torch.ones_like(self.rows, dtype=torch.bool)
        else:
            complete = (times <= self.times[:, -1:]).sum(1) >= size
        return ids.gather(1, times.argsort(dim=1)[:, :size]), complete

    def go_on(self, unfinished: Tensor) -> None:
        """Keep the unfinished batches and let more light samples arrive in them."""
        self.rows, self.heavy_times = self.rows[unfinished], self.heavy_times[unfinished]
        self.ids, self.times = self.ids[unfinished], self.times[unfinished]
        if self.count > 0:
            self._extend()

    def _extend(self) -> None:
        light, width = self.source.light, self.source.width
        if light is None:
            return
        ids = light(self.count * width, self.generator).view(self.count, width)
        gaps = _exponential(self.count, width, self.heavy_times, self.generator) / light.total
        now = self.times[:, -1:] if self.times.shape[1] else 0.0
        self.ids = torch.cat([self.ids, ids], dim=1)
        self.times = torch.cat([self.times, now + gaps.cumsum(1)], dim=1)


def repeats_in_rows(ids: Tensor) -> Tensor:
    """Where an id stands in its row for the second time or more.

    >>> repeats_in_rows(torch.tensor([[4, 7, 4, 4]]))
    tensor([[False, False,  True,  True]])
    """
    ordered, origin = ids.sort(dim=1, stable=True)
    repeat = torch.zeros_like(ids, dtype=torch.bool)
    repeat[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeat).scatter(1, origin, repeat)


def _exponential(rows: int, columns: int, like: Tensor, generator: Generator) -> Tensor:
    return torch.empty(rows, columns, dtype=like.dtype, device=like.device).exponential_(generator=generator)


def _heavy_samples(probabilities: Tensor, size: int) -> tuple[Tensor, float]:
    """Ids of the samples to race, and how often the others collide per draw of a batch."""
    most = min(2 * size, probabilities.numel())
    largest, ids = probabilities.topk(most)
    # Logarithms of sum and sum of squares of all but the k largest, for k = 0 .. most: squares would underflow.
    unit = largest[-1].clamp(min=torch.finfo(largest.dtype).tiny)
    rest = probabilities.index_fill(0, ids, 0.0).div_(unit)
    tail = largest.log().flip(0)
    total = torch.cat([(rest.sum().log() + unit.log()).view(1), tail]).logcumsumexp(0)
    squares = torch.cat([(rest.square_().sum().log() + 2 * unit.log()).view(1), 2 * tail]).logcumsumexp(0)
    collisions = (size * (squares - 2 * total).exp()).nan_to_num(0.0).flip(0)
    rare = collisions <= _COLLISIONS
    rare[-1] = True
    count = int(rare.int().argmax())
    return ids[:count], float(collisions[count])


def search_ascending(table: Tensor, ascending: Tensor) -> Tensor:
    """For each number, how many entries of ``table`` are not above it; both ascend.

    >>> search_ascending(torch.tensor([0.1, 0.5, 1.0]), torch.tensor([0.0, 0.5, 0.7])).tolist()
    [0, 2, 2]
    """
    if table.device.type != "cpu" or torch.get_num_threads() > 1:  # PyTorch shares the numbers among threads
        return torch.searchsorted(table, ascending, right=True)
    return torch.from_numpy(np.searchsorted(table.numpy(), ascending.numpy(), side="right"))


def rows_with_repeats(ids: Tensor) -> Tensor:
    """The rows in which an id stands more than once.

    >>> rows_with_repeats(torch.tensor([[4, 7, 4], [1, 2, 3]])).tolist()
    [0]
    """
    if ids.device.type != "cpu":
        ordered = ids.sort(dim=1).values
        return (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero().squeeze(1)
    numbers = np.sort(ids.numpy(), axis=1)
    return torch.from_numpy(np.flatnonzero((numbers[:, 1:] == numbers[:, :-1]).any(1)))
