"""Independent draws from P."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from lightning_ubs.functional.quick import search_ascending

# Draws are made in blocks of this many, whose random order fits into a processor's cache.
_BLOCK = 2**21


class IndependentDraws:
    """Draws ids with replacement by inverting the float64 cumulative sum of P.

    Looking up random numbers in a long table misses the cache every time. So the numbers are made in ascending order
    (sums of exponential gaps, divided by the last, are sorted uniform numbers), looked up in one sweep, and
    shuffled. Sorted draws in random order are independent draws.

    Args:
        probabilities: P, (n,) float64, non-negative with a positive sum, not necessarily normalised.

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
        for block in torch.split(ids, _BLOCK):
            self._fill(block, generator)
        return ids

    def _fill(self, ids: Tensor, generator: Generator) -> None:
        count, device = len(ids), ids.device
        gaps = torch.empty(count + 1, dtype=torch.float64, device=device).exponential_(generator=generator)
        ascending = gaps.cumsum(0)
        found = search_ascending(self._cdf, ascending[:-1] * (self.total / ascending[-1]))
        shuffle = torch.randperm(count, generator=generator, device=device)
        torch.index_select(torch.minimum(found, self._last), 0, shuffle, out=ids)
