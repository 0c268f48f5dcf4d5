"""The only file that touches private parts of Lightning."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from lightning.fabric.utilities.data import _reinstantiate_wrapped_cls
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from lightning.pytorch.trainer import Trainer
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.data import _get_dataloader_init_args_and_kwargs
from torch.utils.data import BatchSampler, DataLoader, Sampler

from lightning_ubs.errors import SelectionError
from lightning_ubs.selection.loader import SelectionSampler

LoaderKey = str | int
ProcessLoader = Callable[[Any], Any]


class LoaderSeam:
    """Hand train loaders to callbacks after Lightning has prepared them and before anything is drawn from them.

    Lightning offers no hook there. So ``trainer.strategy.process_dataloader``, which it calls for each loader, and the
    request for loaders, which tells their order, are replaced on these two objects while a fit runs. There is one seam
    per trainer, shared by its callbacks; the last one to leave puts back what was found.
    """

    _of: ClassVar[WeakKeyDictionary[Trainer, LoaderSeam]] = WeakKeyDictionary()

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._takers: dict[LoaderKey | None, ProcessLoader] = {}
        self._chosen: dict[int, ProcessLoader] = {}
        self._position = 0
        source = trainer.fit_loop._data_source
        self._found = [
            _replace(trainer.strategy, "process_dataloader", self._process_dataloader),
            _replace(source, "dataloader", self._request_dataloader),
        ]

    @classmethod
    def join(cls, trainer: Trainer, key: LoaderKey | None, take: ProcessLoader) -> LoaderSeam:
        """Call ``take`` with the loader that ``key`` names (None: the only one); it returns the one to use."""
        if trainer not in cls._of:
            cls._of[trainer] = cls(trainer)
        seam = cls._of[trainer]
        seam._takers[key] = take
        return seam

    def leave(self, key: LoaderKey | None) -> None:
        """End what :meth:`join` began; may be called twice."""
        self._takers.pop(key, None)
        if not self._takers and self._of.get(self._trainer) is self:
            del self._of[self._trainer]
            for owner, name, own, _ in self._found:
                vars(owner).pop(name, None)
                vars(owner).update(own)

    def _request_dataloader(self) -> Any:
        requested = self._found[1].original()
        self._position = 0
        self._chosen = {}
        try:
            for key, take in self._takers.items():
                position, loader = _find_loader(requested, key)
                check_rebuildable(loader)
                self._chosen[position] = take
        except SelectionError as error:
            return _Refused(error)
        return requested

    def _process_dataloader(self, dataloader: object) -> object:
        dataloader = self._found[0].original(dataloader)
        if not self._trainer.training:
            return dataloader
        position, self._position = self._position, self._position + 1
        return self._chosen[position](dataloader) if position in self._chosen else dataloader


class _Refused:
    """Stand-in for loaders that are refused, which says so as soon as Lightning looks at it.

    Lightning changes torch's DataLoader while it requests loaders, and leaves it changed where that raises: the next
    fit of the same process would no longer find the arguments of its loaders.
    """

    def __init__(self, error: SelectionError) -> None:
        self._error = error

    def __iter__(self) -> Iterator[Any]:
        raise self._error


class _Found(NamedTuple):
    """What stood under a name before it was replaced: on the object itself, or by its class."""

    owner: object
    name: str
    own: dict[str, Any]
    original: Callable[..., Any]


def _replace(owner: object, name: str, replacement: Callable[..., Any]) -> _Found:
    own = {name: vars(owner)[name]} if name in vars(owner) else {}
    found = _Found(owner, name, own, getattr(owner, name))
    setattr(owner, name, replacement)
    return found


def _find_loader(loaders: Any, key: LoaderKey | None) -> tuple[int, Any]:
    """The chosen loader, and its position among all in the order in which Lightning handles them."""
    mode = getattr(loaders, "_mode", "max_size_cycle")
    loaders = getattr(loaders, "iterables", loaders)
    if isinstance(loaders, Mapping):
        keys: list[LoaderKey] = list(loaders)
    elif isinstance(loaders, Sequence) and not isinstance(loaders, str):
        keys = list(range(len(loaders)))
    else:
        if key is not None:
            raise SelectionError(f"loader={key!r} was given, but training has a single loader; leave loader out.")
        return 0, loaders
    if len(keys) == 1 and key is None:
        key = keys[0]
    if key is None:
        raise SelectionError(f"training has several loaders; say which one to select from: loader= one of {keys}.")
    if key not in keys:
        raise SelectionError(f"loader={key!r} is not one of the train loaders {keys}; use one of these.")
    chosen = loaders[key]
    if isinstance(chosen, Mapping | list | tuple):
        raise SelectionError(
            f"loader={key!r} names a group of {len(chosen)} loaders; put the one to select from at the top level of "
            "what train_dataloader returns, and name it."
        )
    flat = {k: CombinedLoader(loaders[k]).flattened for k in keys}
    _check_is_not_cycled([loader for k in keys for loader in flat[k]], chosen, key, mode)
    return sum(len(flat[k]) for k in keys[: keys.index(key)]), chosen


def only_key(trainer: Trainer) -> LoaderKey | None:
    """The key of the only train loader, where it stands in a dict or list; None where there is no key or several."""
    loaders = getattr(trainer.train_dataloader, "iterables", trainer.train_dataloader)
    if isinstance(loaders, Mapping) and len(loaders) == 1:
        key: LoaderKey = next(iter(loaders))
        return key
    return 0 if isinstance(loaders, list | tuple) and len(loaders) == 1 else None


def _check_is_not_cycled(loaders: list[Any], chosen: Any, key: LoaderKey, mode: str) -> None:
    """Refuse a loader that is started again in mid-epoch: it would be served another batch than the planned one."""
    longest = max(_length(loader) for loader in loaders)
    if mode == "max_size_cycle" and _length(chosen) < longest:
        raise SelectionError(f"the loader {key!r} {CYCLED}")


CYCLED = (
    "is shorter than the others and would be cycled in mid-epoch; select from the longest loader, or combine them "
    'with CombinedLoader(..., mode="min_size").'
)


def _length(loader: Any) -> int:
    """Batches of a loader; 0 where it cannot tell, as an IterableDataset."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def check_rebuildable(dataloader: Any) -> None:
    """Refuse a loader class that Lightning cannot make anew with another sampler."""
    if type(dataloader) is DataLoader or not isinstance(dataloader, DataLoader):
        return
    if isinstance(sampler_of(dataloader), SelectionSampler):
        return
    try:
        with_sampler(dataloader, SelectionSampler(dataloader.dataset))  # type: ignore[arg-type]
    except (MisconfigurationException, TypeError) as error:
        raise SelectionError(
            f"{type(dataloader).__name__} cannot be rebuilt with another sampler, because its __init__ takes other "
            "arguments than a DataLoader; build it with sampler=SelectionSampler(dataset) (from lightning_ubs import "
            "SelectionSampler), which is then used as it is."
        ) from error


