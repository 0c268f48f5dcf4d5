"""The sampler that follows a plan, and the train loader that stays in step with the Trainer, whoever else reads it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.selection.plan import BatchLayout, EpochPlan, world_size

# Before 3.12, a process hangs that is forked while another thread enters Python (python/cpython#112275), as those of
# gloo do when a collective ends. One has just ended where reading starts: these seconds let them leave.
_FORK_MAY_HANG = sys.version_info < (3, 12)
_REST = 0.01


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
    """Sampler of the ids of a plan, batch after batch.

    The callback puts one into the train loader. It may also be built by hand,
    ``DataLoader(data, batch_size=64, sampler=SelectionSampler(data))``; the callback then finds it. Without a
    callback it shuffles, each rank taking its share.

    Reading it changes nothing: anyone may iterate it at any time.

    It is a ``DistributedSampler`` by type alone, so that Lightning leaves it as it is: rank and world size are asked
    for when they are needed, because the process group may not exist yet when a loader is built.

    Args:
        data_source: The dataset, for its length.
        seed: Seed of the shuffling without a callback.
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
            plan: Plan of an epoch.
            first_batch: First batch to read.
            root: Seeds the worker processes for each batch; None leaves their generators alone.
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


class Guide(Protocol):
    """What knows where training stands."""

    def training_batch(self, iterator: Any) -> tuple[EpochPlan, int] | None:
        """The plan and the batch that the training loop reads now, if ``iterator`` is its own; else None."""

    def plan_to_read(self) -> EpochPlan:
        """What any other reader gets."""

    @property
    def worker_root(self) -> int | None:
        """Number that seeds worker processes for each batch of the training; None leaves their generators alone."""

    @property
    def resumes(self) -> bool:
        """Whether a run is continued whose workers had drawn their seed already."""


def follow(loader: DataLoader[Any], guide: Guide) -> None:
    """Make every reading of ``loader``, whose sampler is a :class:`SelectionSampler`, follow ``guide``.

    ``iter`` looks up ``__iter__`` on the class, so the loader gets a subclass of its own class.
    """
    kind = type(loader)
    front = _StatefulPlannedLoader if hasattr(kind, "load_state_dict") else _PlannedLoader
    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "plain_class": kind}
    vars(loader)["plan_guide"] = guide
    loader.__class__ = type(kind.__name__, (front, kind), body)


def unfollow(loader: DataLoader[Any]) -> None:
    """Give ``loader`` its own class back."""
    if isinstance(loader, _PlannedLoader):
        loader.__class__ = loader.plain_class  # type: ignore[assignment]
        del vars(loader)["plan_guide"]


class _PlannedLoader(DataLoader[Any]):
    """Put in front of a loader's own class by :func:`follow`."""

    plan_guide: Guide
    plain_class: type[DataLoader[Any]]

    def __iter__(self) -> Any:
        return _PlannedIterator(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as a loader of the user's class, which shuffles by itself and knows no trainer."""
        state = {name: value for name, value in vars(self).items() if name != "plan_guide"}
        if state.get("_iterator") is not None:
            state["_iterator"] = None  # running workers belong to this loader
        return _empty, (self.plain_class,), state

    def start(self, plan: EpochPlan, first_batch: int, for_training: bool) -> Iterator[Any]:
        """Read ``plan`` from ``first_batch`` on."""
        sampler = getattr(self.batch_sampler, "sampler", None)
        assert isinstance(sampler, SelectionSampler)
        guide = self.plan_guide
        sampler.follow_once(plan, first_batch, guide.worker_root if for_training and self.num_workers else None)
        if self.num_workers and _FORK_MAY_HANG and world_size() > 1:
            time.sleep(_REST)
        if for_training and first_batch == 0 and not (guide.resumes and self.persistent_workers):
            return super().__iter__()
        # Where the uninterrupted run would have drawn no seed for its workers, the generator that training uses is not
        # touched. Persistent workers serve one reader; another one would restart them under the training loop.
        kept = {"generator": self.generator}
        if not for_training:
            kept |= {name: vars(self)[name] for name in ("persistent_workers", "_iterator")}
            vars(self)["persistent_workers"] = False
        vars(self)["generator"] = torch.Generator().manual_seed(plan.epoch + 1)
        try:
            return super().__iter__()
        finally:
            vars(self).update(kept)


def _empty(kind: type[DataLoader[Any]]) -> DataLoader[Any]:
    """A loader without attributes, for a copy to fill."""
    return kind.__new__(kind)


class _StatefulPlannedLoader(_PlannedLoader):
    """For loaders that save their own position: it is the Trainer's, and must not be skipped to twice."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


class _PlannedIterator(Iterator[Any]):
    """Iterator that starts reading at the first request, and gives the training loop the batch it stands at.

    Lightning makes the first iterator before it knows where a resumed training stands, and continues with a left-over
    iterator after some tuners. So the position is compared at each batch, and where it differs reading starts anew.
    """

    def __init__(self, loader: _PlannedLoader) -> None:
        self._source = loader
        self._batches: Iterator[Any] | None = None
        self._plan: EpochPlan | None = None
        self._next = 0

    def __next__(self) -> Any:
        place = self._source.plan_guide.training_batch(self)
        if place is None:
            if self._batches is None:
                self._start(self._source.plan_guide.plan_to_read(), 0, for_training=False)
        elif place != (self._plan, self._next):
            self._start(*place, for_training=True)
        assert self._batches is not None
        batch = next(self._batches)
        self._next += 1
        return batch

    def _start(self, plan: EpochPlan, first_batch: int, for_training: bool) -> None:
        self._batches = None  # ends its workers before others begin
        self._plan, self._next = plan, first_batch
        self._batches = self._source.start(plan, first_batch, for_training)
