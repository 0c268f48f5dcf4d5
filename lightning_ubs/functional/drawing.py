"""Drawing all batches of an epoch at once."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Generator, Tensor

from lightning_ubs.functional.batches import DistinctBatches, IndependentDraws
from lightning_ubs.functional.systematic import systematic_epoch

Replacement = Literal["batch", "none", "full", "systematic"]

# A positive probability below this share of the largest counts as this share: its arrival time must stay finite.
_SMALLEST_SHARE = 1e-300
# Most steps of Newton's method.
_STEPS = 100


def epoch_generator(seed: int, epoch: int) -> Generator:
    """A fresh CPU generator that depends on nothing but (seed, epoch).

    >>> torch.equal(*(torch.randperm(9, generator=epoch_generator(0, 3)) for _ in range(2)))
    True
    """
    key = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
    return Generator().manual_seed(key >> 1)


def check_replacement(replacement: str) -> None:
    """Refuse an unknown way of drawing."""
    if replacement not in get_args(Replacement):
        raise ValueError(
            f"replacement={replacement!r} is unknown; use 'batch' (no repeats inside a batch), "
            "'none' (no repeats in an epoch), 'full' (repeats anywhere) or 'systematic' (as often as P says, rounded)."
        )


def draw_plan(
    probabilities: Tensor,
    batch_size: int,
    num_batches: int,
    generator: Generator,
    replacement: Replacement = "batch",
) -> Tensor:
    """Draw an epoch of full batches from P; see :func:`draw_epoch` for the ways of drawing.

    Args:
        probabilities: P, (n,), non-negative, not necessarily normalized.
        batch_size: Samples in a batch.
        num_batches: Batches in the epoch.
        generator: Generator on the device of ``probabilities``; the only source of randomness.
        replacement: How to draw.

    Returns:
        (num_batches, batch_size) int64 sample ids.

    >>> p = torch.full((6,), 1 / 6, dtype=torch.float64)
    >>> plan = draw_plan(p, 3, 2, torch.Generator().manual_seed(0), "none")
    >>> sorted(plan.flatten().tolist())
    [0, 1, 2, 3, 4, 5]
    """
    if batch_size < 1 or num_batches < 0:
        raise ValueError(
            f"a plan needs batch_size ≥ 1 and num_batches ≥ 0, got {batch_size} and {num_batches}; check both."
        )
    ids = draw_epoch(probabilities, batch_size, num_batches * batch_size, generator, replacement)
    return ids.view(num_batches, batch_size)


def draw_epoch(
    probabilities: Tensor,
    batch_size: int,
    num_draws: int,
    generator: Generator,
    replacement: Replacement = "batch",
) -> Tensor:
    """Draw an epoch of exactly ``num_draws`` samples from P; its last batch may be short.

    * ``"batch"``: independent batches, each as if its samples were drawn one after the other without replacement.
    * ``"none"``: the same over the whole epoch, so no sample comes twice.
    * ``"full"``: every draw is independent.
    * ``"systematic"``: sample i comes ⌊mP_i⌋ or ⌈mP_i⌉ times, on average mP_i times, its copies in different batches
      where that is possible (:func:`~lightning_ubs.functional.systematic.systematic_epoch`).

    Cumulative sums are float64, so n may exceed 2^24. The cost is O(n log n) for the whole epoch, whatever P is.

    Args:
        probabilities: P, (n,), non-negative, not necessarily normalized.
        batch_size: Samples in every batch but the last.
        num_draws: Samples in the epoch (m).
        generator: Generator on the device of ``probabilities``; the only source of randomness.
        replacement: How to draw.

    Returns:
        (num_draws,) int64 sample ids, one batch after the other.

    >>> p = torch.tensor([0.7, 0.1, 0.1, 0.1])
    >>> ids = draw_epoch(p, 2, 5, torch.Generator().manual_seed(0))
    >>> [len(set(batch.tolist())) for batch in ids.split(2)]
    [2, 2, 1]
    """
    check_replacement(replacement)
    if batch_size < 1 or num_draws < 0:
        raise ValueError(
            f"an epoch needs batch_size ≥ 1 and num_draws ≥ 0, got {batch_size} and {num_draws}; check both."
        )
    size = min(batch_size, max(1, num_draws))
    distinct = {"batch": size, "none": num_draws}.get(replacement, 0)
    probabilities = _checked(probabilities.double(), replacement, distinct)
    if replacement == "full":
        return IndependentDraws(probabilities)(num_draws, generator)
    if replacement == "none":
        return weighted_order(probabilities, generator)[:num_draws]
    if replacement == "systematic":
        return systematic_epoch(probabilities, batch_size, num_draws, generator)
    # The first r of b samples drawn one after the other are r samples drawn one after the other.
    return DistinctBatches(probabilities, size)(-(-num_draws // size), generator).flatten()[:num_draws]


def shuffled_pass(num_samples: int, count: int, generator: Generator) -> Tensor:
    """The first ``count`` ids of a random order of all samples: a plain epoch, as a shuffling DataLoader makes it.

    >>> sorted(shuffled_pass(4, 4, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(num_samples, generator=generator, device=generator.device)[:count]


def fill_last_batch(ids: Tensor, batch_size: int, num_samples: int, generator: Generator) -> Tensor:
    """``ids`` with its last batch filled by other samples, drawn uniformly, none of them twice in that batch.

    >>> fill_last_batch(torch.tensor([2, 0, 1]), 2, 3, torch.Generator().manual_seed(0))[:3].tolist()
    [2, 0, 1]
    """
    missing = -len(ids) % batch_size
    last = ids[len(ids) - (batch_size - missing) :] if missing else ids[:0]
    order = shuffled_pass(num_samples, num_samples, generator)
    return torch.cat([ids, order[~torch.isin(order, last)][:missing]])


def weighted_order(probabilities: Tensor, generator: Generator) -> Tensor:
    """All n ids in the order of drawing without replacement: an exponential race with rates P."""
    race = torch.empty_like(probabilities).exponential_(generator=generator) / probabilities
    return race.argsort(stable=True)


def distinct_share(ids: Tensor, num_samples: int) -> float:
    """Which share of the samples is among ``ids``.

    >>> distinct_share(torch.tensor([0, 2, 0]), 4)
    0.5
    """
    seen = torch.zeros(num_samples, dtype=torch.bool).index_fill_(0, ids, True)
    return int(seen.count_nonzero()) / max(1, num_samples)


def expected_distinct(probabilities: Tensor, batch_size: int, num_draws: int, replacement: Replacement) -> float:
    r"""Expected number of distinct samples in an epoch of m draws.

    With ``"full"`` it is :math:`\sum_i 1-(1-P_i)^m`, with ``"systematic"`` :math:`\sum_i\min(1,mP_i)`, with ``"none"``
    m. With ``"batch"``, a batch of b distinct samples holds sample i with probability :math:`1-e^{-cP_i}`, where c
    makes these sum to b (exact as n grows).

    Args:
        probabilities: P, (n,), summing to 1.
        batch_size: Samples per batch on all ranks together (b).
        num_draws: Samples in the epoch (m).
        replacement: How samples are drawn.

    >>> round(expected_distinct(torch.full((1000,), 1e-3), 100, 1000, "full"))
    632
    """
    check_replacement(replacement)
    p = probabilities.double()
    if replacement == "none":
        return float(min(num_draws, int((p > 0).sum())))
    if replacement == "systematic":
        return float((num_draws * p).clamp(max=1).sum())
    if replacement == "full":
        return float(-torch.expm1(num_draws * torch.log1p(-p.clamp(max=1 - 1e-15))).sum())
    whole, rest = divmod(num_draws, batch_size)
    rate = sum(count * _arrivals(p, size) for count, size in ((whole, batch_size), (1, rest)) if count and size)
    return float(torch.where(p > 0, -torch.expm1(-rate * p), 0.0).sum())


def _checked(probabilities: Tensor, replacement: Replacement, distinct: int) -> Tensor:
    """P relative to its largest, if it can be drawn from."""
    smallest, largest = torch.stack(probabilities.aminmax()).tolist() if len(probabilities) else (0.0, 0.0)
    if not 0 <= smallest <= largest < math.inf:
        raise ValueError("probabilities must be finite and not negative; check the weights they come from.")
    available = int(probabilities.count_nonzero())
    if available == 0:
        raise ValueError("no sample has a positive probability; check the weights they come from.")
    if available < distinct:
        raise ValueError(
            f"replacement={replacement!r} needs {distinct} distinct samples, but only {available} have a "
            "positive probability; use smaller batches, fewer of them, or replacement='full'."
        )
    relative = (probabilities / largest).clamp_(min=_SMALLEST_SHARE)
    return relative if available == len(probabilities) else relative.masked_fill_(probabilities == 0, 0.0)


def _arrivals(probabilities: Tensor, batch_size: int) -> float:
    """The c with Σ 1 - exp(-cP) = b; drawing one after the other is a race of arrivals with rates P.

    The sum is concave in c and at most c, so Newton's steps from c = b rise to the solution and never pass it.
    """
    positive = probabilities[probabilities > 0]
    if batch_size >= len(positive):
        return math.inf
    rate = float(batch_size)
    for _ in range(_STEPS):
        absent = torch.exp(-rate * positive)
        step = (batch_size - len(positive) + float(absent.sum())) / float(positive @ absent)
        rate += step
        if step <= 1e-9 * rate:
            break
    return rate
