"""Where the dataset shows no labels, or shows those of other samples: a row is of the planned sample, or refused."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from observe_tools import train
from tiny_training import N, Tiny, Watch, data, fit, loader, trainer
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import Dataset, TensorDataset

from lightning_ubs import UBS, Balance, BatchSelection, SelectionError
from lightning_ubs.reading import DatasetLabels, IdVerification, samples

X, Y = data().tensors
RECORDS = [(x, y) for x, y in zip(X, Y, strict=True)]


class Hidden(Dataset[Any]):
    """Shows no labels: they are in records of mixed types."""

    def __init__(self, rows: Any = None) -> None:
        self.records = [("name", x, y) for x, y in RECORDS] if rows is None else rows

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Any:
        _, x, y = self.records[i]
        return x, y


class Sorts(Tiny):
    """Rows are sorted inside the step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        order = x[:, 1].argsort()
        return super().training_step((x[order], y[order]), batch_idx)


class Ors(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return super().training_step((x, torch.maximum(y, y.roll(1, 0))), batch_idx)


def stacked(samples: list[Any]) -> Any:
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def sorting(samples: list[Any]) -> Any:
    return stacked(sorted(samples, key=lambda sample: float(sample[0][1])))


def refusal(module: Tiny | None = None, rows: Any = None, epochs: int = 3, **options: Any) -> str:
    with pytest.raises(SelectionError) as error:
        fit(BatchSelection(UBS(), warmup_epochs=1, **options), module, rows, max_epochs=epochs)
    return str(error.value)


@pytest.mark.parametrize("shown", [True, False], ids=["labels shown", "labels hidden"])
@pytest.mark.parametrize("ids", [None, lambda batch: batch[0][:, 0].long()], ids=["labels", "ids"])
def test_rows_sorted_inside_the_step_are_refused(shown: bool, ids: Any) -> None:
    rows = loader(data() if shown else Hidden())
    message = refusal(Sorts(), rows, ids=ids)
    assert "epoch 0, batch 0: the loss's rows are those of the batch in another order" in message
    train(Sorts(), loader(Hidden()), ids=False)


def test_rows_sorted_for_the_loss_alone_have_a_way_out() -> None:
    class Returns(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits, order = self(x), x[:, 1].argsort()
            self.record(x, logits)
            return {"loss": bce(logits[order], y[order]), "logits": logits}

    assert "pass ids=False" in refusal(Returns(), loader(Hidden()))
    train(Returns(), loader(Hidden()), ids=False)


def test_targets_of_two_samples_in_one_are_refused() -> None:
    message = refusal(Ors(), loader(Hidden()))
    assert "not the labels of the batch, row by row" in message
    train(Ors(), loader(Hidden()), ids=False)
    train(Ors(), loader(Hidden()), ids=lambda batch: batch[0][:, 0].long())


class OrsSometimes(Ors):
    """From epoch ``first`` on, in every batch but each first one, or in all of them."""

    def __init__(self, first: int, spares_first: bool) -> None:
        super().__init__()
        self.first, self.spares_first = first, spares_first

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        mixes = self.current_epoch >= self.first and not (self.spares_first and batch_idx == 0)
        return Ors.training_step(self, batch, batch_idx) if mixes else Tiny.training_step(self, batch, batch_idx)


def test_targets_of_two_samples_are_refused_where_the_first_batch_is_clean() -> None:
    with pytest.raises(SelectionError, match="epoch 0, batch 1: the targets of the loss"):
        fit(BatchSelection(UBS(), warmup_epochs=1), OrsSometimes(0, spares_first=True), max_epochs=2)


def test_targets_of_two_samples_that_begin_late_are_warned_of_and_then_refused() -> None:
    with (
        pytest.warns(UserWarning, match="epoch 4, batch 0: the targets of the loss.* next epoch shows the same"),
        pytest.raises(SelectionError, match="epoch 5, batch 0: the targets of the loss"),
    ):
        fit(BatchSelection(UBS(), warmup_epochs=1), OrsSometimes(4, spares_first=False), max_epochs=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_that_sorts_is_found_by_asking_the_dataset(workers: int) -> None:
    message = refusal(rows=loader(Hidden(), collate_fn=sorting, num_workers=workers))
    assert "epoch 0, batch 0: the labels of the batch are not those of the items" in message
    assert "ids=False" in message
    train(Tiny(), loader(Hidden(), collate_fn=sorting), ids=False)


class Touched(Hidden):
    """Counts, draws random numbers and reads a file at every item."""

    def __init__(self, path: Any) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.file = path.open("rb", buffering=0)

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        random.random(), np.random.rand(), torch.rand(())
        self.file.read(1)
        return super().__getitem__(i)


def test_asking_touches_nothing_of_the_training(tmp_path: Any) -> None:
    (tmp_path / "data").write_bytes(bytes(10_000))

    class Drawing(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
            return super().training_step(batch, batch_idx)

    runs = []
    for ids in (None, False):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        dataset, module = Touched(tmp_path / "data"), Drawing()
        module.drawn = []
        fit(BatchSelection(UBS(), warmup_epochs=1, ids=ids), module, loader(dataset), max_epochs=2)
        runs.append((dataset.asked, dataset.file.tell(), module.drawn))
        dataset.file.close()
    assert runs[0] == runs[1]
    assert runs[0][1] == 2 * N


class Queue(Hidden):
    """Holds other samples in each epoch."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.share, self.epoch = share, 0

    def next_epoch(self) -> None:
        order = torch.arange(N)
        moved = torch.randperm(N, generator=torch.Generator().manual_seed(self.epoch))[: round(self.share * N)]
        order[moved] = moved.roll(1)
        self.records = [self.records[i] for i in order.tolist()]
        self.epoch += 1


class Redraws(Tiny):
    def __init__(self, queue: Any) -> None:
        super().__init__()
        self.queue = queue

    def on_train_epoch_end(self) -> None:
        self.queue.next_epoch()


def test_a_dataset_that_is_drawn_anew_each_epoch_is_refused_within_two_epochs() -> None:
    queue = Queue()
    message = refusal(Redraws(queue), loader(queue), epochs=9)
    assert queue.epoch <= 2
    assert "of 42 samples came with other labels than at their first visit" in message
    assert "a queue, a cache" in message
    train(Redraws(queue), loader(queue), ids=False, max_epochs=3)


def test_a_cache_of_which_a_part_is_replaced_is_told_of_and_then_refused() -> None:
    cache = Queue(0.3)
    with pytest.warns(UserWarning, match="came with other labels than at their first visit. If that is meant"):
        assert "a queue, a cache" in refusal(Redraws(cache), loader(cache), epochs=20)


class Noisy(Hidden):
    """A part of the labels is flipped at each visit."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, torch.where(torch.rand(len(y)) < self.rate, 1 - y, y)


def test_labels_that_are_noisy_at_each_visit_are_told_of_once() -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(Tiny(), loader(Noisy(0.05)), max_epochs=6)
    assert sum("came with other labels" in str(one.message) for one in told) == 1


class Soft(Hidden):
    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + torch.randn(()), y * (0.9 + 0.0 * torch.rand(())) + 0.05


def test_augmented_inputs_and_smoothed_labels_raise_no_alarm() -> None:
    class AnyX(Tiny):
        def record(self, x: Tensor, logits: Tensor) -> None:
            pass

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*other labels.*")
        train(AnyX(), loader(Soft()), max_epochs=4)


def dropping(samples: list[Any]) -> Any:
    return stacked([sample for sample in samples if int(sample[0][0]) != 17])


@pytest.mark.parametrize("ids", [None, False])
def test_a_row_that_is_missing_in_any_batch_is_named(ids: Any) -> None:
    for seed in range(3):
        message = refusal(rows=loader(Hidden(), collate_fn=dropping), ids=ids, seed=seed)
        assert "for 7 samples, but the planned batch has 8" in message or "for 1 samples, but the planned" in message
        assert "torch.utils.data.Subset" in message


def test_rows_that_were_added_in_a_later_batch_are_named() -> None:
    def adding(samples: list[Any]) -> Any:
        return stacked(samples * 2 if len(samples) < 8 else samples)

    message = refusal(rows=loader(Hidden(), collate_fn=adding))
    assert "epoch 0, batch 5 has rows for 4 samples, but the planned batch has 2" in message


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("returns", [True, False], ids=["returned", "hidden"])
def test_a_last_batch_of_one_sample_may_have_lost_its_axis(labels: int, returns: bool) -> None:
    class Squeezes(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x).squeeze()
            self.record(x, logits.reshape(len(x), -1))
            loss = bce(logits, y.squeeze())
            return {"loss": loss, "logits": logits} if returns else loss

    chosen, module = BatchSelection(UBS(), warmup_epochs=1), Squeezes(q=labels)
    _, watch, _ = fit(chosen, module, loader(data(n=41, q=labels)), max_epochs=2)
    assert module.ids() == watch.plans
    values, _ = chosen.history()
    last = module.seen[1][-1]
    assert len(last[0]) == 1
    assert torch.allclose(values[last[0][0], -1], last[1][0])


def test_the_batch_of_the_only_loader_in_a_dict_is_its_own() -> None:
    class Inner(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            part = batch["a"] if isinstance(batch, dict) else batch[0]
            return super().training_step((part["x"], part["y"]), batch_idx)

    def with_index(samples: list[Any]) -> Any:
        x, y = stacked(samples)
        return {"x": x, "y": y, "index": x[:, 0].long()}

    for rows in ({"a": loader(collate_fn=with_index)}, [loader(collate_fn=with_index)]):
        train(Inner(), rows, ids="index")
        train(Inner(), rows)
    with pytest.raises(SelectionError, match="the batch holds the samples"):
        train(Inner(), {"a": loader(collate_fn=lambda s: with_index(s[::-1]))}, ids="index")


class Grows(Hidden):
    step = 1

    def next_epoch(self) -> None:
        self.records = [*self.records, *self.records[:1]] if self.step > 0 else self.records[:-1]


def test_samples_that_come_or_go_during_training_are_told_of() -> None:
    grows = Grows()
    with pytest.warns(
        UserWarning, match="grew from 42 to 43 samples since training began; the new ones are not"
    ) as told:
        train(Redraws(grows), loader(grows), max_epochs=5)
    assert sum("grew from" in str(one.message) for one in told) == 1
    shrinks = Grows()
    shrinks.step = -1
    with pytest.raises(SelectionError, match="shrank from 42 to 41 samples"):
        train(Redraws(shrinks), loader(shrinks))


def hidden_half(seed: int) -> Hidden:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))[:30].tolist()
    return Hidden([("name", *RECORDS[i]) for i in order])


def shown_half(seed: int) -> Any:
    return torch.utils.data.random_split(data(), [30, N - 30], torch.Generator().manual_seed(seed))[0]


@pytest.mark.parametrize("half", [hidden_half, shown_half], ids=["labels hidden", "labels shown"])
@pytest.mark.parametrize("batches", [0, 2], ids=["epoch end", "mid-epoch"])
def test_a_checkpoint_knows_its_dataset(half: Any, batches: int, tmp_path: Any) -> None:
    def run(seed: int, **options: Any) -> None:
        chosen = BatchSelection(UBS(), warmup_epochs=1)
        made = trainer(chosen, **options)
        made.fit(
            Tiny(), loader(half(seed)), ckpt_path=tmp_path / "last.ckpt" if (tmp_path / "last.ckpt").exists() else None
        )
        if not (tmp_path / "last.ckpt").exists():
            made.save_checkpoint(tmp_path / "last.ckpt")

    run(0, max_steps=8 + batches, max_epochs=8)
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*other labels.*")
        run(0, max_epochs=6)
    with pytest.raises(
        SelectionError, match=r"samples have other labels than in the run that is continued.*random_split"
    ):
        run(1, max_epochs=6)


@pytest.mark.parametrize("half", [hidden_half, shown_half], ids=["labels hidden", "labels shown"])
def test_a_second_fit_on_other_samples_is_refused_and_a_new_one_is_not(half: Any) -> None:
    chosen = BatchSelection(UBS(), warmup_epochs=1)
    made = trainer(chosen, max_epochs=2)
    made.fit(Tiny(), loader(half(0)))
    made.fit_loop.max_epochs = 3
    made.fit(Tiny(), loader(half(0)))
    made.fit_loop.max_epochs = 4
    with pytest.raises(SelectionError, match="in the run that is continued"):
        made.fit(Tiny(), loader(half(1)))
    trainer(chosen, max_epochs=2).fit(Tiny(), loader(half(1)))


def test_a_second_fit_on_a_dataset_of_another_size_begins_anew_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    chosen = BatchSelection(UBS(), warmup_epochs=1)
    made = trainer(chosen, max_epochs=2)
    made.fit(Tiny(), loader(shown_half(0)))
    made.fit_loop.max_epochs = 4
    made.fit(Tiny(), loader())
    assert chosen.times_drawn is not None
    assert chosen.times_drawn.sum() == 2 * N
    assert "another size than in the previous fit, so what was learned is forgotten: selection joins" in caplog.text


def test_the_same_samples_in_another_form_continue(tmp_path: Any) -> None:
    forms = [TensorDataset(X, Y), TensorDataset(X, Y.bool()), TensorDataset(X.double().float(), Y.to(torch.uint8))]
    path, before = tmp_path / "last.ckpt", None

    class Casts(Tiny):
        def loss(self, logits: Tensor, y: Tensor) -> Tensor:
            return bce(logits, y.float())

    for epochs, form in enumerate(forms, start=2):
        made = trainer(BatchSelection(UBS(), warmup_epochs=1), max_epochs=epochs)
        made.fit(Casts(), loader(form), ckpt_path=before)
        made.save_checkpoint(path)
        before = path


def test_a_few_corrected_labels_are_told_of_and_go_on(tmp_path: Any) -> None:
    made = trainer(BatchSelection(UBS(), warmup_epochs=1), max_epochs=2)
    made.fit(Tiny(), loader())
    made.save_checkpoint(tmp_path / "last.ckpt")
    corrected = Y.clone()
    corrected[:5, 0] = 1 - corrected[:5, 0]
    with pytest.warns(UserWarning, match="5 of 42 samples have other labels"):
        trainer(BatchSelection(UBS(), warmup_epochs=1), max_epochs=3).fit(
            Tiny(), loader(TensorDataset(X, corrected)), ckpt_path=tmp_path / "last.ckpt"
        )


def test_a_checkpoint_of_the_first_release_tells_nothing_of_its_dataset_and_still_loads(tmp_path: Any) -> None:
    made = trainer(BatchSelection(UBS(), warmup_epochs=1), max_epochs=2)
    made.fit(Tiny(), loader())
    made.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    for callback in state["callbacks"].values():
        callback.pop("labels", None)
    torch.save(state, tmp_path / "old.ckpt")
    trainer(BatchSelection(UBS(), warmup_epochs=1), max_epochs=3).fit(Tiny(), loader(), ckpt_path=tmp_path / "old.ckpt")


class Shows(Hidden):
    """Keeps something with one row per sample that is not its labels."""

    def __init__(self, item: Any = None, **kept: Any) -> None:
        super().__init__()
        self.item = item
        vars(self).update(kept)

    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i) if self.item is None else self.item(self, i)


class Unpacks(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y, *rest = batch
        known = rest[0] if rest and rest[0].dtype == torch.bool else torch.ones_like(y)
        logits = self(x)
        self.record(x, logits)
        return (bce(logits, y.nan_to_num().clamp(min=0), reduction="none") * known).sum() / known.sum()


OTHERS = torch.rand(N, 3, generator=torch.Generator().manual_seed(4)) < 0.5
KNOWN = torch.rand(N, 3, generator=torch.Generator().manual_seed(5)) < 0.8
NOT_LABELS: dict[str, Any] = {
    "a matrix of as many zeros and ones": Shows(groups=OTHERS),
    "a matrix of zeros and ones that is wider": Shows(words=torch.cat([OTHERS, OTHERS], 1)),
    "the main class": Shows(labels=Y.argmax(1)),
    "a number of classes under the name of labels": Shows(targets=(torch.arange(N) % 3).tolist()),
    "a matrix that comes beside the labels": Shows(lambda self, i: (X[i], Y[i], self.groups[i].float()), groups=OTHERS),
    "what is known of the labels": TensorDataset(X, Y.masked_fill(~KNOWN, torch.nan), KNOWN),
    "what is known of labels of -1": TensorDataset(X, Y.masked_fill(~KNOWN, -1), KNOWN),
}


@pytest.mark.parametrize("kept", NOT_LABELS)
def test_what_only_looks_like_labels_raises_no_alarm(kept: str) -> None:
    selection, module = BatchSelection(UBS(), warmup_epochs=1), Unpacks()
    module, watch, _ = fit(selection, module, loader(NOT_LABELS[kept]), max_epochs=2)
    assert module.ids() == watch.plans
    assert selection.to_frame()["labels"].isna().all()


def test_what_only_looks_like_labels_hides_no_sorted_batch() -> None:
    for dataset in (Shows(groups=OTHERS), Shows(tags=Y)):
        assert "predictions would be credited to other samples" in refusal(rows=loader(dataset, collate_fn=sorting))


def test_a_strategy_that_works_with_labels_is_not_given_others() -> None:
    dataset = Shows(groups=OTHERS)
    for labels in (None, Y):
        selection = BatchSelection(Balance(), warmup_epochs=1, labels=labels)
        if labels is None:
            with pytest.raises(SelectionError, match=r"dataset's groups \[42, 3\].*labels="):
                fit(selection, train=loader(dataset), max_epochs=1)
        else:
            fit(selection, train=loader(dataset), max_epochs=1)


class Changes(Hidden):
    """Shows labels that it changes at each visit."""

    def __init__(self, change: Any, rows: TensorDataset, **kept: Any) -> None:
        super().__init__([("name", x, y) for x, y in zip(*rows.tensors, strict=True)])
        self.change, self.targets = change, rows.tensors[1]
        vars(self).update(kept)

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, self.change(y, self, i)


def drops(y: Tensor, *_: Any) -> Tensor:
    return y * (torch.rand(len(y)) > 0.2)


def flips(y: Tensor, *_: Any) -> Tensor:
    return torch.where(torch.rand(len(y)) < 0.05, 1 - y, y)


def neighbors(y: Tensor, dataset: Any, i: int) -> Tensor:
    """Broken samples are replaced."""
    found: Tensor = dataset.targets[i - 1] if i % 4 == 0 else y
    return found


def changed_run(change: Any, strategy: Any = None, **options: Any) -> tuple[str, list[str]]:
    torch.manual_seed(0)
    refusal, rows = "", loader(Changes(change, data(160, q=5)), batch_size=16, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            fit(BatchSelection(strategy or UBS(), warmup_epochs=1), Tiny(5), rows, max_epochs=3)
        except SelectionError as error:
            refusal = str(error)
    return refusal, [str(one.message) for one in told if "than the dataset's targets" in str(one.message)]


@pytest.mark.parametrize("change", [drops, flips])
@pytest.mark.parametrize("strategy", [UBS, Balance])
@pytest.mark.parametrize("workers", [0, 2])
def test_labels_that_a_dataset_changes_at_each_visit_are_told_of_once(change: Any, strategy: Any, workers: int) -> None:
    refusal, told = changed_run(change, strategy(), num_workers=workers)
    assert refusal == ""
    assert len(told) == 1
    assert "they are taken for labels that the dataset changes at each visit" in told[0]


def test_changed_labels_hide_no_sorted_batch() -> None:
    refusal, told = changed_run(flips, collate_fn=sorting)
    assert "epoch 0, batch 0: the targets of the loss are not the labels of the planned samples" in refusal
    assert told == []


def test_samples_that_are_replaced_by_neighbors_are_no_changed_labels() -> None:
    refusal, told = changed_run(neighbors)
    assert "could not be told that they are not of other samples" in refusal
    assert told == []


def test_labels_that_differ_too_rarely_to_tell_why_are_refused_at_the_end_of_the_epoch() -> None:
    refusal, told = changed_run(lambda y, dataset, i: 1 - y if i % 20 == 7 else y)
    assert "8 of " in refusal
    assert "it could not be told that they are not of other samples" in refusal
    assert told == []


@pytest.mark.parametrize("kept", ["tensor", "lists"])
def test_true_targets_are_found_beside_other_labels(kept: str) -> None:
    labels = OTHERS if kept == "tensor" else OTHERS.long().tolist()
    dataset = Shows(labels=labels, targets=Y)
    module, watch, _ = fit(BatchSelection(UBS(), warmup_epochs=1), Tiny(), loader(dataset), max_epochs=2)
    assert module.ids() == watch.plans
    assert "credited to other samples" in refusal(rows=loader(dataset, collate_fn=sorting))


class Levels(Tiny):
    """Trains on the levels below a class, made in the step."""

    def __init__(self, moves: Any = lambda k: False, loss: Any = bce) -> None:
        super().__init__(q=4)
        self.moves, self.compares = moves, loss

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        if self.moves(batch_idx):
            order = x[:, 2].argsort()
            x, y = x[order], y[order]
        logits = self(x)
        self.record(x, logits)
        return self.compares(logits, (y.unsqueeze(1) > torch.arange(4)).float())


def squares(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.sigmoid() - y).square().mean() + 0 * nn.functional.mse_loss(logits.sigmoid(), y)


def levels(classes: int) -> TensorDataset:
    x = data(160).tensors[0]
    return TensorDataset(x, (x[:, 1] * 1.2 + 2).round().clamp(0, classes - 1).long())


@pytest.mark.parametrize("classes", [4, 5])
@pytest.mark.parametrize("loss", [bce, squares])
def test_ordinal_targets_that_a_step_makes_of_classes_are_right(classes: int, loss: Any) -> None:
    module = Levels(loss=loss)
    _, watch, _ = fit(
        BatchSelection(UBS(), warmup_epochs=1), module, loader(levels(classes), batch_size=32), max_epochs=2
    )
    assert module.ids() == watch.plans


@pytest.mark.parametrize(
    ("moves", "words"),
    [
        (lambda k: True, "batch 1: the loss's rows are those of the batch in another"),
        (lambda k: k > 3, "another order"),
    ],
)
def test_ordinal_targets_of_sorted_rows_are_refused(moves: Any, words: str) -> None:
    assert words in refusal(Levels(moves), loader(levels(5), batch_size=32))


class Reloads(L.LightningDataModule):
    """Makes its dataset anew for each epoch."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        return loader(TensorDataset(*self.rows(self.trainer.current_epoch)), batch_size=16)


def reloaded(rows: Any, **options: Any) -> list[str]:
    module, selection = Tiny(), BatchSelection(UBS(), warmup_epochs=1, **options)
    watch = Watch(selection)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer(selection, watch, max_epochs=7, reload_dataloaders_every_n_epochs=1).fit(
            module, datamodule=Reloads(rows)
        )
    assert module.ids() == watch.plans
    return [str(one.message) for one in told if "labels" in str(one.message)]


@pytest.mark.parametrize("first", [1, 5])
def test_labels_that_are_corrected_where_the_loader_is_made_anew_are_told_of_once(first: int) -> None:
    corrected = torch.cat([1 - Y[:4], Y[4:]])
    told = reloaded(lambda epoch: (X, Y if epoch < first else corrected))
    assert len(told) == 1
    assert "4 of 42 samples have other labels in the reloaded train dataset than before; selection continues" in told[0]
    assert reloaded(lambda epoch: (X, Y)) == []


@pytest.mark.parametrize("first", [1, 5])
def test_a_loader_that_is_made_anew_with_other_samples_is_refused(first: int) -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SelectionError, match=r"samples have other labels in the reloaded train dataset.*another order"):
        reloaded(lambda epoch: (X, Y) if epoch < first else (X[order], Y[order]))
    for ids in (lambda batch: batch[0][:, 0].long(), False):
        told = reloaded(lambda epoch: (X, Y) if epoch < first else (X, Y[order]), ids=ids)
        assert all("reloaded" in one or "first visit" in one for one in told)


class Foreign(Hidden):
    """Items whose labels are where only its own collate function finds them."""

    def __init__(self, item: Any, collate: Any, **kept: Any) -> None:
        super().__init__()
        self.item, self.collate, self.kept = item, collate, kept

    def __getitem__(self, i: int) -> Any:
        return self.item(*super().__getitem__(i))

    def loader(self, in_order: bool) -> Any:
        def collate(samples: list[Any]) -> Any:
            return self.collate(samples if in_order else samples[::-1])

        return loader(self, collate_fn=collate)


def multi_hot(lists: list[Any]) -> Tensor:
    return torch.stack([torch.zeros(3).index_fill(0, torch.tensor(one, dtype=torch.int64), 1) for one in lists])


FOREIGN: dict[str, Any] = {
    "lists of classes": (
        lambda x, y: (x, y.nonzero().flatten().tolist()),
        lambda samples: (torch.stack([x for x, _ in samples]), multi_hot([y for _, y in samples])),
    ),
    "nested, beside an image": (
        lambda x, y: {"x": x, "about": {"tags": y.numpy(), "name": "a"}, "image": torch.zeros(200, 200)},
        lambda samples: (
            torch.stack([one["x"] for one in samples]),
            torch.stack([torch.as_tensor(one["about"]["tags"]) for one in samples]),
        ),
    ),
    "a list of inputs of any number": (
        lambda x, y: ([x] * int(1 + y.sum()), y),
        lambda samples: (torch.stack([x[-1] for x, _ in samples]), torch.stack([y for _, y in samples])),
    ),
    "sparse": (
        lambda x, y: (x, y.to_sparse()),
        lambda samples: (torch.stack([x for x, _ in samples]), torch.stack([y.to_dense() for _, y in samples])),
    ),
}


@pytest.mark.parametrize("layout", FOREIGN)
def test_items_of_any_layout_are_compared(layout: str) -> None:
    train(Tiny(), Foreign(*FOREIGN[layout]).loader(in_order=True), max_epochs=1)
    assert "not those of the items" in refusal(rows=Foreign(*FOREIGN[layout]).loader(in_order=False))


class Packed:
    """A batch of a class of its own, of which a property raises."""

    def __init__(self, samples: list[Any]) -> None:
        self.x, self.truth = stacked(samples)

    @property
    def labels(self) -> Any:
        raise OSError("closed")


def test_a_batch_may_have_a_property_that_raises() -> None:
    class Opens(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step((batch.x, batch.truth), batch_idx)

    module = Opens()
    _, watch, _ = fit(BatchSelection(UBS(), warmup_epochs=1), module, loader(collate_fn=Packed), max_epochs=2)
    assert module.ids() == watch.plans


class Ends(Hidden):
    """Cannot be read in another process than that of the training."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end, self.process, self.lock = end, os.getpid(), threading.Lock()

    def __getitem__(self, i: int) -> Any:
        if os.getpid() != self.process:
            if self.end == "raises":
                raise OSError("no worker")
            if self.end == "dies":
                os._exit(3)
            time.sleep(1000)
        return super().__getitem__(i)


@pytest.mark.parametrize("end", ["raises", "dies", "sleeps"])
def test_a_dataset_that_cannot_be_asked_is_recognized_at_later_visits(end: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(samples, "_SECONDS", 0.2)
    train(Tiny(), loader(Ends(end)))
    assert "samples came with other labels" in refusal(rows=loader(Ends(end), collate_fn=sorting), epochs=6)


def test_the_labels_of_samples_are_known_from_the_dataset_or_its_items() -> None:
    ids = torch.tensor([5, 0, 7])
    for dataset in (data(), Hidden(), [{"x": x, "labels": y} for x, y in RECORDS]):
        verification = IdVerification()
        verification.begin(DatasetLabels(None, dataset))
        found = verification.labels_of(ids)
        assert found is not None
        assert torch.equal(found.float(), Y[ids])
    verification.begin(DatasetLabels(None, ["text"] * N))
    assert verification.labels_of(ids) is None
