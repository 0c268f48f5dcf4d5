"""Selection follows the Trainer's epoch and batch, whatever else happens to the loader or the loop."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from resume_tools import PlanCheck, Recorder, make_data, make_loader, make_selection, make_trainer, weights_of
from tiny_training import N, Tiny, data, fit, loader, trainer
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler, TensorDataset

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    BatchSelection,
    HardImbalance,
    InfoBatch,
    Random,
    RecencyBias,
    SelectionError,
    SelectionSampler,
)
from lightning_ubs.experiment.recorder import Recorder as TraceRecorder
from lightning_ubs.strategies import TrainingSet


class ReadsTheLoader(L.Callback):
    """Reads batches of the train loader, as a logger of example images does."""

    def __init__(self, hook: str, batches: int = 1) -> None:
        self.reads = 0

        def read(trainer: L.Trainer, *_: Any, **__: Any) -> None:
            if trainer.train_dataloader is not None:
                iterator = iter(trainer.train_dataloader)
                for _ in range(batches):
                    next(iterator)
                self.reads += 1

        setattr(self, hook, read)


def run(
    folder: Any, *others: L.Callback, workers: int = 0, val: bool = True, module: Any = None, **options: Any
) -> tuple[Any, BatchSelection, dict[int, float]]:
    selection, module = make_selection(), module or Recorder()
    pressures: dict[int, float] = {}

    class Pressures(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pressures[trainer.current_epoch] = selection.pressure

    made = make_trainer(folder, [*others, selection, PlanCheck(selection), Pressures()], **options)
    made.fit(module, make_loader(make_data(), workers=workers), DataLoader(make_data(), 26) if val else None)
    return module, selection, pressures


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "hook",
    [
        "on_train_start",
        "on_train_epoch_start",
        "on_train_batch_start",
        "on_train_batch_end",
        "on_validation_epoch_end",
        "on_train_epoch_end",
    ],
)
def test_reading_the_train_loader_changes_nothing(tmp_path: Any, hook: str, workers: int) -> None:
    whole, _, pressures = run(tmp_path, workers=workers, val_check_interval=0.5, max_epochs=4)
    reader = ReadsTheLoader(hook, batches=2)
    read, _, also = run(tmp_path, reader, workers=workers, val_check_interval=0.5, max_epochs=4)
    assert reader.reads >= 1
    assert read.seen == whole.seen
    assert also == pressures
    assert torch.equal(weights_of(read), weights_of(whole))


def test_reading_the_train_loader_draws_nothing_from_the_global_generator(tmp_path: Any) -> None:
    class Noisy(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.noise = [*getattr(self, "noise", []), torch.rand(()).item()]
            return super().training_step(batch, batch_idx)

    whole, *_ = run(tmp_path, module=Noisy(), max_epochs=3)
    read, *_ = run(tmp_path, ReadsTheLoader("on_train_batch_end"), module=Noisy(), max_epochs=3)
    assert read.noise == whole.noise


def test_nan_is_reported_although_somebody_read_the_loader() -> None:
    class Diverges(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self(batch[0]) * (float("nan") if (self.current_epoch, batch_idx) == (1, 2) else 1)
            return self.loss(logits, batch[1])

    made = trainer(BatchSelection(warmup_epochs=1), ReadsTheLoader("on_train_epoch_end"))
    with pytest.raises(SelectionError, match="epoch 1, batch"):
        made.fit(Diverges(), loader())


def test_a_selection_sampler_loader_that_is_also_validated_on_does_not_drift(tmp_path: Any) -> None:
    whole, *_ = run(tmp_path, val=False)
    dataset = make_data()
    both = DataLoader(dataset, batch_size=8, sampler=SelectionSampler(dataset))
    validated: list[int] = []

    class Validates(Recorder):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            validated.extend(batch[0][:, 0].long().tolist())

    selection, module = make_selection(), Validates()
    made = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    made.fit(module, both, both)
    assert module.seen == whole.seen
    assert sorted(validated) == sorted(list(range(52)) * 6)


class SaveAtEpochEnd(L.Callback):
    def __init__(self, path: Any, epoch: int) -> None:
        self.path, self.epoch = path, epoch

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("steps", [28, 35])
def test_max_steps_and_an_epoch_end_checkpoint_resume_with_the_same_ids(
    tmp_path: Any, steps: int, workers: int
) -> None:
    """7 batches an epoch; the cut falls on the end of an epoch."""

    def train(max_steps: int, ckpt: Any = None, *callbacks: L.Callback) -> Any:
        module, selection = Recorder(), make_selection(end_epoch=5)
        made = make_trainer(tmp_path, [selection, PlanCheck(selection), *callbacks], max_epochs=-1, max_steps=max_steps)
        made.fit(module, make_loader(make_data(), workers=workers), ckpt_path=ckpt)
        return module

    whole = train(42)
    path = tmp_path / "end.ckpt"
    train(steps, None, SaveAtEpochEnd(path, steps // 7 - 1))
    resumed = train(42, path)
    assert resumed.seen
    flat = [ids for _, ids in sorted(whole.seen.items())]
    assert [ids for _, ids in sorted(resumed.seen.items())] == flat[steps:]
    assert torch.equal(weights_of(resumed), weights_of(whole))


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({"max_epochs": 100, "max_steps": 30}, 4),
        ({"max_epochs": -1, "max_steps": 30}, 4),
        ({"max_epochs": -1, "max_steps": 31}, 5),
        ({"max_epochs": 100, "max_steps": 12, "accumulate_grad_batches": 3}, 5),
        ({"max_epochs": 100, "max_steps": 9, "limit_train_batches": 3}, 2),
        ({"max_epochs": 4, "max_steps": 1000}, 3),
    ],
)
def test_the_pressure_reaches_one_at_the_last_epoch_that_is_trained(options: dict[str, Any], last: int) -> None:
    """42 samples in batches of 8: 6 batches an epoch."""
    _, watch, _ = fit(BatchSelection(UBS(s0=50.0), warmup_epochs=1), **options)
    pressures = {epoch: shown["pressure"] for epoch, shown in watch.shown.items()}
    assert max(pressures) == last
    assert pressures[1] == 50.0
    assert pressures[last] == 1.0
    assert all(pressures[epoch] > 1 for epoch in range(1, last))


def test_a_schedule_of_accumulation_is_counted(tmp_path: Any) -> None:
    selection = BatchSelection(UBS(s0=50.0), warmup_epochs=1)
    made = trainer(selection, GradientAccumulationScheduler({0: 1, 2: 3}), max_epochs=100, max_steps=6 + 6 + 2 + 2)
    seen: dict[int, float] = {}

    class Pressures(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            seen[trainer.current_epoch] = selection.pressure

    made.callbacks.append(Pressures())
    made.fit(Tiny(), loader())
    assert max(seen) == 3
    assert seen[3] == 1.0
    assert seen[2] > 1.0


def test_max_steps_with_manual_optimization_needs_an_end() -> None:
    class Manual(Tiny):
        automatic_optimization = False

    with pytest.raises(SelectionError, match=r"manual optimization.*end_epoch"):
        fit(BatchSelection(warmup_epochs=1), Manual(), max_epochs=-1, max_steps=20)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stateful_data_loader_trains_and_resumes_as_a_plain_one(tmp_path: Any, shuffle: bool, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def train(kind: Any, ckpt: Any = None, *callbacks: L.Callback) -> Any:
        module, selection = Recorder(), make_selection()
        made = make_trainer(tmp_path, [selection, PlanCheck(selection), *callbacks], max_epochs=5)
        made.fit(module, kind(make_data(), batch_size=8, shuffle=shuffle, num_workers=workers), ckpt_path=ckpt)
        return module

    steps = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=10, save_top_k=-1)
    plain, whole = train(DataLoader), train(stateful, None, steps)
    assert whole.seen == plain.seen
    for step in (10, 20, 30):
        resumed = train(stateful, tmp_path / f"step={step}.ckpt")
        assert len(resumed.seen) == 35 - step
        assert resumed.seen == {key: whole.seen[key] for key in resumed.seen}
        assert torch.equal(weights_of(resumed), weights_of(whole))


class Stream(IterableDataset[Any]):
    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(torch.randn(self.items, 3))


class Several(Tiny):
    """Trains on the batch of the selected loader."""

    key: Any = "b"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.others = batch
        return super().training_step(batch[self.key], batch_idx)


def short(n: int = 16) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(n, 2)), batch_size=8)


@pytest.mark.parametrize(
    "loaders",
    [
        {"a": [short(), short()], "b": loader()},
        {"b": loader(), "a": {"x": short(), "y": (short(), short())}},
        {"a": short(), "b": loader()},
    ],
)
def test_the_named_one_of_nested_loaders_is_selected_from(loaders: Any) -> None:
    module, watch, _ = fit(BatchSelection(warmup_epochs=1, loader="b"), Several(), train=loaders)
    assert module.ids() == watch.plans


def test_a_group_of_loaders_cannot_be_selected_from() -> None:
    with pytest.raises(SelectionError, match="'a' names a group of 2 loaders"):
        fit(BatchSelection(warmup_epochs=1, loader="a"), Several(), train={"a": [short(), short()], "b": loader()})


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_may_stand_beside_the_selected_loader(workers: int) -> None:
    beside = {"b": loader(num_workers=workers), "stream": DataLoader(Stream(20), batch_size=8)}
    module, watch, _ = fit(BatchSelection(warmup_epochs=1, loader="b"), Several(), train=beside)
    assert module.ids() == watch.plans


def test_a_selected_loader_that_would_be_cycled_beside_a_stream_is_refused() -> None:
    beside = {"b": loader(), "stream": DataLoader(Stream(100), batch_size=8)}
    with pytest.raises(SelectionError, match=r"cycled in mid-epoch.*min_size"):
        fit(BatchSelection(warmup_epochs=1, loader="b"), Several(), train=beside)
    module, watch, _ = fit(
        BatchSelection(warmup_epochs=1, loader="b"), Several(), train=CombinedLoader(beside, mode="min_size")
    )
    assert module.ids() == watch.plans


@pytest.mark.parametrize("early", [False, True])
def test_selection_joins_a_checkpoint_written_without_it(tmp_path: Any, early: bool, caplog: Any) -> None:
    class Scheduled(Recorder):
        def configure_optimizers(self) -> Any:
            if early:
                assert self.trainer.estimated_stepping_batches > 0
            return super().configure_optimizers()

    plain = make_trainer(tmp_path, [], max_epochs=3)
    plain.fit(Scheduled(), make_loader(make_data()))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    selection, module = make_selection(), Scheduled()
    pressures = {}

    class Pressures(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            pressures[trainer.current_epoch] = selection.pressure

    steps = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=40, save_top_k=-1)
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        made = make_trainer(tmp_path, [selection, PlanCheck(selection), Pressures(), steps], max_epochs=8)
        made.fit(module, make_loader(make_data()), ckpt_path=tmp_path / "plain.ckpt")
    assert min(module.seen) == (3, 0)
    assert pressures[3] == pressures[4] == 1.0  # two epochs of warm-up
    assert pressures[5] == 100.0
    assert pressures[7] == 1.0
    assert "selection joins in epoch 3" in caplog.text
    again, resumed = make_selection(), Scheduled()
    made = make_trainer(tmp_path, [again, PlanCheck(again)], max_epochs=8)
    made.fit(resumed, make_loader(make_data()), ckpt_path=tmp_path / "step=40.ckpt")
    assert resumed.seen == {key: module.seen[key] for key in resumed.seen}


class TwoHeads(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.record(batch["a"][0], self(batch["a"][0]))
        first, second = self(batch["a"][0]), self(batch["b"][0])
        loss = self.loss(first, batch["a"][1]) + self.loss(second, batch["b"][1])
        return {"loss": loss, "first": first, "second": second}


def test_two_selections_on_two_loaders_have_separate_names_in_the_log() -> None:
    pair = [
        BatchSelection(UBS(s0=10.0), warmup_epochs=1, loader="a", outputs="first"),
        BatchSelection(RecencyBias(s0=20.0), warmup_epochs=1, loader="b", outputs="second"),
    ]
    made = trainer(*pair, max_epochs=3)
    seen: dict[str, list[float]] = {"selection/a/pressure": [], "selection/b/pressure": []}

    class Metrics(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            for name, values in seen.items():
                values.append(trainer.callback_metrics[name].item())

    made.callbacks.append(Metrics())
    made.fit(TwoHeads(), {"a": loader(), "b": loader(data(seed=1))})
    assert seen == {"selection/a/pressure": [1.0, 10.0, 1.0], "selection/b/pressure": [1.0, 20.0, 1.0]}
    assert not vars(made.strategy).get("process_dataloader")


def test_one_strategy_object_for_two_loaders_is_refused() -> None:
    strategy = UBS()
    made = trainer(BatchSelection(strategy, loader="a"), BatchSelection(strategy, loader="b"))
    with pytest.raises(SelectionError, match=r"share one strategy object.*of its own"):
        made.fit(TwoHeads(), {"a": loader(), "b": loader()})


class MyRandom(RandomSampler):
    """Somebody changed what a RandomSampler does."""


class Permutation(Sampler[int]):
    """Seeded shuffling, as several libraries have their own."""

    def __init__(self, size: int, seed: int = 3) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        return iter(torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed)).tolist())


class ByLength(Permutation):
    """Visits each sample once too, in an order that means something."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(len(lengths))
        self.lengths = lengths


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (MyRandom(range(N)), "MyRandom.*would be lost"),
        (ByLength(list(range(N))), "ByLength.*would be lost"),
        (DistributedSampler(range(N), num_replicas=2, rank=1), "rank 1 of 2.*rank 0 of 1"),
        (DistributedSampler(range(N - 1), num_replicas=1, rank=0), "41 samples.*42 samples"),
    ],
)
def test_samplers_that_mean_something_are_refused(sampler: Any, words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        fit(BatchSelection(warmup_epochs=1), train=loader(shuffle=False, sampler=sampler))


def test_a_plain_seeded_permutation_is_replaced_with_a_message(caplog: Any) -> None:
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        module, watch, _ = fit(
            BatchSelection(warmup_epochs=1), train=loader(shuffle=False, sampler=Permutation(N)), max_epochs=2
        )
    assert module.ids() == watch.plans
    assert "Permutation visits every sample once" in caplog.text


class Fetches(Tiny):
    """Fetches its batches itself."""

    fetches = 1

    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        for _ in range(self.fetches):
            batch, _, _ = next(dataloader_iter)
            self.last = batch
        loss = super().training_step(self.last, 0)
        self.log("train_loss", loss, batch_size=8)
        return loss


@pytest.mark.parametrize("workers", [0, 2])
def test_training_steps_that_fetch_one_batch_themselves_work(tmp_path: Any, workers: int) -> None:
    selection = BatchSelection(warmup_epochs=1)
    module, watch, _ = fit(selection, Fetches(), train=loader(num_workers=workers))
    assert module.ids() == watch.plans
    assert (selection.strategy.memory.visits[:N] > 0).all()


def test_training_steps_that_fetch_several_batches_are_refused() -> None:
    module = Fetches()
    module.fetches = 2
    with pytest.raises(SelectionError, match="once per step"):
        fit(BatchSelection(warmup_epochs=1), module)


class FetchesAtTimes(Fetches):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        self.fetches = 0 if len(self.seen[self.current_epoch]) == 2 else 1
        return super().training_step(dataloader_iter)


def test_training_steps_that_fetch_nothing_at_times_are_refused() -> None:
    with pytest.raises(SelectionError, match="once per step"):
        fit(BatchSelection(warmup_epochs=1), FetchesAtTimes())


def saved(folder: Any, selection: BatchSelection, epochs: int = 4) -> Any:
    made = make_trainer(folder, [selection], max_epochs=epochs)
    made.fit(Recorder(), make_loader(make_data()))
    made.save_checkpoint(folder / "four.ckpt")
    return folder / "four.ckpt"


@pytest.mark.parametrize(
    "arguments", [{"correlation": None}, {"lambda1": 0.0}, {"bins": 3}, {"window": 3}, {"window": 8}]
)
def test_a_resumed_run_uses_the_arguments_of_the_constructor_and_says_so(tmp_path: Any, arguments: Any) -> None:
    path = saved(tmp_path, BatchSelection(UBS(), warmup_epochs=2, seed=3, end_epoch=5))
    selection = BatchSelection(UBS(**arguments), warmup_epochs=2, seed=3, end_epoch=5)
    made = make_trainer(tmp_path, [selection, PlanCheck(selection)])
    with pytest.warns(UserWarning, match=f"{next(iter(arguments))}=.*checkpoint") as caught:
        made.fit(Recorder(), make_loader(make_data()), ckpt_path=path)
    assert len([w for w in caught if "checkpoint:" in str(w.message)]) == 1
    expected = UBS(**arguments)
    expected.reset(TrainingSet(52))
    expected.load_state_dict(selection.strategy.state_dict())
    measured = expected.measure()
    selection.strategy.measure()
    assert torch.equal(measured.weights, selection.weights)
    assert (selection.correlation is None) == ("correlation" in arguments)


@pytest.mark.parametrize("window", [3, 8])
def test_another_window_keeps_the_latest_predictions(window: int) -> None:
    old, new = UBS(window=5), UBS(window=window)
    for strategy in (old, new):
        strategy.reset(TrainingSet(2))
    for visit in range(7):
        old.update(torch.tensor([0]), torch.tensor([[visit / 10]]))
    old.update(torch.tensor([1]), torch.tensor([[0.9]]))
    new.load_state_dict(old.state_dict())
    values, counts = new.memory.rows(0, 2)
    kept = min(window, 5)
    assert counts.tolist() == [kept, 1]
    assert values[0, -kept:, 0].tolist() == pytest.approx([v / 10 for v in range(7 - kept, 7)])
    assert values[1, -1:, 0].tolist() == pytest.approx([0.9])
    new.update(torch.tensor([0]), torch.tensor([[1.0]]))
    values, counts = new.memory.rows(0, 1)
    assert values[0, -1, 0] == 1.0
    assert values[0, -2, 0] == pytest.approx(0.6)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_batch_epochs_with_a_checkpoint_taken_before_selection_are_all_trained(tmp_path: Any, workers: int) -> None:
    class SaveFirst(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.current_epoch == 2:
                trainer.save_checkpoint(tmp_path / "first.ckpt")

    def train(ckpt: Any = None) -> Any:
        module, selection = Recorder(), make_selection()
        made = make_trainer(tmp_path, [SaveFirst(), selection, PlanCheck(selection)])
        made.fit(module, make_loader(make_data(), batch_size=52, workers=workers), ckpt_path=ckpt)
        return module

    train()
    with pytest.warns(UserWarning, match="Put BatchSelection first"):
        resumed = train(tmp_path / "first.ckpt")
    assert sorted(resumed.seen) == [(3, 0), (4, 0), (5, 0)]
    assert all(len(ids) == 52 for ids in resumed.seen.values())


@pytest.mark.parametrize(
    ("options", "batches"), [({"limit_train_batches": 2}, 2), ({"max_steps": 8, "max_epochs": 2}, 2)]
)
def test_metrics_tell_what_was_trained(options: dict[str, Any], batches: int) -> None:
    module, _, made = fit(BatchSelection(warmup_epochs=1), **options)
    last = module.ids()[max(module.ids())]
    assert len(last) == batches
    share = len({i for ids in last for i in ids}) / N
    assert made.callback_metrics["selection/distinct_share"].item() == pytest.approx(share)


@pytest.mark.parametrize("options", [{"limit_train_batches": 2}, {"max_steps": 20}])
def test_traces_tell_what_was_trained(options: dict[str, Any]) -> None:
    selection = BatchSelection(warmup_epochs=1)
    recorder = TraceRecorder(selection, monitor="val_loss", mode="min")
    module = Tiny()
    made = trainer(recorder, selection, max_epochs=4, **options)
    made.fit(module, loader(), loader(shuffle=False))
    trained = [len(ids) for epoch in module.ids().values() for ids in epoch]
    assert sum(recorder.curves["samples"]) == sum(trained)
    selected = [i for epoch, batches in module.ids().items() if epoch >= 1 for ids in batches for i in ids]
    assert recorder.times_selected.tolist() == [selected.count(i) for i in range(N)]


@pytest.mark.parametrize("history_dtype", [None, "float16"])
def test_an_error_of_a_users_reset_reaches_the_user(history_dtype: Any) -> None:
    class Own(Random):
        def reset(self, data: TrainingSet) -> None:
            super().reset(data)
            len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        fit(BatchSelection(Own(), history_dtype=history_dtype))


def test_a_reset_that_was_written_for_release_0_1_0_is_refused_with_what_to_write() -> None:
    class Own(Random):
        def reset(self, num_samples: int, labels: Any = None, features: Any = None) -> None:  # type: ignore[override]
            super().reset(num_samples)  # type: ignore[arg-type]

    with pytest.raises(SelectionError, match=r"Own\.reset takes num_samples.*write reset\(self, data\)"):
        fit(BatchSelection(Own()))


@pytest.mark.parametrize("strategy", [Random, Balance, UBS, ActiveBias])
@pytest.mark.parametrize("batch_size", [5, 8, 42, 60])
def test_full_replacement_works_with_any_batch_size(strategy: Any, batch_size: int) -> None:
    selection = BatchSelection(strategy(), warmup_epochs=1, replacement="full")
    module, watch, _ = fit(selection, train=loader(batch_size=batch_size), max_epochs=3)
    assert module.ids() == watch.plans


class Skips(Tiny):
    """Skips some steps, before or after its forward pass."""

    after = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2 and not self.after:
            return None
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx == 4 and self.after else loss


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("strategy", [UBS, HardImbalance, Random])
def test_steps_that_return_none_are_skipped_and_counted(after: bool, strategy: Any) -> None:
    module = Skips()
    module.after = after
    selection = BatchSelection(strategy(), warmup_epochs=1)
    _, watch, made = fit(selection, module, max_epochs=3)
    assert all(len(plan) == 6 for plan in watch.plans.values())
    assert made.callback_metrics["selection/steps_without_predictions"] == 1
    if strategy is UBS:
        trained = {i for ids in watch.plans[0][:2] + watch.plans[0][3:4] + watch.plans[0][5:] for i in ids}
        assert (selection.strategy.memory.visits[list(trained)] > 0).all()


def test_a_loader_that_yields_none_is_skipped() -> None:
    def collate(items: list[Any]) -> Any:
        ids = {int(x[0]) for x, _ in items}
        return None if 7 in ids else torch.utils.data.default_collate(items)

    selection = BatchSelection(warmup_epochs=3)
    module, watch, made = fit(selection, train=loader(collate_fn=collate), max_epochs=2)
    assert all(len(ids) == 5 for ids in module.ids().values())
    assert made.callback_metrics["selection/steps_without_predictions"] == 1
    visits = selection.strategy.memory.visits[:N]
    skipped = {i for plan in watch.plans.values() for ids in plan if 7 in ids for i in ids}
    assert (visits[[i for i in range(N) if i not in skipped]] == 2).all()


class FineTuneLearningRateFinder(LearningRateFinder):
    """As Lightning's documentation has it: looks for the rate again at later epochs."""

    def __init__(self, milestones: tuple[int, ...], **options: Any) -> None:
        super().__init__(**options)
        self.milestones = milestones

    def on_fit_start(self, *_: Any, **__: Any) -> None:
        return

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch in self.milestones or trainer.current_epoch == 0:
            self.lr_find(trainer, pl_module)


class Tunable(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.lr = 0.05

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [True, False])
def test_a_learning_rate_that_is_looked_for_again_in_later_epochs(tmp_path: Any, first: bool, workers: int) -> None:
    options = {"num_training_steps": 9, "update_attr": False}
    plain = Tunable()
    make_trainer(tmp_path, [FineTuneLearningRateFinder((1, 3), **options)]).fit(plain, make_loader(make_data()))
    finder = FineTuneLearningRateFinder((1, 3), **options)
    selection, module = make_selection(), Tunable()
    check = PlanCheck(selection)
    callbacks = [finder, selection] if first else [selection, finder]
    epochs: list[tuple[int, float]] = []

    class Epochs(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            epochs.append((trainer.current_epoch, selection.pressure))

    made = make_trainer(tmp_path, [*callbacks, check, Epochs()])
    made.fit(module, make_loader(make_data(), workers=workers))
    assert [epoch for epoch, _ in epochs] == list(range(6))
    assert epochs[2][1] == 100.0
    assert epochs[5][1] == 1.0
    assert module.seen.keys() == plain.seen.keys()
    assert check.checked >= 40  # Lightning before 2.6 cuts the first epoch short after a search in it


@pytest.mark.parametrize("seed", [np.int64(3), 3.0, np.uint8(3), True])
def test_any_whole_number_is_a_seed_that_checkpoints_can_hold(tmp_path: Any, seed: Any) -> None:
    path = saved(tmp_path, make_selection(seed=seed), epochs=2)
    state = torch.load(path, weights_only=True)["callbacks"]["BatchSelection"]
    assert state["seed"] == int(seed)
    assert type(state["seed"]) is int


def test_active_bias_without_smoothing_names_it_where_too_few_samples_varied() -> None:
    class Constant(Tiny):
        """Predicts 1/2 for all samples but the first three."""

        def forward(self, x: Tensor) -> Tensor:
            wavers = (x[:, :1] < 3).float() * self.current_epoch
            return super().forward(x) * 0 + wavers

    with pytest.raises(SelectionError, match=r"smoothing=0.*smoothing=None"):
        fit(BatchSelection(ActiveBias(smoothing=0), warmup_epochs=2, replacement="batch"), Constant(), max_epochs=4)


class Holds(L.LightningModule):
    """Keeps its network among its hyper-parameters, as a widely used template does."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Uses(L.Callback):
    """Does with the module what users do in the middle of a training."""

    done = 0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        pickle.loads(pickle.dumps(pl_module.net))
        copy.deepcopy(pl_module)
        if trainer.global_step == 3:
            torch.jit.trace(pl_module.net, torch.zeros(2, 6))
            torch.export.export(pl_module.net, (torch.zeros(2, 6),))
        self.done += 1


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_the_module_can_be_saved_copied_and_exported_while_selection_runs(tmp_path: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    use, keep = Uses(), ModelCheckpoint(tmp_path, filename="last", every_n_train_steps=2)
    made = trainer(BatchSelection(warmup_epochs=1), use, keep, enable_checkpointing=True, max_epochs=2)
    made.fit(Holds(net), loader())
    assert use.done == 12
    assert (tmp_path / "last.ckpt").exists()


class TwoPasses(DataLoader[Any]):
    """A loader with an ``__init__`` of its own."""

    def __init__(self, folder: str, sampler: Any = None) -> None:
        items = data()
        options = {"sampler": sampler} if sampler is not None else {"shuffle": True}
        super().__init__(items, batch_size=8, **options)
        self.folder = folder


def test_a_loader_class_that_cannot_be_made_anew_is_refused_with_a_way_out_that_works() -> None:
    with pytest.raises(SelectionError, match=r"TwoPasses.*sampler=SelectionSampler\(dataset\)"):
        fit(BatchSelection(warmup_epochs=1), train=TwoPasses("here"))
    own = TwoPasses("here", sampler=SelectionSampler(data()))
    module, watch, _ = fit(BatchSelection(warmup_epochs=1), train=own)
    assert module.ids() == watch.plans
    assert type(own) is TwoPasses


def test_reloaded_loaders_let_go_of_old_datasets() -> None:
    alive: list[weakref.ref[Any]] = []

    class Items(TensorDataset):
        pass

    class Module(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            items = Items(*data().tensors)
            alive.append(weakref.ref(items))
            return loader(items)

    counted = []

    class Count(L.Callback):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
            gc.collect()
            counted.append(sum(ref() is not None for ref in alive))

    trainer(BatchSelection(warmup_epochs=1), Count(), max_epochs=6, reload_dataloaders_every_n_epochs=1).fit(
        Tiny(), datamodule=Module()
    )
    assert len(alive) == 6
    assert counted[-1] <= 2


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_left_as_it_was_found(fails: bool) -> None:
    class Fails(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if fails and self.current_epoch == 1:
                raise RuntimeError("the power went out")
            return super().training_step(batch, batch_idx)

    made = trainer(BatchSelection(warmup_epochs=1), max_epochs=2)
    mine = made.strategy.process_dataloader

    def wrapped(dataloader: Any) -> Any:
        return mine(dataloader)

    made.strategy.process_dataloader = wrapped
    before = list(warnings.filters)
    try:
        made.fit(Fails(), loader())
    except RuntimeError:
        assert fails
    assert made.strategy.process_dataloader is wrapped
    assert warnings.filters == before
    assert "dataloader" not in vars(made.fit_loop._data_source)


def test_reprs_show_what_differs_from_the_defaults() -> None:
    assert repr(UBS(lambda1=0.6)) == "UBS(lambda1=0.6)"
    assert repr(HardImbalance(pressure=4)) == "HardImbalance(pressure=4.0)"
    assert repr(Balance()) == "Balance()"
    assert repr(BatchSelection()) == "BatchSelection(strategy=UBS())"
    assert repr(BatchSelection(InfoBatch())) == "BatchSelection(strategy=InfoBatch())"
    shown = repr(BatchSelection(RecencyBias(window=7), warmup_epochs=3, seed=4, loader="b", epoch_size=0.5))
    assert shown == (
        "BatchSelection(strategy=RecencyBias(window=7), warmup_epochs=3, seed=4, loader='b', epoch_size=0.5)"
    )
