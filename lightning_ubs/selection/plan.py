"""The plan of an epoch, and the sampler that follows it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DistributedSampler

from lightning_ubs.functional.drawing import epoch_generator


def loader_seed(seed: int, loader: str | int) -> int:
    """A seed for one of several loaders, so that selections with the same seed do not pair their samples.

    >>> loader_seed(0, "a") != loader_seed(0, "b")
    True
    """
    return int(np.random.SeedSequence([seed, *repr(loader).encode()]).generate_state(1, np.uint32)[0])


@dataclass(frozen=True)
class BatchLayout:
    """How an epoch is cut into batches, and which part of each this process takes.

    Args:
        num_samples: n.
        batch_size: samples per batch and process.
        drop_last: leave out a last, short batch.
        world_size: number of processes.
        rank: this process.
        epoch_samples: samples in an epoch; all of them by default.

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
        """Samples that all processes together take in a step."""
        return min(self.batch_size * self.world_size, self.num_samples)

    @cached_property
    def num_batches(self) -> int:
        """Batches in an epoch, the same for every epoch and process."""
        whole, rest = divmod(self._samples, self.batch_size * self.world_size)
        return whole if self.drop_last else whole + (rest > 0)

    @cached_property
    def num_draws(self) -> int:
        """Samples that all processes together train on in an epoch, the last batch as short as in a plain pass."""
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

    ``plan[k]`` are the ids of batch k on this process, ``plan.global_batch(k)`` those of all processes. Batches are
    slices of one flat tensor; only the last may be short. It is split as evenly as it goes; where it has fewer samples
    than there are processes, some are repeated, so that no process goes without.

    Args:
        epoch: which epoch this is.
        ids: flat int64 ids of all batches, on the CPU.
        layout: how they are cut.

    >>> plan = EpochPlan(0, torch.arange(5), BatchLayout(5, 2, world_size=2, rank=1))
    >>> [plan[k].tolist() for k in range(len(plan))], plan.global_batch(1).tolist()
    ([[2, 3], [4]], [4])
    """

    def __init__(self, epoch: int, ids: Tensor, layout: BatchLayout) -> None:
        self.epoch = epoch
        self.ids = ids
        self.layout = layout

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
        """Ids of batch ``batch`` over all processes."""
        size, count = self.layout.global_batch_size, self.layout.num_batches
        if not -count <= batch < count:
            raise IndexError(f"batch {batch} is not in a plan of {count} batches.")
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
        """Samples of batch ``batch`` on each process."""
        return [self._size(batch, rank) for rank in range(self.layout.world_size)]

    def rank_size(self, batch: int) -> int:
        """Samples of batch ``batch`` on this process."""
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
        """Ids, over all processes, of the batches where the (batches,) mask is true."""
        return self.ids[batches.repeat_interleave(self.layout.global_batch_size)[: len(self.ids)]]


class SeedingId(int):
    """The first sample id of a batch, which seeds the generators of the worker process that unpickles it.

    So a worker's random numbers depend on the batch alone, not on those that it made before, and a run that resumes in
    mid-epoch augments as the uninterrupted one.
    """

    key: tuple[int, ...]

    @classmethod
    def of(cls, value: int, key: tuple[int, ...]) -> SeedingId:
        """The id ``value`` that seeds from ``key``."""
        made = cls(value)
        made.key = key
        return made

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        return _seed_worker, (int(self), self.key)


def _seed_worker(value: int, key: tuple[int, ...]) -> int:
    """Seed this process from ``key``, and give ``value`` back."""
    words = np.random.SeedSequence(key).generate_state(8, np.uint32)
    torch.manual_seed(int(words[:2].view(np.uint64)[0]) >> 1)
    random.seed(int(words[2:4].view(np.uint64)[0]))
    np.random.seed(words[4:])
    return value


PlanSource = Callable[[], tuple[EpochPlan, int]]


class SelectionSampler(DistributedSampler[int]):
    """Yields the ids of a plan, batch after batch.

    The callback puts one into the train loader. It may also be built by hand,
    ``DataLoader(data, batch_size=64, sampler=SelectionSampler(data))``; the callback then finds it. Without a
    callback it shuffles, each process taking its share.

    Reading it changes nothing: anyone may iterate it at any time.

    It is a ``DistributedSampler`` by type alone, so that Lightning leaves it as it is: rank and world size are asked
    for when they are needed, because the process group may not exist yet when a loader is built.

    Args:
        data_source: the dataset, for its length.
        seed: of the shuffling without a callback.
    """

    def __init__(self, data_source: Sized, seed: int = 0) -> None:
        self.data_source = data_source
        self.seed = seed
        self.epoch = 0
        self._source: PlanSource | None = None
        self._length = 0
        self._once: tuple[EpochPlan, int] | None = None
        self._root: int | None = None

    def bind(self, source: PlanSource, layout: BatchLayout) -> None:
        """Follow ``source``, which gives a plan and the first batch of it to serve."""
        self._source = source
        self._length = layout.num_batches * layout.batch_size

    def follow_once(self, plan: EpochPlan, first_batch: int, root: int | None = None) -> None:
        """Let the next reading follow ``plan`` from ``first_batch`` on.

        Args:
            plan: of an epoch.
            first_batch: the first one to read.
            root: seeds the worker processes for each batch; None leaves their generators alone.
        """
        self._once = plan, first_batch
        self._root = root

    def release(self) -> None:
        """Go back to shuffling."""
        self._source = self._once = None

    @property
    def is_bound(self) -> bool:
        """Whether a callback decides the order."""
        return self._source is not None

    def __len__(self) -> int:
        """Room for all batches; constant, because Lightning fixes the epoch's length once."""
        return self._length if self.is_bound else -(-len(self.data_source) // world_size())

    def __iter__(self) -> Iterator[int]:
        if self._source is None:
            yield from self._shuffled()
            return
        (plan, first), self._once = self._once or self._source(), None
        root, self._root = self._root, None
        for batch in range(first, len(plan)):
            ids = plan[batch].tolist()
            yield ids[0] if root is None else SeedingId.of(ids[0], (root, plan.epoch, batch, plan.layout.rank))
            yield from ids[1:]

    def set_epoch(self, epoch: int) -> None:
        """Epoch of the shuffling without a callback."""
        self.epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        """A copy follows nobody: what decides the order leads to the whole trainer."""
        return vars(self) | {"_source": None, "_once": None}

    def _shuffled(self) -> Iterator[int]:
        order = torch.randperm(len(self.data_source), generator=epoch_generator(self.seed, self.epoch))
        world = world_size()
        if world > 1:
            # The first samples come again where they do not divide evenly, so that no process goes without.
            order = order[torch.arange(dist.get_rank(), len(self) * world, world) % len(order)]
        return iter(order.tolist())


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
