"""What the report says in words, and what it compares with what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_fixtures import DATASETS, fake_run, save

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.report.gains import paired_gain
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results, load_results
from lightning_ubs.report.significance import result_tests
from lightning_ubs.report.speed import measure_speed
from lightning_ubs.report.tables import build_table, build_tables
from lightning_ubs.report.verdict import Verdict, judge, summary

MACRO_AUC = Metric("macro_auc", "Macro-AUC", True)
RANKING_LOSS = Metric("ranking_loss", "Ranking loss", False)
HAMMING_LOSS = Metric("hamming_loss", "Hamming loss", False)


def judged(results: Results) -> list[Verdict]:
    return judge(results, result_tests(results, build_tables(results)))


def load(folder: Path, *records: RunRecord) -> Results:
    save(folder, *records)
    return load_results(folder)


def pair(data: str, gain: float, fold: int = 0, **more: Any) -> list[RunRecord]:
    """Random and UBS on the same data, with exactly this difference in every metric."""
    level = 0.8 + 0.01 * fold
    metrics = {
        "random": {"macro_auc": level, "ranking_loss": 0.2, "hamming_loss": 0.1},
        "ubs": {"macro_auc": level + gain, "ranking_loss": 0.2 - gain, "hamming_loss": 0.1 - gain},
    }
    return [fake_run(data, "mlp", name, fold, metrics=metrics[name], **more) for name in metrics]


def test_a_clear_gain_is_called_better_with_its_interval(tmp_path: Path) -> None:
    gains = [0.010, 0.012, 0.011, 0.013, 0.009, 0.011]
    results = load(tmp_path, *(run for data, gain in zip(DATASETS, gains, strict=True) for run in pair(data, gain)))
    (verdict,) = judged(results)
    assert verdict.tone == "better"
    assert verdict.headline == "UBS against Random: better in Macro-AUC, Ranking loss and Hamming loss"
    # t quantile for five degrees of freedom: 2.5706
    half = 2.5706 * np.std(gains, ddof=1) / math.sqrt(6)
    low, high = f"+{0.011 - half:.4f}", f"+{0.011 + half:.4f}"
    assert verdict.sentences[0] == (
        f"Mean gain in Macro-AUC: +0.0110 (95\u00a0% t-interval {low} to {high} over 6 datasets)."
    )
    assert verdict.sentences[1] == "By the mean, UBS is better in 6 of 6 datasets, worse in 0."
    assert [gain.interval.verdict for gain in verdict.gains] == ["better"] * 3  # lower losses are gains


def test_an_interval_with_zero_in_it_is_called_no_evidence(tmp_path: Path) -> None:
    gains = [0.03, -0.02, 0.01, -0.03, 0.02, 0.0]
    results = load(tmp_path, *(run for data, gain in zip(DATASETS, gains, strict=True) for run in pair(data, gain)))
    (verdict,) = judged(results)
    assert verdict.tone == "none"
    assert "no evidence of a difference in Macro-AUC, Ranking loss and Hamming loss" in verdict.headline
    assert "which contains 0" in verdict.sentences[0]
    assert verdict.sentences[1] == "By the mean, UBS is better in 3 of 6 datasets, worse in 2, equal in 1."
    assert summary([verdict]) == "There is no evidence that UBS differs from Random in Macro-AUC."


def test_where_ubs_is_worse_the_report_says_so(tmp_path: Path) -> None:
    results = load(tmp_path, *(run for fold in range(4) for run in pair("yeast", -0.02 - 0.001 * fold, fold)))
    (verdict,) = judged(results)
    assert verdict.tone == "worse"
    assert verdict.headline == "UBS against Random: worse in Macro-AUC, Ranking loss and Hamming loss"
    assert "4 paired runs" in verdict.sentences[0]


def test_a_single_pair_is_no_evidence(tmp_path: Path) -> None:
    (verdict,) = judged(load(tmp_path, *pair("yeast", 0.2)))
    assert verdict.tone == "none"
    assert "from one pair only" in verdict.sentences[0]


def test_only_runs_with_the_same_data_model_fold_and_seed_are_compared(tmp_path: Path) -> None:
    lonely = fake_run("yeast", "mlp", "random", fold=7, metrics={"macro_auc": 0.0})
    results = load(tmp_path, *pair("yeast", 0.01), *pair("yeast", 0.03, fold=1), lonely)
    assert results.reference is not None
    assert results.baseline is not None
    gain = paired_gain(results, MACRO_AUC, results.reference, results.baseline)
    assert gain is not None
    assert gain.interval.mean == pytest.approx(0.02)
    cells = build_table(results, MACRO_AUC).blocks[0].rows["yeast"]
    assert [cell.runs for cell in cells if cell] == [2, 2]
    assert "2 of 3 folds and seeds" in build_table(results, MACRO_AUC).blocks[0].notes[0]


def test_a_dataset_counts_once_however_many_models_and_folds_it_has(tmp_path: Path) -> None:
    records = [run for data in DATASETS[:5] for run in pair(data, 0.01)]
    records += [run for fold in range(1, 6) for run in pair("scene", 0.07, fold)]
    results = load(tmp_path, *records)
    assert results.reference is not None
    assert results.baseline is not None
    gain = paired_gain(results, RANKING_LOSS, results.reference, results.baseline)
    assert gain is not None
    assert gain.unit == "datasets"
    assert gain.interval.mean == pytest.approx((4 * 0.01 + 0.06) / 5)


@pytest.mark.parametrize(("datasets", "unit", "pairs"), [(4, "paired runs", 8), (5, "datasets", 5)])
def test_the_unit_of_the_tests_is_the_dataset_from_five_on(
    tmp_path: Path, datasets: int, unit: str, pairs: int
) -> None:
    results = load(
        tmp_path, *(run for data in DATASETS[:datasets] for fold in (0, 1) for run in pair(data, 0.01, fold))
    )
    (tests,) = result_tests(results, [build_table(results, HAMMING_LOSS)])
    assert tests.units.kind == unit
    assert (tests.pairs[0].pairs, tests.pairs[0].wins, tests.pairs[0].losses) == (pairs, pairs, 0)
    assert tests.pairs[0].p == 2 * 0.5**pairs


def curves(scores: list[float], seconds: float) -> dict[str, list[Any]]:
    return {
        "epoch": list(range(len(scores))),
        "val_macro_auc": scores,
        "epoch_seconds": [seconds] * len(scores),
    }


def test_epochs_and_seconds_to_the_best_score_of_random(tmp_path: Path) -> None:
    slow, fast = curves([0.5, 0.6, 0.7, 0.65], 1.0), curves([0.5, 0.7, 0.8, 0.8], 1.5)
    never = curves([0.5, 0.5, 0.5, 0.5], 1.5)
    results = load(
        tmp_path,
        fake_run("yeast", "mlp", "random", 0, curves=slow),
        fake_run("yeast", "mlp", "ubs", 0, curves=fast),
        fake_run("yeast", "mlp", "random", 1, curves=slow),
        fake_run("yeast", "mlp", "ubs", 1, curves=never),
    )
    assert results.reference is not None
    speed = measure_speed(results, results.reference)
    assert speed is not None
    assert (speed.pairs, speed.reached) == (2, 1)
    assert (speed.epochs, speed.baseline_epochs) == (2, 3)
    assert (speed.seconds, speed.baseline_seconds) == (3.0, 3.0)
    assert speed.cost == pytest.approx(1.5)
    (verdict,) = judged(results)
    assert verdict.sentences[2] == (
        "To reach Random's best validation score: UBS 2 epochs, 3 s (reached in 1 of 2 runs); "
        "Random itself 3 epochs, 3 s."
    )
    assert verdict.sentences[3] == "An epoch of UBS costs 1.50 times an epoch of Random."


def test_without_random_the_speed_is_said_to_be_unknown(tmp_path: Path) -> None:
    results = load(tmp_path, fake_run(selection="hard"), fake_run(selection="ubs"))
    (verdict,) = judged(results)
    assert "no paired runs of Random" in verdict.sentences[2]


def test_missing_values_in_metrics_and_curves_are_left_out(tmp_path: Path) -> None:
    broken = fake_run(
        "yeast",
        "mlp",
        "ubs",
        1,
        metrics={"macro_auc": None},
        curves=curves([None, None], 1.0),  # type: ignore[list-item]
    )
    results = load(tmp_path, *pair("yeast", 0.01), fake_run("yeast", "mlp", "random", 1), broken)
    (verdict,) = judged(results)
    assert verdict.gains[0].interval.pairs == 1
    assert "of 1 runs" in verdict.sentences[2]