def with_sampler(dataloader: DataLoader[Any], sampler: Sampler[int]) -> DataLoader[Any]:
    """The same loader, of the same class and with the same arguments, with another sampler."""
    arguments, named = _get_dataloader_init_args_and_kwargs(dataloader, sampler)
    batches = dataloader.batch_sampler
    if dataloader.batch_size is None and type(batches) is BatchSampler:
        # Lightning would forget the size of the batches, which only the user's batch sampler knows.
        for name in ("sampler", "shuffle", "batch_size", "drop_last"):
            named.pop(name, None)
        named["batch_sampler"] = BatchSampler(sampler, batches.batch_size, batches.drop_last)
    rebuilt: DataLoader[Any] = _reinstantiate_wrapped_cls(dataloader, *arguments, **named)
    return rebuilt


def sampler_of(dataloader: DataLoader[Any]) -> Any:
    """The sampler that decides the order; loaders made anew around a batch sampler show another one as theirs."""
    return getattr(dataloader.batch_sampler, "sampler", dataloader.sampler)


def own_sampler(dataloader: DataLoader[Any]) -> Any:
    """The sampler the user gave, also where Lightning has wrapped it for several processes."""
    sampler = sampler_of(dataloader)
    return sampler.dataset._sampler if type(sampler).__name__ == "DistributedSamplerWrapper" else sampler


