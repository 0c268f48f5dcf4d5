"""Drawing by blocks: an epoch's order that is made a window of blocks at a time."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Passes over all samples go in pieces of about this many, which stay in a processor's cache.
_PIECE = 2**18
# An expected count this close to a whole number, relatively, is that number: P itself is no more precise.
_ROUNDING = 1e-12


class BlockedEpoch:
    r"""The ids of one epoch whose blocks of neighboring samples come in random order, ``window`` of them at a time.

    Sample i comes :math:`\lfloor mP_i\rfloor` or :math:`\lceil mP_i\rceil` times, on average :math:`mP_i` times, as in
    :func:`~lightning_ubs.functional.systematic.systematic_epoch`: the whole part is certain, and equally spaced points
    with one random start choose among the fractions, which are laid out block after block, shuffled in each block.
    Where a block begins among the points follows from the sums of the blocks before it. So one pass over P finds the
    block sums, and a window needs nothing but the probabilities of its own blocks. The samples of a window are
    shuffled, and copies of one are dealt to different batches as far as the window reaches into as many.

    The epoch is a pure function of its arguments. Any part of it can be asked for at any time; windows that were made
    last are kept.

    Args:
        probabilities: P, (n,) float64 on the CPU, non-negative with a positive sum, not necessarily normalized; None
            for a shuffled pass, in which every sample comes once.
        bounds: (blocks + 1,) ascending int64, from 0 to n: block j holds the samples ``bounds[j]`` to
            ``bounds[j + 1] - 1``.
        window: Blocks that are open at a time.
        num_draws: Samples in the epoch (m); n for a shuffled pass.
        batch_size: Samples per batch, for dealing copies.
        key: Seeds all randomness.
        kept_windows: Windows that are kept.

    >>> epoch = BlockedEpoch(torch.tensor([0.5, 0.3, 0.2, 0.0]).double(), np.array([0, 2, 4]), 1, 10, 5, key=0)
    >>> epoch.ids(0, 10).bincount(minlength=4).tolist(), epoch.num_windows
    ([5, 3, 2, 0], 2)
    """

    def __init__(
        self,
        probabilities: Tensor | None,
        bounds: Integers,
        window: int,
        num_draws: int,
        batch_size: int,
        key: int,
        kept_windows: int = 4,
    ) -> None:
        self.num_draws = num_draws
        self._probabilities = None if probabilities is None else probabilities.numpy()
        self._bounds = bounds
        self._window = window
        self._batch_size = batch_size
        self._key = key
        self._kept_windows = kept_windows
        self._kept: OrderedDict[int, Tensor] = OrderedDict()
        self._order = _permutation(len(bounds) - 1, _generator(key, 0))
        self._scale = 1.0
        self._edges: Floats | None = None
        self._start = 0.0
        # Draws before each block, in the order of the epoch, and before each window.
        self._draws = _before(np.diff(bounds)[self._order]) if probabilities is None else self._count_draws()
        self._windows = np.append(self._draws[:-1:window], self._draws[-1])
        # The window that was read last and its places: batches are asked for one after the other, and often.
        self._last = 0, 0, 0

    @property
    def num_windows(self) -> int:
        """Windows in the epoch."""
        return len(self._windows) - 1

    def blocks_of(self, window: int) -> Integers:
        """Numbers of the blocks that are open in a window."""
        return self._order[window * self._window : (window + 1) * self._window]

    def ids(self, first: int, last: int) -> Tensor:
        """The ids at the places ``first`` to ``last - 1`` of the epoch, int64."""
        first, last = max(0, first), min(last, self.num_draws)
        if first >= last:
            return torch.empty(0, dtype=torch.int64)
        window, start, stop = self._last
        if start <= first and last <= stop:
            return self._ids_of(window)[first - start : last - start]
        begin = int(np.searchsorted(self._windows, first, side="right")) - 1
        end = int(np.searchsorted(self._windows, last, side="left"))
        parts = [
            self._ids_of(window)[max(0, first - start) : last - start]
            for window, start in zip(range(begin, end), self._windows[begin:end].tolist(), strict=True)
        ]
        self._last = end - 1, *self._windows[end - 1 : end + 1].tolist()
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _ids_of(self, window: int) -> Tensor:
        """The shuffled ids of a window."""
        if window in self._kept:
            self._kept.move_to_end(window)
            return self._kept[window]
        places = range(window * self._window, min((window + 1) * self._window, len(self._order)))
        drawn = [self._drawn(place) for place in places]
        samples = np.concatenate([ids for ids, _ in drawn])
        counts = np.concatenate([count for _, count in drawn])
        # A window's randomness must not be that of a block.
        shuffled = _permutation(len(samples), _generator(self._key, len(self._order) + 1 + window))
        copies = samples[shuffled].repeat(counts[shuffled])
        start = int(self._windows[window])
        batches = _generator(self._key, -1 - window)
        ids = torch.from_numpy(dealt(copies, start % self._batch_size, self._batch_size, batches))
        self._kept[window] = ids
        while len(self._kept) > self._kept_windows:
            self._kept.popitem(last=False)
        return ids

    def _drawn(self, place: int) -> tuple[Integers, Integers]:
        """Ids that come, and how often, of the block at a place of the epoch's order."""
        block = int(self._order[place])
        first, last = int(self._bounds[block]), int(self._bounds[block + 1])
        if self._probabilities is None:
            return np.arange(first, last), np.ones(last - first, np.int64)
        order = _permutation(last - first, _generator(self._key, 1 + block))
        counts, fraction = _expected(self._probabilities[first:last][order], self._scale)
        assert self._edges is not None
        low, high = self._edges[place], self._edges[place + 1]
        first_point, last_point = _points_before(np.array([low, high]), self._start).tolist()
        points = np.arange(first_point, last_point) + (self._start - low)
        counts[_chosen(fraction, points)] += 1
        ids = first + order
        return ids[counts > 0], counts[counts > 0]

    def _count_draws(self) -> Integers:
        """Draws before each block; the one pass over all of P."""
        assert self._probabilities is not None
        pieces = _pieces(self._bounds)
        total = sum(float(sums.sum()) for sums in (self._sums(piece) for piece in pieces))
        self._scale = self.num_draws / total
        sums = np.concatenate([self._expected_sums(piece) for piece in pieces], axis=1)[:, self._order]
        whole = _before(sums[0].astype(np.int64))
        edges = np.append(0.0, sums[1].cumsum())
        # Rounding of the sums must neither lose nor add a draw.
        extra = self.num_draws - int(whole[-1])
        edges = np.minimum(edges, extra)
        edges[edges == edges[-1]] = extra
        self._edges, self._start = (
            edges,
            float(torch.rand((), dtype=torch.float64, generator=_generator(self._key, -1))),
        )
        self._start = max(self._start, 2.0**-53)
        return whole + _points_before(edges, self._start)

    def _sums(self, bounds: Integers) -> Floats:
        assert self._probabilities is not None
        values = self._probabilities[bounds[0] : bounds[-1]]
        return _block_sums(values, bounds)

    def _expected_sums(self, bounds: Integers) -> Floats:
        """Sums of whole parts and of fractions of the expected counts of some blocks, (2, blocks)."""
        assert self._probabilities is not None
        counts, fraction = _expected(self._probabilities[bounds[0] : bounds[-1]], self._scale)
        return np.stack([_block_sums(counts.astype(np.float64), bounds), _block_sums(fraction, bounds)])


