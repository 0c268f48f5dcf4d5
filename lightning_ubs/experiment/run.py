"""One run: train, take the best validation epoch, test it, and say what happened as a record of the results store."""

from __future__ import annotations

import json
import logging
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_ubs import __version__
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.experiment.build import (
    build_data,
    build_loggers,
    build_network,
    build_selection,
    data_name,
    split_selection,
)
from lightning_ubs.experiment.config import ConfigError, digest, run_key
from lightning_ubs.experiment.live import SelectionImages
from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.experiment.recorder import Recorder
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.metrics import HIGHER_IS_BETTER
from lightning_ubs.strategies import Random

log = logging.getLogger(__name__)

MONITOR = "val_macro_auc"


@dataclass(frozen=True)
class Names:
    """What a run is called in results where that is more than its groups say: a sweep's values are added."""

    data: str | None = None
    model: str | None = None
    label: str | None = None


def execute(
    config: Mapping[str, Any],
    folder: Path,
    store: ResultsStore | None = None,
    names: Names | None = None,
    keep: bool = True,
) -> RunRecord:
    """Do one run in ``folder`` and return its record; the record is not yet in the store, its trace is.

    Args:
        config: resolved configuration of ``lightning-ubs train``.
        folder: for the log and the checkpoint of the best validation epoch, ``checkpoints/best.ckpt``.
        store: where the trace goes too.
        names: to be called by.
        keep: whether ``folder`` is kept: it then gets ``trace.npz``, and a checkpoint from which training can go on.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    selection = build_selection(config["selection"])
    data = build_data(config["data"])
    loggers = build_loggers(config["logger"], folder)
    data.prepare_data()
    data.setup()
    seed_everything(config["seed"], workers=True, verbose=False)
    model = build_network(config["model"], data, data_name(config["data"]))
    recorder = Recorder(selection, config["trace"], config["trace_epochs"])
    best = ModelCheckpoint(folder / "checkpoints", "best", monitor=MONITOR, mode="max", save_weights_only=not keep)
    every = config["logger"].get("image_every_n_epochs", 0)
    images = [SelectionImages(selection, every, data.label_names)] if every else []
    trainer = _trainer(config["trainer"], folder, loggers, [recorder, selection, *images, best])
    trainer.fit(model, datamodule=data)
    metrics = _test(trainer, model, data, best.best_model_path)
    record = RunRecord(
        **describe(config, names),
        status="ok",
        metrics=metrics,
        best_epoch=recorder.best_epoch,
        max_epochs=trainer.max_epochs,
        first_selected_epoch=None if isinstance(selection.strategy, Random) else selection.start_epoch,
        curves=recorder.curves,
        seconds=time.perf_counter() - clock,
        shape={
            "n": len(data.train_dataset),
            "d": data.num_features,
            "q": data.num_labels,
            "batches": int(trainer.num_training_batches),
        },
        started=started.isoformat(timespec="seconds"),
    )
    if config["trace"]:
        arrays = _trace(recorder, data)
        if keep:
            np.savez_compressed(folder / "trace.npz", **arrays)
        if store is not None:
            store.write_trace(record.key, **arrays)
            record = replace(record, trace=True)
    return record


def describe(config: Mapping[str, Any], names: Names | None = None) -> dict[str, Any]:
    """The part of a record that is known before the run."""
    names = names or Names()
    selection = config["selection"]
    _, own, shared = split_selection(selection)
    # A selection is told from others by these; the rest is the same for all, or says where things are kept.
    told = {key: shared[key] for key in ("warmup_epochs", "start_epoch", "end_epoch", "replacement") if key in shared}
    return {
        "key": run_key(config),
        "data": names.data or data_name(config["data"]),
        "model": names.model or config["model"]["name"],
        "selection": selection["name"],
        "label": names.label or selection["label"],
        "variant": selection["variant"],
        "parameters": own | told,
        "fold": config["data"]["fold"],
        "seed": config["seed"],
        "config_hash": digest(config),
        "monitor": MONITOR,
        "versions": {
            "lightning_ubs": __version__,
            "torch": str(torch.__version__),
            "lightning": lightning.__version__,
            "python": platform.python_version(),
        },
    }


def failure(config: Mapping[str, Any], error: str, names: Names | None = None) -> RunRecord:
    """The record of a run that failed."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return RunRecord(**describe(config, names), status="failed", error=error, started=now)


def write_summary(record: RunRecord, folder: Path) -> Path:
    """Write ``metrics.json``: the result of a run without its curves."""
    summary = {name: value for name, value in json.loads(record.to_json()).items() if name != "curves"}
    summary[record.monitor] = None if math.isnan(record.monitored) else record.monitored
    path = folder / "metrics.json"
    path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _trainer(config: Mapping[str, Any], folder: Path, loggers: Sequence[Any], callbacks: list[Callback]) -> Trainer:
    try:
        return Trainer(**config, logger=list(loggers) or False, default_root_dir=folder, callbacks=callbacks)
    except TypeError as error:
        unknown = str(error).split("argument ")[-1]
        raise ConfigError(
            f"trainer: lightning.Trainer does not take {unknown}; see its documentation for what it does."
        ) from error
    except ValueError as error:
        raise ConfigError(f"trainer: {str(error).splitlines()[0]}") from error


def _test(
    trainer: Trainer, model: LightningModule, data: MultiLabelDataModule, checkpoint: str
) -> dict[str, MetricValue]:
    """Test the weights of a checkpoint; what selection knows stays that of the last epoch."""
    model.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"])
    (values,) = trainer.test(model, datamodule=data, verbose=False)
    named = {name.removeprefix("test_"): float(value) for name, value in values.items()}
    directions = HIGHER_IS_BETTER | {"macro_auc_half": True}
    return {name: MetricValue(value, directions.get(name)) for name, value in named.items() if name != "skipped_labels"}


def _trace(recorder: Recorder, data: MultiLabelDataModule) -> dict[str, Any]:
    return recorder.arrays() | {
        "labels": data.train_dataset.labels.numpy().astype("uint8"),
        "label_names": np.array(data.label_names, dtype=str),
        "sample_rows": data.train_indices,
    }
