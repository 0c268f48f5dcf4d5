"""What each sample counts in an epoch, on average over epochs: as in plain shuffling, for every P."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ubs.functional import importance_weights
from lightning_ubs.selection.plan import BatchLayout, EpochPlan
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.selection.sample_weights import SampleWeights
from lightning_ubs.strategies import Strategy, TrainingSet

EPOCHS = 800


class Fixed(Strategy):
    """A given P."""

    warms_up = False
    needs_predictions = False

    def __init__(self, given: list[float]) -> None:
        super().__init__()
        self.given = torch.tensor(given, dtype=torch.float64)

    def probabilities(self, pressure: float) -> Tensor:
        return self.given / self.given.sum()


def planned(given: list[float], layout: BatchLayout, replacement: Any = "systematic", unbiased: Any = True) -> Any:
    """A selector, and what its samples count."""
    strategy = Fixed(given)
    strategy.reset(TrainingSet(len(given)))
    selector = Selector(strategy, 5, replacement)
    selector.lay_out(layout)
    selector.schedule = Schedule(0, 4)
    return selector, SampleWeights(unbiased, selector)


def shares_of_places(plan: EpochPlan, weights: SampleWeights) -> Tensor:
    """What a loss of each place of the epoch counts in the mean over steps, processes and samples, n times."""
    weights.of_plan(plan)
    places = []
    for k in range(len(plan)):
        factor = weights._size_factor(plan, k) if weights._is_uneven else 1.0
        for size in plan.rank_sizes(k):
            places += [factor / size] * size
    assert len(places) == len(plan.ids)
    return torch.tensor(places, dtype=torch.float64) * plan.layout.num_samples / (len(plan) * plan.layout.world_size)


SHAPES = {
    "one in every batch": [6.0] + [1.0] * 9,
    "three in every batch, as many as the short one holds": [3.0] * 3 + [0.2] * 8,
    "more in every batch than the short one has room for": [3.0] * 5 + [0.2] * 6,
    "twice in some batches": [12.0, 2.0] + [1.0] * 9,
    "at times in every batch": [2.6, 2.6] + [1.0] * 9,
    "nearly all batches": [2.0] + [1.0] * 4,
    "geometric": [0.6**i for i in range(12)],
    "uniform": [1.0] * 11,
    "two levels": [1.0] * 6 + [2.0] * 5,
}


@pytest.mark.parametrize("layout", ["plain", "drop_last", "half an epoch", "two processes"])
@pytest.mark.parametrize("name", SHAPES)
def test_each_sample_counts_on_average_as_in_plain_shuffling(name: str, layout: str) -> None:
    given = SHAPES[name]
    n, ranks = len(given), 1 + (layout == "two processes")
    size = 2 if len(given) == 5 or layout == "half an epoch" else 4
    cut = BatchLayout(
        n,
        size // ranks,
        drop_last=layout == "drop_last",
        world_size=ranks,
        epoch_samples=n // 2 if layout == "half an epoch" else None,
    )
    selector, weights = planned(given, cut)
    total, squares, shares = torch.zeros(n).double(), torch.zeros(n).double(), None
    for epoch in range(EPOCHS):
        plan = selector.prepare(epoch, lambda probabilities: probabilities)
        shares = shares_of_places(plan, weights) if shares is None else shares
        one = torch.zeros(n).double().index_add_(0, plan.ids, weights.of_plan(plan)[plan.ids] * shares)
        total += one
        squares += one.square()
    mean = total / EPOCHS
    error = ((squares / EPOCHS - mean.square()).clamp(min=0) / EPOCHS).sqrt()
    assert ((mean - 1).abs() <= 4.5 * error + 1e-9).all(), mean


def test_a_full_draw_needs_no_other_weights() -> None:
    selector, weights = planned(SHAPES["one in every batch"], BatchLayout(10, 4), "full")
    plan = selector.prepare(0, lambda probabilities: probabilities)
    torch.testing.assert_close(weights.of_batch(plan, 2), importance_weights(selector.probabilities)[plan[2]])


@pytest.mark.parametrize(("unbiased", "exponents"), [(True, (1, 1, 1)), ("annealed", (0, 0.5, 1))])
def test_batches_count_by_their_size_as_far_as_samples_count_by_their_share(unbiased: Any, exponents: Any) -> None:
    selector, weights = planned(SHAPES["one in every batch"], BatchLayout(10, 4), unbiased=unbiased)
    for epoch, exponent in zip((0, 2, 4), exponents, strict=True):
        plan = selector.prepare(epoch, lambda probabilities: probabilities)
        for k, size in enumerate((4, 4, 2)):
            expected = (importance_weights(selector.probabilities)[plan[k]] * size / (10 / 3)) ** exponent
            torch.testing.assert_close(weights.of_batch(plan, k), expected)


def test_where_no_sample_needs_every_batch_samples_count_by_their_share_alone() -> None:
    given = [50 ** (i / 41) for i in range(42)]
    selector, weights = planned(given, BatchLayout(42, 8))
    plan = selector.prepare(0, lambda probabilities: probabilities)
    for k in range(6):
        expected = importance_weights(selector.probabilities)[plan[k]]
        torch.testing.assert_close(weights.of_batch(plan, k), expected)
