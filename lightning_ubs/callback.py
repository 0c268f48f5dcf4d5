"""The Lightning callback: hooks only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ubs._utils.arguments import call_repr
from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.inspection.known_labels import KnownLabels
from lightning_ubs.inspection.views import SelectionViews
from lightning_ubs.reading import DatasetLabels, Ids, IdVerification, Outputs, StepReader, Targets
from lightning_ubs.selection._lightning import LoaderKey, callbacks_of, log_epoch
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.selection.options import (
    Memory,
    Unbiased,
    chosen_dtype,
    chosen_end,
    chosen_memory,
    chosen_replacement,
    chosen_size,
    chosen_unbiased,
)
from lightning_ubs.selection.plan import loader_seed
from lightning_ubs.selection.planner import Selector
from lightning_ubs.selection.requirements import check_trainer
from lightning_ubs.selection.session import FitSession
from lightning_ubs.selection.steps import TrainingSteps
from lightning_ubs.strategies import UBS, Strategy


class BatchSelection(SelectionViews, Callback):
    """Chooses which samples the next mini-batches contain while a multi-label model trains.

    Attach it to a Trainer; module and dataset stay as they are. Warm-up epochs are shuffled passes. From then on, each
    epoch's batches are drawn at its start from probabilities that the strategy derives from the predictions so far.

    Args:
        strategy: what decides the probabilities; :class:`UBS` by default.
        warmup_epochs: shuffled epochs before the first selected one (γ).
        seed: of every draw; no other generator is used.
        outputs: where the predictions are: a key of what ``training_step`` returns, ``"module:NAME"`` or
            ``"module:NAME[PART]"``, a function ``(pl_module, outputs, batch) -> Tensor``, or None: ``probs`` or
            ``logits`` in what ``training_step`` returns, else what the loss was computed from, proven by the labels.
        targets: where the true labels of a batch are (``HardImbalance``): a key, a function, or None: what the loss was
            computed from, else the usual places of a batch.
        labels: the [samples, labels] matrix (``Balance``, ``HardImbalance``), if the dataset does not show it.
        features: the [samples, features] matrix (``HardImbalance``), if the dataset does not show it.
        replacement: ``"systematic"`` draws each sample as often as P says, rounded up or down, ``"batch"`` without
            repeats inside a batch, ``"none"`` without repeats in an epoch, ``"full"`` with repeats anywhere. By default
            what the strategy brings, else ``"systematic"``.
        start_epoch: first selected epoch, counted from 0; ``warmup_epochs`` by default.
        end_epoch: epoch from which the pressure is 1, or from which epochs are plain (``InfoBatch``); by default what
            the strategy brings, else the last.
        history_dtype: ``"float32"`` (default), ``"float16"``, ``"bfloat16"`` or ``"uint8"`` (255 steps) for remembered
            predictions.
        device: where they are kept; the module's device by default.
        log_metrics: log pressure, effective sample size and the like once per epoch.
        loader: which train loader to select from, where there are several.
        save_state: ``"full"`` makes a resume exact; ``"weights"`` keeps checkpoints small and a resume valid.
        kind: what the predictions hold: ``"logits"``, ``"probs"``, ``"softmax"`` (logits of exclusive classes) or
            ``"log_probs"``; None to find it out.
        ids: what planned samples are verified by, in the first batch of the first epochs: a key of the batch or a
            function ``(batch) -> ids``; None for the labels, where the dataset shows them; False for nothing.
        epoch_size: samples per epoch, as a share in (0, 1] or a number; by default what the strategy brings, else all.
            Every epoch has the same number of batches. Warm-up epochs walk on through a shuffled pass.
        fill_last: fill a short last batch of selected epochs, as the paper's code does, so that a selected epoch
            trains on more samples than a plain one.
        unbiased: let the gradient of each sample count 1/(nP), so that its mean is that of plain shuffling: every term
            of the loss that reads the predictions which a cross-entropy in it reads. What the loss has besides, such
            as a term of hidden layers, is not weighed; nor are the statistics of a batch norm. ``"annealed"`` lets the
            exponent of the weights rise from 0 to 1 over the selected epochs: in a prototype, what selection cost on
            tmc2007-500 fell from 0.0015 to 0.0005 Macro-AUC, and elsewhere most of its gain was lost. Needs
            ``replacement="systematic"`` or ``"full"``. By default what the strategy brings, else False.
        memory: with several processes, ``"replicated"`` keeps what is remembered of each sample and label on every
            process, ``"sharded"`` divides it among them; the same samples are selected.
        refresh: an :class:`EvaluationPass` predicts all samples at the start of each epoch, instead of what training
            steps predict.
        label_names: what the labels are called in frames and pictures; by default ``label_names`` of the datamodule or
            of the dataset, or the dataset's ``classes``.

    >>> BatchSelection(UBS(lambda1=0.6), warmup_epochs=3).start_epoch
    3
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        warmup_epochs: int | None = None,
        seed: int = 0,
        *,
        outputs: Outputs = None,
        targets: Targets = None,
        labels: Any = None,
        features: Any = None,
        replacement: Replacement | None = None,
        start_epoch: int | None = None,
        end_epoch: int | float | None = None,
        history_dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        log_metrics: bool = True,
        loader: LoaderKey | None = None,
        save_state: Literal["full", "weights"] = "full",
        kind: str | None = None,
        ids: Ids = None,
        epoch_size: float | int | None = None,
        fill_last: bool = False,
        unbiased: Unbiased | None = None,
        memory: Memory = "replicated",
        refresh: EvaluationPass | None = None,
        label_names: Sequence[str] | None = None,
    ) -> None:
        strategy = UBS() if strategy is None else strategy
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy={strategy!r} is not a Strategy; pass one, such as UBS().")
        if start_epoch is not None and warmup_epochs is not None:
            raise ValueError(
                f"warmup_epochs={warmup_epochs} and start_epoch={start_epoch} both name the first selected epoch; give "
                "one of them."
            )
        warmup_epochs = 5 if warmup_epochs is None else warmup_epochs
        check_range("warmup_epochs", warmup_epochs, 0, whole=True)
        check_range("seed", seed, 0, whole=True)
        check_choice("save_state", save_state, ("full", "weights"))
        self.memory = chosen_memory(memory, strategy)
        self.strategy = strategy
        self.warmup_epochs = int(warmup_epochs)
        self.seed = int(seed)
        self.outputs, self.targets = outputs, targets
        self.labels, self.features = labels, features
        self.replacement = chosen_replacement(replacement, strategy)
        self.unbiased = chosen_unbiased(unbiased, strategy, self.replacement)
        self.start_epoch = strategy.default_start(self.warmup_epochs) if start_epoch is None else start_epoch
        check_range("start_epoch", self.start_epoch, 0, whole=True)
        self.end_epoch = chosen_end(end_epoch, self.start_epoch)
        self.given_arguments = {
            "warmup_epochs": self.warmup_epochs if start_epoch is None else None,
            "start_epoch": start_epoch,
        }
        self.history_dtype = chosen_dtype(history_dtype)
        self.device = device
        self.log_metrics = log_metrics
        self.loader = loader
        self.save_state = save_state
        self.epoch_size = chosen_size(epoch_size, strategy)
        if fill_last and self.replacement == "none":
            raise ValueError("fill_last=True needs repeated samples; use replacement='batch' or leave fill_last out.")
        self.fill_last = bool(fill_last)
        self._selector = Selector(
            strategy, self.seed, self.replacement, fill_last=self.fill_last, compact=save_state == "weights"
        )
        if refresh is not None and not isinstance(refresh, EvaluationPass):
            raise ValueError(f"refresh={refresh!r} is not an evaluation pass; use refresh=EvaluationPass() or None.")
        if refresh is not None and "predictions" not in strategy.needs:
            raise ValueError(
                f"refresh={refresh!r} is of no use to {strategy!r}, which reads no predictions; leave it out."
            )
        self.refresh = refresh
        self.kind, self.ids = kind, ids
        self.label_names = label_names
        self.known_labels = KnownLabels(label_names)
        reader = StepReader(outputs, targets, kind, device, "targets" in self.strategy.needs, ids)
        self._steps = TrainingSteps(self._selector, reader, IdVerification(ids), self.unbiased, refresh)
        self._fit: FitSession | None = None
        self._only_evaluates = False
        self._seconds = 0.0

    def __repr__(self) -> str:
        return call_repr(self, omit=(None,))

    @property
    @override
    def state_key(self) -> str:
        return super().state_key if self.loader is None else f"{super().state_key}[loader={self.loader!r}]"

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()
        self._only_evaluates = stage != "fit"
        if self._only_evaluates:
            return
        scheduled = self.end_epoch is None and (self.strategy.decays or self.unbiased == "annealed")
        check_trainer(trainer, needs_last_epoch=scheduled or isinstance(self.end_epoch, float))
        self._check_others(trainer)
        self._fit = FitSession(
            self,
            trainer,
            self._selector,
            key=self.loader,
            seed=self._seed_beside_others(trainer),
            warmup_epochs=self.warmup_epochs,
            start_epoch=self.given_arguments["start_epoch"],
            end_epoch=self.end_epoch,
            labels=self.labels,
            features=self.features,
            history_dtype=self.history_dtype,
            epoch_size=self.epoch_size,
            memory=self.memory,
            on_dataset=self._see_dataset,
            refresh=None if self.refresh is None else self._steps.evaluate,
        )
        self._steps.begin_fit(pl_module, continues=trainer.current_epoch > 0)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()  # Lightning skips teardown where fit raised

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.refresh is not None:
            self.refresh.check(pl_module)
        with self._timed():
            self._session.begin()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with self._timed():
            self._steps.begin_epoch(self._session.prepare())

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._steps.begin(self._session, pl_module, batch)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._steps.before_backward(self._session, pl_module, loss)
        self._session.even_out(loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps.after_backward()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with self._timed():
            self._steps.finish(self._session, pl_module, outputs, batch)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps.check_epoch()
        if self.log_metrics:
            several = sum(isinstance(callback, BatchSelection) for callback in callbacks_of(trainer)) > 1
            prefix = f"selection/{self.loader}/" if several else "selection/"
            # The only value in which processes differ.
            seconds = float(trainer.strategy.reduce(torch.tensor(self._seconds, device=pl_module.device)))
            metrics = self._selector.metrics(seconds)
            log_epoch(trainer, {f"{prefix}{name}": value for name, value in metrics.items()})
        self._seconds = 0.0

    @override
    def state_dict(self) -> dict[str, Any]:
        own = {"kind": self._steps.reader.kind, "labels": self._steps.verification.state_dict()}
        return self._selector.state_dict() | own

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self._only_evaluates:
            return  # Trainer.test(ckpt_path=...) restores all callbacks, but what was selected stays as it is
        if self._fit is None:
            self._selector.load_to_look_at(state_dict)
            self.known_labels.see(DatasetLabels(self.labels, range(self.strategy.num_samples)))
            return
        self._steps.reader.kind = state_dict["kind"]
        self._steps.verification.load_state_dict(state_dict.get("labels", {}))  # not in checkpoints of 0.1.0
        self._fit.load(state_dict)

    def _see_dataset(self, labels: DatasetLabels) -> None:
        """The train dataset is known, with what it shows of its labels."""
        trainer = self._session.trainer
        self.known_labels.see(labels, getattr(trainer, "datamodule", None), self._session.dataset)
        self._steps.see_dataset(labels)

    def _check_others(self, trainer: Trainer) -> None:
        """Two of these callbacks must have their own loader and their own strategy."""
        others = [one for one in callbacks_of(trainer) if isinstance(one, BatchSelection) and one is not self]
        if any(other.loader == self.loader for other in others):
            raise SelectionError("there are two BatchSelection callbacks for one loader; keep one of them.")
        if any(other.strategy is self.strategy for other in others):
            raise SelectionError(
                "two BatchSelection callbacks share one strategy object, which would mix what it learns of two "
                "loaders; give each a strategy of its own."
            )

    def _seed_beside_others(self, trainer: Trainer) -> int:
        """The seed of this fit: with several selections each has its own, so that their samples are not paired."""
        alone = sum(isinstance(one, BatchSelection) for one in callbacks_of(trainer)) < 2
        return self.seed if alone or self.loader is None else loader_seed(self.seed, self.loader)

    def _close(self) -> None:
        """Leave trainer, loader and module as they were found."""
        self._only_evaluates = False
        if self._fit is not None:
            self._fit.close()
            self._fit = None
        self._steps.end_fit()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds that selection takes on the host."""
        started = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - started

    @property
    def _session(self) -> FitSession:
        if self._fit is None:
            raise SelectionError("BatchSelection works while Trainer.fit runs; attach it to a Trainer and call fit.")
        return self._fit
