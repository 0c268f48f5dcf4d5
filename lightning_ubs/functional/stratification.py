"""Batches whose label proportions match the whole set, by order-1 iterative stratification."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

Integers = npt.NDArray[np.int64]


def stratified_order(labels: Tensor, batch_size: int, generator: Generator) -> Tensor:
    """Partition all samples into batches with the label proportions of the whole set.

    Batch k has a quota of :math:`N_jc_k/n` positives of label j. The label with the fewest unassigned positives
    goes first; each of its samples, in random order, goes to the batch with the largest remaining quota
    for that label, then the largest remaining room, then at random. Samples without labels fill up.

    Which batches the samples of a label go to, one after the other, depends on no other label while they are assigned.
    So a label is dealt out at once; the cost is that of reading the labels, and of q sorts of a label's samples.

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
    remaining = present.sum(0)
    # Quotas count in n-ths of a sample, so that they are whole and equal ones are equal.
    quota = np.outer(remaining, room)
    batch_of = np.full(n, -1)
    while (remaining > 0).any():
        label = int(np.where(remaining > 0, remaining, n + 1).argmin())
        samples = random.permutation(np.flatnonzero(present[:, label] & (batch_of < 0)))
        batches = _neediest(quota[label], room, n, len(samples), random)
        batch_of[samples] = batches
        room -= np.bincount(batches, minlength=len(room))
        of_sample, its_label = present[samples].nonzero()
        np.subtract.at(quota, (its_label, batches[of_sample]), n)
        remaining -= np.bincount(its_label, minlength=len(remaining))
    rest = random.permutation(np.flatnonzero(batch_of < 0))
    batch_of[rest] = np.repeat(np.arange(len(room)), room)
    return torch.from_numpy(_lay_out(batch_of, len(room), random))


def _neediest(quota: Integers, room: Integers, unit: int, count: int, random: np.random.Generator) -> Integers:
    """The batches of ``count`` samples, each of which takes one ``unit`` of a batch's quota and one place."""
    # A batch offers its quota, then what is left of it after one sample, and so on: the ``count`` largest offers are
    # taken, from the largest on. Only offers above a level that leaves enough of them are made.
    level, step = (int(quota.sum()) - unit * count) // len(quota), unit
    while (offers := np.minimum((quota - level) // unit + 1, room).clip(0)).sum() < count:
        level, step = level - step, 2 * step
    batch = np.repeat(np.arange(len(room)), offers)
    taken = np.arange(len(batch)) - np.repeat(offers.cumsum() - offers, offers)
    order = np.lexsort((random.random(len(batch)), taken - room[batch], unit * taken - quota[batch]))
    return batch[order[:count]]


def _lay_out(batch_of: Integers, num_batches: int, random: np.random.Generator) -> Integers:
    """Batches in random order, the last (possibly short) one kept last; random order inside each."""
    place = np.append(random.permutation(num_batches - 1), num_batches - 1)
    shuffled = random.permutation(len(batch_of))
    return shuffled[np.argsort(place[batch_of[shuffled]], kind="stable")]
