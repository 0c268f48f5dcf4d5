"""Metrics against scikit-learn, and against counting pairs one by one where the paper's tie rules differ."""

from __future__ import annotations

import math
import socket
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from lightning_ubs._utils.metric_names import REPORTED
from lightning_ubs.metrics import (
    HIGHER_IS_BETTER,
    BrierScore,
    CalibrationError,
    Coverage,
    HammingLoss,
    MacroAUC,
    MacroAveragePrecision,
    MacroF1,
    MicroF1,
    OneError,
    RankingLoss,
    frequency_thirds,
    multilabel_metrics,
)


def slow_macro_auc(preds: Tensor, target: Tensor) -> tuple[list[float], int]:
    """Per label, count pairs; labels without both classes are counted apart."""
    values, skipped = [], 0
    for score, label in zip(preds.T.tolist(), target.T.tolist(), strict=True):
        positive = [s for s, t in zip(score, label, strict=True) if t == 1]
        negative = [s for s, t in zip(score, label, strict=True) if t == 0]
        if not positive or not negative:
            skipped += 1
            continue
        values.append(sum(a >= b for a in positive for b in negative) / (len(positive) * len(negative)))
    return values, skipped


def slow_ranking_loss(preds: Tensor, target: Tensor) -> float:
    total = 0.0
    for score, label in zip(preds.tolist(), target.tolist(), strict=True):
        relevant = [s for s, t in zip(score, label, strict=True) if t == 1]
        rest = [s for s, t in zip(score, label, strict=True) if t == 0]
        if relevant and rest:
            total += sum(a <= b for a in relevant for b in rest) / (len(relevant) * len(rest))
    return total / len(preds)


def slow_one_error(preds: Tensor, target: Tensor) -> float:
    wrong = 0
    for score, label in zip(preds.tolist(), target.tolist(), strict=True):
        wrong += any(s == max(score) and t == 0 for s, t in zip(score, label, strict=True))
    return wrong / len(preds)


def slow_calibration_error(preds: Tensor, target: Tensor, bins: int = 15) -> float:
    cells: dict[int, list[tuple[float, float]]] = {}
    for p, y in zip(preds.double().flatten().tolist(), target.flatten().tolist(), strict=True):
        cells.setdefault(min(int(p * bins), bins - 1), []).append((p, y))
    return sum(abs(sum(p for p, _ in cell) - sum(y for _, y in cell)) for cell in cells.values()) / preds.numel()


@st.composite
def tied_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n, q = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    cells = st.lists(st.integers(0, 4), min_size=n * q, max_size=n * q)
    preds = torch.tensor(draw(cells)).reshape(n, q) / 4
    target = (torch.tensor(draw(cells)).reshape(n, q) >= 2).float()
    return preds, target


