"""The Lightning callback: hooks only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_ubs._lightning import (
    LoaderKey,
    LoaderSeam,
    agree_with_rank_zero,
    callbacks_of,
    check_loader,
    check_trainer,
    process_rank,
    restart_loader,
    saved_after_batch,
    silence_resume_warning,
    with_sampler,
)
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.plan import Replacement
from lightning_ubs.matrices import feature_matrix, label_matrix
from lightning_ubs.observation import StepObserver
from lightning_ubs.predictions import Outputs
from lightning_ubs.sampling import BatchLayout, EpochPlan, SelectionSampler, epoch_generator
from lightning_ubs.selector import Position, Selector, shuffled_pass
from lightning_ubs.strategies import UBS, Strategy
from lightning_ubs.strategies.base import check_range
from lightning_ubs.targets import Targets

_ONE_BATCH_UNSEEN = (
    "The checkpoint was taken by a callback that stands before BatchSelection, which had not seen the last batch yet: "
    "every id stays right, but the predictions of that batch are missing. Put BatchSelection first in callbacks= to "
    "resume exactly."
)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class BatchSelection(Callback):
    """Chooses which samples the next mini-batches contain while a multi-label model trains.

    Attach it to a Trainer; module and dataset stay as they are. Warm-up epochs are shuffled passes. From then on, each
    epoch's batches are drawn at its start from probabilities that the strategy derives from the predictions so far.

    Args:
        strategy: what decides the probabilities; :class:`UBS` by default.
        warmup_epochs: shuffled epochs before the first selected one (γ).
        seed: of every draw; no other generator is used.
        outputs: where the predictions are: a key of what ``training_step`` returns, ``"module:NAME"``, a function
            ``(pl_module, outputs, batch) -> Tensor``, or None to look for them.
        targets: where the true labels of a batch are (``HardImbalance``): a key, a function, or None for the usual
            places.
        labels: the [samples, labels] matrix (``Balance``, ``HardImbalance``), if the dataset does not show it.
        features: the [samples, features] matrix (``HardImbalance``), if the dataset does not show it.
        replacement: ``"batch"`` draws without repeats inside a batch, ``"none"`` without repeats in an epoch,
            ``"full"`` with repeats anywhere.
        start_epoch: first selected epoch, counted from 0; ``warmup_epochs`` by default.
        end_epoch: epoch from which the pressure is 1; the last by default.
        history_dtype: ``"float32"`` (default), ``"float16"`` or ``"bfloat16"`` for remembered predictions.
        device: where they are kept; the module's device by default.
        log_metrics: log pressure, effective sample size and the like once per epoch.
        loader: which train loader to select from, where there are several.
        save_state: ``"full"`` makes a resume exact; ``"weights"`` keeps checkpoints small and a resume valid.

    >>> BatchSelection(UBS(lambda1=0.6), warmup_epochs=3).start_epoch
    3
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        warmup_epochs: int = 5,
        seed: int = 0,
        outputs: Outputs = None,
        targets: Targets = None,
        labels: Any = None,
        features: Any = None,
        replacement: Replacement = "batch",
        start_epoch: int | None = None,
        end_epoch: int | None = None,
        history_dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        log_metrics: bool = True,
        loader: LoaderKey | None = None,
        save_state: Literal["full", "weights"] = "full",
    ) -> None:
        strategy = UBS() if strategy is None else strategy
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy={strategy!r} is not a Strategy; pass one, such as UBS().")
        check_range("warmup_epochs", warmup_epochs, 0, whole=True)
        check_range("seed", seed, 0, whole=True)
        if save_state not in ("full", "weights"):
            raise ValueError(f"save_state={save_state!r} is unknown; use 'full' or 'weights'.")
        self.strategy = strategy
        self.strategy.history_dtype = _dtype(history_dtype)
        self.start_epoch = warmup_epochs if start_epoch is None else start_epoch
        self.end_epoch = end_epoch
        check_range("start_epoch", self.start_epoch, 0, whole=True)
        if end_epoch is not None:
            check_range("end_epoch", end_epoch, self.start_epoch, whole=True)
        self.warmup_epochs = warmup_epochs
        self.labels, self.features = labels, features
        self.log_metrics = log_metrics
        self.loader = loader
        self._selector = Selector(strategy, seed, replacement, compact=save_state == "weights")
        self._observer = StepObserver(outputs, targets, device, self.strategy.needs_targets)
        self._trainer: Trainer | None = None
        self._seam: LoaderSeam | None = None
        self._samplers: list[SelectionSampler] = []
        self._loaded: dict[str, Any] | None = None
        self._begun = False
        self._served = False
        self._aside = False
        self._goes_on = False
        self._seconds = 0.0

    @property
    def seed(self) -> int:
        """Of every draw; it can be set before training begins."""
        return self._selector.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        check_range("seed", seed, 0, whole=True)
        self._selector.seed = seed

    @property
    def uncertainty(self) -> Tensor | None:
        """U, (n, q) float32, at the start of this epoch; None in the first."""
        return self.strategy.uncertainty

    @property
    def correlation(self) -> Tensor | None:
        """C, (q, q), at the start of this epoch."""
        return self.strategy.correlation

    @property
    def weights(self) -> Tensor | None:
        """w, (n,) in [0, 1], at the start of this epoch."""
        return self.strategy.weights

    @property
    def probabilities(self) -> Tensor | None:
        """P, (n,) float64, from which this epoch's batches are drawn; uniform in the warm-up."""
        return self._selector.probabilities

    @property
    def pressure(self) -> float:
        """Selection pressure s_t of this epoch; 1 in the warm-up."""
        return self._selector.pressure

    @property
    def plan(self) -> EpochPlan | None:
        """Sample ids of this epoch's batches: ``plan[k]`` on this process."""
        return self._selector.plan

    @property
    @override
    def state_key(self) -> str:
        return super().state_key if self.loader is None else f"{super().state_key}[loader={self.loader!r}]"

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        check_trainer(trainer, self.strategy, self.start_epoch, self.end_epoch)
        if sum(isinstance(c, BatchSelection) and c.loader == self.loader for c in callbacks_of(trainer)) > 1:
            raise SelectionError("there are two BatchSelection callbacks for one loader; keep one of them.")
        self._trainer, self._loaded, self._begun, self._served = trainer, None, False, False
        self._goes_on = trainer.current_epoch > 0
        if self._goes_on:
            self._selector.plan = None
        else:
            self._selector.forget()
        self._seam = LoaderSeam(trainer, self._take_loader, self.loader)
        if self.strategy.needs_predictions:
            self._observer.attach(pl_module)
        silence_resume_warning()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._let_go()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._let_go()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._aside:
            restart_loader(trainer)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._timed():
            self._selector.prepare(self._share)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._observer.start_step()

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._observer.stop_step()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with self._timed():
            if self.strategy.needs_predictions:
                batch = batch if self.loader is None else batch[self.loader]
                self._selector.learn(*self._observer.observe(self._selector.current, pl_module, outputs, batch))
            self._selector.finish_step(int(trainer.num_training_batches))

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_predictions()
        if self.log_metrics:
            pl_module.log_dict(
                self._selector.metrics(self._seconds), on_step=False, on_epoch=True, sync_dist=trainer.world_size > 1
            )
        self._seconds = 0.0
        self._selector.finish_epoch()

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._selector.state_dict() | {"kind": self._observer.kind}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict
        if self._served:
            raise SelectionError(
                "the checkpoint was loaded after the first batches were already being read; do not ask for "
                "trainer.estimated_stepping_batches in configure_optimizers with this strategy, or use strategy='ddp'."
            )
        if self._begun and self._selector.layout is not None:
            self._restore(self._selector.layout)

    def _let_go(self) -> None:
        """Leave trainer, loader and module as they were found; Lightning skips teardown where fit raised."""
        if self._seam is not None:
            self._seam.remove()
            self._seam = None
        for sampler in self._samplers:
            sampler.release()
        self._samplers = []
        self._observer.detach()
        self._trainer, self._begun, self._served = None, False, False

    def _take_loader(self, dataloader: Any) -> DataLoader[Any]:
        """Put the sampler into the train loader; runs before the first sample is drawn."""
        trainer = self._fitting
        check_loader(dataloader)
        rank, world_size = process_rank(trainer)
        layout = BatchLayout(len(dataloader.dataset), dataloader.batch_size, dataloader.drop_last, world_size, rank)
        if not self._begun:
            self._begin(dataloader.dataset, layout)
        elif layout.num_samples != self.strategy.num_samples:
            raise SelectionError(
                f"the train dataset changed from {self.strategy.num_samples} to {layout.num_samples} samples during "
                "training, so sample ids lost their meaning; keep its size."
            )
        end = self.end_epoch if self.end_epoch is not None else max((trainer.max_epochs or 0) - 1, self.start_epoch)
        self._selector.lay_out(layout, self.start_epoch, end)
        own = isinstance(dataloader.sampler, SelectionSampler)
        sampler = dataloader.sampler if own else SelectionSampler(dataloader.dataset)
        sampler.bind(self._serve, layout)
        self._samplers.append(sampler)
        return dataloader if own else with_sampler(dataloader, sampler)

    def _begin(self, dataset: Any, layout: BatchLayout) -> None:
        """First loader of a fit: prepare the strategy for the dataset, and take up a checkpoint."""
        n, name = layout.num_samples, type(self.strategy).__name__
        if not (self._goes_on and self._loaded is None and self.strategy.num_samples == n):
            labels = label_matrix(self.labels, dataset, n, name) if self.strategy.needs_labels else None
            features = feature_matrix(self.features, dataset, n, name) if self.strategy.needs_features else None
            self.strategy.reset(n, labels, features)
        self._begun = True
        if self._loaded is not None:
            self._restore(layout)
        else:
            self._selector.position = Position(self._fitting.current_epoch)

    def _restore(self, layout: BatchLayout) -> None:
        """Go on where the checkpoint was taken."""
        state, self._loaded = self._loaded, None
        if state is None:
            return
        if state["seed"] != self._selector.seed:
            rank_zero_warn(
                f"The checkpoint was written with seed={state['seed']}; it is kept instead of "
                f"seed={self._selector.seed}, so that the run goes on exactly.",
                category=UserWarning,
            )
        if state["global_batch_size"] not in (0, layout.global_batch_size):
            rank_zero_warn(
                f"The checkpoint was written with {state['global_batch_size']} samples per step over all processes, "
                f"now there are {layout.global_batch_size}: selection stays valid, but the order of samples differs.",
                category=UserWarning,
            )
        self._selector.load_state_dict(state)
        if saved_after_batch(self._fitting) == self._selector.position.batch:
            rank_zero_warn(_ONE_BATCH_UNSEEN, category=UserWarning)
            self._selector.position.batch += 1
        self._observer.kind = state["kind"]

    def _serve(self) -> tuple[EpochPlan, int]:
        """What the sampler follows; a plain shuffled pass while a tuner has put the callbacks aside."""
        layout = self._selector.layout
        self._aside = layout is not None and (self._trainer is None or self not in callbacks_of(self._trainer))
        if layout is not None and self._aside:
            return EpochPlan(0, shuffled_pass(layout, epoch_generator(self._selector.seed, 0)), layout), 0
        self._served = True
        with self._timed():
            return self._selector.next_plan(self._share)

    def _share(self, probabilities: Tensor) -> Tensor:
        trainer = self._fitting
        if trainer.world_size == 1:
            return probabilities
        return agree_with_rank_zero(probabilities, trainer.strategy.root_device)

    def _check_predictions(self) -> None:
        """Stop at the end of an epoch in which a prediction was not a number; the state is not touched by it."""
        kind = self._observer.kind
        fault = self._selector.first_fault() if self.strategy.needs_predictions else None
        if fault is not None:
            allowed = "in [0, 1]" if kind == "probs" else "finite"
            raise SelectionError(
                f"the predictions of epoch {self._selector.position.epoch}, batch {fault[0]}, sample {fault[1]} are "
                f"not all {allowed}; training has diverged or its output is not what it was taken for: lower the "
                "learning rate, or say where the predictions are with outputs=. What was known before is unharmed."
            )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds that selection takes on the host."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started

    @property
    def _fitting(self) -> Trainer:
        if self._trainer is None:
            raise SelectionError("BatchSelection works while Trainer.fit runs; attach it to a Trainer and call fit.")
        return self._trainer


def _dtype(value: str | torch.dtype | None) -> torch.dtype:
    name = str(value or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"history_dtype={value!r} is unknown; use one of {sorted(_DTYPES)}.")
    return _DTYPES[name]
