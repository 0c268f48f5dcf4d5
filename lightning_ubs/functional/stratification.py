"""Batches whose label proportions match the whole set, by order-1 iterative stratification."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor


def stratified_order(labels: Tensor, batch_size: int, generator: Generator) -> Tensor:
    """Partition all samples into batches with the label proportions of the whole set.

    Batch k has a quota of :math:`N_jc_k/n` positives of label j. The label with the fewest unassigned positives
    goes first; each of its samples, in random order, goes to the batch with the largest remaining quota
    for that label, then the largest remaining room, then at random. Samples without labels fill up.

    Args:
        labels: (n, q) of 0 and 1, on the CPU.
        batch_size: Capacity of every batch but the last, which takes the rest.
        generator: The only source of randomness.

    Returns:
        (n,) int64: the batches one after the other in random order, a short one last.
    """
    present = labels.numpy() > 0
    n = len(present)
    random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    room = np.full(-(-n // batch_size), batch_size)
    room[-1] = n - batch_size * (len(room) - 1)
    quota = np.outer(present.sum(0), room / n)
    batch_of = np.full(n, -1)
    remaining = present.sum(0)
    while (remaining > 0).any():
        label = int(np.where(remaining > 0, remaining, n + 1).argmin())
        for sample in random.permutation(np.flatnonzero(present[:, label] & (batch_of < 0))):
            batch = _neediest(quota[label], room, random)
            batch_of[sample] = batch
            room[batch] -= 1
            quota[present[sample], batch] -= 1
            remaining[present[sample]] -= 1
    rest = random.permutation(np.flatnonzero(batch_of < 0))
    batch_of[rest] = np.repeat(np.arange(len(room)), room)
    return torch.from_numpy(_lay_out(batch_of, len(room), random))


def _neediest(quota: np.ndarray, room: np.ndarray, random: np.random.Generator) -> int:
    wanted = np.where(room > 0, quota, -np.inf)
    best = np.flatnonzero(wanted == wanted.max())
    if len(best) > 1:
        best = best[room[best] == room[best].max()]
    return int(best[0] if len(best) == 1 else random.choice(best))


def _lay_out(batch_of: np.ndarray, num_batches: int, random: np.random.Generator) -> np.ndarray:
    """Batches in random order, the last (possibly short) one kept last; random order inside each."""
    place = np.append(random.permutation(num_batches - 1), num_batches - 1)
    shuffled = random.permutation(len(batch_of))
    return shuffled[np.argsort(place[batch_of[shuffled]], kind="stable")]