@given(tied_batches(), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_tie_rules_are_those_of_counting_pairs(batch: tuple[Tensor, Tensor], rows: int) -> None:
    preds, target = batch
    collection = multilabel_metrics()
    for start in range(0, len(preds), rows):
        collection.update(preds[start : start + rows], target[start : start + rows])
    result = collection.compute()
    values, skipped = slow_macro_auc(preds, target)
    macro_auc = collection["macro_auc"]
    assert isinstance(macro_auc, MacroAUC)
    assert macro_auc.skipped == skipped
    if values:
        assert float(result["macro_auc"]) == pytest.approx(np.mean(values), abs=1e-6)
        usual = [sk.roc_auc_score(t, p) for t, p in zip(target.T, preds.T, strict=True) if 0 < t.sum() < len(t)]
        assert float(result["macro_auc"]) - macro_auc.tied / 2 == pytest.approx(np.mean(usual), abs=1e-6)
    else:
        assert result["macro_auc"].isnan()
    zero = MacroAUC(degenerate="zero")
    assert float(zero(preds, target)) == pytest.approx(sum(values) / target.shape[1], abs=1e-6)
    assert float(result["ranking_loss"]) == pytest.approx(slow_ranking_loss(preds, target), abs=1e-6)
    assert float(result["one_error"]) == pytest.approx(slow_one_error(preds, target), abs=1e-6)


@given(tied_batches())
@settings(max_examples=100, deadline=None)
def test_every_metric_with_ties_that_scikit_learn_shares_agrees_with_it(batch: tuple[Tensor, Tensor]) -> None:
    preds, target = batch
    score, truth = preds.numpy(), target.numpy().astype(int)
    hard = (score > 0.5).astype(int)
    result = {key: float(value) for key, value in multilabel_metrics()(preds, target).items()}
    assert result["hamming_loss"] == pytest.approx(float((hard != truth).mean()), abs=1e-6)
    micro = sk.f1_score(truth.ravel(), hard.ravel(), zero_division=0)
    assert result["micro_f1"] == pytest.approx(micro, abs=1e-6)
    macro = np.mean([sk.f1_score(t, h, zero_division=0) for t, h in zip(truth.T, hard.T, strict=True)])
    assert result["macro_f1"] == pytest.approx(macro, abs=1e-6)
    with_positives = [j for j in range(truth.shape[1]) if truth[:, j].any()]
    precision = [sk.average_precision_score(truth[:, j], score[:, j]) for j in with_positives]
    assert result["map"] == pytest.approx(np.mean(precision) if precision else np.nan, abs=1e-6, nan_ok=True)
    if truth.shape[1] > 1:
        assert result["coverage"] == pytest.approx(sk.coverage_error(truth, score), abs=1e-6)


def test_without_ties_scikit_learn_agrees_on_a_larger_problem() -> None:
    generator = torch.Generator().manual_seed(0)
    preds = torch.rand(400, 130, generator=generator)
    target = (torch.rand(400, 130, generator=generator) < preds * 0.5).float()
    score, truth = preds.numpy(), target.numpy().astype(int)
    hard = (score > 0.5).astype(int)
    expected = {
        "macro_auc": sk.roc_auc_score(truth, score, average="macro"),
        "ranking_loss": sk.label_ranking_loss(truth, score),
        "hamming_loss": sk.hamming_loss(truth, hard),
        "one_error": 1 - truth[np.arange(400), score.argmax(1)].mean(),
        "coverage": sk.coverage_error(truth, score),
        "micro_f1": sk.f1_score(truth, hard, average="micro"),
        "macro_f1": sk.f1_score(truth, hard, average="macro"),
        "map": sk.average_precision_score(truth, score, average="macro"),
        "brier_score": sk.brier_score_loss(truth.ravel(), score.ravel()),
        "calibration_error": slow_calibration_error(preds, target),
    }
    result = multilabel_metrics()(preds, target)
    assert set(result) == set(expected) == set(HIGHER_IS_BETTER)
    for key, value in expected.items():
        assert float(result[key]) == pytest.approx(value, rel=1e-5), key


def test_direction_of_every_metric_is_the_one_on_its_class() -> None:
    for key, metric in multilabel_metrics().items():
        assert metric.higher_is_better == HIGHER_IS_BETTER[key], key


def test_ranking_loss_and_one_error_stay_apart_when_they_agree_on_the_first_batch() -> None:
    collection = multilabel_metrics()
    collection.update(torch.tensor([[0.9, 0.1, 0.2]]), torch.tensor([[1.0, 0.0, 0.0]]))
    collection.update(torch.tensor([[0.5, 0.9, 0.1]]), torch.tensor([[1.0, 0.0, 0.0]]))
    result = collection.compute()
    assert float(result["one_error"]) == 0.5
    assert float(result["ranking_loss"]) == 0.25
    assert float(result["coverage"]) == 1.5


def test_reset_forgets_all_batches() -> None:
    collection = multilabel_metrics()
    good = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    collection.update(1 - good, good.round())
    collection.reset()
    collection.update(good, good.round())
    result = collection.compute()
    assert {key: float(value) for key, value in result.items()} == {
        **{key: 1.0 if better else 0.0 for key, better in HIGHER_IS_BETTER.items()},
        "coverage": 1.0,
        "brier_score": pytest.approx(0.025),
        "calibration_error": pytest.approx(0.15),
    }


def test_a_threshold_of_one_half_is_not_reached_by_one_half() -> None:
    preds, target = torch.tensor([[0.5, 0.51]]), torch.tensor([[0.0, 1.0]])
    assert float(HammingLoss()(preds, target)) == 0
    assert float(MicroF1()(preds, target)) == 1
    assert float(MacroF1()(preds, target)) == 0.5


def test_nan_scores_are_not_called_good() -> None:
    preds, target = torch.full((4, 3), torch.nan), torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    result = multilabel_metrics()(preds, target)
    assert result["macro_auc"].isnan()
    assert result["ranking_loss"].isnan()
    assert result["brier_score"].isnan()
    assert result["calibration_error"].isnan()


@pytest.mark.parametrize(
    "metric",
    [
        MacroAUC, RankingLoss, HammingLoss, OneError, Coverage, MicroF1, MacroF1, MacroAveragePrecision, BrierScore,
        CalibrationError,
    ],
)  # fmt: skip
def test_wrong_shapes_are_refused_with_both_shapes(metric: Any) -> None:
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(4, 2\)"):
        metric().update(torch.rand(4, 3), torch.ones(4, 2))


def test_unknown_degenerate_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="'drop'"):
        MacroAUC(degenerate="drop")  # type: ignore[arg-type]


