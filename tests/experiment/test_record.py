"""A run's record: what is written can be read, by this version and the ones after it."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_ubs.experiment.record import SCHEMA, MetricValue, RecordError, RunRecord
from lightning_ubs.experiment.store import ResultsStore, StoreError

OLD = Path(__file__).parent / "files" / "runs_schema_1.jsonl"


def record(**more: Any) -> RunRecord:
    identity: dict[str, Any] = {"data": "my images", "model": "CNN", "selection": "MyStrategy", "fold": 1, "seed": 2}
    return RunRecord(**{"key": "0123456789abcdef", "status": "ok"} | identity | more)


def test_a_stored_line_has_every_field_and_those_of_before_in_their_order() -> None:
    line = RunRecord(key="0" * 16, status="ok", data="d", model="m", selection="ubs", fold=0, seed=0).to_json()
    names = list(json.loads(line))
    assert names[:13] == [
        *("schema", "key", "status", "data", "model", "selection", "fold", "seed", "label", "variant", "parameters"),
        *("error", "config_hash"),
    ]
    assert set(names) == {one.name for one in fields(RunRecord)} | {"schema"}


def test_everything_comes_back_from_json() -> None:
    full = record(
        label="mine, s0 10",
        parameters={"s0": 10, "correlation": None},
        monitor="val_loss",
        mode="min",
        metrics={"loss": MetricValue(0.5, False, "val"), "odd": MetricValue(1.0, None)},
        best_epoch=3,
        max_epochs=9,
        first_selected_epoch=2,
        curves={"epoch": [0, 1], "val_loss": [0.7, None], "samples": [100, 80]},
        seconds=1.5,
        shape={"n": 100, "batches": 4},
        warnings=("Nothing was selected.",),
        versions={"torch": "2"},
        started="2026-01-01T00:00:00",
        trace=True,
        draws={"rare": 1.5},
    )
    assert RunRecord.from_json(full.to_json()) == full
    assert json.loads(full.to_json())["schema"] == SCHEMA
    assert (full.epochs, full.samples_trained, full.monitored) == (2, 180, 0.7)


def test_numpy_values_become_plain_and_nan_becomes_null() -> None:
    curves = {"train_loss": np.array([1.5, np.nan]), "epoch": (0, 1)}
    text = record(curves=curves, shape={"n": np.int64(3)}, metrics={"auc": MetricValue(math.nan)}).to_json()
    assert "NaN" not in text
    back = RunRecord.from_json(text)
    assert back.curves == {"train_loss": [1.5, None], "epoch": [0, 1]}
    assert back.shape == {"n": 3}
    assert math.isnan(back.metrics["auc"].value)


def test_methods_are_told_apart_by_their_settings_and_not_by_how_a_number_is_written() -> None:
    assert record(parameters={"s0": 1}).method == record(parameters={"s0": 1.0}, label="other").method
    assert record(parameters={"s0": 1}).method != record(parameters={"s0": 2}).method
    assert record().method != record(variant="B").method


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "../../etc/passwd"}, "16 hexadecimal digits"),
        ({"status": "done"}, "status='done' must be 'ok' or 'failed'"),
        ({"mode": "up"}, "mode='up' must be 'max' or 'min'"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        record(**change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not the JSON of a run"),
        ("{", "not the JSON of a run"),
        ('{"key": "0", "schema": 99}', r"schema 99, and this version reads 1, 2; use the version"),
        ('{"key": "0123456789abcdef", "schema": 2, "status": "ok"}', "lacks data, model, selection, fold, seed"),
        (record().to_json().replace('"trace"', '"tracks"'), "holds 'tracks', which no run has"),
    ],
)
def test_what_cannot_be_read_is_refused_with_one_sentence(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message) as caught:
        RunRecord.from_json(text)
    assert str(caught.value).endswith(".")


def test_the_store_says_which_line_has_a_schema_of_the_future(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(record())
    store.path.write_text(store.path.read_text() * 2 + '{"key": "0", "schema": 99}\n')
    with pytest.raises(StoreError, match=r"line 3 of .*: this run has schema 99"):
        store.records()


def test_a_store_of_the_first_schema_is_read(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.path.write_bytes(OLD.read_bytes())
    random, failed, *_, ubs = store.records()
    assert (random.selection, random.status, ubs.selection, ubs.label) == ("random", "ok", "ubs", "UBS")
    assert (failed.finished, failed.error[:24] if failed.error else "") == (False, "no dataset is called 'no")
    assert ubs.metrics["macro_auc"] == MetricValue(
        json.loads(OLD.read_text().splitlines()[-1])["metrics"]["macro_auc"], True
    )
    assert ubs.metrics["ranking_loss"].higher_is_better is False
    assert (ubs.monitor, ubs.mode, ubs.epochs, ubs.best_epoch) == ("val_macro_auc", "max", 3, 2)
    assert ubs.monitored == max(value for value in ubs.curves["val_macro_auc"] if value is not None)
    assert (random.first_selected_epoch, ubs.first_selected_epoch) == (None, 1)
    store.append(record())
    assert len(store.records()) == 5
