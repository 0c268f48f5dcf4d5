"""Batches are learned together, and nobody can tell."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from tiny_training import N, Q, Tiny, fit, loader, trainer
from torch import Tensor

from lightning_ubs import UBS, BatchSelection, HardImbalance, LossBias
from lightning_ubs.reading.predictions import Kind, to_probabilities
from lightning_ubs.selection import planner as learning


def of_a_training(strategy: Any = UBS, module: type[Tiny] = Tiny, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    selection = BatchSelection(strategy(), warmup_epochs=1)
    fit(selection, module(), max_epochs=4, **options)
    return selection.state_dict()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@pytest.mark.parametrize("strategy", [UBS, LossBias, HardImbalance])
@pytest.mark.parametrize("together", [1, 2, 100])
def test_how_many_batches_are_learned_together_changes_no_bit(
    strategy: Any, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = of_a_training(strategy)
    monkeypatch.setattr(learning, "_BATCHES", together)
    assert same(of_a_training(strategy), usual)


def test_a_training_that_stops_in_mid_epoch_has_learned_every_step() -> None:
    state = of_a_training(max_steps=8)
    assert state["batch"] == 2
    assert int(state["strategy_state"]["visits"].sum()) == N + 2 * 8


def test_a_checkpoint_in_mid_epoch_holds_every_step_and_training_goes_on_with_the_next() -> None:
    class Saves(L.Callback):
        def __init__(self) -> None:
            self.visits: list[int] = []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.visits.append(int(selection.state_dict()["strategy_state"]["visits"].sum()))

    torch.manual_seed(0)
    selection, saves = BatchSelection(UBS(), warmup_epochs=9), Saves()
    trainer(selection, saves, max_epochs=2).fit(Tiny(), loader())
    assert saves.visits == [3 * 8, N + 3 * 8]
    assert int(selection.state_dict()["strategy_state"]["visits"].sum()) == 2 * N


def test_a_model_that_writes_its_predictions_to_the_same_memory_in_every_step_is_read_rightly() -> None:
    class Reuses(Tiny):
        """As graphs of recorded kernels do."""

        def __init__(self) -> None:
            super().__init__()
            self.shown = torch.empty(8, Q)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            logits = self(x)
            self.record(x, logits)
            self.shown[: len(x)] = logits.detach()
            return {"loss": self.loss(logits, y), "logits": self.shown[: len(x)]}

    assert same(of_a_training(module=Reuses)["strategy_state"], of_a_training()["strategy_state"])


def test_a_callback_that_asks_in_mid_epoch_sees_every_step_so_far() -> None:
    class Asks(L.Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            selection.settle()
            self.seen.append(int(strategy.memory.visits[:-1].sum()))

    torch.manual_seed(0)
    strategy = UBS()
    selection, asks = BatchSelection(strategy, warmup_epochs=9), Asks()
    trainer(selection, asks, max_epochs=1).fit(Tiny(), loader())
    assert asks.seen == [8, 16, 24, 32, 40, 42]


def test_large_predictions_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "_CELLS", 1)
    waiting: list[int] = []
    add = learning.LearningQueue.add

    def counted(self: Any, batch: int, reading: Any) -> None:
        add(self, batch, reading)
        waiting.append(len(self._waiting))

    monkeypatch.setattr(learning.LearningQueue, "add", counted)
    of_a_training()
    assert set(waiting) == {0}


def test_batches_around_one_that_is_left_out_are_credited_to_their_own_samples() -> None:
    class Skips(Tiny):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 2 else super().training_step(batch, batch_idx)

    torch.manual_seed(0)
    module, selection = Skips(), BatchSelection(UBS(), warmup_epochs=9)
    trainer(selection, max_epochs=3).fit(module, loader())
    window, counts = selection.strategy.memory.rows(0, N)  # type: ignore[attr-defined]
    for i, known in enumerate(module.histories(3)):
        assert counts[i] == len(known)
        torch.testing.assert_close(window[i, len(window[i]) - len(known) :], torch.tensor(known).view(-1, Q))


@pytest.mark.parametrize("kind", list(Kind))
def test_what_predictions_become_does_not_depend_on_which_batches_come_together(kind: Kind) -> None:
    generator = torch.Generator().manual_seed(0)
    raw = [torch.randn(rows, 5, generator=generator) * 4 for rows in (7, 9, 1, 6)]
    if kind is Kind.PROBS:
        raw = [one.sigmoid() for one in raw]
    alone = [to_probabilities(one, kind) for one in raw]
    probs, usable = to_probabilities(torch.cat(raw), kind, [len(one) for one in raw])
    assert torch.equal(probs, torch.cat([of_one for of_one, _ in alone]))
    assert torch.equal(usable, torch.cat([of_one for _, of_one in alone]))
