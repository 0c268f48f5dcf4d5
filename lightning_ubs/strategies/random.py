"""Random: the ordinary shuffled pass."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from lightning_ubs.strategies.base import Strategy


class Random(Strategy):
    """Shuffles all samples every epoch, as a plain DataLoader does.

    **What it does.** Nothing else. With the same seed its warm-up order is that of every other strategy, so that runs
    can be compared in pairs. With ``epoch_size`` below 1, epochs walk on through shuffled passes.

    **What it costs.** Nothing.

    Args:
        fill_last: fill a short last batch with other samples. This is the control for a selection that draws full
            batches: on small sets the additional samples alone look like a gain.
    """

    warms_up: ClassVar[bool] = False
    keeps_shard: ClassVar[bool] = True
    needs_predictions: ClassVar[bool] = False
    draws_each_once: ClassVar[bool] = True
    only_shuffles: ClassVar[bool] = True

    def __init__(self, fill_last: bool = False) -> None:
        self.fill_last = bool(fill_last)

    def probabilities(self, pressure: float) -> Tensor:
        """Every sample once."""
        return self.uniform()
