"""Drawing all batches of an epoch at once."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

Replacement = Literal["batch", "none", "full"]

# After this many rounds of "draw and drop repeats" the few unfinished batches are completed by sorting.
_ROUNDS = 4
_KEY_CELLS = 2**24


def check_replacement(replacement: str) -> None:
    """Refuse an unknown way of drawing."""
    if replacement not in get_args(Replacement):
        raise ValueError(
            f"replacement={replacement!r} is unknown; use 'batch' (no repeats inside a batch), "
            "'none' (no repeats in an epoch) or 'full' (repeats anywhere)."
        )


def draw_plan(
    probabilities: Tensor,
    batch_size: int,
    num_batches: int,
    generator: Generator,
    replacement: Replacement = "batch",
) -> Tensor:
    """Draw an epoch of batches from P.

    ``"batch"``: independent batches, each as if its samples were drawn one after the other without
    replacement. ``"none"``: the same over the whole epoch, so no sample comes twice. ``"full"``: every draw is
    independent. Cumulative sums are float64, so n may exceed 2^24; the cost is O(n log n) for the epoch.

    Args:
        probabilities: P, (n,), non-negative, not necessarily normalised.
        batch_size: samples in a batch.
        num_batches: batches in the epoch.
        generator: on the device of ``probabilities``; the only source of randomness.
        replacement: ``"batch"``, ``"none"`` or ``"full"``.

    Returns:
        (num_batches, batch_size) int64 sample ids.

    >>> p = torch.full((6,), 1 / 6, dtype=torch.float64)
    >>> plan = draw_plan(p, 3, 2, torch.Generator().manual_seed(0), "none")
    >>> sorted(plan.flatten().tolist())
    [0, 1, 2, 3, 4, 5]
    """
    check_replacement(replacement)
    probabilities = probabilities.double()
    _check_enough(probabilities, batch_size, num_batches, replacement)
    if replacement == "full":
        return _InverseCdf(probabilities)(num_batches * batch_size, generator).view(num_batches, batch_size)
    if replacement == "none":
        return weighted_order(probabilities, generator)[: num_batches * batch_size].view(num_batches, batch_size)
    return _distinct_batches(probabilities, batch_size, num_batches, generator)


def shuffled_pass(num_samples: int, count: int, generator: Generator) -> Tensor:
    """The first ``count`` ids of a random order of all samples: a plain epoch, as a shuffling DataLoader makes it.

    >>> sorted(shuffled_pass(4, 4, torch.Generator().manual_seed(0)).tolist())
    [0, 1, 2, 3]
    """
    return torch.randperm(num_samples, generator=generator, device=generator.device)[:count]


def weighted_order(probabilities: Tensor, generator: Generator) -> Tensor:
    """All n ids in the order of drawing without replacement: an exponential race with rates P."""
    race = torch.empty_like(probabilities).exponential_(generator=generator) / probabilities
    return race.argsort(stable=True)


def repeats_in_rows(ids: Tensor) -> Tensor:
    """Where an id stands in its row for the second time or more.

    >>> repeats_in_rows(torch.tensor([[4, 7, 4, 4]]))
    tensor([[False, False,  True,  True]])
    """
    ordered, origin = ids.sort(dim=1, stable=True)
    repeat = torch.zeros_like(ids, dtype=torch.bool)
    repeat[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeat).scatter(1, origin, repeat)


def _check_enough(probabilities: Tensor, batch_size: int, num_batches: int, replacement: Replacement) -> None:
    if batch_size < 1 or num_batches < 0:
        raise ValueError(f"a plan needs batch_size ≥ 1 and num_batches ≥ 0, got {batch_size} and {num_batches}.")
    if not bool(((probabilities >= 0) & probabilities.isfinite()).all()):
        raise ValueError("probabilities must be finite and not negative; check the weights they come from.")
    distinct = {"batch": batch_size, "none": num_batches * batch_size, "full": 1}[replacement]
    available = int((probabilities > 0).sum())
    if available < distinct:
        raise ValueError(
            f"replacement={replacement!r} needs {distinct} distinct samples, but only {available} have a "
            "positive probability; use smaller batches, fewer of them, or replacement='full'."
        )


class _InverseCdf:
    """Independent draws by inverting the float64 cumulative sum."""

    def __init__(self, probabilities: Tensor) -> None:
        self.cdf = probabilities.cumsum(0)
        # Rounding may push a draw onto the total itself: the last sample with a positive probability takes it.
        self.last = torch.searchsorted(self.cdf, self.cdf[-1:])

    def __call__(self, count: int, generator: Generator) -> Tensor:
        uniform = torch.rand(count, dtype=torch.float64, device=self.cdf.device, generator=generator)
        drawn = torch.searchsorted(self.cdf, uniform * self.cdf[-1], right=True)
        return torch.minimum(drawn, self.last)


def _distinct_batches(probabilities: Tensor, size: int, num_batches: int, generator: Generator) -> Tensor:
    """Sequential draws without replacement, for many batches at once.

    Drawing with replacement and dropping what the batch already has is the same as drawing without
    replacement, and needs one pass where batches are small beside n.
    """
    n = probabilities.numel()
    draw = _InverseCdf(probabilities)
    batches = torch.full((num_batches, size), -1, dtype=torch.int64, device=probabilities.device)
    filled = torch.zeros(num_batches, dtype=torch.int64, device=probabilities.device)
    open_rows = torch.arange(num_batches, device=probabilities.device)
    share = (probabilities / probabilities.sum()).square().sum().item()
    rounds = _ROUNDS if size * size * share < size / 2 else 0
    for _ in range(rounds):
        if open_rows.numel() == 0:
            break
        missing = int((size - filled[open_rows]).max())
        extra = missing + math.ceil(size * missing * share) + 8
        fresh = draw(open_rows.numel() * extra, generator).view(-1, extra)
        batches[open_rows], filled[open_rows] = _keep_first_distinct(batches[open_rows], fresh)
        open_rows = open_rows[filled[open_rows] < size]
    for rows in torch.split(open_rows, max(1, _KEY_CELLS // n)):
        batches[rows] = _complete_by_race(batches[rows], probabilities, generator)
    return batches


def _keep_first_distinct(batches: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Append ``fresh`` to the filled part of each row, dropping repeats; -1 marks free places."""
    size = batches.shape[1]
    both = torch.cat([batches, fresh], dim=1)
    new = ~repeats_in_rows(both) & (both >= 0)
    place = new.cumsum(1)
    target = torch.where(new & (place <= size), place - 1, size)
    result = torch.full((len(both), size + 1), -1, dtype=torch.int64, device=both.device)
    return result.scatter(1, target, both)[:, :size], place[:, -1].clamp(max=size)


def _complete_by_race(batches: Tensor, probabilities: Tensor, generator: Generator) -> Tensor:
    """Fill the free places of each row by an exponential race among the samples it does not have yet."""
    n, size = probabilities.numel(), batches.shape[1]
    race = torch.empty(len(batches), n, dtype=torch.float64, device=batches.device)
    race = race.exponential_(generator=generator) / probabilities
    spare = torch.cat([race, race.new_empty(len(batches), 1)], dim=1)
    race = spare.scatter(1, torch.where(batches >= 0, batches, n), math.inf)[:, :n]
    winners = race.topk(size, dim=1, largest=False, sorted=True).indices
    filled = (batches >= 0).sum(1, keepdim=True)
    place = torch.arange(size, device=batches.device) - filled
    return torch.where(place < 0, batches, winners.gather(1, place.clamp(min=0)))
