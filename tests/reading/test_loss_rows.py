"""In every step the rows of the loss are those of the batch, or the run stops at the end of the epoch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tiny_training import Tiny, data, fit, loader
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import mse_loss, one_hot
from torch.utils.data import Dataset, TensorDataset

from lightning_ubs import UBS, BatchSelection, SelectionError
from lightning_ubs.reading.loss_rows import Differences, LossRows

X, Y = data(160, q=5).tensors
LATE = "rows of the loss stood in another order than in the batch"
FIRST = "batch 0: the loss's rows are those of the batch in another order"


class Hidden(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


def by_hand(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.sigmoid()
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


LOSSES: dict[str, Any] = {
    "cross-entropy": bce,
    "squares": lambda logits, y: mse_loss(logits.sigmoid(), y),
    "by hand": by_hand,
    "smoothed": lambda logits, y: bce(logits, 0.9 * y + 0.05),
}


class Moves(Tiny):
    """Exchanges or sorts the rows inside some of its steps."""

    def __init__(self, loss: str, when: Any, pairs: bool = False) -> None:
        super().__init__(q=5)
        self.kind, self.when, self.pairs = loss, when, pairs

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        found: Tensor = LOSSES[self.kind](logits, y)
        return found

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        order = torch.arange(len(x))
        if self.when(self.current_epoch, batch_idx):
            order = torch.cat([order[:2].flip(0), order[2:]]) if self.pairs else x[:, 1].argsort()
        return super().training_step((x[order], y[order]), batch_idx)


def ran(module: Tiny, rows: Any = None, epochs: int = 4, **options: Any) -> tuple[str, list[str]]:
    """The refusal, and what was warned of."""
    train = rows if rows is not None else loader(Hidden(), batch_size=16)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refusal = ""
        try:
            fit(BatchSelection(UBS(), warmup_epochs=1, **options), module, train, max_epochs=epochs)
        except SelectionError as error:
            refusal = str(error)
    return refusal, [str(one.message) for one in told if "labels" in str(one.message) or "rows" in str(one.message)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shown", [True, False], ids=["shown", "hidden"])
def test_rows_that_are_sorted_in_every_second_batch_of_a_later_epoch_stop_the_run_in_that_epoch(
    loss: str, shown: bool
) -> None:
    rows = loader(TensorDataset(X, Y) if shown else Hidden(), batch_size=16)
    module = Moves(loss, lambda epoch, k: epoch > 0 and k % 2 == 1)
    refusal, _ = ran(module, rows)
    assert LATE in refusal
    assert "in 5 of 10 batches of this epoch" in refusal
    assert module.current_epoch == 1
    assert ran(Moves(loss, lambda epoch, k: epoch > 0 and k % 2 == 1), ids=False)[0] == ""


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ids", [None, lambda batch: batch[0][:, 0].long()], ids=["labels", "ids"])
def test_two_rows_that_are_exchanged_are_found(loss: str, ids: Any) -> None:
    refusal, _ = ran(Moves(loss, lambda epoch, k: k > 5, pairs=True), ids=ids)
    assert LATE in refusal
    refusal, _ = ran(Moves(loss, lambda epoch, k: True, pairs=True), ids=ids)
    assert FIRST in refusal


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sort_that_begins_with_a_later_epoch_is_refused_in_its_first_batch(loss: str) -> None:
    module = Moves(loss, lambda epoch, k: epoch > 0)
    assert FIRST in ran(module)[0]
    assert module.current_epoch == 1


class Late(Tiny):
    """Other targets than the labels, but in the batches that are compared at once."""

    def __init__(self, change: Any) -> None:
        super().__init__(q=5)
        self.change = change

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return super().training_step((x, self.change(y) if batch_idx > 4 else y), batch_idx)


def test_targets_of_two_samples_in_other_batches_are_told_of_once() -> None:
    def joined(y: Tensor) -> Tensor:
        return torch.cat([torch.maximum(y[:, :1], y[:, :1].roll(1, 0)), y[:, 1:]], 1)

    refusal, told = ran(Late(joined))
    assert refusal == ""
    assert len(told) == 1
    assert "in 5 of 9 batches of this epoch, the targets of the loss were not the labels of the batch" in told[0]
    assert ran(Late(joined), ids=lambda batch: batch[0][:, 0].long()) == ("", [])


def test_targets_of_other_samples_in_other_batches_are_told_of_and_then_refused() -> None:
    module = Late(lambda y: Y[torch.randint(len(Y), (len(y),))])
    refusal, told = ran(module)
    assert "the targets of the loss were not the labels of the batch" in refusal
    assert len(told) == 1
    assert module.current_epoch == 1


def test_mixing_in_some_batches_of_a_later_epoch_is_refused_at_its_end() -> None:
    class Mixes(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            if self.current_epoch == 1 and batch_idx % 2 == 1:
                x, y = 0.7 * x + 0.3 * x.roll(1, 0), 0.7 * y + 0.3 * y.roll(1, 0)
            return bce(self(x), y)

    module = Mixes(5)
    refusal, _ = ran(module)
    assert "of 10 batches of this epoch, the targets of the loss were soft: an augmentation mixes" in refusal
    assert module.current_epoch == 1
    assert ran(Mixes(5), ids=False) == ("", [])


class Classes(Tiny):
    """Exclusive classes, compared as the kind says."""

    def __init__(self, kind: str, moves: bool) -> None:
        super().__init__(q=5)
        self.kind, self.moves = kind, moves

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        if self.moves and batch_idx > 4:
            x, y = x.flip(0), y.flip(0)
        logits = self(x)
        if self.kind == "indices":
            return nn.functional.cross_entropy(logits, y)
        rows = one_hot(y, 5).float()
        return nn.functional.cross_entropy(logits, rows) if self.kind == "rows" else mse_loss(logits.softmax(1), rows)


@pytest.mark.parametrize("kind", ["indices", "rows", "squares"])
@pytest.mark.parametrize("moves", [True, False])
def test_class_indices_are_compared_with_rows_of_classes(kind: str, moves: bool) -> None:
    refusal, told = ran(Classes(kind, moves), loader(TensorDataset(X, Y.argmax(1)), batch_size=16))
    assert (LATE in refusal) == moves
    assert told == []


class Adversarial(Tiny):
    """Every third step also trains against targets that are the same for all samples, before or after the labels."""

    def __init__(self, first: bool, every: int) -> None:
        super().__init__(q=5)
        self.automatic_optimization = False
        self.first, self.every = first, every

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        passes = [y, torch.ones_like(y)] if batch_idx % self.every == 0 else [y]
        for target in reversed(passes) if self.first else passes:
            logits = self(x)
            if target is y:
                self.record(x, logits)
            self.manual_backward(bce(logits, target) * (1.0 if target is y else 0.01))
        self.optimizers().step()


class Guesses(Adversarial):
    """The other targets differ from sample to sample."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        if batch_idx > 4 and batch_idx % self.every == 0:
            self.manual_backward(0.01 * bce(self(x), torch.randint(0, 2, y.shape).float()))
        self.manual_backward(self.loss(self(x), y))
        self.optimizers().step()


