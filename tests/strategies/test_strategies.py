"""What each strategy makes of predictions, against the slow reference."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import torch
from chance import counted_memory
from no_host_wait import forbid_host_wait

from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    Strategy,
)
from lightning_ubs.functional import correlation
from lightning_ubs.strategies import EpochRequest, TrainingSet, uncertainty

N, Q, D = 30, 4, 5


class Visits:
    """Predictions of a made-up training: what was shown, kept for the reference."""

    def __init__(self, seed: int = 0, steps: int = 40, unseen: int = 2) -> None:
        rng = np.random.default_rng(seed)
        self.labels = (rng.random((N, Q)) < np.array([0.7, 0.6, 0.3, 0.2])).astype(np.float32)
        self.features = rng.random((N, D)).astype(np.float32)
        skill = rng.random((N, 1))
        self.steps: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(steps):
            ids = rng.choice(N - unseen, size=6, replace=False)
            probs = np.clip(skill[ids] + 0.5 * rng.standard_normal((6, Q)), 0, 1).astype(np.float32)
            self.steps.append((ids, probs))

    def histories(self) -> list[list[list[float]]]:
        seen: list[list[list[float]]] = [[] for _ in range(N)]
        for ids, probs in self.steps:
            for i, row in zip(ids, probs, strict=True):
                seen[i].append(row.tolist())
        return seen

    def show(self, strategy: Strategy, first: int = 0) -> None:
        for ids, probs in self.steps[first:]:
            targets = torch.from_numpy(self.labels[ids]) if "targets" in strategy.needs else None
            strategy.update(torch.from_numpy(ids), torch.from_numpy(probs), targets)

    def reset(self, strategy: Strategy) -> None:
        strategy.reset(TrainingSet(N, torch.from_numpy(self.labels), torch.from_numpy(self.features)))


def request(batch_size: int, n: int, count: int | None = None, seed: int = 0, **options: Any) -> EpochRequest:
    """Epoch 0 of so many samples."""
    count = n if count is None else count
    return EpochRequest(0, seed, n, batch_size, count, -(-count // batch_size) * batch_size, 0, **options)


@pytest.fixture
def visits() -> Visits:
    return Visits()


def trained(strategy: Any, visits: Visits) -> Any:
    visits.reset(strategy)
    visits.show(strategy)
    strategy.measure()
    return strategy


def assert_follows(strategy: Any, expected: np.ndarray, bins: int = 5, base: float = np.e, ceil: bool = False) -> None:
    """U, C, w and P of an uncertainty strategy equal the reference computed from the expected U."""
    np.testing.assert_allclose(strategy.measured.uncertainty.numpy(), expected, atol=1e-6)
    matrix = None
    if strategy.correlation is not None:
        matrix = reference.correlation(expected, bins, base)
        np.testing.assert_allclose(strategy.measured.correlation.numpy(), matrix, atol=1e-9)
    else:
        assert strategy.measured.correlation is None
    weights = reference.scale(reference.raw_weights(expected, matrix))
    np.testing.assert_allclose(strategy.measured.weights.numpy(), weights, atol=1e-6)
    assert strategy.measured.mean_uncertainty.item() == pytest.approx(expected.mean(), abs=1e-6)
    if strategy.decays:
        probabilities = reference.probabilities(weights, 30.0, "ceil" if ceil else "floor")
        np.testing.assert_allclose(strategy.probabilities(30.0).numpy(), probabilities, rtol=1e-9)


@pytest.mark.parametrize("window", [2, 3, 5])
@pytest.mark.parametrize("lambda1", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("correlation", [None, "mutual_information"])
def test_ubs_and_its_ablations_equal_the_reference(
    visits: Visits, window: int, lambda1: float, correlation: Any
) -> None:
    strategy = trained(UBS(lambda1=lambda1, window=window, correlation=correlation), visits)
    windows = [rows[-window:] for rows in visits.histories()]
    assert_follows(strategy, reference.label_uncertainty(windows, Q, lambda1))


def test_ubs_options_reach_the_equations(visits: Visits) -> None:
    strategy = trained(UBS(bins=3, log_base=2.0, quantizer="ceil"), visits)
    windows = [rows[-5:] for rows in visits.histories()]
    assert_follows(strategy, reference.label_uncertainty(windows, Q, 0.5), bins=3, base=2.0, ceil=True)


def test_options_of_the_rivals_reach_the_equations(visits: Visits) -> None:
    options: Any = {"correlation": "mutual_information", "bins": 3, "log_base": 2.0, "quantizer": "ceil"}
    active = trained(ActiveBias(mode="quantized", **options), visits)
    assert_follows(active, spreads(visits), bins=3, base=2.0, ceil=True)
    recency = trained(RecencyBias(**options), visits)
    expected = [
        [reference.recency_entropy([row[j] for row in rows[-5:]]) for j in range(Q)] for rows in visits.histories()
    ]
    assert_follows(recency, np.array(expected), bins=3, base=2.0, ceil=True)
    for kind in (ActiveBias, RecencyBias):
        fast = kind(s0=7.0, **({"mode": "quantized"} if kind is ActiveBias else {}))
        assert fast.pressure_at(5, 5, 19) == pytest.approx(7.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_temperature_changes_the_prediction_whose_entropy_is_taken_and_nothing_else(
    visits: Visits, temperature: float
) -> None:
    strategy = trained(UBS(temperature=temperature, lambda1=0.3, correlation=None), visits)
    windows = [rows[-5:] for rows in visits.histories()]
    fluctuation = reference.label_uncertainty(windows, Q, 1.0)
    latest = np.array([rows[-1] if rows else [0.5] * Q for rows in windows], dtype=float)
    with np.errstate(divide="ignore"):
        tempered = 1 / (1 + np.exp(-np.log(latest / (1 - latest)) / temperature))
    entropy = np.vectorize(reference.entropy)(tempered)
    assert_follows(strategy, 0.3 * fluctuation + 0.7 * entropy)


def test_the_ablations_differ_from_the_method_and_from_each_other(visits: Visits) -> None:
    kinds = [UBS(), UBS(lambda1=0), UBS(lambda1=1), UBS(correlation=None)]
    weights = [trained(strategy, visits).measured.weights for strategy in kinds]
    assert all(not torch.allclose(weights[a], weights[b]) for a in range(4) for b in range(a))


@pytest.mark.parametrize("correlation", [None, "mutual_information"])
@pytest.mark.parametrize("window", [2, 5])
def test_recency_bias_with_and_without_correlation_equals_the_reference(
    visits: Visits, window: int, correlation: Any
) -> None:
    strategy = trained(RecencyBias(window=window, correlation=correlation), visits)
    expected = np.array(
        [[reference.recency_entropy([r[j] for r in rows[-window:]]) for j in range(Q)] for rows in visits.histories()]
    )
    assert_follows(strategy, expected)


def spreads(visits: Visits, ddof: int = 1) -> np.ndarray:
    return np.array([[reference.spread([r[j] for r in rows], ddof) for j in range(Q)] for rows in visits.histories()])


@pytest.mark.parametrize("correlation", [None, "mutual_information"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_quantized_active_bias_equals_the_reference_over_the_whole_history(
    visits: Visits, correlation: Any, ddof: int
) -> None:
    strategy = trained(ActiveBias(mode="quantized", correlation=correlation, ddof=ddof), visits)
    assert_follows(strategy, spreads(visits, ddof))


@pytest.mark.parametrize("smoothing", [None, 0.2])
@pytest.mark.parametrize("correlation", [None, "mutual_information"])
def test_proportional_active_bias_equals_the_reference(
    visits: Visits, smoothing: float | None, correlation: Any
) -> None:
    strategy = trained(ActiveBias(smoothing=smoothing, correlation=correlation), visits)
    expected = spreads(visits)
    assert_follows(strategy, expected)
    matrix = reference.correlation(expected) if correlation else None
    summed = reference.raw_weights(expected, matrix)
    assert strategy.pressure_at(7, 5, 10) == 1.0
    got = strategy.probabilities(1.0).numpy()
    np.testing.assert_allclose(got, reference.proportional(summed, smoothing), rtol=1e-4)


@pytest.mark.parametrize("pressure", [2.0, 8.0])
def test_hard_imbalance_equals_the_reference(visits: Visits, pressure: float) -> None:
    strategy = trained(HardImbalance(pressure=pressure, neighbours=3), visits)
    importance = reference.imbalance_weights(visits.labels, visits.features, 3)
    loss = np.zeros(N)
    for ids, probs in visits.steps:
        for i, row in zip(ids, probs, strict=True):
            loss[i] = reference.cross_entropy(row.tolist(), visits.labels[i].tolist())
    assert (importance > 1).any()
    expected = reference.hardness_probabilities(importance * loss, pressure)
    np.testing.assert_allclose(strategy.probabilities(strategy.pressure_at(9, 5, 10)).numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(
        strategy.measured.weights.numpy(), importance * loss / (importance * loss).max(), atol=1e-6
    )


def latest(visits: Visits, score: Any) -> np.ndarray:
    """The score of each sample's latest visit; NaN where there was none."""
    scores = np.full(N, np.nan)
    for ids, probs in visits.steps:
        for i, row in zip(ids, probs, strict=True):
            scores[i] = score(row.tolist(), visits.labels[i].tolist())
    return scores