def dealt(copies: Integers, taken: int, batch_size: int, generator: Generator) -> Integers:
    """The copies, dealt in turn to the batches that they fill, so that neighbors go to different batches.

    The batches come in random order; the first and the last, which may be filled in part only, take turns until they
    have their share.

    Args:
        copies: Ids, copies of one next to each other.
        taken: Places of the first batch that are filled already.
        batch_size: Places of a batch.
        generator: Decides the order of batches.

    >>> ids = dealt(np.array([7, 7, 7, 1, 2, 3]), 0, 2, Generator().manual_seed(0))
    >>> sorted(sorted(batch) for batch in ids.reshape(3, 2).tolist())
    [[1, 7], [2, 7], [3, 7]]
    """
    head = min(-taken % batch_size, len(copies))
    full, tail = divmod(len(copies) - head, batch_size)
    starts = head + batch_size * _permutation(full, generator)
    # A partly filled batch with more room takes turns for longer, so it stands before the other one.
    partial = sorted([(head, 0), (tail, head + batch_size * full)], reverse=True)
    places = []
    row = 0
    for width, until in ((2, partial[1][0]), (1, partial[0][0]), (0, batch_size if full else 0)):
        turn = np.concatenate([starts, np.array([start for _, start in partial[:width]], dtype=np.int64)])
        if until > row:
            places.append((np.arange(row, until)[:, None] + turn).ravel())
            row = until
    ids = np.empty_like(copies)
    if places:
        ids[np.concatenate(places)] = copies
    return ids


def _chosen(fraction: Floats, points: Floats) -> Integers:
    """Which samples the points hit, each at most once."""
    candidates = fraction.nonzero()[0]
    count = np.arange(len(points))
    if len(points) == 0:
        return candidates[:0]
    hit = np.searchsorted(fraction[candidates].cumsum(), points, side="right")
    # A fraction is below 1, so points 1 apart choose different samples, but for the rounding of the sums.
    hit = np.maximum.accumulate(hit - count) + count
    return candidates[np.minimum(hit, len(candidates) - len(points) + count)]


def _expected(probabilities: Floats, scale: float) -> tuple[Integers, Floats]:
    """Whole parts and fractions of the expected numbers of copies."""
    expected = probabilities * scale
    nearest = np.rint(expected)
    whole = np.where(np.abs(expected - nearest) <= _ROUNDING * nearest, nearest, np.floor(expected))
    return whole.astype(np.int64), np.maximum(expected - whole, 0.0)


def _points_before(edge: Floats, start: float) -> Integers:
    """How many of the points start, start + 1, … lie before an edge."""
    return np.ceil(np.asarray(edge) - start).clip(0).astype(np.int64)


def _pieces(bounds: Integers) -> list[Integers]:
    """The bounds, cut so that a piece spans a handful of blocks or about ``_PIECE`` samples."""
    cuts = np.searchsorted(bounds, np.arange(0, bounds[-1], _PIECE), side="right") - 1
    cuts = np.unique(np.append(cuts, len(bounds) - 1))
    return [bounds[first : last + 1] for first, last in pairwise(cuts)]


def _block_sums(values: Floats, bounds: Integers) -> Floats:
    return np.add.reduceat(values, bounds[:-1] - bounds[0])


def _before(counts: Integers) -> Integers:
    return np.append(0, counts.cumsum())


def _permutation(count: int, generator: Generator) -> Integers:
    return torch.randperm(count, generator=generator).numpy()


def _generator(key: int, number: int) -> Generator:
    """A generator of its own for each number; the mixing is splitmix64's."""
    mixed = (key + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    return Generator().manual_seed((mixed ^ mixed >> 31) >> 1)
