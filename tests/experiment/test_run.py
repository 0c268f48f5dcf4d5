"""One run: its record, its curves, its trace, and its fairness to other runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from sklearn.metrics import roc_auc_score

from lightning_ubs.experiment.build import build_data, build_network, build_selection
from lightning_ubs.experiment.config import ConfigError, compose_train, resolved
from lightning_ubs.experiment.from_config import Names, plan_from_config
from lightning_ubs.experiment.grid import at_a_time
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.recorder import Recorder
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.experiment.training import write_summary
from lightning_ubs.inspection.loggers import SelectionImages
from lightning_ubs.metrics import HIGHER_IS_BETTER

QUICK = ("data=synthetic", "trainer.max_epochs=5", "selection.warmup_epochs=2", "trainer.enable_progress_bar=false")
CURVES = (
    "epoch train_loss val_macro_auc epoch_seconds samples selection_seconds pressure effective_sample_size "
    "correlation_drift"
)


def quick(*overrides: str) -> dict[str, Any]:
    return resolved(compose_train([*QUICK, "trainer.accelerator=cpu", *overrides]))


def planned(*overrides: str, names: Names | None = None) -> Run:
    return plan_from_config(quick(*overrides), names)


@pytest.fixture(scope="module")
def ubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path, ResultsStore]:
    folder = tmp_path_factory.mktemp("run")
    store = ResultsStore(folder / "results")
    record = planned(names=Names(label="UBS λ1=0.5")).execute(folder, store)
    store.append(record)
    return record, folder, store


def test_record_follows_the_documented_schema(ubs: tuple[RunRecord, Path, ResultsStore]) -> None:
    record, _, store = ubs
    (stored,) = store.records()
    assert stored.key == record.key
    assert (stored.data, stored.model, stored.selection, stored.label) == ("synthetic", "mlp", "ubs", "UBS λ1=0.5")
    assert (stored.monitor, stored.mode, stored.max_epochs, stored.first_selected_epoch) == (
        "val_macro_auc",
        "max",
        5,
        2,
    )
    assert stored.parameters["lambda1"] == 0.5
    assert {name for name, metric in stored.metrics.items() if metric.stage == "test"} == {
        *HIGHER_IS_BETTER,
        *("macro_auc_half", "map_rare", "map_medium", "map_frequent"),
    }
    sizes = {"rare": 3, "medium": 3, "frequent": 2}  # of 8 labels, all of which have test positives
    by_third = sum(sizes[third] * stored.metrics[f"map_{third}"].value for third in sizes) / 8
    assert by_third == pytest.approx(stored.metrics["map"].value)
    assert set(stored.draws) == set(sizes)
    for name, better in HIGHER_IS_BETTER.items():
        assert stored.metrics[name].higher_is_better is better
    assert stored.shape == {"n": 800, "d": 20, "q": 8, "batches": 7}
    assert stored.warnings == ()
    assert stored.samples_trained == 5 * 800


def test_curves_have_one_value_per_epoch(ubs: tuple[RunRecord, Path, ResultsStore]) -> None:
    curves = ubs[0].curves
    assert set(curves) == set(CURVES.split())
    assert {len(values) for values in curves.values()} == {5}
    assert curves["epoch"] == [0, 1, 2, 3, 4]
    assert curves["pressure"] == pytest.approx([1, 1, 100, 10, 1])
    assert curves["effective_sample_size"][:2] == pytest.approx([800, 800])
    assert curves["effective_sample_size"][2] < 700
    assert curves["correlation_drift"][-1] > 0
    for whole, part in zip(curves["epoch_seconds"], curves["selection_seconds"], strict=True):
        assert 0 < part <= whole


def test_metrics_are_those_of_the_best_validation_epoch(ubs: tuple[RunRecord, Path, ResultsStore]) -> None:
    record, folder, _ = ubs
    checkpoint = torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["epoch"] == record.best_epoch
    assert record.monitored == max(record.curves["val_macro_auc"])
    data: Any = build_data(quick()["data"])
    data.setup()
    model = build_network(quick()["model"], data, "synthetic").eval()
    model.load_state_dict(checkpoint["state_dict"])
    with torch.no_grad():
        scores = model(data.test_dataset.features)
    assert record.metrics["macro_auc"].value == pytest.approx(roc_auc_score(data.test_dataset.labels, scores), abs=1e-6)


def test_trace_tells_what_became_of_each_sample(ubs: tuple[RunRecord, Path, ResultsStore]) -> None:
    record, folder, store = ubs
    trace = store.read_trace(record.key)
    assert trace["times_selected"].sum() == 3 * 800
    assert trace["correlation_epochs"].tolist() == [2, 3, 4]
    assert trace["correlations"].shape == (3, 8, 8)
    assert np.diagonal(trace["correlations"], axis1=1, axis2=2) == pytest.approx(1)
    data: Any = build_data(quick()["data"])
    data.setup()
    assert (trace["labels"] == data.train_dataset.labels.numpy()).all()
    assert (trace["sample_rows"] == data.train_indices).all()
    assert trace["label_names"].tolist() == data.label_names
    assert trace["fluctuation"].shape == (800,)
    with np.load(folder / "trace.npz") as kept:
        assert (kept["times_selected"] == trace["times_selected"]).all()


class Watcher(Callback):
    """Computes what the recorder should say, from each batch as it is trained on."""

    def __init__(self, selection: Any) -> None:
        self.selection = selection
        self.counts = np.zeros(800, dtype=int)
        self.uncertainty: list[np.ndarray[Any, Any]] = []
        self.history: dict[int, list[np.ndarray[Any, Any]]] = {row: [] for row in range(800)}
        self.fluctuation: list[np.ndarray[Any, Any]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        ids = self.selection.plan[batch_idx]
        if trainer.current_epoch >= 2:
            self.counts[ids.numpy()] += 1
        for row, probs in zip(ids.tolist(), outputs["probs"].numpy(), strict=True):
            self.history[row] = [*self.history[row], probs][-5:]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch >= 2:
            self.uncertainty.append(self.selection.uncertainty.mean(1).numpy().copy())
            steps = [np.abs(np.diff(self.history[row], axis=0)).mean() for row in range(800)]
            self.fluctuation.append(np.array(steps))


def test_trace_agrees_with_an_independent_count(tmp_path: Path) -> None:
    config = quick("trainer.max_epochs=4")
    selection = build_selection(config["selection"], 0)
    data: Any = build_data(config["data"])
    data.setup()
    recorder, watcher = Recorder(selection), Watcher(selection)
    callbacks = [recorder, selection, watcher]
    options = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path}
    trainer = Trainer(**config["trainer"], **options, callbacks=callbacks)  # type: ignore[arg-type]
    trainer.fit(build_network(config["model"], data, "synthetic"), datamodule=data)
    arrays = recorder.arrays()
    assert (arrays["times_selected"] == watcher.counts).all()
    assert arrays["mean_uncertainty"] == pytest.approx(np.mean(watcher.uncertainty, axis=0), abs=1e-6)
    assert arrays["fluctuation"] == pytest.approx(np.mean(watcher.fluctuation, axis=0), abs=1e-6)


@pytest.mark.parametrize("selection", ["random", "balance", "active", "recent", "hard"])
def test_selections_are_paired(ubs: tuple[RunRecord, Path, ResultsStore], selection: str, tmp_path: Path) -> None:
    record = planned(f"selection={selection}", "trainer.max_epochs=3", "selection.warmup_epochs=2").execute(tmp_path)
    warmup = 0 if selection == "balance" else 2
    for curve in ("train_loss", "val_macro_auc"):
        assert record.curves[curve][:warmup] == ubs[0].curves[curve][:warmup]
    if selection != "random":
        assert record.curves["train_loss"][2] != ubs[0].curves["train_loss"][2]
    assert record.selection == selection


def test_the_same_configuration_gives_the_same_numbers(
    ubs: tuple[RunRecord, Path, ResultsStore], tmp_path: Path
) -> None:
    record = planned("trace=false", "logger=none").execute(tmp_path, keep=False)
    assert (record.key, record.metrics) == (ubs[0].key, ubs[0].metrics)
    assert record.trace is False
    assert not (tmp_path / "trace.npz").exists()


@pytest.mark.parametrize("model", ["mpvae", "clif", "dela"])
def test_the_papers_models_run(model: str, tmp_path: Path) -> None:
    record = planned(f"model={model}", "trainer.max_epochs=2", "selection.warmup_epochs=1").execute(tmp_path)
    assert record.finished
    assert 0.3 < record.metrics["macro_auc"].value < 1


def test_a_file_of_ones_own_is_called_by_its_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    from lightning_ubs.data.readers.npz import write_npz
    from lightning_ubs.data.types import MultiLabelData

    labels = (rng.random((60, 3)) < 0.5).astype(np.uint8)
    features = rng.random((60, 4)).astype(np.float32)
    write_npz(tmp_path / "birds.npz", MultiLabelData(features, labels, list("abc"), list("wxyz")))
    record = planned("data=file", f"data.path={tmp_path / 'birds.npz'}", "trainer.max_epochs=3").execute(tmp_path)
    assert (record.data, record.shape["n"]) == ("birds", 48)


def test_summary_is_json_without_curves(ubs: tuple[RunRecord, Path, ResultsStore]) -> None:
    record, folder, _ = ubs
    summary = json.loads(write_summary(record, folder).read_text())
    assert summary["val_macro_auc"] == record.monitored
    assert summary["metrics"]["macro_auc"]["value"] == record.metrics["macro_auc"].value
    assert "curves" not in summary


def test_failure_is_a_record_that_the_store_takes(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    store.append(planned().failed("no more memory"))
    (record,) = store.records()
    assert (record.finished, record.error, record.data) == (False, "no more memory", "synthetic")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("selection.lambda1=2", "selection.lambda1=2 is out of range"),
        ("selection.replacement=some", "selection.replacement='some'"),
        ("selection.strategy=ubbs", "did you mean ubs"),
        ("+selection.color=red", "there is no key 'color'"),
        ("model.lr=-1", "model.lr must not be negative"),
        ("data.view=other", "data.view='other'"),
        ("+trainer.color=red", "does not take 'color'"),
        ("trainer.precision=7", "trainer: Precision 7"),
        ("trainer.devices=2", "trainer: its settings ask for 2 processes, and a run of an experiment has one; use"),
        ("logger.name=paper", "logger.name='paper' is unknown; choose one of csv"),
    ],
)
def test_a_bad_value_is_named_with_its_key(override: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(override).execute(tmp_path)
    assert sentence in str(raised.value)


def test_images_appear_in_tensorboard_and_only_there(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = quick("logger=tensorboard", "logger.image_every_n_epochs=2", "trainer.max_epochs=4")
    plan_from_config(config).execute(tmp_path / "with")
    events = accumulator.EventAccumulator(str(tmp_path / "with" / "log"))
    events.Reload()
    assert sorted(events.Tags()["images"]) == ["selection/data_map", "selection/label_correlation"]
    assert [image.step for image in events.Images("selection/label_correlation")] == [2, 3]
    assert events.Images("selection/data_map")[0].encoded_image_string.startswith(b"\x89PNG")
    assert (tmp_path / "with" / "log" / "metrics.csv").is_file()
    selection = build_selection(config["selection"], 0)
    data: Any = build_data(config["data"])
    options = {"logger": False, "enable_checkpointing": False, "max_epochs": 3, "enable_progress_bar": False}
    trainer = Trainer(**options, callbacks=[selection, SelectionImages(selection, 1)], accelerator="cpu")  # type: ignore[arg-type]
    data.setup()
    trainer.fit(build_network(config["model"], data, "synthetic"), datamodule=data)
    assert selection.correlation is not None


def test_runs_that_share_a_gpu_go_one_by_one_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    on_any, on_cpu = planned("trainer.accelerator=auto"), planned("trainer.accelerator=cpu")
    assert at_a_time(None, [on_any]) is None, "this machine has no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert at_a_time(None, [on_any]) == 1
    assert at_a_time(None, [on_cpu]) is None
    assert at_a_time(4, [on_any]) == 4
