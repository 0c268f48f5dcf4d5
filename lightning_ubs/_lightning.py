"""The only file that touches private parts of Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.trainer import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.data import _update_dataloader
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from lightning_ubs.errors import SelectionError
from lightning_ubs.sampling import SelectionSampler
from lightning_ubs.strategies import Strategy

LoaderKey = str | int

# By name, so that the classes of both `lightning` and `pytorch_lightning` count. FSDPStrategy and DeepSpeedStrategy
# need a GPU and were never run; sharding by ModelParallelStrategy was.
_STRATEGIES_RUN = {"SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"}
ProcessLoader = Callable[[Any], Any]


class LoaderSeam:
    """Hands every train loader to ``process`` after Lightning has prepared it and before anything is drawn from it.

    A function is put in front of ``trainer.strategy.process_dataloader``, which Lightning calls for each loader. Where
    training has several loaders, only the one that ``key`` names is handed over.

    Args:
        trainer: the trainer of this fit.
        process: takes the loader, gives the one to use.
        key: which of several loaders: a key of the dict or an index of the list.
    """

    def __init__(self, trainer: Trainer, process: ProcessLoader, key: LoaderKey | None) -> None:
        self._process = process
        self._key = key
        self._trainer = trainer
        self._source = trainer.fit_loop._data_source
        self._chosen: Any = None
        self._original = trainer.strategy.process_dataloader
        self._request = self._source.dataloader
        trainer.strategy.process_dataloader = self._process_dataloader  # type: ignore[method-assign]
        self._source.dataloader = self._request_dataloader  # type: ignore[method-assign]

    def remove(self) -> None:
        """Take the function away again."""
        vars(self._trainer.strategy).pop("process_dataloader", None)
        vars(self._source).pop("dataloader", None)

    def _request_dataloader(self) -> Any:
        requested = self._request()
        self._position = 0
        self._chosen = _index_of(requested, self._key)
        return requested

    def _process_dataloader(self, dataloader: object) -> object:
        dataloader = self._original(dataloader)
        if not self._trainer.training:
            return dataloader
        position, self._position = self._position, self._position + 1
        return self._process(dataloader) if position == self._chosen else dataloader


def _index_of(loaders: Any, key: LoaderKey | None) -> int:
    """Position of the chosen loader among all, in the order in which Lightning handles them."""
    mode = getattr(loaders, "_mode", "max_size_cycle")
    loaders = getattr(loaders, "iterables", loaders)
    if isinstance(loaders, Mapping):
        keys: list[LoaderKey] = list(loaders)
    elif isinstance(loaders, Sequence) and not isinstance(loaders, str):
        keys = list(range(len(loaders)))
    else:
        if key is not None:
            raise SelectionError(f"loader={key!r} was given, but training has a single loader; leave loader out.")
        return 0
    if len(keys) == 1 and key is None:
        return 0
    if key is None:
        raise SelectionError(f"training has several loaders; say which one to select from: loader= one of {keys}.")
    if key not in keys:
        raise SelectionError(f"loader={key!r} is not one of the train loaders {keys}; use one of these.")
    _check_is_not_cycled(loaders, key, mode)
    return keys.index(key)


def _check_is_not_cycled(loaders: Any, key: LoaderKey, mode: str) -> None:
    """A loader that is started again in mid-epoch would be served another batch than the planned one."""
    values = loaders.values() if isinstance(loaders, Mapping) else loaders
    if mode == "max_size_cycle" and len(loaders[key]) < max(len(loader) for loader in values):
        raise SelectionError(
            f"the loader {key!r} is shorter than the others and would be cycled in mid-epoch; select from the longest "
            'loader, or combine them with CombinedLoader(..., mode="min_size").'
        )


def with_sampler(dataloader: DataLoader[Any], sampler: Sampler[int]) -> DataLoader[Any]:
    """The same loader, of the same class and with the same arguments, with another sampler."""
    rebuilt: DataLoader[Any] = _update_dataloader(dataloader, sampler)
    return rebuilt


def callbacks_of(trainer: Trainer) -> list[Any]:
    """The callbacks that are active now; tuners put them aside for a while."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def check_trainer(trainer: Trainer, strategy: Strategy, start: int, end: int | None) -> None:
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
    epochs = trainer.max_epochs
    endless = epochs is None or epochs < 0
    if strategy.decays and endless and end is None:
        raise SelectionError(
            f"with max_epochs={epochs} the last epoch is unknown, at which the pressure should be 1; set max_epochs, "
            "or pass BatchSelection(..., end_epoch=...)."
        )
    if strategy.warms_up and epochs is not None and 0 <= epochs <= start:
        rank_zero_warn(
            f"The warm-up of {start} epochs is not over in max_epochs={epochs}: nothing will be selected. Set a "
            "shorter warmup_epochs or more epochs.",
            category=UserWarning,
        )


