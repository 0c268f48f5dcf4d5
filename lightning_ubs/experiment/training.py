"""One run: train, take the best validation epoch, test it, and say what happened as a record."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng
from typing_extensions import override

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs._utils.files import atomic_write, write_file
from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.build import instantiate
from lightning_ubs.experiment.config import trainer_arguments
from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.experiment.recorder import Recorder, draws_by_frequency, first_selected
from lightning_ubs.experiment.run import Run, versions
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.metrics import direction, logged_directions
from lightning_ubs.reading import training_labels

# Logged beside the metrics, and none itself.
_NO_METRICS = ("skipped_labels",)


def train(run: Run, folder: Path, store: ResultsStore | None, keep: bool) -> RunRecord:
    """Train, take the best validation epoch, and test it.

    ``folder`` gets the checkpoint of the best epoch, ``checkpoints/best.ckpt``. If it is kept, it gets ``trace.npz`` as
    well, and training can resume from the checkpoint.
    """
    with isolate_rng():
        return _train(run, folder, store, keep)


def _train(run: Run, folder: Path, store: ResultsStore | None, keep: bool) -> RunRecord:
    begun, clock = datetime.now(UTC), time.perf_counter()
    seed, monitor, mode = run.identity.seed, run.identity.monitor, run.identity.mode
    selection = run.make_selection()
    # Seeded twice: what making the data draws must not change the initial weights.
    seed_everything(seed, workers=True, verbose=False)
    data = run.make_data()
    seed_everything(seed, workers=True, verbose=False)
    module = run.make_module(data)
    loggers = run.make_loggers(folder)
    recorder = Recorder(selection, run.trace, run.trace_epochs, monitor, mode)
    best = _BestEpoch(folder / "checkpoints", "best", monitor=monitor, mode=mode, save_weights_only=not keep)
    callbacks = [recorder, selection, *run.make_callbacks(selection, data), _SizeCheck(run.samples), best]
    trainer = make_trainer(run.trainer, folder, loggers, callbacks)
    trainer.fit(module, datamodule=data)
    if not recorder.curves["epoch"]:
        raise ConfigError("training ended before its first epoch; look at the trainer's limits and the data's length.")
    if not best.best_model_path:
        raise ConfigError(
            f"monitor={monitor!r} was never logged, because nothing was validated; give the data a val_dataloader and "
            "the module a validation_step, and look at the trainer's limits."
        )
    known = logged_directions(module)
    metrics = {
        name: MetricValue(value, direction(name, monitor, mode, known), "test" if tested else "val")
        for name, (value, tested) in _measured(trainer, module, data, recorder, best.best_model_path).items()
    }
    if recorder.best_epoch is not None and monitor.removeprefix("val_") not in metrics:
        raise ConfigError(
            f"monitor={monitor!r} is logged in training, neither in validation nor in testing; name a value that "
            f"validation_step logs: {', '.join(recorder.validated[recorder.best_epoch]) or 'it logs none'}."
        )
    record = run.identity.record(
        status="ok",
        metrics=metrics,
        best_epoch=recorder.best_epoch,
        max_epochs=trainer.max_epochs,
        first_selected_epoch=first_selected(selection),
        curves=recorder.curves,
        seconds=time.perf_counter() - clock,
        shape=_shape(trainer, selection, data),
        versions=versions(),
        started=begun.isoformat(timespec="seconds"),
        split=split_of(training_labels(trainer)),
        draws=draws_by_frequency(selection),
    )
    record = replace(record, warnings=(*_warnings(record), *_defects(data)))
    if run.trace:
        arrays = _trace(recorder, data)
        if keep:
            with atomic_write(folder / "trace.npz") as stream:
                np.savez_compressed(stream, **arrays)
        if store is not None:
            store.write_trace(record.key, **arrays)
            record = replace(record, trace=True)
    return record


def split_of(labels: torch.Tensor | None) -> str:
    """A digest of the training targets, which tells splits of the data apart; empty where they are not known.

    >>> split_of(torch.tensor([0, 1])) == split_of(torch.tensor([0, 1])), split_of(None)
    (True, '')
    """
    if labels is None:
        return ""
    return hashlib.sha256(labels.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def write_summary(record: RunRecord, folder: Path) -> Path:
    """Write ``metrics.json``: the result of a run without its curves."""
    summary = {name: value for name, value in json.loads(record.to_json()).items() if name != "curves"}
    summary[record.monitor] = None if math.isnan(record.monitored) else record.monitored
    path = folder / "metrics.json"
    write_file(path, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return path


def make_trainer(config: Mapping[str, Any], folder: Path, loggers: list[Any], callbacks: list[Callback]) -> Trainer:
    """A trainer that writes to ``folder`` only; ``config`` may bring callbacks and loggers of its own."""
    given = {name: _made(name, value) for name, value in config.items()}
    own = given.pop("callbacks", None) or []
    own = own if isinstance(own, list | tuple) else [own]
    for one in own:
        if not isinstance(one, Callback):
            raise ConfigError(
                f"trainer.callbacks: {one!r} is not a Lightning callback; on the command line, use "
                "+callbacks.NAME._target_=CLASS."
            )
    first, last = callbacks[:2], callbacks[2:]
    settings = {"logger": loggers or False, "default_root_dir": folder, "devices": 1} | given
    for name, unwanted in (("enable_checkpointing", False), ("barebones", True), ("fast_dev_run", True)):
        if settings.get(name) is not None and bool(settings[name]) is unwanted:
            raise ConfigError(
                f"trainer: {name}={settings[name]} keeps no checkpoint of the best epoch, and a run needs one; leave "
                "it out."
            )
    try:
        trainer = Trainer(**settings, callbacks=[*first, *own, *last])
    except Exception as error:
        raise ConfigError(_refusal(error, settings)) from error
    if trainer.world_size > 1:
        raise ConfigError(
            f"trainer: its settings ask for {trainer.world_size} processes, and a run of an experiment has one; use "
            "trainer.devices=1 and do several runs at a time (jobs), or attach BatchSelection to a Trainer of your own."
        )
    if trainer.max_epochs == trainer.max_steps == -1 and settings.get("max_time") is None:
        raise ConfigError("trainer: training would never end; set max_epochs.")
    return trainer


def _made(name: str, value: Any) -> Any:
    """An argument of the trainer; one that a configuration describes by its ``_target_`` is made now."""
    return instantiate(f"trainer.{name}", value) if isinstance(value, Mapping) and "_target_" in value else value


def _refusal(error: Exception, settings: Mapping[str, Any]) -> str:
    """What a Trainer says of its arguments, in a sentence; it checks the type of only some of them."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        unknown = text.split("argument ")[-1].strip("'")
        known = did_you_mean(unknown, trainer_arguments(), "see the documentation of lightning.Trainer.")
        return f"trainer: lightning.Trainer does not take {unknown!r}; {known}"
    if isinstance(error, ValueError | MisconfigurationException):
        return f"trainer: {text}"
    words = [f"{name}={value!r}" for name, value in settings.items() if isinstance(value, str)]
    among = f"{', '.join(words)} are words; is one meant to be a number?" if words else "look at their types."
    return f"trainer: lightning.Trainer cannot use its arguments ({type(error).__name__}: {text}); {among}"


class _BestEpoch(ModelCheckpoint):
    """Checkpoint of the best epoch, beside any ModelCheckpoint that the user's settings bring."""

    @property
    @override
    def state_key(self) -> str:
        """Not that of a ModelCheckpoint with the same monitor, which Lightning would refuse beside it."""
        return "lightning_ubs.best_epoch"


class _SizeCheck(Callback):
    """Refusal of data of another length than those of the runs that this one is paired with."""

    def __init__(self, samples: int | None) -> None:
        self.samples = samples

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = next(one for one in trainer.callbacks if isinstance(one, BatchSelection)).strategy.num_samples  # type: ignore[attr-defined]
        if self.samples is not None and found != self.samples:
            raise ConfigError(
                f"the data have {found} training samples in this run and {self.samples} in another; let the data "
                "function give the same number for every seed."
            )


def _measured(
    trainer: Trainer, module: LightningModule, data: LightningDataModule, recorder: Recorder, checkpoint: str
) -> dict[str, tuple[float, bool]]:
    """Name → (value, whether it is of the test set); what has no test value has that of the best validation epoch."""
    best = recorder.validated.get(-1 if recorder.best_epoch is None else recorder.best_epoch, {})
    found = {name.removeprefix("val_"): (value, False) for name, value in best.items()}
    if is_overridden("test_step", module) and is_overridden("test_dataloader", data):
        # Only the weights: what selection knows stays that of the last epoch. This process has just written the file,
        # and a module's own hyperparameters in it may be of any type.
        module.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=False)["state_dict"])
        (values,) = trainer.test(module, datamodule=data, verbose=False)
        found |= {name.removeprefix("test_"): (float(value), True) for name, value in values.items()}
    return {name: value for name, value in found.items() if name not in _NO_METRICS}


def _warnings(record: RunRecord) -> list[str]:
    """What the epochs of a run tell about its result."""
    first = record.first_selected_epoch
    if not first:
        return []
    if record.epochs <= first:
        return [
            f"{record.label}: nothing was selected, because training had {record.epochs} epochs and selection begins "
            f"after {first}; raise max_epochs or lower warmup_epochs."
        ]
    if record.best_epoch is not None and record.best_epoch < first:
        return [
            f"{record.label}: the best epoch ({record.best_epoch}) lies in the warm-up, before anything was selected; "
            "the result does not show what selection does."
        ]
    return []


def _defects(data: LightningDataModule) -> list[str]:
    """What is wrong with a dataset of the catalog."""
    from lightning_ubs.data import MultiLabelDataModule, catalog

    if not isinstance(data, MultiLabelDataModule) or data.name is None:
        return []
    entry = catalog.entry(data.name)
    return [f"{entry.name} is defective as published: {entry.defects}"] if entry.defects else []


def _shape(trainer: Trainer, selection: BatchSelection, data: LightningDataModule) -> dict[str, int]:
    known = {
        "n": selection.strategy.num_samples,
        "d": getattr(data, "num_features", None),
        "q": selection.strategy.num_labels or getattr(data, "num_labels", None),
        "batches": trainer.num_training_batches,
        "val": _validation_samples(trainer),
    }
    return {name: int(value) for name, value in known.items() if value is not None and math.isfinite(value)}


def _validation_samples(trainer: Trainer) -> int | None:
    """Samples of all validation loaders; None where one does not tell."""
    loaders = trainer.val_dataloaders
    loaders = loaders if isinstance(loaders, list | tuple) else [loaders]
    try:
        return sum(len(loader.dataset) for loader in loaders)
    except (AttributeError, TypeError):
        return None


def _trace(recorder: Recorder, data: LightningDataModule) -> dict[str, Any]:
    """What became of each sample; its labels and its row where the data tell."""
    found = recorder.arrays()
    labels = getattr(getattr(data, "train_dataset", None), "labels", None)
    if isinstance(labels, torch.Tensor):
        found["labels"] = labels.numpy().astype("uint8")
    names, rows = getattr(data, "label_names", None), getattr(data, "train_indices", None)
    if names is not None:
        found["label_names"] = np.array(names, dtype=str)
    if rows is not None:
        found["sample_rows"] = np.asarray(rows)
    return found
