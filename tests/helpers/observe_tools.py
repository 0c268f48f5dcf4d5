"""What the tests of observe/ share: a strategy that keeps what it is told, and the comparison with the true head."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from tiny_training import Tiny, loader, trainer
from torch import Tensor, nn

from lightning_ubs import UBS, BatchSelection


class Keeping(UBS):
    """UBS that keeps every (ids, probabilities, targets) it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[list[int], Tensor, Tensor | None]] = []

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        self.told.append((ids.tolist(), probs.clone(), None if targets is None else targets.clone()))
        super().update(ids, probs, targets)


class KeepingTargets(Keeping):
    needs = frozenset({"predictions", "targets"})


class Layout(Tiny):
    """A module whose training step is what a test says; it records what its true head predicted."""

    def head(self, x: Tensor) -> Tensor:
        logits: Tensor = nn.functional.linear(x[:, 1:], self.net.weight, self.net.bias)
        return logits

    def shown(self, x: Tensor, logits: Tensor) -> Tensor:
        self.record(x, logits)
        return logits


def train(module: L.LightningModule, data: Any = None, targets: bool = False, **options: Any) -> Keeping:
    """Two epochs; gives the strategy with what it was told."""
    names = ("outputs", "targets", "kind", "ids", "labels")
    chosen = {name: options.pop(name) for name in names if name in options}
    if targets is not False and targets is not True:
        chosen["targets"] = targets
    strategy = KeepingTargets() if targets else Keeping()
    selection = BatchSelection(strategy, warmup_epochs=1, **chosen)
    trainer(selection, **{"max_epochs": 2} | options).fit(module, loader() if data is None else data)
    return strategy


def assert_true_head(module: Any, strategy: Keeping, tolerance: float = 1e-6) -> None:
    """What was read is what the module's head predicted, in every batch."""
    true = [step for epoch in sorted(module.seen) for step in module.seen[epoch]]
    assert len(true) == len(strategy.told) > 0
    for (ids, probs), (told_ids, told, _) in zip(true, strategy.told, strict=True):
        assert ids == told_ids
        torch.testing.assert_close(told, probs, atol=tolerance, rtol=0)