def callbacks_of(trainer: Trainer) -> list[Any]:
    """The callbacks that are active now; tuners put them aside for a while."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def batch_to_fetch(trainer: Trainer, iterator: Any) -> int | None:
    """Index of the batch for whose step the training loop reads ``iterator``; None where somebody else reads it.

    The loop may fetch one batch more in advance, to see the end of loaders that do not tell their length.
    """
    running = getattr(trainer.fit_loop._combined_loader, "_iterator", None)
    for one in () if running is None else running.iterators:
        if one is iterator:
            ready = int(trainer.fit_loop.epoch_loop.batch_progress.current.ready)
            in_step = isinstance(trainer.fit_loop._data_fetcher, _DataLoaderIterDataFetcher)
            return ready - 1 if in_step else ready
    return None


def fetches_in_step(trainer: Trainer) -> bool:
    """Whether ``training_step(self, dataloader_iter)`` fetches its batches itself."""
    return isinstance(trainer.fit_loop._data_fetcher, _DataLoaderIterDataFetcher)


def fetched_batch(trainer: Trainer) -> Any:
    """The batch that a ``training_step(self, dataloader_iter)`` fetched last."""
    return getattr(trainer.fit_loop._data_fetcher, "_batch", None)


def fetches_in_advance(trainer: Trainer) -> bool:
    """Whether Lightning fetches one batch in advance, to see the end of loaders that do not tell their length."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and fetcher.length is None and not fetches_in_step(trainer)


def current_batch(trainer: Trainer) -> int:
    """Index of the batch that is being trained on, within the epoch; right also after a resume."""
    return int(trainer.fit_loop.epoch_loop.batch_idx)


def skips_backward(trainer: Trainer) -> bool:
    """Whether steps only run forward: after the last epoch, weight averaging computes batch-norm statistics so."""
    return bool(trainer.fit_loop._skip_backward)


