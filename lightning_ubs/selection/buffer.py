"""Predictions on their way from a step to the strategy: several batches are learned together."""

from __future__ import annotations

from collections.abc import Callable

from lightning_ubs.reading import Observation, Reading, decode

# Batches, and cells of predictions, that are learned together.
_BATCHES, _CELLS = 32, 2**20


class LearningQueue:
    """Batches that wait to be learned.

    A training step empties the caches, so that a few small kernels after each step take many times as long as in a row.
    The strategy learns batches one by one in their order, so that it makes no difference when.

    Args:
        learn: takes the number of the first of some batches that follow each other, and their predictions.
    """

    def __init__(self, learn: Callable[[int, Observation], None]) -> None:
        self._learn = learn
        self._waiting: list[tuple[int, Reading]] = []

    def add(self, batch: int, reading: Reading) -> None:
        """Let a batch wait, until there are enough, or one is left out."""
        if self._waiting and batch != self._waiting[-1][0] + 1:
            self.settle()
        self._waiting.append((batch, reading))
        if len(self._waiting) >= _BATCHES or len(self._waiting) * reading.raw.numel() >= _CELLS:
            self.settle()

    def settle(self) -> None:
        """Learn all that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            batches, readings = zip(*waiting, strict=True)
            self._learn(batches[0], decode(readings))

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting = []
