"""Selection beside the other things that a Trainer does."""

from __future__ import annotations

import gc
import os
from typing import NamedTuple

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.tuner import Tuner
from resume_tools import PlanCheck, Recorder, make_data, make_loader, make_selection, make_trainer, weights_of
from torch.utils.data import DataLoader

from lightning_ubs import BatchSelection, SelectionSampler


class Data(L.LightningDataModule):
    def __init__(self, batch_size=8, workers=0):
        super().__init__()
        self.batch_size, self.workers, self.data = batch_size, workers, make_data()

    def train_dataloader(self):
        return make_loader(self.data, self.batch_size, self.workers)

    def val_dataloader(self):
        return DataLoader(self.data, batch_size=26)


class Scheduled(Recorder):
    """Asks for the number of steps early, which makes Lightning build its loaders early."""

    def __init__(self):
        super().__init__()
        self.lr = 0.05

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=total)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Tunable(Recorder):
    def __init__(self):
        super().__init__()
        self.lr = 0.05

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Fitted(NamedTuple):
    trainer: L.Trainer
    module: Recorder
    selection: BatchSelection
    check: PlanCheck


def fit(folder, module=None, callbacks=(), workers=0, data=None, **options):
    selection = make_selection()
    check = PlanCheck(selection)
    module = module or Recorder()
    trainer = make_trainer(folder, [selection, check, *callbacks], **options)
    trainer.fit(module, datamodule=data or Data(workers=workers))
    return Fitted(trainer, module, selection, check)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_reloaded_in_training_keep_the_same_order(tmp_path, workers):
    plain = fit(tmp_path, workers=workers)
    reloaded = fit(tmp_path, workers=workers, reload_dataloaders_every_n_epochs=1)
    assert reloaded.module.seen == plain.module.seen
    assert torch.equal(weights_of(reloaded.module), weights_of(plain.module))
    assert reloaded.check.checked == 6 * 7


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_built_early_for_a_scheduler_are_ours_and_resume_exactly(tmp_path, workers):
    steps = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=25, save_top_k=-1)
    whole = fit(tmp_path, Scheduled(), [steps], workers=workers).module
    selection, resumed = make_selection(), Scheduled()
    trainer = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    trainer.fit(resumed, datamodule=Data(workers=workers), ckpt_path=tmp_path / "step=25.ckpt")
    assert min(resumed.seen) == (3, 4)
    assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}
    assert torch.equal(weights_of(resumed), weights_of(whole))


def test_early_stopping_and_weight_averaging_leave_every_id_right(tmp_path):
    stop = EarlyStopping("val_loss", patience=1, min_delta=10.0)
    average = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3)
    assert fit(tmp_path, callbacks=[average]).check.checked == 6 * 7
    trainer, _, _, check = fit(tmp_path, callbacks=[stop], val_check_interval=0.5)
    assert trainer.should_stop
    assert check.checked < 6 * 7


class Normalized(Recorder):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(self.net, torch.nn.BatchNorm1d(self.net[-1].out_features))


def test_the_pass_for_batch_norm_after_weight_averaging_is_not_learned_from(tmp_path):
    """Lightning adds an epoch that only runs forward, with weights that were never trained."""
    average = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=3)
    trainer, module, selection, check = fit(tmp_path, Normalized(), callbacks=[average])
    assert check.checked == 7 * 7
    assert trainer.current_epoch == 7
    trained = [sample for (epoch, _), ids in module.seen.items() if epoch < 6 for sample in ids]
    visits = selection.strategy.memory.visits[:-1].tolist()
    assert visits == [trained.count(sample) for sample in range(len(visits))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["callback", "tuner"])
def test_selection_stands_aside_for_the_lr_finder_and_comes_back(tmp_path, way, workers):
    plain = fit(tmp_path, Tunable(), workers=workers)
    selection, module = make_selection(), Tunable()
    check = PlanCheck(selection)
    options = {"num_training_steps": 9, "update_attr": False} if way == "callback" else {}
    finder = [LearningRateFinder(**options)] if way == "callback" else []
    trainer = make_trainer(tmp_path, [selection, check, *finder])
    if way == "tuner":
        before = weights_of(module).clone()
        Tuner(trainer).lr_find(module, datamodule=Data(workers=workers), num_training=9, update_attr=False)
        assert torch.equal(weights_of(module), before)
    module.seen.clear()
    trainer.fit(module, datamodule=Data(workers=workers))
    assert check.checked == 6 * 7
    assert module.seen == plain.module.seen
    assert torch.equal(weights_of(module), weights_of(plain.module))
    after, expected = selection.state_dict(), plain.selection.state_dict()
    for name in ("history", "visits"):
        assert torch.equal(after["strategy_state"][name], expected["strategy_state"][name])
    assert torch.equal(after["probabilities"], expected["probabilities"])
    assert selection.pressure == 1.0


def test_selection_follows_the_batch_size_scaler(tmp_path):
    selection = make_selection()
    check = PlanCheck(selection)
    data = Data(batch_size=2)
    finder = BatchSizeFinder(mode="power", steps_per_trial=1, init_val=4, max_trials=2)
    trainer = make_trainer(tmp_path, [selection, check, finder])
    trainer.fit(Recorder(), datamodule=data)
    assert data.batch_size == 8 or data.batch_size == 16
    assert selection.plan.layout.batch_size == data.batch_size
    assert check.checked == 6 * len(selection.plan)


