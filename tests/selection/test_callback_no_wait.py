"""A training step never makes the host wait for the device because of the selection."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from no_host_wait import HostWaitError, forbid_host_wait
from tiny_training import Tiny, data, fit, loader, trainer

from lightning_ubs import UBS, ActiveBias, BatchSelection, HardImbalance, InfoBatch, LossBias, RecencyBias
from lightning_ubs.selection import planner


@pytest.fixture(autouse=True)
def learn_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """These epochs have six batches; the strategy learns in their steps, as it does in epochs of more than 32."""
    monkeypatch.setattr(planner, "_BATCHES", 2)


class Guarded(BatchSelection):
    """Runs the hooks of every step where waiting raises; ids, which are verified in a few, are not."""

    steps = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"ids": False} | options)

    def guard(self, batch_idx: int) -> Any:
        """The proof of what is read waits, in the first epoch and the first step of later ones."""
        return nullcontext() if self.epoch == 0 or batch_idx == 0 else forbid_host_wait()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.batch_idx, self.epoch = batch_idx, trainer.current_epoch
        with self.guard(batch_idx):
            super().on_train_batch_start(trainer, module, batch, batch_idx)

    def on_before_backward(self, *args: Any) -> None:
        with self.guard(self.batch_idx):
            super().on_before_backward(*args)

    def on_train_batch_end(self, *args: Any) -> None:
        with self.guard(self.batch_idx):
            super().on_train_batch_end(*args)
        self.steps += 1


class GuardedButFirst(Guarded):
    """The first batch of each epoch is verified as well, and counted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"ids": None} | options)
        self.firsts = 0

    def guard(self, batch_idx: int) -> Any:
        self.firsts += batch_idx == 0
        return super().guard(batch_idx)


class Elsewhere(BatchSelection):
    """Keeps its state on a device that has no values, so that nothing can be read back from it."""

    steps = 0

    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        self.steps += 1

    def on_train_epoch_end(self, *args: Any) -> None:
        return


class ReturnsProbs(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0][:, 1:])
        return {"loss": self.loss(logits, batch[1]), "probs": logits.sigmoid()}


class ReturnsLogits(Tiny):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0][:, 1:])
        return {"loss": self.loss(logits, batch[1]), "logits": logits}


class CallsForward(Tiny):
    def record(self, *args: Any) -> None:
        return


class CallsForwardOfUnknownKind(CallsForward):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 1.5


MODULES = [ReturnsProbs, ReturnsLogits, CallsForward, CallsForwardOfUnknownKind]
STRATEGIES = [UBS, RecencyBias, ActiveBias, HardImbalance, LossBias, InfoBatch]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_step_waits_but_those_that_prove_what_is_read(module: Any, strategy: Any) -> None:
    guarded = Guarded(strategy(), warmup_epochs=1, epoch_size=1)
    fit(guarded, module(), max_epochs=3)
    assert guarded.steps == 18


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("strategy", [UBS, HardImbalance])
def test_no_step_waits_but_those_that_verify_ids(module: Any, strategy: Any) -> None:
    guarded = GuardedButFirst(strategy(), warmup_epochs=1)
    fit(guarded, module(), max_epochs=5)
    assert guarded.steps == 30
    assert guarded.firsts == 15


@pytest.mark.parametrize("replacement", ["none", "full"])
def test_no_step_waits_for_other_ways_of_drawing(replacement: Any) -> None:
    guarded = Guarded(UBS(), warmup_epochs=1, replacement=replacement)
    fit(guarded, CallsForward(), max_epochs=3)
    assert guarded.steps == 18


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("strategy", [UBS, HardImbalance])
def test_no_step_reads_anything_back_from_the_device_of_the_state(module: Any, strategy: Any) -> None:
    selection = Elsewhere(strategy(), warmup_epochs=1, device="meta")
    with pytest.warns(UserWarning, match="nothing will be selected"):
        trainer(selection, max_epochs=1).fit(module(), loader(data()))
    assert selection.steps == 6


def test_the_guard_would_notice() -> None:
    class Waiting(UBS):
        def update(self, ids: Any, probs: Any, targets: Any = None) -> None:
            super().update(ids, probs, targets)
            assert torch.isfinite(probs).all()

    with pytest.raises(HostWaitError):
        fit(Guarded(Waiting(), warmup_epochs=1), CallsForward())
