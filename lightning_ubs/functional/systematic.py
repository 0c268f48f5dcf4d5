"""Systematic draws: every sample as often as its share of the epoch says, rounded up or down."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from lightning_ubs.functional.batches import search_ascending

# Passes over all samples go in blocks of this many, which stay in a processor's cache.
_BLOCK = 2**18
# An expected count this close to a whole number, relatively, is that number: P itself is no more precise.
_ROUNDING = 1e-12
# Above this bound on how much too often copies stand in a short last batch, relatively, every place is made as likely.
_UNEVEN = 1e-3


def systematic_epoch(probabilities: Tensor, batch_size: int, num_draws: int, generator: Generator) -> Tensor:
    r"""An epoch in which sample i comes :math:`\lfloor mP_i\rfloor` or :math:`\lceil mP_i\rceil` times.

    Its mean number of copies is exactly :math:`mP_i`. The order is random, and copies of a sample stand in different
    batches, unless it has at least as many copies as there are batches. Then as few as possible share a batch if all
    batches are full. In a short last batch each sample counts more, in a loss that is a mean over a batch; such samples
    stand there as often as in any other place, and twice in another batch instead. With uniform P and m = n it is
    exactly a shuffled pass. Everything is O(n + m); nothing is sorted.

    Args:
        probabilities: P, (n,) float64, non-negative with a positive sum, not necessarily normalized.
        batch_size: Samples in every batch but the last.
        num_draws: Samples in the epoch (m).
        generator: The only source of randomness.

    Returns:
        (num_draws,) int64 sample ids, one batch after the other.

    >>> ids = systematic_epoch(torch.tensor([0.5, 0.3, 0.2]).double(), 5, 10, torch.Generator().manual_seed(0))
    >>> ids.bincount().tolist()
    [5, 3, 2]
    """
    order = torch.randperm(probabilities.numel(), generator=generator, device=probabilities.device)
    counts = _counts(probabilities.index_select(0, order), num_draws, generator)
    batches = max(1, -(-num_draws // batch_size))
    if _is_uneven(counts, batch_size, num_draws, batches):
        # Wherever the row of copies begins, neighbors go to different batches; each place is as likely for each copy.
        start = int(torch.randint(num_draws, (), generator=generator, device=counts.device))
        return _dealt(order.repeat_interleave(counts).roll(start), batch_size, generator)
    every = (counts >= batches).nonzero().squeeze(1)
    if every.numel() == 0:
        return _dealt(order.repeat_interleave(counts), batch_size, generator)
    # What comes first is dealt to all batches, so samples that need every one of them go first. What a
    # batch must have twice goes last.
    further = counts[every] - batches
    copies = [
        order[every].repeat_interleave(batches),
        order.repeat_interleave(counts.index_fill_(0, every, 0)),
        order[every].repeat_interleave(further),
    ]
    return _dealt(torch.cat(copies), batch_size, generator)


def _is_uneven(counts: Tensor, batch_size: int, num_draws: int, batches: int) -> bool:
    """Whether copies of some sample would stand in a short last batch more often than its share of places says."""
    short = num_draws % batch_size
    copies = int(counts.max()) if short and batches > 1 else 0
    if copies < 2 or copies >= batches:
        return copies > 1
    # Copies are neighbors until they are dealt. The ends of their row go to full batches, and hold a little less of
    # frequent samples, so that all other places hold a little more: what remains of that in large epochs stays.
    more = (copies - 1) / (num_draws - copies + 1)
    return (1 - short / batch_size) * more / batches > _UNEVEN


def _counts(probabilities: Tensor, num_draws: int, generator: Generator) -> Tensor:
    """How often each sample comes: whole parts for sure, the rest by equally spaced points with a random start."""
    counts, fraction = _expected(probabilities, num_draws / probabilities.sum())
    extra = num_draws - int(counts.sum())
    available = int(fraction.count_nonzero())
    if extra <= 0 or available == 0:
        return counts
    candidates = None if available == len(counts) else fraction.nonzero().squeeze(1)
    edges = (fraction if candidates is None else fraction[candidates]).cumsum(0)
    point = torch.arange(extra, device=counts.device)
    start = torch.rand((), dtype=torch.float64, device=counts.device, generator=generator)
    chosen = search_ascending(edges, start + point)
    # A fraction is below 1, so points 1 apart choose different samples, but for the rounding of the sum.
    chosen = (chosen - point).cummax(0).values.add_(point)
    chosen = torch.minimum(chosen, point.add_(available - extra))
    return counts.index_add_(0, chosen if candidates is None else candidates[chosen], torch.ones_like(chosen))


def _expected(probabilities: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Whole parts and fractions of the expected numbers of copies."""
    counts = torch.empty_like(probabilities, dtype=torch.int64)
    fractions = torch.empty_like(probabilities)
    for probs, count, fraction in zip(
        *(torch.split(values, _BLOCK) for values in (probabilities, counts, fractions)), strict=True
    ):
        expected = probs * scale
        nearest = expected.round()
        whole = torch.where((expected - nearest).abs() <= _ROUNDING * nearest, nearest, expected.floor())
        count.copy_(whole)
        fraction.copy_((expected - whole).clamp_(min=0))
    return counts, fractions


def _dealt(copies: Tensor, batch_size: int, generator: Generator) -> Tensor:
    """The copies, dealt to the batches in turn, like cards, one batch behind the other.

    Neighbors among the copies go to different batches. The order of the full batches is random; inside a batch, so is
    the order of the rounds of dealing, and where it begins. The short batch takes part, last in turn, until it is full.
    """
    device = copies.device
    full, short = divmod(len(copies), batch_size)
    rotation = torch.randint(batch_size, (full + 1,), generator=generator, device=device)
    rounds = torch.randperm(batch_size, generator=generator, device=device).repeat(2)
    batch = torch.randperm(full, generator=generator, device=device)
    # In each round every batch gets one copy: rows are rounds, columns are batches.
    dealt_early = short * (full + 1)
    early, late = copies[:dealt_early].view(short, full + 1), copies[dealt_early:].view(batch_size - short, full)
    numbers = torch.arange(batch_size, device=device).unsqueeze(1)
    ids = torch.empty_like(copies)
    step = max(1, _BLOCK // batch_size)
    for some in (slice(first, min(first + step, full)) for first in range(0, full, step)):
        places = batch[some] * batch_size + rounds[numbers + rotation[some]]
        ids.index_copy_(0, places.flatten(), torch.cat([early[:, some], late[:, some]]).flatten())
    if short > 0:
        ids[full * batch_size + (numbers[:short, 0] + rotation[full]) % short] = early[:, full]
    return ids
