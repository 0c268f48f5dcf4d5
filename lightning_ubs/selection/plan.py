"""The plan of an epoch: how it is cut into batches, and the ids of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

# Up to so many batches the ids of an epoch are cut once; the views of more would take more memory than the ids.
_FEW = 2**12


def loader_seed(seed: int, loader: str | int) -> int:
    """A seed for one of several loaders, so that selections with the same seed do not pair their samples.

    >>> loader_seed(0, "a") != loader_seed(0, "b")
    True
    """
    return int(np.random.SeedSequence([seed, *repr(loader).encode()]).generate_state(1, np.uint32)[0])


@dataclass(frozen=True)
class BatchLayout:
    """How an epoch is cut into batches, and which part of each this rank takes.

    Args:
        num_samples: Number of samples n.
        batch_size: Samples per batch and rank.
        drop_last: Leave out a last, short batch.
        world_size: Number of ranks.
        rank: Rank of this process.
        epoch_samples: Samples in an epoch; all of them by default.

    >>> layout = BatchLayout(num_samples=10, batch_size=2, world_size=2)
    >>> layout.global_batch_size, layout.num_batches, layout.num_draws
    (4, 3, 10)
    """

    num_samples: int
    batch_size: int
    drop_last: bool = False
    world_size: int = 1
    rank: int = 0
    epoch_samples: int | None = None

    @cached_property
    def global_batch_size(self) -> int:
        """Samples that all ranks together take in a step."""
        return min(self.batch_size * self.world_size, self.num_samples)

    @cached_property
    def num_batches(self) -> int:
        """Batches in an epoch, the same for every epoch and process."""
        whole, rest = divmod(self._samples, self.batch_size * self.world_size)
        return whole if self.drop_last else whole + (rest > 0)

    @cached_property
    def num_draws(self) -> int:
        """Samples that all ranks together train on in an epoch, the last batch as short as in a plain pass."""
        return min(self._samples, self.full_draws)

    @cached_property
    def full_draws(self) -> int:
        """Samples in an epoch whose last batch is full as well."""
        return self.num_batches * self.global_batch_size

    @cached_property
    def _samples(self) -> int:
        return self.num_samples if self.epoch_samples is None else self.epoch_samples


class EpochPlan:
    """The sample ids of every batch of one epoch.

    ``plan[k]`` are the ids of batch k on this rank, ``plan.global_batch(k)`` those of all ranks. Batches are
    slices of one flat tensor; only the last may be short. It is split as evenly as it goes; where it has fewer samples
    than there are processes, some are repeated, so that no process goes without.

    Args:
        epoch: Number of the epoch.
        ids: Flat int64 ids of all batches, on the CPU.
        layout: How they are cut.

    >>> plan = EpochPlan(0, torch.arange(5), BatchLayout(5, 2, world_size=2, rank=1))
    >>> [plan[k].tolist() for k in range(len(plan))], plan.global_batch(1).tolist()
    ([[2, 3], [4]], [4])
    """

    def __init__(self, epoch: int, ids: Tensor, layout: BatchLayout) -> None:
        self.epoch = epoch
        self.ids = ids
        self.layout = layout
        # A slice takes longer in the middle of a step than all of them together here.
        self._batches = torch.split(ids, layout.global_batch_size) if 0 < layout.num_batches <= _FEW else ()

    @property
    def num_draws(self) -> int:
        """Samples in the epoch."""
        return len(self.ids)

    def __len__(self) -> int:
        return self.layout.num_batches

    def __getitem__(self, batch: int) -> Tensor:
        layout = self.layout
        return self.global_batch(batch) if layout.world_size == 1 else self.rank_batch(batch, layout.rank)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[batch] for batch in range(len(self)))

    def global_batch(self, batch: int) -> Tensor:
        """Ids of batch ``batch`` over all ranks."""
        size, count = self.layout.global_batch_size, self.layout.num_batches
        if not -count <= batch < count:
            raise IndexError(f"batch {batch} is not in a plan of {count} batches.")
        if self._batches:
            return self._batches[batch % count]
        first = batch % count * size
        return self.ids[first : first + size]

    def rank_batch(self, batch: int, rank: int) -> Tensor:
        """Ids of batch ``batch`` on process ``rank``."""
        ids, world = self.global_batch(batch), self.layout.world_size
        if world == 1:
            return ids
        if len(ids) < world:
            ids = ids.repeat(-(-world // len(ids)))[:world]
        return torch.tensor_split(ids, world)[rank]

    def rank_sizes(self, batch: int) -> list[int]:
        """Samples of batch ``batch`` on each rank."""
        return [self._size(batch, rank) for rank in range(self.layout.world_size)]

    def rank_size(self, batch: int) -> int:
        """Samples of batch ``batch`` on this rank."""
        return self._size(batch, self.layout.rank)

    def _size(self, batch: int, rank: int) -> int:
        size, world = self.layout.global_batch_size, self.layout.world_size
        share, rest = divmod(max(min(size, len(self.ids) - batch * size), world), world)
        return share + (rank < rest)

    def rank_weight(self, batch: int) -> float:
        """Weight of this rank's mean loss with which the mean over all ranks is that over the samples of a batch.

        It is 1 but in a short last batch that does not divide evenly.

        >>> layout = BatchLayout(5, 4, world_size=2)
        >>> EpochPlan(0, torch.arange(5), layout).rank_weight(0)
        1.2
        """
        size, world, rank = len(self.global_batch(batch)), self.layout.world_size, self.layout.rank
        if size >= world:
            return self.rank_size(batch) * world / size
        copies = len(range(rank % size, world, size))
        return world / (size * copies)

    def ids_of(self, batches: Tensor) -> Tensor:
        """Ids, over all ranks, of the batches where the (batches,) mask is true."""
        return self.ids[batches.repeat_interleave(self.layout.global_batch_size)[: len(self.ids)]]


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
