"""A run that was cut and resumed is the run that was not."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from resume_tools import (
    STRATEGIES,
    Augmented,
    Noisy,
    PlanCheck,
    Recorder,
    make_data,
    make_loader,
    make_selection,
    make_trainer,
    weights_of,
)

from lightning_ubs.selection.random_states import capture, restore

CUT_EPOCH = 3
MOMENTS = ("mid_epoch", "last_batch", "validation_end", "train_epoch_end", "exception", "every_n_train_steps")


class SaveAt(L.Callback):
    """Saves a checkpoint at each kind of moment in ``CUT_EPOCH``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, trainer: L.Trainer, moment: str) -> None:
        if trainer.current_epoch == CUT_EPOCH:
            trainer.save_checkpoint(self.folder / f"{moment}.ckpt")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 2:
            self.save(trainer, "mid_epoch")
        if batch_idx == trainer.num_training_batches - 1:
            self.save(trainer, "last_batch")

    def on_validation_end(self, trainer, pl_module):
        self.save(trainer, "validation_end")

    def on_train_epoch_end(self, trainer, pl_module):
        self.save(trainer, "train_epoch_end")


def train(folder, name, workers, callbacks=(), ckpt=None, fail_at=None, **options):
    data = make_data()
    L.seed_everything(11 if ckpt is None else 12)
    module = Noisy(fail_at)
    selection = make_selection(name, features=data.tensors[0])
    trainer = make_trainer(folder, [selection, *callbacks], val_check_interval=0.5, **options)
    loaders = make_loader(Augmented(data), workers=workers), torch.utils.data.DataLoader(data, batch_size=26)
    trainer.fit(module, *loaders, ckpt_path=ckpt)
    return module, selection


def assert_goes_on_equally(resumed, whole):
    assert resumed.seen, "the resumed run trained nothing"
    assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}
    assert max(resumed.seen) == max(whole.seen)
    assert torch.equal(weights_of(resumed), weights_of(whole))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STRATEGIES)
def test_resume_from_every_moment_draws_the_same_samples_and_ends_with_equal_weights(tmp_path, name, workers):
    steps = ModelCheckpoint(
        tmp_path, filename="step-{step}", every_n_train_steps=5, save_top_k=-1, auto_insert_metric_name=False
    )
    whole, selection = train(tmp_path, name, workers, [SaveAt(tmp_path), steps])
    crash = OnExceptionCheckpoint(tmp_path, filename="exception")
    with pytest.raises(RuntimeError, match="power"):
        train(tmp_path, name, workers, [crash], fail_at=(CUT_EPOCH, 4))
    (tmp_path / "step-25.ckpt").rename(tmp_path / "every_n_train_steps.ckpt")

    for moment in MOMENTS:
        checkpoint = tmp_path / f"{moment}.ckpt"
        torch.load(checkpoint, weights_only=True)
        resumed, again = train(tmp_path, name, workers, ckpt=checkpoint)
        assert_goes_on_equally(resumed, whole)
        assert torch.equal(again.probabilities, selection.probabilities)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_taken_before_selection_saw_the_batch_keeps_ids_right_and_says_so(tmp_path, workers):
    data, runs = make_data(), []
    for ckpt in (None, tmp_path / "mid_epoch.ckpt", tmp_path / "last_batch.ckpt"):
        module, selection = Recorder(), make_selection()
        trainer = make_trainer(tmp_path, [SaveAt(tmp_path) if ckpt is None else L.Callback(), selection])
        trainer.callbacks.append(PlanCheck(selection))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.fit(module, make_loader(data, workers=workers), ckpt_path=ckpt)
        runs.append((module.seen, any("Put BatchSelection first" in str(w.message) for w in caught)))
    (whole, _), (mid, mid_warned), (last, last_warned) = runs
    assert mid_warned
    assert last_warned
    assert min(mid) == (CUT_EPOCH, 3)
    assert min(last) == (CUT_EPOCH + 1, 0)
    assert {key: ids for key, ids in mid.items() if key[0] == CUT_EPOCH} == {
        key: ids for key, ids in whole.items() if key[0] == CUT_EPOCH and key[1] >= 3
    }


@pytest.mark.parametrize("save_state", ["selection", "weights"])
def test_generators_are_left_alone_where_their_states_are_not_saved(tmp_path, save_state):
    save = SaveAt(tmp_path)
    for ckpt in (None, tmp_path / "mid_epoch.ckpt"):
        selection, module = make_selection(save_state=save_state), Recorder()
        trainer = make_trainer(tmp_path, [selection, save])
        trainer.fit(module, make_loader(make_data()), ckpt_path=ckpt)
    state = torch.load(tmp_path / "mid_epoch.ckpt", weights_only=True)["callbacks"]["BatchSelection"]
    assert "random" not in state
    assert min(module.seen) == (CUT_EPOCH, 3)


def test_generators_of_every_kind_are_captured_and_restored():
    device = torch.device("cpu")
    for gauss in (False, True):
        torch.manual_seed(1), np.random.seed(2), random.seed(3)
        if gauss:
            np.random.normal(), random.gauss(0, 1)
        state, drawn = capture(device), [draw() for draw in DRAWS]
        [draw() for draw in DRAWS]
        restore(state, device)
        assert [draw() for draw in DRAWS] == drawn


DRAWS = (lambda: torch.rand(()).item(), np.random.rand, np.random.normal, random.random, lambda: random.gauss(0, 1))