def test_a_score_that_is_nan_makes_macro_average_precision_nan() -> None:
    preds, target = torch.tensor([[torch.nan], [0.5]]), torch.tensor([[1], [0]])
    assert math.isnan(float(MacroAveragePrecision()(preds, target)))


def test_average_precision_of_each_label_is_that_of_scikit_learn_and_unknown_without_positives() -> None:
    generator = torch.Generator().manual_seed(3)
    preds, target = torch.rand(40, 4, generator=generator), (torch.rand(40, 4, generator=generator) < 0.3).int()
    target[:, 2] = 0
    metric = MacroAveragePrecision()
    metric.update(preds[:25], target[:25])
    metric.update(preds[25:], target[25:])
    mean = float(metric.compute())
    expected = [sk.average_precision_score(target[:, j], preds[:, j]) for j in (0, 1, 3)]
    assert metric.by_label[[0, 1, 3]].tolist() == pytest.approx(expected)
    assert metric.by_label[2].isnan()
    assert mean == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([3, 1, 2], {"rare": [1], "medium": [2], "frequent": [0]}),
        ([2, 2, 0, 1, 3], {"rare": [2, 3], "medium": [0, 1], "frequent": [4]}),  # equals by position
        ([1, 2], {}),
    ],
)
def test_thirds_go_from_rare_to_frequent(counts: list[int], expected: dict[str, list[int]]) -> None:
    labels = torch.tensor([[float(row < count) for count in counts] for row in range(4)])
    assert {name: own.tolist() for name, own in frequency_thirds(labels).items()} == expected
    assert frequency_thirds(torch.tensor([0, 1, 2])) == {}  # class ids are no matrix


def test_sums_are_exact_in_a_model_of_half_precision() -> None:
    preds, target = torch.full((1, 1), 0.75), torch.ones(1, 1)
    for metric in (BrierScore(), CalibrationError(), RankingLoss()):
        single = type(metric)()
        metric = torch.nn.ModuleList([metric]).to(torch.bfloat16)[0]
        for _ in range(600):  # one by one, a sum of eight bits ends before
            metric.update(preds, target)
            single.update(preds, target)
        assert float(metric.compute()) == float(single.compute()), metric


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="bins=0"):
        CalibrationError(bins=0)


def test_the_table_of_metrics_agrees_with_the_metrics() -> None:
    assert set(HIGHER_IS_BETTER) == set(multilabel_metrics())
    for key, metric in multilabel_metrics().items():
        assert metric.higher_is_better == HIGHER_IS_BETTER[key], key
    assert REPORTED == ("macro_auc", "ranking_loss", "hamming_loss", "map")


def test_many_samples_and_labels_need_no_quadratic_memory() -> None:
    n = 30_000  # n × n booleans would be 0.9 GB per label
    preds = torch.rand(n, 3, generator=torch.Generator().manual_seed(1))
    target = (preds > 0.7).float()
    assert float(MacroAUC()(preds, target)) == 1.0
    assert float(MacroAveragePrecision()(preds, target)) == 1.0


def _update_half(rank: int, port: int, preds: Tensor, target: Tensor, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    collection = multilabel_metrics()
    mine = slice(None, 30) if rank == 0 else slice(30, None)
    for rows in torch.arange(len(preds))[mine].split(16):
        collection.update(preds[rows], target[rows])
    results[rank] = {key: float(value) for key, value in collection.compute().items()}
    dist.destroy_process_group()


def test_two_processes_agree_with_one() -> None:
    generator = torch.Generator().manual_seed(2)
    preds = torch.randint(0, 20, (77, 5), generator=generator) / 20
    target = (torch.rand(77, 5, generator=generator) < 0.3).float()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_update_half, args=(port, preds, target, results), nprocs=2)  # type: ignore[no-untyped-call]
        both = dict(results)
    alone = {key: float(value) for key, value in multilabel_metrics()(preds, target).items()}
    assert both[0] == pytest.approx(alone, abs=1e-6)
    assert both[1] == pytest.approx(alone, abs=1e-6)
