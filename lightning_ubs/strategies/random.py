"""Random: the ordinary shuffled pass."""

from __future__ import annotations

from typing import ClassVar

from torch import Generator, Tensor

from lightning_ubs.functional import shuffled_pass
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.strategies.base import Strategy


class Random(Strategy):
    """Shuffles all samples every epoch, as a plain DataLoader does.

    **What it does.** Nothing else. With the same seed its warm-up order is that of every other strategy, so that runs
    can be compared in pairs.

    **What it costs.** Nothing.
    """

    warms_up: ClassVar[bool] = False
    needs_predictions: ClassVar[bool] = False

    def probabilities(self, pressure: float) -> Tensor:
        """Every sample once."""
        return self.uniform()

    def draw(
        self, probabilities: Tensor, batch_size: int, num_batches: int, generator: Generator, replacement: Replacement
    ) -> Tensor:
        """A random order of all samples; the last batch may be short."""
        return shuffled_pass(self.num_samples, num_batches * batch_size, generator)
