"""Random: the ordinary shuffled pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lightning_ubs.functional import fill_last_batch
from lightning_ubs.strategies.base import EpochRequest, Strategy


@dataclass(kw_only=True, eq=False, repr=False)
class Random(Strategy):
    """All samples, shuffled every epoch, as by a plain DataLoader.

    **What it does.** Nothing else. With the same seed its warm-up order is that of every other strategy, so that runs
    can be compared in pairs. With ``epoch_size`` below 1, epochs continue through shuffled passes.

    **What it costs.** Nothing.

    Args:
        fill_last: Fill a short last batch with other samples. This is the control for a selection that draws full
            batches: on small sets the additional samples alone look like a gain.
    """

    needs = frozenset()
    warms_up: ClassVar[bool] = False
    keeps_shard: ClassVar[bool] = True

    fill_last: bool = False

    def __post_init__(self) -> None:
        self.fill_last = bool(self.fill_last)

    def probabilities(self, pressure: float) -> Tensor:
        """Every sample once."""
        return self.uniform()

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """A plain epoch, its last batch filled if that is wanted."""
        ids = self.plain_epoch(request)
        if not (self.fill_last or request.fills_last):
            return ids
        return fill_last_batch(ids, request.batch_size, request.num_samples, request.generator())

    def expected_distinct(self, probabilities: Tensor, request: EpochRequest) -> float:
        """As many as are drawn: within a pass no sample comes twice."""
        draws = request.full_count if self.fill_last else request.num_draws
        return float(min(draws, request.num_samples))
