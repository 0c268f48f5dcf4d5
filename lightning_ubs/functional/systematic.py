"""Systematic draws: every sample as often as its share of the epoch says, rounded up or down."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

# An expected count this close to a whole number, relatively, is that number: P itself is no more precise.
_ROUNDING = 1e-12


def systematic_epoch(probabilities: Tensor, batch_size: int, num_draws: int, generator: Generator) -> Tensor:
    r"""An epoch in which sample i comes :math:`\lfloor mP_i\rfloor` or :math:`\lceil mP_i\rceil` times.

    Its mean number of copies is exactly :math:`mP_i`. The order is random, and copies of a sample stand in different
    batches. Where that is impossible (a sample with more copies than there are batches, or more samples
    that need every batch than the short last one has room for), as few copies as possible share a batch. With uniform P
    and m = n it is exactly a shuffled pass. Everything is O(n + m); nothing is sorted.

    Args:
        probabilities: P, (n,) float64, non-negative with a positive sum, not necessarily normalised.
        batch_size: samples in every batch but the last.
        num_draws: m, samples in the epoch.
        generator: the only source of randomness.

    Returns:
        (num_draws,) int64 sample ids, one batch after the other.

    >>> ids = systematic_epoch(torch.tensor([0.5, 0.3, 0.2]).double(), 5, 10, torch.Generator().manual_seed(0))
    >>> ids.bincount().tolist()
    [5, 3, 2]
    """
    order = torch.randperm(probabilities.numel(), generator=generator, device=probabilities.device)
    counts = _counts(probabilities.index_select(0, order), num_draws, generator)
    batches = max(1, -(-num_draws // batch_size))
    # What comes first is dealt to all batches, so samples that need every one of them go first. What a
    # batch must have twice goes last.
    every = (counts >= batches).nonzero().squeeze(1)
    some = counts.masked_fill(counts >= batches, 0)
    copies = torch.cat(
        [
            order[every].repeat_interleave(batches),
            order.repeat_interleave(some),
            order[every].repeat_interleave(counts[every] - batches),
        ]
    )
    return torch.empty_like(copies).index_copy_(0, _dealt_places(batch_size, num_draws, generator), copies)


def _counts(probabilities: Tensor, num_draws: int, generator: Generator) -> Tensor:
    """How often each sample comes: whole parts for sure, the rest by equally spaced points with a random start."""
    expected = probabilities * (num_draws / probabilities.sum())
    nearest = expected.round()
    whole = torch.where((expected - nearest).abs() <= _ROUNDING * nearest, nearest, expected.floor())
    fraction = (expected - whole).clamp(min=0)
    counts = whole.long()
    extra = num_draws - int(counts.sum())
    candidates = fraction.nonzero().squeeze(1)
    if extra <= 0 or candidates.numel() == 0:
        return counts
    point = torch.arange(extra, device=counts.device)
    start = torch.rand((), dtype=torch.float64, device=counts.device, generator=generator)
    chosen = torch.searchsorted(fraction[candidates].cumsum(0), start + point, right=True)
    # A fraction is below 1, so points 1 apart choose different samples, but for the rounding of the sum.
    chosen = (chosen - point).cummax(0).values + point
    chosen = torch.minimum(chosen, candidates.numel() - extra + point)
    counts[candidates[chosen]] += 1
    return counts


def _dealt_places(batch_size: int, num_draws: int, generator: Generator) -> Tensor:
    """Where in the epoch each of the copies goes that are dealt to the batches in turn, like cards.

    Neighbours among the copies go to different batches. The order of the full batches is random; inside a batch, so is
    the order of the rounds of dealing, and where it begins.
    """
    device = generator.device
    full, short = divmod(num_draws, batch_size)
    dealt = torch.arange(num_draws, device=device)
    # The short batch takes part, last in turn, until it is full.
    early = dealt < short * (full + 1)
    late = dealt - short * (full + 1)
    turn = torch.where(early, dealt % (full + 1), late % max(1, full))
    number = torch.where(early, dealt // (full + 1), short + late // max(1, full))
    rotation = torch.randint(batch_size, (full + 1,), generator=generator, device=device)
    rounds = torch.randperm(batch_size, generator=generator, device=device)
    batch = torch.randperm(full, generator=generator, device=device)
    batch = torch.cat([batch, batch.new_tensor([full])])
    last = turn == full
    place = torch.where(last, (number + rotation[turn]) % max(1, short), rounds[(number + rotation[turn]) % batch_size])
    return batch[turn] * batch_size + place