def validation_is_due(trainer: Trainer) -> bool:
    """Whether a validation follows the step that has just ended."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def validation_loaders(trainer: Trainer) -> list[Any]:
    """All loaders of validation."""
    return CombinedLoader(trainer.val_dataloaders or []).flattened


def restart_loader(trainer: Trainer) -> None:
    """Read the train loader from its beginning, and drop what was fetched in advance."""
    if trainer.fit_loop._data_fetcher is not None:
        iter(trainer.fit_loop._data_fetcher)


def log_epoch(trainer: Trainer, values: Mapping[str, float]) -> None:
    """Give the values of a training epoch to loggers and callbacks, to be called in ``on_train_epoch_end``.

    As ``LightningModule.log`` would, but without its metric object for each value: where epochs are short, these were a
    third of what selection cost. Loggers get one row, with the step of the epoch's last batch.
    """
    found = {name: torch.tensor(value) for name, value in values.items()}
    trainer.callback_metrics.update(found)
    trainer.logged_metrics.update(found)
    step = trainer.fit_loop.epoch_loop._batches_that_stepped - 1
    for logger in trainer.loggers:
        logger.log_metrics({**values, "epoch": trainer.current_epoch}, step)
        logger.save()


def set_epoch_length(trainer: Trainer, batches: int) -> None:
    """Let the present epoch have so many batches; validation, progress bars and checkpoints follow it.

    Lightning fixes the number when it sets up the loader. An epoch that ended before would go without its validation,
    and a checkpoint of its last step would not know that the epoch is over.
    """
    loop, loaders = trainer.fit_loop, trainer.fit_loop._combined_loader
    if loaders is None or len(loaders.flattened) != 1:
        raise SelectionError(
            "epochs of different length are not possible where training has several loaders; use a number or a share "
            "as epoch_size, and a strategy whose epochs have the same length (not InfoBatch(original=True))."
        )
    length = limited(trainer, batches)
    loop.max_batches, loaders.limits = length, [length]
    if loop._data_fetcher is not None:
        loop._data_fetcher.length = length
    interval = trainer.val_check_interval
    if trainer.check_val_every_n_epoch is not None and isinstance(interval, int | float):
        every = int(length * interval) if isinstance(interval, float) else min(interval, length)
        trainer.val_check_batch = max(1, every)


def end_resumed_epoch(trainer: Trainer) -> None:
    """Let Lightning see that the epoch of a checkpoint is over, where the next one has more batches.

    A checkpoint of an epoch's last step counts its batches; Lightning compares them with the length of the present
    epoch, which is set anew when the first batch is fetched.
    """
    loop = trainer.fit_loop.epoch_loop
    if getattr(loop, "restarted_on_train_batch_end", False) and loop.batch_progress.is_last_batch:
        trainer.fit_loop.max_batches = min(trainer.fit_loop.max_batches, loop.batch_progress.current.ready)


def limited(trainer: Trainer, batches: int) -> int:
    """How many of the batches of an epoch are trained on, by ``limit_train_batches``."""
    limit = trainer.limit_train_batches
    return max(1, min(batches, limit) if isinstance(limit, int) else int(batches * limit))


def planned_epochs(trainer: Trainer) -> int | None:
    """How many epochs ``max_epochs`` lets be trained; None where it does not say."""
    epochs = trainer.max_epochs
    return None if epochs is None or epochs < 0 else epochs - _forward_only_epochs(trainer)


BatchesOf = Callable[[int], int]


class _Counted:
    """Put in front of the class of a trainer whose epochs have different lengths."""

    epoch_batches: BatchesOf
    plain_class: type[Trainer]

    @property
    def estimated_stepping_batches(self) -> int | float:
        """The number of optimizer steps, as Lightning estimates it, but from the length of each epoch."""
        trainer = cast(Trainer, self)
        estimated = super().estimated_stepping_batches  # type: ignore[misc]
        epochs = planned_epochs(trainer)
        if epochs is None or not math.isfinite(estimated):
            return cast(float, estimated)
        counted = (limited(trainer, self.epoch_batches(epoch)) for epoch in range(epochs))
        steps = sum(math.ceil(batches / trainer.accumulate_grad_batches) for batches in counted)
        return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


def count_epochs(trainer: Trainer, batches_of: BatchesOf) -> None:
    """Let ``trainer.estimated_stepping_batches`` follow the length of each epoch until :func:`uncount_epochs`.

    It is a property, so the trainer gets a subclass of its own class.
    """
    if not isinstance(trainer, _Counted):
        kind = type(trainer)
        body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "plain_class": kind}
        trainer.__class__ = type(kind.__name__, (_Counted, kind), body)
    vars(trainer)["epoch_batches"] = batches_of


def uncount_epochs(trainer: Trainer) -> None:
    """Give ``trainer`` its own class back."""
    if isinstance(trainer, _Counted):
        trainer.__class__ = trainer.plain_class  # type: ignore[assignment]
        del vars(trainer)["epoch_batches"]


def last_epoch(trainer: Trainer, batches_of: BatchesOf | None = None) -> int | None:
    """The last epoch that will be trained, by ``max_epochs`` and ``max_steps``; None where that is unknown.

    Args:
        trainer: The trainer at the start of a fit.
        batches_of: Batches of each epoch, where they are not equally many.
    """
    limits = []
    if (epochs := planned_epochs(trainer)) is not None:
        limits.append(epochs - 1)
    if trainer.max_steps >= 0 and trainer.lightning_module.automatic_optimization:
        by_steps = _epoch_of_step(trainer, trainer.max_steps, batches_of)
        limits += [] if by_steps is None else [by_steps]
    return min(limits, default=None)


def _forward_only_epochs(trainer: Trainer) -> int:
    """Epochs that stochastic weight averaging adds to ``max_epochs``, to compute batch-norm statistics alone."""
    return any(getattr(one, "_model_contains_batch_norm", None) is True for one in callbacks_of(trainer))


def _epoch_of_step(trainer: Trainer, step: int, batches_of: BatchesOf | None) -> int | None:
    """The epoch in which optimizer step number ``step`` (counted from 1) is made; None where nobody can tell."""
    batches = trainer.num_training_batches
    if not math.isfinite(batches) or batches < 1:
        return None
    schedulers = [c for c in callbacks_of(trainer) if isinstance(c, GradientAccumulationScheduler)]
    schedule = schedulers[0].scheduling if schedulers else {0: trainer.accumulate_grad_batches}
    # From here on, epochs have equally many steps.
    settled = max(schedule) if batches_of is None else max(max(schedule), planned_epochs(trainer) or 0)
    epoch, made = 0, 0
    while True:
        accumulated = schedule[max((first for first in schedule if first <= epoch), default=min(schedule))]
        length = batches if batches_of is None else limited(trainer, batches_of(epoch))
        per_epoch = math.ceil(length / accumulated)
        if made + per_epoch >= step:
            return epoch
        if epoch >= settled:
            return epoch + math.ceil((step - made) / per_epoch) - 1
        epoch, made = epoch + 1, made + per_epoch


@contextmanager
def quiet_resume() -> Iterator[None]:
    """Without Lightning's warning that a resume in mid-epoch repeats samples; with a planned epoch it does not."""
    before = list(warnings.filters)
    warnings.filterwarnings("ignore", message=".*resuming from a checkpoint that ended before the epoch ended.*")
    added = [entry for entry in warnings.filters if entry not in before]
    try:
        yield
    finally:
        for entry in added:
            if entry in warnings.filters:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]
