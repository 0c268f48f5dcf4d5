"""The public Recorder: what it keeps in any Trainer, across a resume, and in a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from resume_tools import Recorder as Network
from resume_tools import make_data, make_loader, make_selection, make_trainer
from torch.utils.data import DataLoader

from lightning_ubs import Recorder, SelectionError
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report import build_report

NAMES = ["sky", "sea", "sand", "sun"]


class Logs(Network):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


class Saves(L.Callback):
    def __init__(self, path: Path, batch: int | None) -> None:
        self.path, self.batch = path, batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (3, self.batch):
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 3 and self.batch is None:
            trainer.save_checkpoint(self.path)


def train(folder: Path, name: str = "UBS", *more: L.Callback, ckpt: Path | None = None, **options: Any) -> Recorder:
    selection = make_selection(name, end_epoch=5, label_names=NAMES)
    recorder = Recorder(selection, monitor="val_loss", mode="min", epochs=[2, 5])
    data = make_data()
    trainer = make_trainer(folder, [recorder, selection, *more], **options)
    trainer.fit(Logs(), make_loader(data), DataLoader(data, batch_size=26), ckpt_path=ckpt)
    return recorder


@pytest.mark.parametrize("batch", [2, None], ids=["mid-epoch", "epoch end"])
def test_a_resumed_recorder_keeps_what_an_uninterrupted_one_does(tmp_path: Path, batch: int | None) -> None:
    path = tmp_path / "cut.ckpt"
    whole = train(tmp_path, "UBS", Saves(path, batch))
    torch.load(path, weights_only=True)
    resumed = train(tmp_path, "UBS", ckpt=path)
    known = [0, 1, 2, 3, 4, 5] if batch is not None else [0, 1, 2, 4, 5]
    for name in ("epoch", "val_loss", "samples", "train_loss", "pressure", "effective_sample_size"):
        mine, theirs = (np.array(one.curves[name], dtype=float) for one in (resumed, whole))
        # The end of an epoch comes before Lightning knows its training loss and what the selection logs.
        epochs = known if name not in ("epoch", "val_loss", "samples") else slice(None)
        if name == "train_loss" and batch is not None:
            epochs = [0, 1, 2, 4, 5]  # the mean of an interrupted epoch is Lightning's own affair
        assert mine[epochs] == pytest.approx(theirs[epochs], rel=1e-5), name
    assert resumed.validated == whole.validated
    assert resumed.best_epoch == whole.best_epoch
    for name, array in whole.arrays().items():
        if name == "mean_uncertainty" and batch is not None:
            continue  # U at the start of an epoch is not in a checkpoint
        assert resumed.arrays()[name] == pytest.approx(array, rel=1e-5), name


def test_a_training_of_ones_own_becomes_a_page_of_the_report(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("Random", "UBS"):
        recorder = train(tmp_path, name)
        record = recorder.save(results, data="photos", model="net", label=name)
        train(tmp_path, name).save(results, data="photos", model="net", label=name)  # the same run again
    assert record.curves["epoch"] == [0, 1, 2, 3, 4, 5]
    assert record.metrics["loss"].higher_is_better is False
    assert record.metrics["loss"].value == pytest.approx(min(record.curves["val_loss"]))
    assert (record.seed, record.first_selected_epoch, record.max_epochs) == (3, 2, 6)
    assert record.shape == {"n": 52, "q": 4, "batches": 7}
    by_frequency = recorder.selection.to_frame("labels").sort_values("samples", kind="stable")["ratio"].to_numpy()
    assert record.draws == pytest.approx(
        {"rare": by_frequency[:2].mean(), "medium": by_frequency[2], "frequent": by_frequency[3]}, abs=1e-4
    )
    assert by_frequency.std() > 0
    store = ResultsStore(results)
    assert len(store.keys()) == 2
    trace = store.read_trace(record.key)
    assert trace["label_names"].tolist() == NAMES
    assert (trace["labels"] == make_data().tensors[1].numpy()).all()
    assert trace["times_selected"].sum() == 4 * 52
    page = build_report(results, tmp_path / "page", formats="html")
    text = Path(page).read_text()
    parts = ("Data map", "Label correlation at two epochs", "Labels drawn", "Rare and frequent labels")
    assert all(word in text for word in (*parts, "photos", "UBS"))


def test_a_recorder_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    selection = make_selection()
    recorder = Recorder(selection)
    for callbacks in ([selection, recorder], [recorder, make_selection()]):
        with pytest.raises(SelectionError, match=r"stand before the selection .*callbacks=\[recorder, selection\]"):
            make_trainer(tmp_path, callbacks).fit(Logs(), make_loader(make_data()))
    with pytest.raises(SelectionError, match=r"no whole epoch yet; save it after Trainer.fit"):
        recorder.save(tmp_path, data="a", model="b")
    with pytest.raises(ValueError, match="mode='least' is unknown"):
        Recorder(selection, mode="least")


def test_a_recorder_with_another_monitor_does_not_take_over_a_checkpoint() -> None:
    state = Recorder(make_selection(), monitor="val_loss").state_dict()
    with pytest.raises(SelectionError, match=r"monitor='val_loss', this one has 'val_auc'; use the same monitor"):
        Recorder(make_selection(), monitor="val_auc").load_state_dict(state)


def test_a_second_training_is_recorded_anew_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    selection = make_selection()
    recorder = Recorder(selection, monitor="val_loss", mode="min")
    for _ in range(2):
        trainer, module = make_trainer(tmp_path, [recorder, selection], max_epochs=3), Logs()
        trainer.fit(module, make_loader(make_data()))
        assert recorder.curves["epoch"] == [0, 1, 2]
        assert recorder.times_selected.sum() == 52
    trainer.fit_loop.max_epochs = 5
    trainer.fit(module, make_loader(make_data()))
    assert recorder.curves["epoch"] == [0, 1, 2, 3, 4]
    assert recorder.times_selected.sum() == 3 * 52