def test_two_fits_in_a_row_with_one_callback_are_two_equal_runs(tmp_path):
    selection = make_selection()
    first, second = Recorder(), Recorder()
    for module in (first, second):
        make_trainer(tmp_path, [selection, PlanCheck(selection)]).fit(module, datamodule=Data())
    assert first.seen == second.seen
    assert torch.equal(weights_of(first), weights_of(second))


def test_one_trainer_that_goes_on_keeps_what_was_learned(tmp_path):
    selection, module = make_selection(end_epoch=8), Recorder()
    trainer = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    trainer.fit(module, datamodule=Data())
    visits = selection.strategy.memory.visits.clone()
    trainer.fit_loop.max_epochs = 9
    trainer.fit(module, datamodule=Data())
    assert max(module.seen)[0] == 8
    assert (selection.strategy.memory.visits >= visits).all()
    assert selection.pressure == 1.0


def test_evaluation_is_untouched(tmp_path):
    trainer, module, selection, _ = fit(tmp_path)
    plan = selection.plan
    loader = DataLoader(make_data(), batch_size=10)
    module.test_step = module.validation_step
    module.predict_step = lambda batch, batch_idx: batch[0][:, 0].long()
    trainer.validate(module, loader)
    trainer.test(module, loader)
    assert torch.cat(trainer.predict(module, loader)).tolist() == list(range(52))
    assert selection.plan is plan
    assert "process_dataloader" not in vars(trainer.strategy)


def test_testing_the_best_checkpoint_after_training_changes_nothing_of_the_selection(tmp_path):
    best = ModelCheckpoint(tmp_path, monitor="val_loss")
    trainer, module, selection, _ = fit(tmp_path, callbacks=[best])
    before = selection.state_dict()
    module.test_step = module.validation_step
    trainer.test(module, DataLoader(make_data(), batch_size=26), ckpt_path="best")
    after = selection.state_dict()
    assert (after["epoch"], after["batch"]) == (before["epoch"], before["batch"])
    assert torch.equal(after["strategy_state"]["history"], before["strategy_state"]["history"])


def test_a_checkpoint_can_be_tested_and_then_trained_anew(tmp_path):
    trainer, module, _, _ = fit(tmp_path)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    selection, fresh = make_selection(), Recorder()
    fresh.test_step = fresh.validation_step
    other = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    other.test(fresh, DataLoader(make_data(), batch_size=26), ckpt_path=tmp_path / "end.ckpt")
    again = Recorder()
    other.fit(again, datamodule=Data())
    assert again.seen == module.seen


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_the_user_built_is_found_and_kept(tmp_path, workers):
    data = make_data()
    sampler = SelectionSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    plain = fit(tmp_path).module
    selection, module = make_selection(), Recorder()
    trainer = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    trainer.fit(module, loader)
    assert trainer.train_dataloader is loader
    assert module.seen == plain.seen
    assert sorted(i for batch in loader for i in batch[0][:, 0].long().tolist()) == list(range(52))


def test_a_pytorch_lightning_trainer_works_as_well(tmp_path):
    pl = pytest.importorskip("pytorch_lightning")
    if tuple(map(int, pl.__version__.split(".")[:2])) < (2, 6):
        pytest.skip("pytorch_lightning before 2.6 refuses every callback of the lightning package")

    class Old(pl.LightningModule):
        def __init__(self):
            super().__init__()
            inner = Recorder()
            self.net, self.seen = inner.net, inner.seen

        def forward(self, x):
            return self.net(x[:, 1:])

        training_step = Recorder.training_step
        configure_optimizers = Recorder.configure_optimizers
        fail_at = None

    selection, module = make_selection(), Old()
    check = PlanCheck(selection)
    trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[selection, check, pl.callbacks.ModelCheckpoint(tmp_path, filename="last")],
    )
    trainer.fit(module, make_loader(make_data()))
    assert check.checked == 6 * 7
    assert "selection/pressure" in trainer.callback_metrics
    assert "BatchSelection" in torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]


@pytest.mark.slow
def test_long_trainings_neither_grow_nor_leak(tmp_path):
    """60 epochs here; benchmarks/load.py runs 2,000."""
    selection = make_selection()

    class Count(L.Callback):
        tensors, handles = (), ()

        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch % 20 == 19:
                gc.collect()
                live = sum(isinstance(o, torch.Tensor) for o in gc.get_objects())
                self.tensors += (live,)
                self.handles += (len(os.listdir("/proc/self/fd")),) if os.path.exists("/proc/self/fd") else (0,)

    count = Count()
    make_trainer(tmp_path, [selection, count], max_epochs=60).fit(Recorder(), make_loader(make_data()))
    assert count.tensors[-1] <= count.tensors[0] + 2
    assert count.handles[-1] <= count.handles[0]


def test_a_strategy_that_needs_labels_lets_a_checkpoint_be_tested(tmp_path):
    selection, best, module = make_selection("Balance"), ModelCheckpoint(tmp_path, monitor="val_loss"), Recorder()
    trainer = make_trainer(tmp_path, [selection, best])
    trainer.fit(module, datamodule=Data())
    planned = selection.plan.epoch
    module.test_step = module.validation_step
    trainer.test(module, DataLoader(make_data(), batch_size=26), ckpt_path="best")
    assert selection.plan.epoch == planned
