"""What belongs to one fit: its trainer, its loader, and where its training stands."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext, suppress
from enum import Enum
from typing import Any, Protocol

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_ubs._utils.distributed import broadcast_from_rank_zero
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading import DatasetLabels, feature_matrix
from lightning_ubs.selection import _lightning
from lightning_ubs.selection._lightning import LoaderKey, LoaderSeam
from lightning_ubs.selection.checkpoint import (
    warn_if_arguments_changed,
    warn_if_batch_missing,
    warn_if_batch_size_changed,
)
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.selection.loader import SelectionSampler, follow, unfollow
from lightning_ubs.selection.options import (
    WARMUP,
    EpochSize,
    Memory,
    SaveState,
    Size,
    check_shard,
    check_sizes,
    default_warmup,
    prepare_strategy,
    samples_per_epoch,
    shard_of,
)
from lightning_ubs.selection.plan import BatchLayout, EpochPlan
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.selection.random_states import RandomStates
from lightning_ubs.selection.requirements import (
    check_loader,
    check_same_dataset,
    process_rank,
    warn_if_nothing_is_selected,
)
from lightning_ubs.state import Shard
from lightning_ubs.strategies import Strategy, TrainingSet


class Owner(Protocol):
    """What a session reads of its callback."""

    seed: int
    strategy: Strategy
    given_arguments: dict[str, Any]
    start_epoch: int
    end_epoch: int | float | None
    labels: Any
    features: Any
    history_dtype: torch.dtype
    epoch_size: Size
    memory: Memory
    loader: LoaderKey | None
    save_state: SaveState
    refresh: EvaluationPass | None

    def see_dataset(self, labels: DatasetLabels, dataset: Any) -> None:
        """Take note of the train dataset and of what it shows of its labels."""

    def predict_all(self, epoch: int, loader: DataLoader[Any]) -> None:
        """Update the strategy with predictions of all samples, where ``refresh`` asks for them."""


class Origin(Enum):
    """Where what the strategy knows at the start of a fit comes from."""

    NOTHING = "Training ran without BatchSelection until now"
    OTHER_DATASET = "The train dataset has another size than in the previous fit, so what was learned is forgotten"
    PREVIOUS_FIT = "the previous fit of the same trainer"
    CHECKPOINT = "a checkpoint"


class Phase(Enum):
    """How far a fit has got."""

    WAITING = "training has not begun"
    STARTED = "training has begun, its first batch is still to come"
    RUNNING = "at least one batch was begun"


class FitSession:
    """Connection of a callback with one fit of a trainer; made in ``setup``, closed in ``teardown``.

    Epoch and batch are asked of the trainer each time. The plan of an epoch is made in hooks that every rank runs;
    reading the loader only reads it.

    A checkpoint is stored by :meth:`load`, restored when the dataset is known, and compared with this run once, at the
    first batch (:meth:`start_batch`).

    Args:
        callback: Callback whose arguments are read; a tuner may put it aside.
        trainer: The trainer of this fit.
        selector: Makes the plans.
        seed: Seed of all sampling, which differs from the callback's beside other selections.
    """

    def __init__(self, callback: Owner, trainer: Trainer, selector: Selector, seed: int) -> None:
        self.callback = callback
        self.trainer = trainer
        self.selector = selector
        self.seed = seed
        self.dataset: Any = None
        self.first_step = 0
        self.random = RandomStates(trainer, enabled=callback.save_state == "full")
        self._origin = Origin.PREVIOUS_FIT if trainer.current_epoch > 0 else Origin.NOTHING
        self._phase = Phase.WAITING
        self._checkpoint: dict[str, Any] | None = None
        self._read_early = False  # by a tuner, or in advance
        self._known_growth = 0
        self._loader: DataLoader[Any] | None = None
        self._sampler: SelectionSampler | None = None
        self._prepared: EpochPlan | None = None
        self._aside_plan: EpochPlan | None = None
        self._delivered: tuple[EpochPlan | None, int] = None, 0
        self._exit = ExitStack()
        self._exit.enter_context(_lightning.quiet_resume())
        seam = LoaderSeam.join(trainer, callback.loader, self._take_loader)
        self._exit.callback(seam.leave, callback.loader)
        self._exit.callback(self._release_loader)
        if self._sizes is not None:
            _lightning.count_epochs(trainer, self._batches_of)
            self._exit.callback(_lightning.uncount_epochs, trainer)
        if self._origin is Origin.PREVIOUS_FIT:
            selector.drop_plan()
        else:
            selector.forget()
            selector.seed = self.seed

    def close(self) -> None:
        """Leave trainer, loader and warnings as they were found; may be called twice."""
        self._exit.close()
        self.dataset = None

    def load(self, state: dict[str, Any]) -> None:
        """Store a checkpoint; it is restored now, or as soon as the dataset is known."""
        self._checkpoint = state
        self.random.load(state.get("random"))
        if self.dataset is not None:
            self._restore()

    def begin(self) -> None:
        """Training starts: plan the epoch that the trainer stands in, and say what was found."""
        trainer, selector = self.trainer, self.selector
        if self._origin in (Origin.NOTHING, Origin.OTHER_DATASET) and trainer.current_epoch > 0:
            selector.joined_epoch = trainer.current_epoch
            rank_zero_info(
                f"{self._origin.value}: selection joins in epoch {trainer.current_epoch} "
                f"and its warm-up is counted from here; the first selected epoch is {self._start}."
            )
        last = self._last_epoch
        selector.max_epochs = None if last is None else last + 1
        selector.schedule = Schedule.of(selector.strategy, self._start, self.callback.end_epoch, (last or 0) + 1)
        self.callback.start_epoch = self._start
        warn_if_nothing_is_selected(selector.strategy, self._start, last)
        if self._is_shortened:
            rank_zero_info(
                f"The warm-up takes {self._warmup} instead of {WARMUP} epochs, so that the second half of this short "
                f"training is selected; pass warmup_epochs={WARMUP} to keep the usual length."
            )
        self._phase = Phase.STARTED
        self.random.begin(None if self._loader is None else self._loader.generator)
        self.first_step = trainer.global_step
        self.prepare()
        if self._lengths_differ:
            _lightning.end_resumed_epoch(trainer)
            self._prepared = None  # so that the first fetch sets the epoch's length anew
        if self._read_early:
            _lightning.restart_loader(trainer)

    @property
    def plan(self) -> EpochPlan:
        """The plan of the epoch that is being trained."""
        if self.selector.plan is None:
            raise SelectionError("no epoch is planned yet; selection begins in Trainer.fit.")
        return self.selector.plan

    def prepare(self) -> EpochPlan:
        """Make the plan of the trainer's epoch; every rank does so at the same time."""
        epoch = self.trainer.current_epoch
        if not self.selector.is_measured(epoch):
            self._check_size()
            if self.callback.refresh is not None and epoch > 0 and self._loader is not None:
                self.callback.predict_all(epoch, self._loader)
        plan = self.selector.prepare(epoch, self._share)
        if self._lengths_differ and self._phase is not Phase.WAITING:
            _lightning.set_epoch_length(self.trainer, len(plan))
        self._prepared = plan
        return plan

    def start_batch(self, batch: int) -> None:
        """Begin batch ``batch``; the first one of a resumed run compares the checkpoint with this run."""
        if self._phase is Phase.RUNNING:
            return
        self._phase = Phase.RUNNING
        self.selector.resume_at(batch)
        if self._checkpoint is not None:
            warn_if_arguments_changed(self._checkpoint, self.selector, (self.callback.seed, self.seed))
            warn_if_batch_size_changed(self._checkpoint, self.selector)
            epoch = self.trainer.current_epoch
            before = self.trainer.num_training_batches
            if self._sizes is not None and epoch > 0:
                before = _lightning.limited(self.trainer, self._batches_of(epoch - 1))
            warn_if_batch_missing(self._checkpoint, epoch, batch, int(before))

    @property
    def loader_key(self) -> LoaderKey | None:
        """Where in a batch the part of the loader is that is selected from; None where there is no other part."""
        return _lightning.only_key(self.trainer) if self.callback.loader is None else self.callback.loader

    def even_out(self, loss: Tensor, batch: int) -> None:
        """Let each sample of a batch count the same where ranks have unlike numbers of them.

        The mean over ranks that DDP takes of the gradients would give more to the samples of the rank that has fewer.
        Of several loaders only one has a short batch, and the loss has terms of all: there it is left as it is.
        """
        if self.callback.loader is not None or loss.grad_fn is None:
            return
        weight = self.plan.rank_weight(batch)
        if weight != 1:
            loss.register_hook(lambda gradient: gradient * weight)  # type: ignore[no-untyped-call]

    def check_one_fetch(self, batch: int) -> None:
        """Check that a ``training_step`` that fetches for itself has fetched exactly the batch of this step."""
        if self._delivered != (self.selector.plan, batch + 1):
            self._refuse_fetches()

    @property
    def worker_root(self) -> int | None:
        """Number that seeds worker processes for each batch of the training; None leaves their generators alone."""
        return self.random.root

    @property
    def resumes(self) -> bool:
        """Whether a run is continued whose workers had drawn their seed already."""
        return self.random.resumes

    def training_batch(self, iterator: Any) -> tuple[EpochPlan, int] | None:
        """The plan and the batch that the training loop reads now, if ``iterator`` is its own; else None."""
        trainer = self.trainer
        batch = _lightning.batch_to_fetch(trainer, iterator)
        if batch is None:
            return None
        is_aside, plan = self._is_aside, self.selector.plan
        # The plan must be the trainer's epoch's, made for the loader that there is now.
        is_prepared = plan is not None and plan is self._prepared and plan.epoch == trainer.current_epoch
        if not is_prepared and not is_aside and self._phase is not Phase.WAITING:
            plan = self.prepare()
        if plan is None or is_aside:
            self._read_early = self._phase is Phase.WAITING
            return self._plan_aside(), batch
        delivered, reached = self._delivered
        if delivered is plan and reached > batch:
            if reached == batch + 1 and _lightning.fetches_in_advance(trainer):
                batch = reached
            if batch < reached:
                self._refuse_fetches()
        self._delivered = plan, batch + 1
        self.random.before_fetch()
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
        return self.callback not in _lightning.callbacks_of(self.trainer)

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
        start: int | None = self.callback.given_arguments["start_epoch"]
        if start is not None:
            return start
        return self.selector.joined_epoch + self.selector.strategy.default_start(self._warmup)

    @property
    def _warmup(self) -> int:
        """Shuffled epochs before the first selected one."""
        given: int | None = self.callback.given_arguments["warmup_epochs"]
        last = self._last_epoch
        if given is not None or last is None:
            return WARMUP if given is None else given
        return default_warmup(last + 1 - self.selector.joined_epoch)

    @property
    def _is_shortened(self) -> bool:
        """Whether selection begins earlier than in a longer training."""
        given, strategy = self.callback.given_arguments, self.selector.strategy
        if given["start_epoch"] is not None or given["warmup_epochs"] is not None or not strategy.warms_up:
            return False
        return strategy.default_start(self._warmup) < strategy.default_start(WARMUP)

    @property
    def _last_epoch(self) -> int | None:
        """The last epoch that will be trained, as far as that is known."""
        return _lightning.last_epoch(self.trainer, None if self._sizes is None else self._batches_of)

    @property
    def _lengths_differ(self) -> bool:
        """Whether epochs have unlike numbers of batches."""
        return self._sizes is not None or self.selector.strategy.decides_size

    @property
    def _sizes(self) -> EpochSize | None:
        size = self.callback.epoch_size
        return size if isinstance(size, EpochSize) else None

    def _batches_of(self, epoch: int) -> int:
        return self.selector.layout_of(epoch).num_batches

    def _take_loader(self, dataloader: Any) -> DataLoader[Any]:
        """Put the sampler into the train loader; runs before the first sample is drawn."""
        trainer, selector = self.trainer, self.selector
        rank, world_size = process_rank(trainer)
        check_loader(dataloader, rank, world_size)
        batches = dataloader.batch_sampler
        n = len(dataloader.dataset)
        samples = samples_per_epoch(self.callback.epoch_size, n)
        layout = BatchLayout(n, batches.batch_size, batches.drop_last, world_size, rank, samples)
        if samples is not None and layout.num_batches == 0:
            raise SelectionError(
                f"an epoch of {samples} samples has no whole batch of {layout.global_batch_size}, and drop_last=True "
                "drops the rest; use a larger epoch_size, smaller batches, or drop_last=False."
            )
        epochs = _lightning.planned_epochs(trainer) or 1
        if self._sizes is not None:
            check_sizes(self._sizes, epochs, layout)
        selector.see_dataset(dataloader.dataset)
        if self.dataset is None:
            shard = shard_of(self.callback.memory, layout, trainer.strategy.root_device)
            self._prepare_strategy(dataloader, shard)
        elif layout.num_samples != selector.strategy.num_samples:
            raise SelectionError(
                f"the train dataset changed from {selector.strategy.num_samples} to {layout.num_samples} samples "
                "during training, so sample ids lost their meaning; keep its size."
            )
        elif dataloader.dataset is not self.dataset:
            self.callback.see_dataset(DatasetLabels(self.callback.labels, dataloader.dataset), dataloader.dataset)
        self._release_loader()
        self.dataset = dataloader.dataset
        selector.lay_out(layout, self._sizes, epochs)
        self._prepared = None
        own = isinstance(batches.sampler, SelectionSampler)
        sampler = batches.sampler if own else SelectionSampler(dataloader.dataset)
        self._sampler = sampler
        sampler.bind(lambda: (self.plan_to_read(), 0), layout)
        self._loader = dataloader if own else _lightning.with_sampler(dataloader, sampler)
        follow(self._loader, self)
        if self._origin is Origin.NOTHING and trainer.current_epoch == 0 and not self._is_aside:
            # Beside a loader of unknown length Lightning fetches the first batch right after this.
            selector.schedule = Schedule.of(selector.strategy, self._start, self.callback.end_epoch, self._start + 2)
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
        shown = DatasetLabels(self.callback.labels, dataset)
        if self.trainer.world_size > 1:
            check_same_dataset(self.trainer, dataloader, None if shown.column is None else shown.column.all())
        continues = self._origin is Origin.PREVIOUS_FIT and self._checkpoint is None
        is_other = continues and strategy.num_samples not in (0, n)
        if not continues or strategy.num_samples != n:
            name = type(strategy).__name__
            labels = shown.matrix(name, strategy.takes_class_ids) if "labels" in strategy.needs else None
            features = None
            if "features" in strategy.needs | strategy.uses:
                required = "features" in strategy.needs or self.callback.features is not None
                with nullcontext() if required else suppress(SelectionError):
                    features = feature_matrix(self.callback.features, dataset, name, shown)
            prepare_strategy(strategy, TrainingSet(n, labels, features, self.callback.history_dtype, shard))
            self._origin = Origin.OTHER_DATASET if is_other else Origin.NOTHING
        check_shard(strategy, shard)
        self.dataset = dataset
        self._restore()
        self.callback.see_dataset(shown, dataset)

    def _check_size(self) -> None:
        """Refuse a dataset that has shrunk, and say once that one has grown."""
        known, now = self.selector.strategy.num_samples, len(self.dataset)
        if now < known:
            raise SelectionError(
                f"the train dataset shrank from {known} to {now} samples since training began, so some planned samples "
                "are gone; keep its size, and start another fit, with a new Trainer, for another dataset."
            )
        if now > known and not self._known_growth:
            self._known_growth = now - known
            rank_zero_warn(
                f"The train dataset grew from {known} to {now} samples since training began; the new ones are not "
                "drawn. Start another fit, with a new Trainer, to train on all of them.",
                category=UserWarning,
            )

    def _restore(self) -> None:
        """Continue where the checkpoint was taken."""
        if self._checkpoint is not None:
            self.selector.load_state_dict(self._checkpoint)
            self._origin = Origin.CHECKPOINT

    def _share(self, probabilities: Tensor) -> Tensor:
        if self.trainer.world_size == 1:
            return probabilities
        return broadcast_from_rank_zero(probabilities, self.trainer.strategy.root_device)
