"""What belongs to one fit: its trainer, its loader, and where its training stands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_ubs._utils.distributed import broadcast_from_rank_zero
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading import DatasetLabels, feature_matrix
from lightning_ubs.selection import _lightning
from lightning_ubs.selection._lightning import LoaderKey, LoaderSeam
from lightning_ubs.selection.checkpoint import say_if_a_batch_is_missing, say_if_batches_differ, say_what_differs
from lightning_ubs.selection.loader import follow, unfollow
from lightning_ubs.selection.options import Memory, check_shard, prepare_strategy, samples_per_epoch, shard_of
from lightning_ubs.selection.plan import BatchLayout, EpochPlan, SelectionSampler
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.selection.requirements import (
    check_loader,
    check_same_dataset,
    process_rank,
    warn_if_nothing_is_selected,
)
from lightning_ubs.state import Shard
from lightning_ubs.strategies import TrainingSet


class FitSession:
    """Connects a selector with one fit of a trainer; made in ``setup``, closed in ``teardown``.

    Epoch and batch are asked of the trainer each time. The plan of an epoch is made in hooks that every process runs;
    reading the loader only reads it.

    Args:
        owner: the callback, which a tuner may put aside.
        trainer: the trainer of this fit.
        selector: what makes the plans.
        key: which of several loaders to select from.
        seed: of every draw.
        warmup_epochs: shuffled epochs before the first selected one.
        start_epoch: the first selected epoch, where it is given.
        end_epoch: the epoch from which the pressure is 1, where it is given.
        labels: the label matrix, where it is given.
        features: the feature matrix, where it is given.
        history_dtype: how predictions are kept.
        epoch_size: samples per epoch, as a share or a number.
        memory: whether processes divide what is remembered among them.
        on_dataset: called with what the dataset shows of its labels.
        refresh: called with this, an epoch but the first, and the loader, before anything is measured for that epoch.
    """

    def __init__(
        self,
        owner: Callback,
        trainer: Trainer,
        selector: Selector,
        *,
        key: LoaderKey | None,
        seed: int,
        warmup_epochs: int,
        start_epoch: int | None,
        end_epoch: int | float | None,
        labels: Any,
        features: Any,
        history_dtype: torch.dtype,
        epoch_size: float | int | None,
        memory: Memory,
        on_dataset: Callable[[DatasetLabels], None],
        refresh: Callable[[FitSession, int, DataLoader[Any]], None] | None = None,
    ) -> None:
        self.owner = owner
        self.trainer = trainer
        self.selector = selector
        self.key = key
        self.seed = seed
        self.warmup_epochs = warmup_epochs
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.labels, self.features = labels, features
        self.history_dtype = history_dtype
        self.epoch_size = epoch_size
        self.memory = memory
        self._on_dataset = on_dataset
        self._refresh = refresh
        self.dataset: Any = None
        self.first_step = 0
        self._continues = trainer.current_epoch > 0
        self._fresh = False  # nothing was learnt in the epochs before this fit
        self._begun = False
        self._first_batch = True
        self._has_grown = False
        self._read_early = False  # by a tuner, or in advance
        self._loaded: dict[str, Any] | None = None  # a checkpoint that waits for the dataset
        self._restored: dict[str, Any] | None = None  # a checkpoint whose first batch is still to come
        self._loader: DataLoader[Any] | None = None
        self._sampler: SelectionSampler | None = None
        self._aside_plan: EpochPlan | None = None
        self._delivered: tuple[EpochPlan | None, int] = None, 0
        self._exit = ExitStack()
        self._exit.enter_context(_lightning.quiet_resume())
        seam = LoaderSeam.join(trainer, key, self._take_loader)
        self._exit.callback(seam.leave, key)
        self._exit.callback(self._release_loader)
        if self._continues:
            selector.drop_plan()
        else:
            selector.forget()
            selector.seed = self.seed

    def close(self) -> None:
        """Leave trainer, loader and warnings as they were found; may be called twice."""
        self._exit.close()
        self.dataset = None

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, now or as soon as the dataset is known."""
        self._loaded = state
        if self.dataset is not None:
            self._restore()

    def begin(self) -> None:
        """Training starts: plan the epoch that the trainer stands in, and say what was found."""
        trainer, selector = self.trainer, self.selector
        if self._fresh and trainer.current_epoch > 0:
            selector.joined_epoch = trainer.current_epoch
            rank_zero_info(
                f"Training ran without BatchSelection until now: selection joins in epoch {trainer.current_epoch} "
                f"and its warm-up is counted from here; the first selected epoch is {self._start}."
            )
        last = _lightning.last_epoch(trainer)
        selector.schedule = Schedule.of(selector.strategy, self._start, self.end_epoch, (last or 0) + 1)
        warn_if_nothing_is_selected(selector.strategy, self._start, last)
        if self._restored is not None:
            say_if_batches_differ(self._restored, selector)
        self._begun = True
        self.first_step = trainer.global_step
        self.prepare()
        if self._read_early:
            _lightning.restart_loader(trainer)

    @property
    def plan(self) -> EpochPlan:
        """The plan of the epoch that is being trained."""
        if self.selector.plan is None:
            raise SelectionError("no epoch is planned yet; selection begins in Trainer.fit.")
        return self.selector.plan

    def prepare(self) -> EpochPlan:
        """Make the plan of the trainer's epoch; every process does so at the same time."""
        epoch = self.trainer.current_epoch
        if not self.selector.is_measured(epoch):
            self._check_size()
        if self._refresh is not None and epoch > 0 and not self.selector.is_measured(epoch):
            assert self._loader is not None
            self._refresh(self, epoch, self._loader)
        return self.selector.prepare(epoch, self._share)

    def start_batch(self, batch: int) -> None:
        """The trainer begins batch ``batch``; the first one of a resumed run tells what the checkpoint lacks."""
        state, self._restored = self._restored, None
        if not self._first_batch:
            return
        self._first_batch = False
        epoch = self.trainer.current_epoch
        self.selector.resume_at(batch)
        if state is not None:
            say_if_a_batch_is_missing(state, epoch, batch, int(self.trainer.num_training_batches))

    def own_batch(self, batch: Any) -> Any:
        """The part of a batch that comes from the loader that is selected from."""
        key = _lightning.only_key(self.trainer) if self.key is None else self.key
        return batch if key is None or batch is None else batch[key]

    def even_out(self, loss: Tensor) -> None:
        """Let each sample of a batch count the same where ranks have unlike numbers of them.

        The mean over ranks that DDP takes of the gradients would give more to the samples of the rank that has fewer.
        Of several loaders only one has a short batch, and the loss has terms of all: there it is left as it is.
        """
        if self.key is not None or self.trainer.world_size == 1 or loss.grad_fn is None:
            return
        weight = self.plan.rank_weight(_lightning.current_batch(self.trainer))
        if weight != 1:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def check_one_fetch(self, batch: int) -> None:
        """A ``training_step`` that fetches for itself must have fetched exactly the batch of this step."""
        if _lightning.fetches_in_step(self.trainer) and self._delivered != (self.selector.plan, batch + 1):
            self._refuse_fetches()

    def training_batch(self, iterator: Any) -> tuple[EpochPlan, int] | None:
        """The plan and the batch that the training loop reads now, if ``iterator`` is its own; else None."""
        trainer = self.trainer
        if not _lightning.is_read_by_training(trainer, iterator):
            return None
        batch = _lightning.batch_to_fetch(trainer)
        plan = self.prepare() if self._begun and not self._is_aside else self.selector.plan
        if plan is None or self._is_aside:
            self._read_early = not self._begun
            return self._plan_aside(), batch
        reached = self._delivered[1] if self._delivered[0] is plan else 0
        if _lightning.fetches_in_advance(trainer) and reached == batch + 1:
            batch = reached
        if batch < reached:
            self._refuse_fetches()
        self._delivered = plan, batch + 1
        return plan, batch

    def plan_to_read(self) -> EpochPlan:
        """What other readers of the loader get: a pass in order in validation, else the epoch's plan."""
        if self.trainer.validating or self.trainer.sanity_checking:
            layout = self.selector.layout
            assert layout is not None
            return EpochPlan(-1, torch.arange(layout.num_samples)[: layout.num_draws], layout)
        plan = self.selector.plan
        return self._plan_aside() if plan is None or self._is_aside else plan

    @property
    def _is_aside(self) -> bool:
        """Whether a tuner runs the loop without this callback."""
        return not any(callback is self.owner for callback in _lightning.callbacks_of(self.trainer))

    def _plan_aside(self) -> EpochPlan:
        epoch = self.trainer.current_epoch
        layout = self.selector.layout
        if self._aside_plan is None or (self._aside_plan.epoch, self._aside_plan.layout) != (epoch, layout):
            self._aside_plan = self.selector.shuffled_plan(epoch)
        return self._aside_plan

    def _refuse_fetches(self) -> None:
        if _lightning.fetches_in_step(self.trainer):
            raise SelectionError(
                "training_step(self, dataloader_iter) did not fetch exactly one batch in this step, so predictions "
                "cannot be matched to their samples; call next(dataloader_iter) once per step."
            )
        raise SelectionError(f"the selected train loader {_lightning.CYCLED}")

    @property
    def _start(self) -> int:
        """The first selected epoch."""
        start = self.start_epoch
        if start is not None:
            return start
        return self.selector.joined_epoch + self.selector.strategy.default_start(self.warmup_epochs)

    def _take_loader(self, dataloader: Any) -> DataLoader[Any]:
        """Put the sampler into the train loader; runs before the first sample is drawn."""
        trainer, selector = self.trainer, self.selector
        rank, world_size = process_rank(trainer)
        check_loader(dataloader, rank, world_size)
        batches = dataloader.batch_sampler
        n = len(dataloader.dataset)
        samples = samples_per_epoch(self.epoch_size, n)
        layout = BatchLayout(n, batches.batch_size, batches.drop_last, world_size, rank, samples)
        if samples is not None and layout.num_batches == 0:
            raise SelectionError(
                f"an epoch of {samples} samples has no whole batch of {layout.global_batch_size}, and drop_last=True "
                "drops the rest; use a larger epoch_size, smaller batches, or drop_last=False."
            )
        selector.see_dataset(dataloader.dataset)
        if self.dataset is None:
            shard = shard_of(self.memory, layout, trainer.strategy.root_device)
            self._prepare_strategy(dataloader, shard)
        elif layout.num_samples != selector.strategy.num_samples:
            raise SelectionError(
                f"the train dataset changed from {selector.strategy.num_samples} to {layout.num_samples} samples "
                "during training, so sample ids lost their meaning; keep its size."
            )
        self._release_loader()
        self.dataset = dataloader.dataset
        selector.lay_out(layout)
        own = isinstance(batches.sampler, SelectionSampler)
        sampler = batches.sampler if own else SelectionSampler(dataloader.dataset)
        self._sampler = sampler
        sampler.bind(lambda: (self.plan_to_read(), 0), layout)
        self._loader = dataloader if own else _lightning.with_sampler(dataloader, sampler)
        follow(self._loader, self)
        if self._fresh and trainer.current_epoch == 0 and not self._is_aside:
            # Beside a loader of unknown length Lightning fetches the first batch right after this.
            selector.schedule = Schedule.of(selector.strategy, self._start, self.end_epoch, self._start + 2)
            self.prepare()
        return self._loader

    def _release_loader(self) -> None:
        if self._loader is not None:
            unfollow(self._loader)
            self._loader = None
        if self._sampler is not None:
            self._sampler.release()
            self._sampler = None

    def _prepare_strategy(self, dataloader: DataLoader[Any], shard: Shard) -> None:
        """First loader of a fit: prepare the strategy for the dataset, and restore a checkpoint."""
        strategy, dataset, n = self.selector.strategy, dataloader.dataset, shard.num_samples
        shown = DatasetLabels(self.labels, dataset)
        if self.trainer.world_size > 1:
            check_same_dataset(self.trainer, dataloader, None if shown.column is None else shown.column.all())
        if not (self._continues and self._loaded is None and strategy.num_samples == n):
            name = type(strategy).__name__
            labels = shown.matrix(name, strategy.takes_class_ids) if "labels" in strategy.needs else None
            features = None
            if "features" in strategy.needs | strategy.uses:
                required = "features" in strategy.needs or self.features is not None
                with nullcontext() if required else suppress(SelectionError):
                    features = feature_matrix(self.features, dataset, name, shown)
            prepare_strategy(strategy, TrainingSet(n, labels, features, self.history_dtype, shard))
            self._fresh = self._loaded is None
        check_shard(strategy, shard)
        self.dataset = dataset
        self._restore()
        self._on_dataset(shown)

    def _check_size(self) -> None:
        """Refuse a dataset that has shrunk, and say once that one has grown."""
        known, now = self.selector.strategy.num_samples, len(self.dataset)
        if now < known:
            raise SelectionError(
                f"the train dataset shrank from {known} to {now} samples since training began, so some planned samples "
                "are gone; keep its size, and start another fit, with a new Trainer, for another dataset."
            )
        if now > known and not self._has_grown:
            self._has_grown = True
            rank_zero_warn(
                f"The train dataset grew from {known} to {now} samples since training began; the new ones are not "
                "drawn. Start another fit, with a new Trainer, to train on all of them.",
                category=UserWarning,
            )

    def _restore(self) -> None:
        """Go on where the checkpoint was taken."""
        state, self._loaded = self._loaded, None
        if state is None:
            return
        say_what_differs(state, self.selector, getattr(self.owner, "seed", self.seed))
        self.selector.load_state_dict(state)
        self._restored = state
        self._fresh = False

    def _share(self, probabilities: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return probabilities
        return broadcast_from_rank_zero(probabilities, self.trainer.strategy.root_device)
