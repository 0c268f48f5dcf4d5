"""What each sample of a batch counts, for gradients whose mean is that of plain shuffling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import importance_weights
from lightning_ubs.selection.options import Unbiased
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.selection.planner import Schedule, Selector

# An expected number of copies this close to a whole one, relatively, is that number.
_ROUNDING = 1e-9
# Above this bound on the error of a sample's mean weight, batches count by their size.
_UNEVEN = 0.02


class SampleWeights:
    """The weights of the batches of an epoch: 1/(nP) in selected epochs, 1 in plain ones.

    In a short last batch each sample counts more, since a loss is a mean over the samples of a batch. This evens out
    where each copy is as likely to stand there as any other. Samples that come so often that they need (nearly) every
    batch are not; there, weights are multiplied by the size of the batch relative to the mean size, so that all copies
    count alike, wherever they stand.

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
        self._is_uneven = False

    def of_plan(self, plan: EpochPlan) -> Tensor:
        """Weights of all samples in the epoch of the selector's plan, (n,) float64 on the CPU."""
        if self._of_plan is None or self._of_plan[0] is not plan:
            self._of_plan = plan, self._of_epoch(plan.epoch)
            self._is_uneven = self._selector.selects(plan.epoch) and self._deals_unevenly(plan)
        return self._of_plan[1]

    def of_batch(self, plan: EpochPlan, batch: int) -> Tensor:
        """Weights of the samples of batch ``batch`` on this process, (b,) float64 on the CPU."""
        weights = self.of_plan(plan)[plan[batch]]
        return weights * self._size_factor(plan, batch) if self._is_uneven else weights

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
        weights = importance_weights(probabilities / probabilities.sum())
        return weights ** self._exponent(epoch)

    def _exponent(self, epoch: int) -> float:
        return annealed_exponent(epoch, self._selector.schedule) if self._is_annealed else 1.0

    def _size_factor(self, plan: EpochPlan, batch: int) -> float:
        """Samples of a batch, over all processes, relative to those of the mean batch."""
        return float((len(plan.global_batch(batch)) * len(plan) / plan.num_draws) ** self._exponent(plan.epoch))

    def _deals_unevenly(self, plan: EpochPlan) -> bool:
        """Whether the most frequent samples come to a short last batch more often than to their share of places."""
        size, batches, draws = plan.layout.global_batch_size, len(plan), plan.num_draws
        short = draws - (batches - 1) * size
        if self._selector.replacement != "systematic" or not 0 < short < size:
            return False
        probabilities = self._selector.probabilities
        assert probabilities is not None
        copies = math.ceil(float(probabilities.max() / probabilities.sum()) * draws * (1 - _ROUNDING))
        if copies >= batches:
            return copies > 1
        # Copies stand next to each other before they are dealt, in a random order of the samples, so that the ends of
        # the order, which are dealt to full batches, hold a little less than their share of them.
        return (1 - short / size) * (copies - 1) / ((draws - copies + 1) * batches) > _UNEVEN


def annealed_exponent(epoch: int, schedule: Schedule) -> float:
    """Exponent of the weights: 0 in the first selected epoch, 1 at the end of the schedule, linear in between.

    >>> [annealed_exponent(epoch, Schedule(2, 6)) for epoch in (2, 3, 6, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if epoch >= schedule.end:
        return 1.0
    return max(0.0, (epoch - schedule.start) / (schedule.end - schedule.start))