class Smooths(Tiny):
    """Smooths less and less, and by the label."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        share = 0.3 / (1 + self.current_epoch) * torch.linspace(0.1, 1, 5)
        return bce(logits, y * (1 - share) + share / 3)


class Buffer(Tiny):
    """Keeps all targets in one tensor, which the next step overwrites."""

    kept: Any = None

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) != len(y):
            self.kept = torch.empty_like(y)
        self.kept.copy_(y)
        return bce(logits, self.kept)


class InPlace(Tiny):
    """Changes its batch after the loss is computed, and smooths it before."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        y.mul_(0.8).add_(0.1)
        logits = self(x)
        self.record(x, logits)
        return bce(logits, y)


class Halves(Tiny):
    """Compares some of its samples only, but for the first batches, and returns the predictions of all."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        kept = slice(len(x) if batch_idx < 4 and self.current_epoch == 0 else 8)
        return {"loss": bce(logits[kept], y[kept]), "logits": logits}


RIGHT: dict[str, Any] = {
    "plain": lambda: Tiny(5),
    "a second task before": lambda: Adversarial(True, 1),
    "a second task behind": lambda: Adversarial(False, 3),
    "another task in some later steps": lambda: Guesses(True, 3),
    "smoothed less and less": lambda: Smooths(5),
    "one tensor for all targets": lambda: Buffer(5),
    "a part of the samples": lambda: Halves(4),
    "smoothed in place": lambda: InPlace(5),
}


@pytest.mark.parametrize("layout", RIGHT)
def test_right_rows_raise_no_alarm(layout: str) -> None:
    rows = loader(data(160, q=4), batch_size=16) if layout == "a part of the samples" else None
    assert ran(RIGHT[layout](), rows, epochs=3) == ("", [])
    accumulating, watch, _ = fit(
        BatchSelection(UBS(), warmup_epochs=1), Tiny(5), loader(Hidden()), max_epochs=2, accumulate_grad_batches=3
    )
    assert accumulating.ids() == watch.plans


def test_rows_that_are_sorted_in_place_are_found() -> None:
    class Sorts(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            if batch_idx > 4:
                order = x[:, 1].argsort()
                x[:], y[:] = x[order].clone(), y[order].clone()
            return super().training_step(batch, batch_idx)

    assert LATE in ran(Sorts(5))[0]


def test_the_very_tensor_of_the_batch_is_compared_without_a_computation() -> None:
    rows, seen = LossRows(), Y[:8].clone()
    logits = torch.randn(8, 5, requires_grad=True)
    rows.verified = 8
    rows.see(bce(logits, seen))
    assert rows.learn(seen, is_first=True) == (True, ())
    for target, waits in ((seen, 0), (seen.clone(), 1)):
        rows.start_step(seen, seen.clone())
        rows.see(bce(logits, target))
        assert len(rows._waiting) == waits
    assert rows.judge() == Differences(batches=2)
    rows.start_step(seen, seen.clone())
    rows.see(bce(logits, seen.flip(0)))
    assert rows.judge() == Differences(batches=1, moved=1, moved_rows=8)
