"""Trainers and loaders that selection cannot work with, each refused in one sentence before anything is trained."""

from __future__ import annotations

import copy
import hashlib
import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch.trainer import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from lightning_ubs._utils.distributed import gather_objects
from lightning_ubs.errors import SelectionError
from lightning_ubs.selection._lightning import own_sampler, planned_epochs, sampler_of
from lightning_ubs.selection.loader import SelectionSampler
from lightning_ubs.selection.options import EpochSize, Size
from lightning_ubs.strategies import Strategy

# By name, so that the classes of both `lightning` and `pytorch_lightning` count. FSDPStrategy and DeepSpeedStrategy
# need a GPU and were never run; sharding by ModelParallelStrategy was.
_STRATEGIES_RUN = {"SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"}


def check_trainer(trainer: Trainer, needs_last_epoch: bool) -> None:
    """Refuse what selection cannot work with, before anything is trained."""
    if not {base.__name__ for base in type(trainer.strategy).__mro__} & _STRATEGIES_RUN:
        raise SelectionError(
            f"batch selection has not been run with {type(trainer.strategy).__name__}, so it may choose wrongly there; "
            "use a single device, strategy='ddp', or ModelParallelStrategy for sharded models."
        )
    if trainer.overfit_batches > 0:  # type: ignore[attr-defined]
        raise SelectionError(
            "overfit_batches trains on the same batches in every epoch, so nothing can be selected; use "
            "limit_train_batches, or leave BatchSelection out."
        )
    epochs, steps = trainer.max_epochs, trainer.max_steps
    endless = epochs is None or epochs < 0
    countable = steps >= 0 and trainer.lightning_module.automatic_optimization
    if needs_last_epoch and endless and not countable:
        reason = "" if steps < 0 else f" and manual optimization (max_steps={steps} may end any epoch)"
        raise SelectionError(
            f"with max_epochs={epochs}{reason} the last epoch, at which selection should end, is unknown; set "
            "max_epochs, or pass BatchSelection(..., end_epoch=...)."
        )


def check_epochs_are_counted(trainer: Trainer, size: Size) -> None:
    """Refuse epochs of changing size where their number is unknown."""
    if isinstance(size, EpochSize) and planned_epochs(trainer) is None:
        raise SelectionError(
            f"epoch_size={size!r} changes over the epochs, but max_epochs={trainer.max_epochs} does not say how many "
            "there are; set max_epochs (max_steps may end the training before), or use a share as epoch_size."
        )


def warn_if_nothing_is_selected(strategy: Strategy, start: int, last_epoch: int | None) -> None:
    """Say so where the warm-up takes the whole training."""
    if strategy.warms_up and last_epoch is not None and last_epoch < start:
        rank_zero_warn(
            f"The warm-up of {start} epochs is not over in max_epochs={last_epoch + 1}: nothing will be selected. Set "
            "a shorter warmup_epochs or more epochs.",
            category=UserWarning,
        )


def check_untracked_backward(trainer: Trainer, first_step: int) -> None:
    """Refuse a step that showed neither loss nor predictions, but trained: its backward pass went unseen.

    Args:
        trainer: The trainer after the step.
        first_step: The trainer's ``global_step`` when this training began.
    """
    module = trainer.lightning_module
    if module.automatic_optimization:
        return
    if trainer.global_step > first_step or any(parameter.grad is not None for parameter in module.parameters()):
        raise SelectionError(
            "training_step optimizes manually, but Lightning saw no backward pass and nothing was returned, so there "
            "are no predictions to select by; call self.manual_backward(loss) instead of loss.backward(), or return "
            "{'loss': loss, 'logits': logits}."
        )


def check_loader(dataloader: Any, rank: int, world_size: int) -> None:
    """Refuse a train loader whose samples cannot be chosen, or whose order would not be kept."""
    if not isinstance(dataloader, DataLoader):
        raise SelectionError(
            f"the train loader is a {type(dataloader).__name__}, not a torch DataLoader, so its samples cannot be "
            "chosen; use a DataLoader over a map-style dataset."
        )
    if isinstance(dataloader.dataset, IterableDataset):
        raise SelectionError(
            "an IterableDataset decides its own order, so its samples cannot be chosen; use a map-style dataset with "
            "__len__ and __getitem__: lightning_ubs.streams.indexed(dataset) makes one of a litdata or mosaicml "
            "StreamingDataset, and samples that only come one after the other (WebDataset, Ray Data) can be written as "
            "chunks by litdata.optimize or streaming.MDSWriter first."
        )
    if not getattr(dataloader, "in_order", True):
        raise SelectionError("in_order=False loses which sample a prediction belongs to; use in_order=True.")
    if not _is_plain(dataloader.batch_sampler, BatchSampler):
        raise SelectionError(
            "a custom batch_sampler (or batch_size=None) makes its own batches, so they cannot be chosen; pass "
            "batch_size= (and drop_last=) to the DataLoader instead."
        )
    if not isinstance(sampler_of(dataloader), SelectionSampler):
        _check_sampler(dataloader, rank, world_size)


