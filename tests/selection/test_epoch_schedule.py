"""Epochs whose size follows a schedule: steps, validation, progress bars, schedulers and resumes follow it."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging, TQDMProgressBar
from tiny_training import N, Tiny, Watch, data, fit, loader, trainer

from lightning_ubs import UBS, BatchSelection, Blocks, ClassAware, EpochSize, InfoBatch, Random, SelectionError

FALLING = EpochSize(1.0, 0.25)
EPOCHS = 6
SAMPLES = [42, 34, 26, 18, 10, 42]  # 1, 0.8125, 0.625, 0.4375, 0.25, 1 of 42 samples


class Cycled(Tiny):
    """Takes one cycle of the learning rate over all optimizer steps, and notes which epochs were validated."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[int] = []
        self.estimated = 0

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.estimated = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=self.estimated + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}


class Bar(TQDMProgressBar):
    """Notes what the bar counts in each epoch, and how far it got."""

    def __init__(self) -> None:
        super().__init__()
        self.totals: list[tuple[int, int]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        self.totals.append((self.train_progress_bar.total, self.train_progress_bar.n))
        super().on_train_epoch_end(trainer, *arguments)


def drawn(module: Tiny) -> list[int]:
    return [sum(map(len, batches)) for batches in module.ids().values()]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (EpochSize(), [1, 0.75, 0.5, 0.25, 1]),
        (EpochSize(0.5, 1.0, full_last=0), [0.5, 0.625, 0.75, 0.875, 1]),
        (EpochSize(1.0, 0.125, "exponential"), [1, 0.5, 0.25, 0.125, 1]),
        (EpochSize(1.0, 0.2, "cosine", 0), [1, 0.8828, 0.6, 0.3172, 0.2]),
        (EpochSize(0.3, 0.3, full_last=2), [0.3, 0.3, 0.3, 1, 1]),
        (EpochSize(0.5, 0.1, full_last=4), [0.5, 1, 1, 1, 1]),
        (EpochSize(0.5, 0.1, full_last=9), [1, 1, 1, 1, 1]),
    ],
)
def test_shares_follow_the_shape_and_the_last_epochs_are_whole(size: EpochSize, expected: list[float]) -> None:
    assert [size.share(epoch, 5) for epoch in range(5)] == pytest.approx(expected, abs=1e-4)
    assert [size.samples(epoch, 5, 1000) for epoch in range(5)] == [
        max(1, round(size.share(epoch, 5) * 1000)) for epoch in range(5)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("strategy", [UBS, Random, ClassAware])
def test_every_epoch_has_its_size_and_everything_else_knows_it(strategy: Any, workers: int) -> None:
    bar, module = Bar(), Cycled()
    selection = BatchSelection(strategy(), epoch_size=FALLING)
    watch = Watch(selection)
    made = trainer(selection, watch, bar, max_epochs=EPOCHS, enable_progress_bar=True)
    made.fit(module, loader(num_workers=workers, persistent_workers=workers > 0), loader(shuffle=False))
    assert drawn(module) == SAMPLES
    assert module.ids() == watch.plans
    batches = [-(-count // 8) for count in SAMPLES]
    assert bar.totals == [(count, count) for count in batches]
    assert module.validated == list(range(EPOCHS))
    assert made.global_step == module.estimated == sum(batches)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 4},
        {"limit_train_batches": 0.5},
        {"limit_train_batches": 3},
        {"max_steps": 15},
        {"max_steps": 15, "accumulate_grad_batches": 2},
        {"val_check_interval": 0.5},
        {"val_check_interval": 5},
        {"val_check_interval": 4, "check_val_every_n_epoch": None},
    ],
)
def test_estimated_steps_are_those_that_are_made_and_no_epoch_misses_its_validation(options: dict[str, Any]) -> None:
    module = Cycled()
    _, _, made = fit(
        BatchSelection(UBS(), epoch_size=FALLING), module, val=loader(shuffle=False), max_epochs=EPOCHS, **options
    )
    assert module.estimated == made.global_step
    if "check_val_every_n_epoch" not in options and "max_steps" not in options:
        assert sorted(set(module.validated)) == list(range(EPOCHS))


