"""What is logged of each epoch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tiny_training import N, Tiny, Watch, fit, loader, trainer

from lightning_ubs import UBS, ActiveBias, Balance, BatchSelection, HardImbalance, Random

NAMES = ("pressure", "effective_sample_size", "distinct_share", "mean_uncertainty", "correlation_drift", "seconds")


class Logged(Callback):
    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch:
            self.on_train_end(trainer, pl_module)


def run(selection: BatchSelection, **options: Any) -> tuple[list[dict[str, float]], Watch, Tiny]:
    torch.manual_seed(0)
    logged, watch, module = Logged(), Watch(selection), Tiny()
    trainer(selection, watch, logged, **{"max_epochs": 5} | options).fit(module, loader())
    return logged.epochs, watch, module


def test_every_metric_is_logged_and_is_what_its_name_says() -> None:
    epochs, watch, _ = run(BatchSelection(UBS(), warmup_epochs=2))
    assert len(epochs) == 5
    assert set(epochs[-1]) == {f"selection/{name}" for name in NAMES}
    for epoch in range(5):
        values, shown = epochs[epoch], watch.shown[epoch]
        assert values["selection/pressure"] == pytest.approx(shown["pressure"])
        assert values["selection/effective_sample_size"] == pytest.approx(
            1 / shown["probabilities"].square().sum().item(), rel=1e-5
        )
        distinct = len({i for batch in watch.plans[epoch] for i in batch}) / N
        assert values["selection/distinct_share"] == pytest.approx(distinct)
        assert values["selection/seconds"] > 0
        if epoch > 0:
            assert values["selection/mean_uncertainty"] == pytest.approx(shown["uncertainty"].mean().item(), rel=1e-5)
        if epoch > 1:
            drift = (shown["correlation"] - watch.shown[epoch - 1]["correlation"]).abs().mean().item()
            assert values["selection/correlation_drift"] == pytest.approx(drift, rel=1e-5)
    assert epochs[0]["selection/effective_sample_size"] == pytest.approx(N)
    assert epochs[0]["selection/distinct_share"] == 1.0
    assert epochs[2]["selection/effective_sample_size"] < N


def test_a_csv_logger_writes_one_row_per_epoch(tmp_path: Path) -> None:
    run(BatchSelection(UBS(), warmup_epochs=2), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = [row for row in csv.DictReader(file) if row["selection/pressure"]]
    assert len(rows) == 5
    assert all(f"selection/{name}" in rows[0] for name in NAMES)
    assert [float(row["selection/pressure"]) for row in rows] == pytest.approx([1, 1, 100, 10, 1])


class LogsItsLoss(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = super().training_step(batch, batch_idx)
        self.log("train_loss", found["loss"] if isinstance(found, dict) else found, on_step=False, on_epoch=True)
        return found


def test_the_row_has_the_step_and_epoch_of_what_the_module_logs(tmp_path: Path) -> None:
    selection = BatchSelection(UBS(), warmup_epochs=2)
    trainer(selection, max_epochs=3, logger=CSVLogger(tmp_path), accumulate_grad_batches=2).fit(LogsItsLoss(), loader())
    with next(tmp_path.rglob("metrics.csv")).open() as file:
        rows = list(csv.DictReader(file))
    places = [
        [(row["epoch"], row["step"]) for row in rows if row[name]] for name in ("train_loss", "selection/pressure")
    ]
    assert len(places[0]) == 3
    assert places[0] == places[1]


def test_other_callbacks_can_monitor_what_is_logged(tmp_path: Path) -> None:
    """They stop and keep by it, and ``logged_metrics`` has it as well."""
    stop = EarlyStopping("selection/pressure", mode="max", patience=1)
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="selection/pressure", mode="max")
    used = trainer(BatchSelection(UBS(), warmup_epochs=1), stop, best, max_epochs=9, enable_checkpointing=True)
    used.fit(Tiny(), loader())
    assert used.current_epoch == 3  # raised in epoch 1 and lower from then on
    assert Path(best.best_model_path).name == "epoch=1.ckpt"
    assert used.logged_metrics["selection/pressure"] == used.callback_metrics["selection/pressure"] > 1


def test_logging_can_be_switched_off(tmp_path: Path) -> None:
    epochs, _, _ = run(BatchSelection(UBS(), warmup_epochs=2, log_metrics=False), logger=CSVLogger(tmp_path))
    assert all(not values for values in epochs)
    assert not [path for path in tmp_path.rglob("metrics.csv") if "selection" in path.read_text()]


@pytest.mark.parametrize(
    ("strategy", "missing"),
    [
        (UBS(correlation=None), {"correlation_drift"}),
        (ActiveBias(), {"correlation_drift"}),
        (HardImbalance(), {"correlation_drift", "mean_uncertainty"}),
        (Balance(), {"correlation_drift", "mean_uncertainty"}),
        (Random(), {"correlation_drift", "mean_uncertainty"}),
    ],
)
def test_what_a_strategy_does_not_have_is_not_logged(strategy: Any, missing: set[str]) -> None:
    epochs, _, _ = run(BatchSelection(strategy, warmup_epochs=2))
    assert set(epochs[-1]) == {f"selection/{name}" for name in NAMES if name not in missing}


def test_memory_and_checkpoint_size_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="lightning_ubs"):
        fit(BatchSelection(UBS(), warmup_epochs=2))
    told = [record.getMessage() for record in caplog.records if "checkpoint" in record.getMessage()]
    assert len(told) == 1
    assert "UBS keeps 3.0 kB for 42 samples x 3 labels on cpu; each checkpoint grows by about 3.9 kB" in told[0]
