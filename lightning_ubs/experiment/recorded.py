"""From what a Recorder kept of a user's own training to a run in a results folder."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.errors import SelectionError
from lightning_ubs.experiment.config import digest
from lightning_ubs.experiment.direction import direction
from lightning_ubs.experiment.from_objects import described
from lightning_ubs.experiment.planned import versions
from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.experiment.run import first_selected
from lightning_ubs.experiment.store import ResultsStore

if TYPE_CHECKING:
    from lightning_ubs.experiment.recorder import Recorder


def save_recorded(
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