def check_loader(dataloader: Any) -> None:
    """Refuse a train loader whose samples cannot be chosen, or whose order would not be kept."""
    if not isinstance(dataloader, DataLoader):
        raise SelectionError(
            f"the train loader is a {type(dataloader).__name__}, not a torch DataLoader, so its samples cannot be "
            "chosen; use a DataLoader over a map-style dataset."
        )
    if isinstance(dataloader.dataset, IterableDataset):
        raise SelectionError(
            "an IterableDataset decides its own order, so its samples cannot be chosen; use a map-style dataset with "
            "__len__ and __getitem__."
        )
    if not getattr(dataloader, "in_order", True):
        raise SelectionError("in_order=False loses which sample a prediction belongs to; use in_order=True.")
    if dataloader.batch_size is None or type(dataloader.batch_sampler) is not BatchSampler:
        raise SelectionError(
            "a custom batch_sampler (or batch_size=None) makes its own batches, so they cannot be chosen; pass "
            "batch_size= (and drop_last=) to the DataLoader instead."
        )
    if not isinstance(dataloader.sampler, SelectionSampler) and not is_plain_sampler(dataloader):
        raise SelectionError(
            f"the train loader's own sampler ({type(dataloader.sampler).__name__}) would be lost; use shuffle=True, "
            "and torch.utils.data.Subset where only a part of the dataset should be trained on."
        )


def is_plain_sampler(dataloader: DataLoader[Any]) -> bool:
    """Whether the loader visits every sample once, so that replacing its sampler loses nothing."""
    sampler: Any = dataloader.sampler
    if type(sampler).__name__ == "DistributedSamplerWrapper":
        sampler = sampler.dataset._sampler
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == len(dataloader.dataset)  # type: ignore[arg-type]
    return type(sampler) in (SequentialSampler, torch.utils.data.DistributedSampler)


def process_rank(trainer: Trainer) -> tuple[int, int]:
    """(rank, number of processes) among which batches are divided."""
    kwargs = trainer.distributed_sampler_kwargs or {"num_replicas": 1, "rank": 0}
    rank, world = int(kwargs["rank"]), int(kwargs["num_replicas"])
    if world != trainer.world_size or (world > 1 and not dist.is_initialized()):
        raise SelectionError(
            f"{type(trainer.strategy).__name__} divides a model, not only batches, among processes, which batch "
            "selection does not support; use strategy='ddp'."
        )
    return rank, world


def gather_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows of all processes one below the other; process r has ``sizes[r]``."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def agree_with_rank_zero(tensor: Tensor, device: torch.device) -> Tensor:
    """What process 0 has, on every process, so that rounding on unlike devices cannot part them."""
    shared = tensor.to(device).contiguous()
    dist.broadcast(shared, src=0)
    return shared.to(tensor.device)


def saved_after_batch(trainer: Trainer) -> int | None:
    """The batch at whose end the checkpoint was taken, while callbacks were being told; else None."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(progress.completed) if progress.completed == progress.processed - 1 else None


def restart_loader(trainer: Trainer) -> None:
    """Read the train loader from its beginning; older releases go on with what a tuner left of it."""
    if trainer.fit_loop._data_fetcher is not None:
        iter(trainer.fit_loop._data_fetcher)


def silence_resume_warning() -> None:
    """Lightning warns that a resume in mid-epoch repeats samples; with a planned epoch it does not."""
    warnings.filterwarnings("ignore", message=".*resuming from a checkpoint that ended before the epoch ended.*")
