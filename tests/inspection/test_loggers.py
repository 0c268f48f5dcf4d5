"""What reaches the Trainer's loggers: numbers everywhere, pictures where they can be shown; all of it offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from tiny_training import Tiny, loader, trainer

from lightning_ubs import UBS, BatchSelection, Random, SelectionImages

NUMBERS = {"selection/pressure", "selection/effective_sample_size", "selection/distinct_share", "selection/seconds"}


def train(logger: Any, strategy: Any = None, every: int = 2) -> BatchSelection:
    """Four epochs, so that there are pictures of epochs 2 and 3."""
    torch.manual_seed(0)
    selection = BatchSelection(strategy or UBS(), warmup_epochs=1, label_names=["sky", "sea", "sand"])
    images = SelectionImages(selection, every_n_epochs=every)
    trainer(selection, images, logger=logger, log_every_n_steps=1).fit(Tiny(), loader())
    return selection


def test_tensorboard_gets_numbers_and_pictures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(TensorBoardLogger(tmp_path, name="", version=""))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) >= NUMBERS
    assert [event.value for event in events.Scalars("selection/pressure")] == pytest.approx([1, 100, 10, 1])
    assert sorted(events.Tags()["images"]) == ["selection/data_map", "selection/label_correlation"]
    for name in events.Tags()["images"]:
        assert [image.step for image in events.Images(name)] == [2, 3]
        assert events.Images(name)[0].encoded_image_string.startswith(b"\x89PNG")


def test_wandb_gets_numbers_and_pictures_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(project="ubs", save_dir=tmp_path, offline=True)
    try:
        train(logger)
        summary = dict(logger.experiment.summary)
    finally:
        logger.experiment.finish()
    assert set(summary) >= NUMBERS
    assert summary["selection/pressure"] == pytest.approx(1)
    pictures = [path.name for path in tmp_path.rglob("media/images/selection/*.png")]
    assert len([name for name in pictures if name.startswith("data_map")]) == 2
    assert len([name for name in pictures if name.startswith("label_correlation")]) == 2


def test_mlflow_gets_numbers_and_pictures_in_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # recent releases want a database otherwise
    logger = MLFlowLogger("ubs", tracking_uri=f"file:{tmp_path / 'runs'}", artifact_location=str(tmp_path / "files"))
    train(logger)
    client, run = logger.experiment, logger.run_id
    assert set(client.get_run(run).data.metrics) >= NUMBERS
    values = [metric.value for metric in client.get_metric_history(run, "selection/pressure")]
    assert values == pytest.approx([1, 100, 10, 1])
    for name in ("data_map", "label_correlation"):
        found = sorted((tmp_path / "files").rglob(f"selection/{name}/*.png"))
        assert [path.name for path in found] == ["epoch_0002.png", "epoch_0003.png"]
        assert found[0].read_bytes().startswith(b"\x89PNG")


def test_a_logger_that_shows_no_images_gets_numbers_only(tmp_path: Path) -> None:
    train(CSVLogger(tmp_path, name="", version=""))
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert set(header.split(",")) >= NUMBERS
    assert not list(tmp_path.rglob("*.png"))
    train(False)


def test_pictures_that_a_strategy_does_not_have_are_left_out(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(TensorBoardLogger(tmp_path, name="", version=""), Random(), every=1)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["images"] == []
    assert "selection/seconds" in events.Tags()["scalars"]


def test_each_of_several_loggers_gets_what_it_can_show(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folders = [tmp_path / "one", tmp_path / "two"]
    train([CSVLogger(tmp_path), *(TensorBoardLogger(folder, name="", version="") for folder in folders)], every=9)
    for folder in folders:
        shown = EventAccumulator(str(folder)).Reload()
        assert [image.step for image in shown.Images("selection/data_map")] == [3]
