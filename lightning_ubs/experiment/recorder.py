"""What a run leaves behind: its curves, and what became of each sample."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_ubs._checks import did_you_mean
from lightning_ubs.callback import BatchSelection
from lightning_ubs.experiment.config import ConfigError
from lightning_ubs.experiment.record import Mode
from lightning_ubs.functional import window_fluctuation
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.state import PredictionHistory
from lightning_ubs.strategies import UncertaintyStrategy

# Curve of a record: the name under which it is logged.
_LOGGED = {
    "train_loss": "train_loss",
    "selection_seconds": "selection/seconds",
    "pressure": "selection/pressure",
    "effective_sample_size": "selection/effective_sample_size",
    "correlation_drift": "selection/correlation_drift",
}


class Recorder(Callback):
    """Keeps one value per epoch of each curve, and sums per sample. It must stand before ``selection`` in the list.

    The time of an epoch is that of training and selection; validation and what is done here are left out.

    Args:
        selection: the callback to watch.
        trace: whether to keep what became of each sample.
        epochs: epochs whose label correlation is kept; None: first selected, middle and last.
        monitor: the logged value that decides the best epoch.
        mode: whether it should be large or small.
    """

    def __init__(
        self,
        selection: BatchSelection,
        trace: bool = True,
        epochs: Sequence[int] | None = None,
        monitor: str = "val_macro_auc",
        mode: Mode = "max",
    ) -> None:
        self.selection = selection
        self.trace = trace
        self.epochs = epochs
        self.monitor = monitor
        self.mode = mode
        self.curves: dict[str, list[Any]] = {
            name: [] for name in ("epoch", monitor, "epoch_seconds", "samples", *_LOGGED)
        }
        self.validated: dict[int, dict[str, float]] = {}
        self.correlations: dict[int, Tensor] = {}
        self.times_selected = torch.zeros(0, dtype=torch.int64)
        self._uncertainty = self._fluctuation = torch.zeros(0)
        self._measured = 0
        self._started = self._validation = self._elapsed = 0.0
        self._epoch: int | None = None
        self._samples: int | None = None

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
        logged = trainer.callback_metrics
        if not self.curves["epoch"]:
            self._check_monitor(logged)
        # A value that validation logged stays there in epochs without validation; it is not theirs.
        fresh = self._epoch in self.validated or not self.monitor.startswith("val")
        self.curves[self.monitor].append(float(logged[self.monitor]) if fresh and self.monitor in logged else None)
        self.curves["samples"].append(self._samples)
        for name, key in _LOGGED.items():
            self.curves[name].append(float(logged[key]) if key in logged else None)
        seconds = max(self._elapsed, self.curves["selection_seconds"][-1] or 0.0)
        self.curves["epoch"].append(self._epoch)
        self.curves["epoch_seconds"].append(seconds)
        self._epoch = None

    def _check_monitor(self, logged: Mapping[str, Any]) -> None:
        """Stop after the first validation if it did not log what decides the best epoch."""
        if self.monitor in logged or (self.monitor.startswith("val") and not self.validated):
            return
        known = [name for name in logged if not name.startswith("selection/")]
        listed = f"it logs {', '.join(known)}." if known else "log it with self.log in validation_step."
        way_out = did_you_mean(self.monitor, known, listed)
        raise ConfigError(f"monitor={self.monitor!r} is not logged by the module; {way_out}")

    def _watch(self, trainer: Trainer) -> None:
        epoch, selection = trainer.current_epoch, self.selection
        if epoch in self._kept_epochs(trainer) and selection.correlation is not None:
            self.correlations[epoch] = selection.correlation.detach().float().cpu().clone()
        if epoch < selection.start_epoch and selection.strategy.warms_up:
            return
        if selection.plan is not None:
            counts = torch.bincount(selection.trained_ids, minlength=selection.strategy.num_samples)
            self.times_selected = self.times_selected + counts if self.times_selected.numel() else counts
        uncertainty, fluctuation = selection.uncertainty, _fluctuation(selection)
        if uncertainty is not None and fluctuation is not None:
            mean = selection.strategy.shard.gather(uncertainty.mean(1).cpu())
            self._uncertainty = self._uncertainty + mean if self._measured else mean
            self._fluctuation = self._fluctuation + fluctuation if self._measured else fluctuation
            self._measured += 1

    def _kept_epochs(self, trainer: Trainer) -> set[int]:
        last = (trainer.max_epochs or 1) - 1
        if self.epochs is not None:
            return set(self.epochs)
        first = min(self.selection.start_epoch, last)
        return {first, (first + last) // 2, last}


def _fluctuation(selection: BatchSelection) -> Tensor | None:
    """Fluctuation averaged over labels, (n,), where predictions are remembered one by one."""
    strategy = selection.strategy
    if not isinstance(strategy, UncertaintyStrategy) or strategy.num_labels is None:
        return None
    memory = strategy.memory
    if not isinstance(memory, PredictionHistory):
        return None
    parts = [
        window_fluctuation(*memory.rows(first, last)).mean(1)[own].cpu()
        for first, last, own in strategy.shard.blocks(block_rows(memory.num_labels * memory.window))
    ]
    return strategy.shard.gather(torch.cat(parts))
