"""Predictions on their way from a step to the strategy: several batches are learnt together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

# Batches, and cells of predictions, that are learnt together.
_BATCHES, _CELLS = 32, 2**20


class Predictions(Protocol):
    """What a step showed of a global batch, in the order of its planned ids."""

    @property
    def probs(self) -> Tensor:
        """(b, q) probabilities."""

    @property
    def usable(self) -> Tensor:
        """(b,) whether a row holds numbers."""

    @property
    def targets(self) -> Tensor | None:
        """(b, q) true labels, if the strategy reads them."""


class Reading(Protocol):
    """Predictions that are still to be made probabilities."""

    @property
    def raw(self) -> Tensor:
        """(b, q) as they came."""

    @property
    def observe(self) -> Callable[[], Predictions]:
        """Gives the probabilities."""


class LearningQueue:
    """Batches that wait to be learnt.

    A training step empties the caches, so that a few small kernels after each step take many times as long as in a row.
    Batches are learnt one by one in their order, so that it makes no difference when.

    Args:
        learn: takes the number of a batch and its predictions.
    """

    def __init__(self, learn: Callable[[int, Predictions], None]) -> None:
        self._learn = learn
        self._waiting: list[tuple[int, Reading]] = []

    def add(self, batch: int, reading: Reading) -> None:
        """Let a batch wait, until there are enough."""
        self._waiting.append((batch, reading))
        if len(self._waiting) >= _BATCHES or len(self._waiting) * reading.raw.numel() >= _CELLS:
            self.settle()

    def settle(self) -> None:
        """Learn all that wait."""
        waiting, self._waiting = self._waiting, []
        for batch, reading in waiting:
            self._learn(batch, reading.observe())

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting = []
