"""The check in the first step of a later epoch looks at what was chosen, and at everything where that has changed."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
from tiny_training import Tiny, data, loader, trainer
from torch import Tensor, nn

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading import heads


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the whole graph of a loss was searched."""
    found = [0]

    class Counted(heads.LossGraph):
        def __init__(self, loss: Tensor, rows: int) -> None:
            found[0] += 1
            super().__init__(loss, rows)

    monkeypatch.setattr(heads, "LossGraph", Counted)
    return found


class At(L.Callback):
    """The searches so far at the start of each epoch."""

    def __init__(self, searches: list[int]) -> None:
        self.searches, self.seen = searches, list[int]()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seen.append(self.searches[0])


class Changing(Tiny):
    """From epoch 3 on, its loss is made otherwise."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        plain = super().loss(logits, y)
        return plain if self.current_epoch < 3 else self.later(logits, y, plain)

    def later(self, logits: Tensor, y: Tensor, plain: Tensor) -> Tensor:
        return plain + 0.1 * logits.square().mean()


class Returning(Tiny):
    """Returns its probabilities besides."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self(batch[0])
        return {"loss": self.loss(logits, batch[1]), "probs": logits.detach().sigmoid()}


def trained(module: L.LightningModule, *others: L.Callback) -> None:
    # Batches of 16 samples with 5 labels tell their order.
    trainer(BatchSelection(UBS(), warmup_epochs=1), *others, max_epochs=5).fit(module, loader(data(q=5), batch_size=16))


@pytest.mark.parametrize("module", [Tiny, Returning])
def test_only_the_first_steps_search_the_whole_graph(module: type[Tiny], searches: list[int]) -> None:
    at = At(searches)
    trained(module(q=5), at)
    assert at.seen[1] > 0, "the first steps look for everything"
    assert at.seen[2:] == at.seen[2:3] * 3


def test_a_loss_of_another_form_is_searched_again(searches: list[int]) -> None:
    at = At(searches)
    trained(Changing(q=5), at)
    assert at.seen[3] == at.seen[2]
    assert at.seen[4] > at.seen[3], "epoch 3 has another loss"


class Mixing(Changing):
    """Compares its predictions with other samples as well, as mixup does."""

    def later(self, logits: Tensor, y: Tensor, plain: Tensor) -> Tensor:
        other = nn.functional.binary_cross_entropy_with_logits(logits, y.roll(1, 0))
        return 0.6 * plain + 0.4 * other


class MixingFromTheStart(Tiny):
    """Has the form of mixup from the start, and mixes from epoch 3 on."""

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        other = y if self.current_epoch < 3 else y.roll(1, 0)
        parts = [nn.functional.binary_cross_entropy_with_logits(logits, one) for one in (y, other)]
        return 0.6 * parts[0] + 0.4 * parts[1]


class Moving(Changing):
    """Sorts the rows of predictions and targets."""

    def later(self, logits: Tensor, y: Tensor, plain: Tensor) -> Tensor:
        order = logits.sum(1).argsort()
        return super(Changing, self).loss(logits[order], y[order])


@pytest.mark.parametrize("module", [Mixing, MixingFromTheStart, Moving])
def test_what_changes_in_a_later_epoch_is_refused(module: type[Tiny]) -> None:
    with pytest.raises(SelectionError):
        trained(module(q=5))
