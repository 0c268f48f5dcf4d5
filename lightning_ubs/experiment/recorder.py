"""What a run leaves behind: its curves, and what became of each sample."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ubs._utils.checks import check_choice, did_you_mean
from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError, SelectionError
from lightning_ubs.experiment.config import digest
from lightning_ubs.experiment.record import MetricValue, Mode, RunRecord
from lightning_ubs.experiment.run import versions
from lightning_ubs.experiment.selection import described
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.inspection.frame import label_draws
from lightning_ubs.metrics import direction, frequency_thirds
from lightning_ubs.selection._lightning import callbacks_of
from lightning_ubs.strategies import Random

# Curve of a record: the name under which it is logged.
_LOGGED = {
    "train_loss": "train_loss",
    "selection_seconds": "selection/seconds",
    "pressure": "selection/pressure",
    "effective_sample_size": "selection/effective_sample_size",
    "correlation_drift": "selection/correlation_drift",
}
# Decimals of seconds: what is left of 10 µs is noise, and would be a third of what a packed store takes.
_CLOCK_DIGITS = 5
# Decimals of a ratio of draws.
_DRAWN_DIGITS = 4
# Attributes that a checkpoint holds: all that is known at the end of an epoch.
_STATE = (
    "curves", "validated", "correlations", "times_selected", "_uncertainty", "_fluctuation", "_measured", "_epoch",
    "_samples", "_elapsed",
)  # fmt: skip


class Recorder(Callback):
    """Record of what the figures of the report need, in any Trainer: curves over the epochs, and sums per sample.

    It must stand before ``selection`` in the list. After the training, :meth:`save` adds it to a results folder, of
    which ``lightning-ubs report FOLDER`` makes a page::

        selection = BatchSelection(UBS())
        recorder = Recorder(selection, monitor="val_loss", mode="min")
        Trainer(callbacks=[recorder, selection]).fit(model, data)
        recorder.save("results/mine", data="photos", model="resnet")

    The time of an epoch is that of training and selection; validation and what is done here are left out. What is kept
    goes into checkpoints, with two gaps: one that is written at the end of an epoch does not know that epoch's training
    loss and what the selection logs of it; a run that resumes in mid-epoch takes the uncertainty of that moment for
    that of the epoch's start.

    Args:
        selection: The callback to watch.
        trace: Whether to keep what became of each sample.
        epochs: Epochs whose label correlation is kept; None: first selected, middle and last.
        monitor: The logged value that decides the best epoch.
        mode: Whether it should be large or small.

    Attributes:
        curves: By name, one value per epoch: ``epoch``, the monitored value, ``train_loss``, ``epoch_seconds``,
            ``selection_seconds``, ``samples``, ``pressure``, ``effective_sample_size`` and ``correlation_drift``; None
            where there is none.
        validated: By epoch, what validation logged.
        correlations: By epoch, C (q, q).
        times_selected: Draws of each sample in selected epochs, (n,).
        max_epochs: Epochs that were asked for; None if unlimited.
    """

    def __init__(
        self,
        selection: BatchSelection,
        trace: bool = True,
        epochs: Sequence[int] | None = None,
        monitor: str = "val_macro_auc",
        mode: Mode = "max",
    ) -> None:
        check_choice("mode", mode, ("max", "min"))
        self.selection = selection
        self.trace = trace
        self.epochs = epochs
        self.monitor = monitor
        self.mode = mode
        self._forget()

    def _forget(self) -> None:
        """Start anew, as if nothing had been trained."""
        names = ("epoch", self.monitor, "epoch_seconds", "samples", *_LOGGED)
        self.curves: dict[str, list[Any]] = {name: [] for name in names}
        self.validated: dict[int, dict[str, float]] = {}
        self.correlations: dict[int, Tensor] = {}
        self.times_selected = torch.zeros(0, dtype=torch.int64)
        self._uncertainty = self._fluctuation = torch.zeros(0)
        self._measured = 0
        self._started = self._validation = self._elapsed = 0.0
        self._epoch: int | None = None
        self._samples: int | None = None
        self.max_epochs: int | None = None
        self.batches: int | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all epochs so far."""
        return float(sum(self.curves["epoch_seconds"]))

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks = callbacks_of(trainer)
        places = [place for place, one in enumerate(callbacks) if one is self.selection]
        if not places or places[0] < callbacks.index(self):
            raise SelectionError(
                "Recorder must stand before the selection that it watches, in the same Trainer; use "
                "Trainer(callbacks=[recorder, selection])."
            )
        if trainer.current_epoch == 0:
            self._forget()

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._collect(trainer)
        self._epoch, self._validation = trainer.current_epoch, 0.0
        self._started = time.perf_counter()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation -= time.perf_counter()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validation += time.perf_counter()
        if trainer.sanity_checking or self._epoch is None:
            return
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.validated[self._epoch] = {name: value for name, value in logged.items() if name.startswith("val")}
        self._check_monitor(logged)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._elapsed = time.perf_counter() - self._started - self._validation
        self._samples = None if self.selection.plan is None else self.selection.trained_ids.numel()
        if self.trace:
            self._watch(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._collect(trainer)
        batches = trainer.num_training_batches
        self.max_epochs, self.batches = trainer.max_epochs, int(batches) if math.isfinite(batches) else None

    @override
    def state_dict(self) -> dict[str, Any]:
        # Copies, and plain: Lightning loads checkpoints with weights_only.
        return {"monitor": self.monitor} | {name: copy.deepcopy(getattr(self, name)) for name in _STATE}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["monitor"] != self.monitor:
            raise SelectionError(
                f"the checkpoint's Recorder has monitor={state_dict['monitor']!r}, this one has {self.monitor!r}; use "
                "the same monitor, or leave the Recorder out."
            )
        for name in _STATE:
            setattr(self, name, state_dict[name])

    def save(
        self,
        results: str | os.PathLike[str],
        *,
        data: str,
        model: str,
        label: str | None = None,
        seed: int | None = None,
        fold: int = 0,
    ) -> RunRecord:
        """Add this training to a results folder, which ``lightning-ubs report`` reads. Runs anew replace older ones.

        Args:
            results: The folder; it is made if it does not exist.
            data: Name of the dataset, to display and to group by.
            model: Name of the model, likewise.
            label: Name of the method; the strategy's by default.
            seed: That tells this run from others of the same method; the selection's by default.
            fold: Which part of the data was held out, likewise.

        Returns:
            What was written, without the arrays per sample.
        """
        return _save(self, results, data=data, model=model, label=label, seed=seed, fold=fold)

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the best monitored value, the first of equals; None if it was never a number."""
        sign = 1 if self.mode == "max" else -1
        values = zip(self.curves["epoch"], self.curves[self.monitor], strict=True)
        found = [(epoch, value) for epoch, value in values if value is not None and math.isfinite(value)]
        return max(found, key=lambda pair: sign * pair[1])[0] if found else None

    def arrays(self) -> dict[str, Any]:
        """The trace, as the results store documents it."""
        found: dict[str, Any] = {}
        if self.times_selected.numel():
            found["times_selected"] = self.times_selected.numpy()
        if self._measured:
            found["mean_uncertainty"] = (self._uncertainty / self._measured).numpy()
            found["fluctuation"] = (self._fluctuation / self._measured).numpy()
        if self.correlations:
            found["correlation_epochs"] = np.array(list(self.correlations))
            found["correlations"] = torch.stack(list(self.correlations.values())).numpy()
        return found

    def _collect(self, trainer: Trainer) -> None:
        """Read what the epoch before logged; all of it is there only when its last hook has run."""
        if self._epoch is None:
            return
        # After a resume, the trainer knows nothing of the epoch at whose end the checkpoint was written.
        logged: dict[str, Any] = {**self.validated.get(self._epoch, {}), **trainer.callback_metrics}
        if not self.curves["epoch"] and trainer.callback_metrics:
            self._check_monitor(logged)
        # A value that validation logged stays there in epochs without validation; it is not theirs.
        fresh = self._epoch in self.validated or not self.monitor.startswith("val")
        self.curves[self.monitor].append(float(logged[self.monitor]) if fresh and self.monitor in logged else None)
        self.curves["samples"].append(self._samples)
        for name, key in _LOGGED.items():
            digits = _CLOCK_DIGITS if name == "selection_seconds" else None
            self.curves[name].append(_rounded(logged[key], digits) if key in logged else None)
        seconds = max(_rounded(self._elapsed, _CLOCK_DIGITS), self.curves["selection_seconds"][-1] or 0.0)
        self.curves["epoch"].append(self._epoch)
        self.curves["epoch_seconds"].append(seconds)
        self._epoch = None

    def _check_monitor(self, logged: Mapping[str, Any]) -> None:
        """Stop after the first validation if it did not log what decides the best epoch."""
        if self.monitor in logged or (self.monitor.startswith("val") and not self.validated):
            return
        known = [name for name in logged if not name.startswith("selection/")]
        listed = f"it logs {', '.join(known)}." if known else "log it with self.log in validation_step."
        hint = did_you_mean(self.monitor, known, listed)
        raise ConfigError(f"monitor={self.monitor!r} is not logged by the module; {hint}")

    def _watch(self, trainer: Trainer) -> None:
        epoch, selection = trainer.current_epoch, self.selection
        if epoch in self._kept_epochs(trainer) and selection.correlation is not None:
            self.correlations[epoch] = selection.correlation.detach().float().cpu().clone()
        if epoch < selection.start_epoch and selection.strategy.warms_up:
            return
        if selection.plan is not None:
            counts = torch.bincount(selection.trained_ids, minlength=selection.strategy.num_samples)
            self.times_selected = self.times_selected + counts if self.times_selected.numel() else counts
        selection.settle()
        told, kept = selection.strategy.sample_columns(), selection.kept_ids
        if "mean_uncertainty" in told and "fluctuation" in told:
            uncertainty, fluctuation = (
                selection.strategy.shard.gather(told[name][kept.start : kept.stop].cpu().nan_to_num())
                for name in ("mean_uncertainty", "fluctuation")
            )
            self._uncertainty = self._uncertainty + uncertainty if self._measured else uncertainty
            self._fluctuation = self._fluctuation + fluctuation if self._measured else fluctuation
            self._measured += 1

    def _kept_epochs(self, trainer: Trainer) -> set[int]:
        last = (trainer.max_epochs or 1) - 1
        if self.epochs is not None:
            return set(self.epochs)
        first = min(self.selection.start_epoch, last)
        return {first, (first + last) // 2, last}


def _rounded(value: Any, digits: int | None) -> float:
    return float(value) if digits is None else round(float(value), digits)


def first_selected(selection: BatchSelection) -> int | None:
    """The first epoch whose batches a method chooses; None for Random, which never does."""
    if isinstance(selection.strategy, Random):
        return None
    return selection.start_epoch if selection.strategy.warms_up else 0


def draws_by_frequency(selection: BatchSelection) -> dict[str, float]:
    """How often samples with rare, medium and frequent labels were drawn against plain passes; empty if unknown."""
    strategy, times = selection.strategy, selection.times_drawn
    labels = selection.known_labels.matrix(strategy.num_samples, strategy.num_labels)
    if labels is None or times is None:
        return {}
    _, drawn, plain = label_draws(labels, times)
    means = {third: float((drawn / plain)[own].nanmean()) for third, own in frequency_thirds(labels).items()}
    return {third: round(mean, _DRAWN_DIGITS) for third, mean in means.items() if math.isfinite(mean)}


def _save(
    recorder: Recorder,
    results: str | os.PathLike[str],
    *,
    data: str,
    model: str,
    label: str | None,
    seed: int | None,
    fold: int,
) -> RunRecord:
    """Write a record and its arrays; arguments as those of :meth:`Recorder.save`."""
    selection, strategy = recorder.selection, recorder.selection.strategy
    if not recorder.curves["epoch"]:
        raise SelectionError("the Recorder has seen no whole epoch yet; save it after Trainer.fit.")
    method = described(label or type(strategy).__name__, selection)
    identity = method | {"data": data, "model": model, "fold": fold, "seed": selection.seed if seed is None else seed}
    best = recorder.validated.get(-1 if recorder.best_epoch is None else recorder.best_epoch, {})
    metrics = {
        name.removeprefix("val_"): MetricValue(
            value, direction(name.removeprefix("val_"), recorder.monitor, recorder.mode, {}), "val"
        )
        for name, value in best.items()
    }
    shape = {"n": strategy.num_samples, "q": strategy.num_labels, "batches": recorder.batches}
    record = RunRecord(
        **identity,
        key=digest(identity),
        status="ok",
        monitor=recorder.monitor,
        mode=recorder.mode,
        metrics=metrics,
        best_epoch=recorder.best_epoch,
        max_epochs=recorder.max_epochs,
        first_selected_epoch=first_selected(selection),
        curves=recorder.curves,
        seconds=recorder.seconds,
        shape={name: value for name, value in shape.items() if value is not None},
        versions=versions(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        trace=recorder.trace,
        draws=draws_by_frequency(selection),
    )
    store = ResultsStore(results)
    if recorder.trace:
        arrays = recorder.arrays()
        labels = selection.known_labels.matrix(strategy.num_samples, strategy.num_labels)
        if labels is not None:
            arrays["labels"] = labels.numpy()
            names = selection.known_labels.names(labels.shape[1])
            if names is not None:
                arrays["label_names"] = np.array(names, dtype=str)
        store.write_trace(record.key, **arrays)
    store.append(record)
    return record