def _check_sampler(dataloader: DataLoader[Any], rank: int, world_size: int) -> None:
    """Refuse a sampler that does anything else than to visit every sample once, in an order without a meaning."""
    sampler = own_sampler(dataloader)
    n = len(dataloader.dataset)  # type: ignore[arg-type]
    shuffles = True
    if _is_plain(sampler, RandomSampler):
        plain = not sampler.replacement and sampler.num_samples == n
    elif _is_plain(sampler, torch.utils.data.DistributedSampler):
        size = len(sampler.dataset)
        plain = (sampler.rank, sampler.num_replicas, size) == (rank, world_size, n)
        shuffles = sampler.shuffle
        if not plain:
            raise SelectionError(
                f"the train loader's DistributedSampler is for rank {sampler.rank} of {sampler.num_replicas} and "
                f"{size} samples, but this process is rank {rank} of {world_size} with {n} samples; "
                "leave the sampler out, Lightning and BatchSelection divide the batches among processes."
            )
    elif _is_plain(sampler, SequentialSampler):
        plain, shuffles = len(sampler) == n, False
    else:
        plain = _is_shuffling(sampler, dataloader.dataset)
    if not plain:
        raise SelectionError(
            f"the train loader's own sampler ({type(sampler).__name__}) would be lost; use shuffle=True, "
            "and torch.utils.data.Subset where only a part of the dataset should be trained on."
        )
    if not shuffles:
        rank_zero_warn(
            "The train loader has shuffle=False, but BatchSelection decides the order and shuffles its samples; pass "
            "shuffle=True to say so.",
            category=UserWarning,
        )


def _is_plain(value: Any, kind: type) -> bool:
    """Whether ``value`` is of ``kind`` itself, as torch has it or as torchdata's stateful loader does."""
    own = type(value)
    stateful = own.__module__.startswith("torchdata.stateful_dataloader")
    return own is kind or (stateful and own.__name__.removeprefix("Stateful") == kind.__name__)


class _Length:
    """Stand-in for a dataset of which nothing but the length may be asked."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def _is_shuffling(sampler: Any, dataset: Any) -> bool:
    """Whether an unknown sampler only shuffles: a permutation from generators, seeds and the number of samples."""
    if type(sampler).__bases__ not in ((torch.utils.data.Sampler,), (object,)) or not hasattr(sampler, "__dict__"):
        return False
    n = len(dataset)
    probe = copy.copy(sampler)
    generators = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    for name, value in vars(sampler).items():
        if value is dataset:
            vars(probe)[name] = _Length(n)
        elif not isinstance(value, (int, float, str, range, type(None), *generators)):
            return False
    with isolate_rng():
        try:
            order = list(itertools.islice(probe, n + 1))
            shuffles = sorted(order) == list(range(n)) and not _is_regular(order)
        except Exception:  # a sampler that asks the dataset for its samples, in whatever way
            return False
    if shuffles:
        rank_zero_info(
            f"The train loader's {type(sampler).__name__} visits every sample once; BatchSelection replaces it and "
            "decides the order."
        )
    return shuffles


def _is_regular(order: list[int]) -> bool:
    """Whether an order is a plan rather than chance: most steps from one sample to the next have the same length.

    >>> _is_regular([4, 3, 2, 1, 0]), _is_regular([0, 2, 4, 1, 3]), _is_regular([3, 0, 4, 2, 1])
    (True, True, False)
    """
    steps = Counter(after - before for before, after in itertools.pairwise(order))
    return len(order) > 2 and 2 * max(steps.values()) > len(order) - 1


def check_same_dataset(trainer: Trainer, dataloader: DataLoader[Any], labels: Tensor | None) -> None:
    """Refuse processes that hold different samples, because an id would mean another sample on each of them."""
    told = isinstance(sampler_of(dataloader), SelectionSampler | torch.utils.data.DistributedSampler)
    digest = None if labels is None else hashlib.sha256(labels.cpu().contiguous().numpy().tobytes()).hexdigest()
    shown = gather_objects((len(dataloader.dataset), digest))  # type: ignore[arg-type]
    if len(set(shown)) > 1:
        raise SelectionError(
            f"the train datasets of the {trainer.world_size} processes differ (samples per process: "
            f"{[size for size, _ in shown]}), so sample ids have no common meaning; give every process the whole "
            "dataset in the same order, batches are divided among them."
        )
    if digest is None and not told:
        raise SelectionError(
            "with use_distributed_sampler=False each process may hold a shard of its own, and this dataset shows no "
            "labels to compare; give every process the whole dataset and build the loader with "
            "sampler=SelectionSampler(dataset), or leave use_distributed_sampler=True."
        )


def process_rank(trainer: Trainer) -> tuple[int, int]:
    """(rank, number of ranks) among which batches are divided."""
    kwargs = trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
    rank, world = int(kwargs["rank"]), int(kwargs["num_replicas"])
    if world != trainer.world_size or (world > 1 and not dist.is_initialized()):
        raise SelectionError(
            f"{type(trainer.strategy).__name__} divides a model, not only batches, among processes, which batch "
            "selection does not support; use strategy='ddp'."
        )
    return rank, world