def test_the_trainer_is_afterwards_what_it_was() -> None:
    _, _, made = fit(BatchSelection(UBS(), epoch_size=FALLING), max_epochs=EPOCHS)
    assert type(made) is L.Trainer
    assert made.estimated_stepping_batches != sum(-(-count // 8) for count in SAMPLES)


def test_weight_averaging_adds_an_epoch_that_is_not_counted() -> None:
    class Normed(Cycled):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Normed()
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=3)
    made = trainer(BatchSelection(UBS(), epoch_size=FALLING), averaging, max_epochs=EPOCHS)
    made.fit(module, loader())
    assert drawn(module)[:EPOCHS] == SAMPLES


@pytest.mark.parametrize("replacement", ["systematic", "batch", "none", "full"])
def test_each_way_of_drawing_keeps_the_sizes(replacement: Any) -> None:
    module, watch, _ = fit(
        BatchSelection(UBS(), epoch_size=FALLING, replacement=replacement, warmup_epochs=1), max_epochs=EPOCHS
    )
    assert drawn(module) == SAMPLES
    assert module.ids() == watch.plans


def test_plain_epochs_walk_on_through_passes_and_whole_ones_are_passes() -> None:
    module, *_ = fit(BatchSelection(Random(), epoch_size=EpochSize(0.5, 0.25, full_last=2)), max_epochs=EPOCHS)
    epochs = [[i for ids in batches for i in ids] for batches in module.ids().values()]
    assert [len(ids) for ids in epochs] == [21, 18, 14, 10, N, N]
    assert sorted(epochs[-1]) == sorted(epochs[-2]) == list(range(N))
    walked = [i for ids in epochs[:-2] for i in ids]
    assert len(set(walked[:N])) == N
    assert len(set(walked[N:])) == len(walked) - N


def test_blocks_take_the_sizes() -> None:
    module, watch, _ = fit(
        BatchSelection(UBS(), warmup_epochs=2, epoch_size=FALLING, order=Blocks(size=7, window=2)), max_epochs=EPOCHS
    )
    assert drawn(module) == SAMPLES
    assert module.ids() == watch.plans
    assert sorted(i for ids in module.ids()[0] for i in ids) == list(range(N))


@pytest.mark.parametrize("strategy", [UBS, Random])
@pytest.mark.parametrize(("every", "workers"), [(1, 0), (3, 2)])
def test_a_resume_continues_with_the_same_samples(tmp_path: Path, strategy: Any, every: int, workers: int) -> None:
    def run(*callbacks: Any, ckpt: Any = None) -> Cycled:
        torch.manual_seed(0)
        module, selection = Cycled(), BatchSelection(strategy(), warmup_epochs=1, epoch_size=FALLING)
        made = trainer(selection, *callbacks, max_epochs=EPOCHS, enable_checkpointing=bool(callbacks))
        train = loader(num_workers=workers, persistent_workers=workers > 0)
        made.fit(module, train, loader(shuffle=False), ckpt_path=ckpt)
        assert module.estimated == made.global_step
        return module

    whole = run(ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=every))
    flat = [ids for batches in whole.ids().values() for ids in batches]
    starts = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
    assert len(starts) >= len(flat) // every
    for path in starts[:: 3 if workers else 1]:
        done = int(path.stem.split("=")[1])
        resumed = run(ckpt=path)
        assert [ids for batches in resumed.ids().values() for ids in batches] == flat[done:], path.name
        assert resumed.validated == whole.validated[EPOCHS - len(resumed.validated) :]


def test_gradients_stay_unbiased() -> None:
    """Weights are 1/(nP), whatever the number of draws: each step's mean is that of a plain step."""
    selection = BatchSelection(UBS(), warmup_epochs=1, epoch_size=FALLING, unbiased=True)
    fit(selection, max_epochs=3)
    expected = 1 / (N * selection.probabilities)
    weights = selection._steps._weights.of_plan(selection.plan)
    assert torch.allclose(weights, expected)


def test_it_is_previewed() -> None:
    from lightning_ubs.inspection.outlook import epoch_outlooks

    shares = [one.distinct_share for one in epoch_outlooks(BatchSelection(Random(), epoch_size=FALLING), 6, N, 8)]
    assert shares == pytest.approx([count / N for count in SAMPLES])
    assert all(after < before for before, after in pairwise(shares[:-1]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": 0}, r"start=0 .*share in \(0, 1\]"),
        ({"end": 1.5}, r"end=1.5 .*share in \(0, 1\]"),
        ({"end": True}, r"end=True .*share in \(0, 1\]"),
        ({"shape": "linar"}, "did you mean 'linear'"),
        ({"full_last": -1}, "full_last=-1 .*at least 0"),
        ({"start": math.nan}, "start=nan"),
    ],
)
def test_schedules_that_mean_nothing_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EpochSize(**arguments)


def test_what_a_schedule_cannot_go_with_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(SelectionError, match=r"does not say how many there are; set max_epochs"):
        fit(BatchSelection(Random(), epoch_size=FALLING), max_epochs=-1, max_steps=20)
    with pytest.raises(ValueError, match="decides in each epoch how many samples are left"):
        BatchSelection(InfoBatch(original=True), epoch_size=FALLING)
    with pytest.raises(SelectionError, match=r"epoch 4 has 5 samples and no whole batch of 8.*drop_last=False"):
        fit(BatchSelection(Random(), epoch_size=EpochSize(1.0, 0.12)), train=loader(drop_last=True), max_epochs=EPOCHS)

    class Two(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch["a"], batch_idx)

    loaders = {"a": loader(), "b": loader(data(n=42))}
    with pytest.raises(SelectionError, match="where training has several loaders; use a number or a share"):
        fit(BatchSelection(Random(), epoch_size=FALLING, loader="a"), Two(), train=loaders, max_epochs=EPOCHS)


def test_a_configuration_says_it_as_a_mapping() -> None:
    selection = BatchSelection(Random(), epoch_size={"start": 1.0, "end": 0.25})  # type: ignore[arg-type]
    assert selection.epoch_size == FALLING
    assert "EpochSize()" in repr(BatchSelection(epoch_size=FALLING))


def test_the_pressure_is_1_in_the_last_epoch_that_max_steps_allows() -> None:
    selection = BatchSelection(UBS(), warmup_epochs=1)
    _, watch, made = fit(selection, max_epochs=50, max_steps=7, accumulate_grad_batches=4)  # two steps in each epoch
    assert (made.global_step, max(watch.shown)) == (7, 3)
    assert [watch.shown[epoch]["pressure"] for epoch in (1, 2, 3)] == [100.0, pytest.approx(10.0), 1.0]
