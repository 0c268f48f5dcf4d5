"""What a strategy says of itself: what it needs, what it costs, and how its epochs are drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    SelectionError,
    Strategy,
)
from lightning_ubs.strategies import EpochRequest, TrainingSet, uncertainty

N, Q = 20, 3

P, PT = {"predictions"}, {"predictions", "targets"}
# What a strategy needs, and what it has beyond what most do not have.
TRAITS: list[tuple[Strategy, set[str], set[str]]] = [
    (UBS(), P, {"warms_up", "decays"}),
    (RecencyBias(), P, {"warms_up", "decays"}),
    (ActiveBias(), P, {"warms_up"}),
    (ActiveBias(mode="quantized"), P, {"warms_up", "decays"}),
    (HardImbalance(), PT | {"labels", "features"}, {"warms_up"}),
    (Balance(), {"labels"}, set()),
    (Random(), set(), set()),
    (LossBias(), PT, {"warms_up", "decays"}),
    (LossBias(mode="proportional"), PT, {"warms_up"}),
    (InfoBatch(), PT, {"warms_up", "decays", "default_unbiased"}),
    (InfoBatch(score="uncertainty"), P, {"warms_up", "decays", "default_unbiased"}),
]
ALL_TRAITS = {"warms_up", "decays", "default_unbiased"}


@pytest.mark.parametrize(("strategy", "needs", "traits"), TRAITS, ids=[repr(strategy) for strategy, *_ in TRAITS])
def test_each_strategy_says_what_it_needs(strategy: Strategy, needs: set[str], traits: set[str]) -> None:
    assert strategy.needs == needs
    assert {name for name in ALL_TRAITS if getattr(strategy, name) is True} == traits
    if not isinstance(strategy, InfoBatch):
        assert (strategy.default_replacement, strategy.default_epoch_size) == (None, None)
    assert (strategy.num_samples, strategy.num_labels) == (0, None)


def test_what_a_strategy_for_release_0_1_0_needs_is_read() -> None:
    class Old(Strategy):
        needs_targets = True

        def probabilities(self, pressure: float) -> torch.Tensor:
            return self.uniform()

    class Silent(Old):
        needs_predictions = needs_targets = False

    assert (Old.needs, Silent.needs, Strategy.needs) == ({"predictions", "targets"}, set(), {"predictions"})


def test_epochs_end_plainly_where_the_user_or_the_strategy_says() -> None:
    for strategy, chosen, by_itself in [(InfoBatch(), 7, 7), (HardImbalance(), 7, None), (UBS(), None, None)]:
        assert strategy.plain_from(7, True) == chosen
        assert strategy.plain_from(7, False) == by_itself


def test_the_schedule_ends_with_the_last_epoch_but_not_before_it_starts() -> None:
    assert UBS().default_end(5, 20) == 19
    assert UBS().default_end(5, 6) == UBS().default_end(5, 3) == 5


def test_without_a_pressure_of_its_own_a_strategy_draws_without() -> None:
    assert Random().pressure_at(3, 0, 5) == Balance().pressure_at(3, 0, 5) == 1.0


class Bare(Strategy):
    """The least a strategy must be."""

    def probabilities(self, pressure: float) -> torch.Tensor:
        return self.uniform()


def test_a_bare_strategy_remembers_nothing_and_draws_uniformly() -> None:
    strategy = Bare()
    strategy.reset(TrainingSet(4, history_dtype=torch.float16))
    assert (strategy.num_samples, strategy.history_dtype) == (4, torch.float16)
    strategy.update(torch.tensor([0]), torch.rand(1, Q))
    assert strategy.measure() is strategy.measured
    assert strategy.current_uncertainty() is None
    assert strategy.state_dict() == strategy.compact_state_dict() == {}
    strategy.load_state_dict({})
    assert strategy.probabilities(2.0).tolist() == [0.25] * 4
    assert strategy.probabilities(2.0).dtype == torch.float64
    request = EpochRequest(0, 0, 4, 2, 4, 4, 0, "none")
    ids = strategy.plan_epoch(strategy.uniform(), request)
    assert sorted(ids.tolist()) == [0, 1, 2, 3]
    for n in (1, 0):
        strategy.reset(TrainingSet(n))
        assert strategy.uniform().tolist() == [1.0] * n


def test_an_evaluation_pass_counts_as_one_visit_with_the_mean_prediction() -> None:
    strategy = RecencyBias()
    strategy.reset(TrainingSet(2))
    strategy.refresh(torch.tensor([1]), torch.tensor([[[0.2]], [[0.4]], [[0.9]]]))
    rows, counts = strategy.memory.rows(0, 2)
    assert counts.tolist() == [0, 1]
    assert rows[1, -1].item() == pytest.approx(0.5)


def test_several_predictions_of_a_pass_give_the_change_and_survive_a_state() -> None:
    strategy, other = UBS(lambda1=0.25, correlation=None), UBS(lambda1=0.25, correlation=None)
    for one in (strategy, other):
        one.reset(TrainingSet(2))
    strategy.refresh(torch.tensor([1, 0]), torch.tensor([[[0.2], [0.5]], [[0.6], [0.5]]]))
    strategy.measure()
    entropy = -(0.4 * torch.tensor(0.4).log2() + 0.6 * torch.tensor(0.6).log2()).item()
    expected = [0.75 * 1.0, 0.25 * 0.4 + 0.75 * entropy]
    assert strategy.measured.uncertainty.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    other.load_state_dict(strategy.state_dict())
    other.measure()
    assert torch.equal(other.measured.uncertainty, strategy.measured.uncertainty)
    strategy.reset(TrainingSet(2))
    assert "spread" not in strategy.state_dict()
    strategy.refresh(torch.tensor([0]), torch.tensor([[[0.3]]]))
    assert "spread" not in strategy.state_dict(), "one prediction does not change"


def test_bytes_in_memory_and_in_a_checkpoint_are_told_before_they_are_used() -> None:
    cells = N * Q
    kinds: list[tuple[Strategy, Any, tuple[int, int], tuple[int, int]]] = [
        (UBS(window=4), torch.float32, (16 * cells + 4 * cells, 16 * cells + 32 * N), (20 * cells, 32 * N)),
        (UBS(window=4), torch.uint8, (4 * cells + 4 * cells, 4 * cells + 32 * N), (8 * cells, 32 * N)),
        (ActiveBias(), torch.float32, (8 * cells + 4 * cells, 8 * cells + 32 * N), (12 * cells, 32 * N)),
        (LossBias(), torch.float32, (4 * N, 20 * N), (4 * N, 20 * N)),
        (Random(), torch.float32, (0, 8 * N), (0, 8 * N)),
    ]
    for strategy, dtype, full, compact in kinds:
        strategy.reset(TrainingSet(N, history_dtype=dtype))
        assert strategy.footprint(Q) == full
        assert strategy.footprint(Q, compact=True) == compact


def test_uncertainty_that_is_too_large_to_keep_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = UBS(window=4)
    strategy.reset(TrainingSet(N))
    monkeypatch.setattr(uncertainty, "SNAPSHOT_BYTES", 4 * N * Q)
    strategy.update(torch.arange(N), torch.rand(N, Q))
    assert strategy.footprint(Q)[0] == 20 * N * Q
    assert strategy.measure().uncertainty is not None
    monkeypatch.setattr(uncertainty, "SNAPSHOT_BYTES", 4 * N * Q - 1)
    assert strategy.footprint(Q)[0] == 16 * N * Q
    assert strategy.measure().uncertainty is None


def test_what_is_remembered_is_asked_for_only_after_a_prediction() -> None:
    strategy = UBS()
    strategy.reset(TrainingSet(N))
    assert strategy.current_uncertainty() is None
    with pytest.raises(RuntimeError, match="call update first"):
        _ = strategy.memory
    strategy.update(torch.arange(4), torch.rand(4, Q))
    assert strategy.num_labels == Q


def test_a_compact_state_keeps_the_weight_of_a_sample_until_it_is_visited_again() -> None:
    strategy, resumed = UBS(correlation=None), UBS(correlation=None)
    for one in (strategy, resumed):
        one.reset(TrainingSet(N))
    assert strategy.compact_state_dict() == {}
    probs = torch.rand(N, Q, generator=torch.Generator().manual_seed(1))
    strategy.update(torch.arange(N), probs)
    strategy.measure()
    state = strategy.compact_state_dict()
    assert state.keys() == {"weights", "raw", "prior"}
    resumed.load_state_dict(state)
    assert torch.equal(resumed.probabilities(9.0), strategy.probabilities(9.0))
    visited = torch.arange(5)
    resumed.update(visited, probs[visited] / 2)
    resumed.measure()
    fresh = UBS(correlation=None)
    fresh.reset(TrainingSet(N))
    fresh.update(visited, probs[visited] / 2)
    fresh.measure()
    assert torch.equal(resumed._raw[5:], strategy._raw[5:])
    assert torch.equal(resumed._raw[:5], fresh._raw[:5])


def test_too_few_samples_that_varied_are_named_only_where_smoothing_is_off() -> None:
    one = torch.zeros(N, dtype=torch.float64)
    one[3] = 1
    wanted = EpochRequest(0, 0, N, 4, 8, 8, 0, "batch")
    with pytest.raises(SelectionError, match="only 1 samples whose predictions varied"):
        ActiveBias(smoothing=0).plan_epoch(one, wanted)
    for smoothing in (None, 0.5, 1.0):
        with pytest.raises(ValueError, match="4 distinct samples") as caught:
            ActiveBias(smoothing=smoothing).plan_epoch(one, wanted)
        assert not isinstance(caught.value, SelectionError)
    assert ActiveBias(smoothing=0).plan_epoch(one, replace(wanted, replacement="full")).tolist() == [3] * 8


@pytest.mark.parametrize("ddof", [0.5, -1, 2])
def test_other_variances_are_refused(ddof: Any) -> None:
    with pytest.raises(ValueError, match="ddof"):
        ActiveBias(ddof=ddof)


@pytest.mark.parametrize(("strategy", "kept"), [(HardImbalance(), "_loss"), (LossBias(), "_scores")])
def test_losses_are_kept_on_the_device_of_the_predictions(strategy: Strategy, kept: str) -> None:
    strategy.reset(TrainingSet(N, torch.ones(N, Q), torch.rand(N, 2)))
    assert getattr(strategy, kept).device.type == "cpu"
    strategy.update(torch.arange(2, device="meta"), torch.rand(2, Q, device="meta"), torch.ones(2, Q, device="meta"))
    assert getattr(strategy, kept).device.type == "meta"