def test_loss_bias_equals_the_reference_and_unvisited_samples_count_as_the_hardest(visits: Visits) -> None:
    loss = latest(visits, reference.cross_entropy)
    assert np.isnan(loss).sum() >= 2
    filled = np.where(np.isnan(loss), np.nanmax(loss), loss)
    quantized = trained(LossBias(s0=30), visits)
    assert quantized.pressure_at(5, 5, 10) == 30.0
    np.testing.assert_allclose(quantized.measured.weights.numpy(), reference.scale(filled), atol=1e-6)
    expected = reference.probabilities(reference.scale(filled), 30.0)
    np.testing.assert_allclose(quantized.probabilities(30.0).numpy(), expected, rtol=1e-9)
    for floor in (0.0, 0.5, 2.0):
        proportional = trained(LossBias(mode="proportional", floor=floor), visits)
        shifted = filled + floor * filled.mean()
        assert proportional.pressure_at(5, 5, 10) == 1.0
        np.testing.assert_allclose(proportional.probabilities(1.0).numpy(), shifted / shifted.sum(), rtol=1e-5)


@pytest.mark.parametrize("prune", [0.25, 0.5])
@pytest.mark.parametrize("score", ["loss", "uncertainty"])
def test_infobatch_draws_samples_below_the_mean_less_often_by_its_share(
    visits: Visits, score: Any, prune: float
) -> None:
    def entropy(row: list[float], _: list[float]) -> float:
        return float(np.mean([reference.entropy(p) for p in row]))

    values = latest(visits, reference.cross_entropy if score == "loss" else entropy)
    kept = np.where(values < np.nanmean(values), 1 - prune, 1.0)
    assert 0 < (kept < 1).sum() < N
    assert (kept[np.isnan(values)] == 1).all()
    strategy = trained(InfoBatch(prune=prune, score=score), visits)
    np.testing.assert_allclose(strategy.probabilities(1.0).numpy(), kept / kept.sum(), rtol=1e-9)
    assert ("targets" in strategy.needs) == (score == "loss")


