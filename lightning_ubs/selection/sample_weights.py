"""What each sample of a batch counts, for gradients whose mean is that of plain shuffling."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.selection.options import Unbiased
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.selection.planner import Schedule, Selector


class SampleWeights:
    """The weights of the batches of an epoch: 1/(nP) in selected epochs, 1 in plain ones.

    They follow from P, the epoch and the schedule, so a checkpoint needs nothing of them.

    Args:
        unbiased: ``"annealed"`` lets their exponent rise from 0 to 1 over the selected epochs.
        selector: what made the plan.
    """

    def __init__(self, unbiased: Unbiased, selector: Selector) -> None:
        self._is_annealed = unbiased == "annealed"
        self._selector = selector
        self.forget()

    def forget(self) -> None:
        """The epoch or the fit is over."""
        self._of_plan: tuple[EpochPlan, Tensor] | None = None

    def of_plan(self, plan: EpochPlan) -> Tensor:
        """Weights of all samples in the epoch of the selector's plan, (n,) float64 on the CPU."""
        if self._of_plan is None or self._of_plan[0] is not plan:
            self._of_plan = plan, self._of_epoch(plan.epoch)
        return self._of_plan[1]

    def of_batch(self, plan: EpochPlan, batch: int) -> Tensor:
        """Weights of the samples of batch ``batch`` on this process, (b,) float64 on the CPU."""
        return self.of_plan(plan)[plan[batch]]

    def _of_epoch(self, epoch: int) -> Tensor:
        """Weights of all samples, (n,) float64."""
        selector, probabilities = self._selector, self._selector.probabilities
        assert probabilities is not None
        if not selector.selects(epoch):
            return torch.ones_like(probabilities)
        impossible = int((probabilities == 0).sum())
        if impossible:
            raise SelectionError(
                f"{type(selector.strategy).__name__} never draws {impossible} of the samples (their P is 0), so no "
                "weights make its gradients unbiased; use a strategy or a smoothing that leaves each sample a chance."
            )
        weights = selector.strategy.sample_importance(probabilities / probabilities.sum())
        return weights ** annealed_exponent(epoch, selector.schedule) if self._is_annealed else weights


def annealed_exponent(epoch: int, schedule: Schedule) -> float:
    """Exponent of the weights: 0 in the first selected epoch, 1 at the end of the schedule, linear in between.

    >>> [annealed_exponent(epoch, Schedule(2, 6)) for epoch in (2, 3, 6, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if epoch >= schedule.end:
        return 1.0
    return max(0.0, (epoch - schedule.start) / (schedule.end - schedule.start))