def test_infobatch_says_how_it_is_drawn_and_where_its_plain_epochs_begin() -> None:
    strategy = InfoBatch(prune=0.4)
    assert strategy.default_epoch_size == pytest.approx(0.8)
    assert (strategy.default_replacement, strategy.default_unbiased) == ("systematic", True)
    assert [strategy.default_end(5, epochs) for epochs in (80, 20, 8, 5)] == [70, 17, 7, 6]


def test_hard_imbalance_keeps_its_pressure() -> None:
    assert {HardImbalance(pressure=8).pressure_at(epoch, 5, 20) for epoch in (5, 12, 20, 99)} == {8.0}


@pytest.mark.parametrize("kind", [UBS, RecencyBias, LossBias, lambda: ActiveBias(mode="quantized")])
def test_falling_pressure_equals_the_reference(kind: Any) -> None:
    for epoch in (5, 9, 14, 19, 30):
        assert kind().pressure_at(epoch, 5, 19) == pytest.approx(reference.pressure(epoch, 5, 19, 100.0))


class HalfPrecision(UBS):
    """Keeps its predictions in half precision, as the callback asks for by ``reset``."""

    def reset(self, data: TrainingSet) -> None:
        super().reset(replace(data, history_dtype=torch.float16))


ALL = {
    "ubs": UBS,
    "ubs_half": lambda: HalfPrecision(),
    "active": ActiveBias,
    "active_lc": lambda: ActiveBias(mode="quantized", correlation="mutual_information"),
    "recency": RecencyBias,
    "recent_lc": lambda: RecencyBias(correlation="mutual_information"),
    "hard": HardImbalance,
    "balance": Balance,
    "random": Random,
    "loss": LossBias,
    "loss_proportional": lambda: LossBias(mode="proportional"),
    "infobatch": InfoBatch,
    "infobatch_uncertainty": lambda: InfoBatch(score="uncertainty"),
}


def make(name: str) -> Strategy:
    strategy: Strategy = ALL[name]()
    return strategy


@pytest.mark.parametrize("name", ALL)
def test_state_survives_a_file_that_only_holds_weights(name: str, visits: Visits) -> None:
    strategy, other = make(name), make(name)
    trained(strategy, visits)
    file = io.BytesIO()
    torch.save(strategy.state_dict(), file)
    file.seek(0)
    visits.reset(other)
    other.load_state_dict(torch.load(file, weights_only=True))
    for attribute in ("correlation", "weights"):
        one, two = getattr(strategy.measured, attribute), getattr(other.measured, attribute)
        assert (one is None and two is None) or torch.equal(one, two)
    assert torch.equal(other.probabilities(5.0), strategy.probabilities(5.0))
    later = Visits(seed=9)
    for one in (strategy, other):
        later.show(one)
        one.measure()
    assert torch.equal(other.probabilities(5.0), strategy.probabilities(5.0))
    for attribute in ("uncertainty", "correlation", "weights"):
        one, two = getattr(strategy.measured, attribute), getattr(other.measured, attribute)
        assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize("name", ALL)
def test_what_was_seen_between_measuring_and_saving_counts_after_loading(name: str, visits: Visits) -> None:
    strategy, other = trained(make(name), visits), make(name)
    Visits(seed=9).show(strategy)
    visits.reset(other)
    other.load_state_dict(strategy.state_dict())
    assert strategy.measure() is strategy.measured
    assert other.measure() is other.measured
    assert torch.equal(other.probabilities(5.0), strategy.probabilities(5.0))


@pytest.mark.parametrize("name", ALL)
def test_a_saved_state_does_not_change_when_training_goes_on(name: str, visits: Visits) -> None:
    strategy = trained(make(name), visits)
    state = strategy.state_dict()
    frozen = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
    Visits(seed=3).show(strategy)
    strategy.measure()
    for key, value in frozen.items():
        assert torch.equal(state[key], value) if isinstance(value, torch.Tensor) else state[key] == value


@pytest.mark.parametrize("name", ALL)
def test_reset_forgets_everything(name: str, visits: Visits) -> None:
    strategy, fresh = trained(make(name), visits), make(name)
    later = Visits(seed=5)
    for one in (strategy, fresh):
        later.reset(one)
        assert one.measured.uncertainty is None
        assert one.measured.weights is None
        later.show(one)
        one.measure()
    assert torch.equal(strategy.probabilities(5.0), fresh.probabilities(5.0))


@pytest.mark.parametrize("name", ALL)
def test_updates_do_not_wait_for_the_device(name: str, visits: Visits) -> None:
    strategy = make(name)
    visits.reset(strategy)
    ids, probs, targets = torch.tensor([3, 7, N]), torch.rand(3, Q), torch.ones(3, Q)
    with forbid_host_wait():
        strategy.update(ids, probs, targets)
        strategy.update(ids, probs, targets)
    strategy.update(ids.to("meta"), probs.to("meta"), targets.to("meta"))


@pytest.mark.parametrize("name", ALL)
def test_the_spare_id_is_never_remembered(name: str, visits: Visits) -> None:
    strategy, other = trained(make(name), visits), trained(make(name), visits)
    spare = torch.full((3,), N)
    other.update(spare, torch.rand(3, Q), torch.ones(3, Q))
    other.measure()
    assert torch.equal(strategy.probabilities(5.0), other.probabilities(5.0))


@pytest.mark.parametrize("name", ["ubs", "active", "recency", "loss", "loss_proportional", "infobatch"])
def test_nothing_is_measured_before_the_first_prediction(name: str, visits: Visits) -> None:
    strategy = make(name)
    visits.reset(strategy)
    assert strategy.measure() is strategy.measured
    assert strategy.measured.uncertainty is None
    assert strategy.measured.weights is None
    assert strategy.probabilities(9.0).tolist() == pytest.approx([1 / N] * N)


@pytest.mark.parametrize("name", ["ubs", "active_lc", "recent_lc"])
def test_blocks_of_rows_and_no_snapshot_give_the_same(
    name: str, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(make(name), visits)
    monkeypatch.setattr(correlation, "_BLOCK_ROWS", 1)
    monkeypatch.setattr(correlation, "_BLOCK_CELLS", 7 * Q * 5)
    monkeypatch.setattr(uncertainty, "SNAPSHOT_BYTES", 0)
    blocked = trained(make(name), visits)
    assert torch.equal(blocked.probabilities(20.0), whole.probabilities(20.0))
    assert blocked.measured.uncertainty is None
    assert torch.equal(blocked.current_uncertainty(), whole.measured.uncertainty)
    assert torch.equal(blocked.measured.correlation, whole.measured.correlation)


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.float32, True), (torch.float16, False), (torch.uint8, False)], ids=str
)
def test_a_refresh_takes_at_most_a_quarter_of_the_state_beside_it(
    dtype: torch.dtype, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncertainty, "SMALL_SNAPSHOT", 0)
    n, q = 80_000, 80
    strategy = UBS()
    strategy.reset(TrainingSet(n, history_dtype=dtype))
    for first in range(0, n, 10_000):
        strategy.update(torch.arange(first, first + 10_000), torch.rand(10_000, q))
    state = n * q * 5 * dtype.itemsize
    with counted_memory() as peak:
        strategy.measure()
    assert peak.bytes <= state / 4
    assert (strategy.measured.uncertainty is not None) == kept
    memory, _ = strategy.footprint(q)
    assert memory == state + kept * 4 * n * q


def test_half_precision_history_stays_close_to_single(visits: Visits) -> None:
    half, single = trained(make("ubs_half"), visits), trained(make("ubs"), visits)
    assert torch.allclose(half.measured.uncertainty, single.measured.uncertainty, atol=2e-3)


@pytest.mark.parametrize("kind", [Balance, HardImbalance])
def test_strategies_that_need_matrices_say_so(kind: type[Strategy]) -> None:
    with pytest.raises(ValueError, match="labels="):
        kind().reset(TrainingSet(5))


@pytest.mark.parametrize("kind", [HardImbalance, LossBias, InfoBatch])
def test_strategies_by_loss_without_targets_say_so(visits: Visits, kind: type[Strategy]) -> None:
    strategy = kind()
    visits.reset(strategy)
    with pytest.raises(ValueError, match="targets="):
        strategy.update(torch.tensor([0]), torch.rand(1, Q))


@pytest.mark.parametrize("name", ["random", "balance"])
def test_random_and_balance_visit_every_sample_once(name: str, visits: Visits) -> None:
    strategy = make(name)
    visits.reset(strategy)
    order = strategy.plan_epoch(strategy.uniform(), request(8, N, replacement="none"))
    assert sorted(order.tolist()) == list(range(N))
    assert not strategy.warms_up
    assert "predictions" not in strategy.needs


def test_balance_batches_have_the_label_proportions_of_the_whole() -> None:
    labels = torch.zeros(40, 2)
    labels[:8, 0] = 1
    labels[4:24, 1] = 1
    strategy = Balance()
    strategy.reset(TrainingSet(40, labels))
    order = strategy.plan_epoch(strategy.uniform(), request(10, 40, replacement="batch"))
    assert [batch.sum(0).tolist() for batch in torch.split(labels[order], 10)] == [[2.0, 5.0]] * 4


@pytest.mark.parametrize("name", ["ubs", "recency", "hard", "loss"])
@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_selected_epochs_prefer_likely_samples(name: str, replacement: Any, visits: Visits) -> None:
    strategy = trained(make(name), visits)
    probabilities = strategy.probabilities(1000.0)
    counts = torch.zeros(N)
    for seed in range(40):
        order = strategy.plan_epoch(probabilities, request(5, N, 15, seed=seed, replacement=replacement))
        counts += torch.bincount(order, minlength=N)
    likely = probabilities >= probabilities.median()
    assert counts[likely].mean() > 2 * counts[~likely].mean()
