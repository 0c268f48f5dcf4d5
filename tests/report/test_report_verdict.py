"""What the report says in words, and what it compares with what."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_fixtures import DATASETS, fake_run, save

from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.report import Report, ReportError, build_report, console_verdict
from lightning_ubs.report.evidence import Difference, Evidence
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results, load_results
from lightning_ubs.report.significance import result_tests
from lightning_ubs.report.tables import build_table
from lightning_ubs.report.training_cost import measure_speed
from lightning_ubs.report.verdict import gain_of, judge, overlap_of, summary

MACRO_AUC = Metric("macro_auc", "Macro-AUC", True)
RANKING_LOSS = Metric("ranking_loss", "Ranking loss", False)
HAMMING_LOSS = Metric("hamming_loss", "Hamming loss", False)


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
    (verdict,) = judge(results)
    assert verdict.answer == "better"
    # t quantile for five degrees of freedom: 2.5706
    half = 2.5706 * np.std(gains, ddof=1) / math.sqrt(6)
    low, high = f"+{0.011 - half:.4f}", f"+{0.011 + half:.4f}"
    assert verdict.sentences == [
        f"UBS is better than Random in Macro-AUC: +0.0110 (95\u00a0% {low} to {high}) over 6 datasets."
    ]
    assert summary([verdict]) == "UBS is better than Random in Macro-AUC, over 6 datasets."


def test_only_the_monitored_metric_has_an_answer(tmp_path: Path) -> None:
    records = [run for fold in range(5) for run in pair("yeast", 0.01 + 0.0001 * fold, fold)]
    (verdict,) = judge(Results(records))
    assert [gain.interval.low > 0 for gain in verdict.gains] == [True] * 3  # lower losses are gains
    text = console_verdict(records)
    assert text.count("better") == 1
    assert "Other metrics, which decide nothing: Ranking loss +0.0102 (95 % +0.0100 to +0.0104); Hamming" in text
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "csv")).parent
    rows = [line.split(",") for line in (page / "tables" / "verdict.csv").read_text().splitlines()]
    place = rows[0].index("answer")
    assert [row[place] for row in rows[1:]] == ["better", "", ""]


def test_an_interval_with_zero_in_it_is_undecided_and_says_what_it_would_take(tmp_path: Path) -> None:
    gains = [0.03, -0.02, 0.01, -0.03, 0.02, 0.008]
    results = load(tmp_path, *(run for data, gain in zip(DATASETS, gains, strict=True) for run in pair(data, gain)))
    (verdict,) = judge(results)
    assert verdict.answer == "undecided"
    assert summary([verdict]) == "UBS against Random: undecided in Macro-AUC, over 6 datasets."
    spread = np.std(gains, ddof=1)
    missed, needed = 2.5706 * spread / math.sqrt(6), math.ceil(((1.9623 + 0.8419) * spread / 0.003) ** 2)
    needed = math.ceil(needed / 10) * 10
    assert needed > 100
    assert verdict.sentences[1] == (
        f"With 6 datasets a difference below {missed:.2g} would mostly be missed; about {needed} datasets would show "
        "0.003."
    )


def test_no_number_is_named_that_says_more_than_is_known_or_that_nobody_would_run(tmp_path: Path) -> None:
    said = {}
    for mean in (0.004, 0.0002):
        gains = [mean + 0.03 * (-1) ** fold for fold in range(10)]
        records = [run for fold, gain in enumerate(gains) for run in pair("yeast", gain, fold)]
        said[mean] = console_verdict(records)
    assert re.search(r"about \d{2}0 runs would show 0\.004", said[0.004])
    assert "; more than 1,000 runs would be needed to show 0.0002." in said[0.0002]
    save(tmp_path, *records)
    page = (build_report(tmp_path, formats="html")).read_text()
    assert "more than 1,000 runs would be needed to show 0.0002" in page
    assert not re.search(r"about \d{4,} ", page + said[0.0002])


def test_where_ubs_is_worse_the_report_says_so(tmp_path: Path) -> None:
    results = load(tmp_path, *(run for fold in range(4) for run in pair("yeast", -0.02 - 0.001 * fold, fold)))
    (verdict,) = judge(results)
    assert verdict.answer == "worse"
    assert verdict.headline == "UBS is worse than Random in Macro-AUC"
    assert "over 4 splits of yeast, a first look: 10 are usual" in verdict.sentences[0]


def test_differences_within_the_margin_are_called_equal(tmp_path: Path) -> None:
    gains = [0.0002, -0.0003, 0.0001, 0.0004, -0.0002]
    records = [run for fold, gain in enumerate(gains) for run in pair("yeast", gain, fold)]
    assert "UBS and Random are equal within 0.001 in Macro-AUC: +0.0000" in console_verdict(records)
    assert "undecided in Macro-AUC" in console_verdict(records, margin=0.0002)
    save(tmp_path, *records)
    assert "equal within 0.002" in build_report(tmp_path, formats=("html",), margin=0.002).read_text()


def test_a_difference_in_a_loss_of_small_size_is_not_printed_as_zero() -> None:
    records = [
        replace(one, metrics={"loss": MetricValue(3e-5 + (2e-6 + 1e-7 * one.fold) * (one.selection == "ubs"), False)})
        for fold in range(3)
        for one in pair("yeast", 0.0, fold)
    ]
    assert "UBS is worse than Random in loss: −0.0000021 (95 % −0.0000023 to −0.0000019)" in console_verdict(records)


@pytest.mark.parametrize("margin", [0, -0.1, float("nan"), "0.001", True])
def test_a_margin_that_is_none_is_refused(margin: Any) -> None:
    with pytest.raises(ReportError, match=r"margin=.* is out of range; give the difference that does not matter"):
        console_verdict(pair("yeast", 0.0), margin=margin)


@pytest.mark.parametrize("pairs", [1, 2])
def test_fewer_than_three_pairs_are_never_judged(pairs: int) -> None:
    text = console_verdict([run for fold in range(pairs) for run in pair("yeast", 0.2, fold)])
    assert "UBS against Random: undecided in Macro-AUC: +0.2000" in text
    assert "Fewer than 3 units of evidence allow no answer" in text


def test_the_answer_is_corrected_for_all_comparisons_and_says_what_it_would_be_alone() -> None:
    random, records = np.random.default_rng(1), []
    for fold in range(5):
        records += pair("yeast", 0.01 + random.normal(0, 0.006), fold)
        for name in ("active", "recent", "hard"):
            level = 0.8 + 0.01 * fold + random.normal(0, 0.006)
            records.append(fake_run("yeast", "mlp", name, fold, metrics={"macro_auc": level}))
    alone = judge(Results([one for one in records if one.selection in ("random", "ubs")]))[0]
    together = next(one for one in judge(Results(records)) if one.ours == "UBS")
    assert (alone.comparisons, together.comparisons) == (1, 4)
    assert together.primary.interval == alone.interval
    assert together.interval.low < alone.interval.low
    assert "; corrected for 4 comparisons, alone it would be 95\u00a0% " in together.sentences[0]


def test_seeds_on_one_split_say_nothing_about_another() -> None:
    records = [replace(one, seed=fold, fold=0) for fold in range(5) for one in pair("yeast", 0.02 + 0.001 * fold, fold)]
    scope = "over 5 seeds on one split of the data: says nothing about another split; let data take the seed"
    report = Report.of(records)
    assert scope in report.summary
    assert scope in report.answer
    apart = Report.of([replace(one, split=str(one.seed)) for one in records])
    assert "over 5 splits of yeast" in apart.summary
    wider, narrower = report.verdicts[0].interval, apart.verdicts[0].interval
    assert wider.high - wider.low == pytest.approx(math.sqrt(1 + 5 / 3) * (narrower.high - narrower.low))


def test_folds_whose_training_targets_are_the_same_are_one_split() -> None:
    records = [replace(one, split="same") for fold in range(5) for one in pair("yeast", 0.02 + 0.001 * fold, fold)]
    assert "on one split of the data" in console_verdict([replace(one, seed=one.fold) for one in records])


def test_more_splits_of_the_same_two_datasets_are_not_promised_to_show_what_they_cannot() -> None:
    gains = [0.011, -0.006, 0.004, 0.009, -0.008]
    records = [run for data in DATASETS[:2] for fold, gain in enumerate(gains) for run in pair(data, gain, fold)]
    (verdict,) = judge(Results(records))
    assert verdict.sentences[1].endswith("; no number of runs on these datasets would show 0.002.")
    text = console_verdict([replace(one, fold=0, seed=one.fold) for one in records])
    assert "over 10 seeds on one split of each of these 2 datasets: says nothing about another split" in text
    assert " runs would show 0.002, each on a split of its own." in text


def test_seeds_that_repeat_a_split_are_not_counted_as_runs() -> None:
    gains = [0.011, -0.006, 0.004, 0.009]
    records = [
        run for fold, gain in enumerate(gains) for seed in (0, 1) for run in pair("yeast", gain, fold, seed=seed)
    ]
    assert "With 4 splits a difference below" in console_verdict(records)


def test_plain_shuffling_of_whole_epochs_is_what_others_are_compared_with() -> None:
    records = []
    for fold in range(3):
        random, ours = pair("yeast", 0.01, fold)
        half = fake_run("yeast", "mlp", "random", fold, label="A half", parameters={"epoch_size": 0.5})
        records += [half, random, ours]
    assert {verdict.theirs for verdict in judge(Results(records))} == {"Random"}


def test_scores_that_come_in_steps_are_not_called_equal_because_no_step_was_taken() -> None:
    """Percentages of seven test samples, the same for both methods on each fold."""
    records = [
        replace(one, monitor="val_auc", metrics={"auc": MetricValue((6 - one.fold % 2) * 100 / 7, True)})
        for fold in range(3)
        for one in pair("yeast", 0.0, fold)
    ]
    assert "undecided in auc" in console_verdict(records, margin=1.0)


def test_fewer_than_five_datasets_are_named_as_the_scope() -> None:
    records = [run for data in DATASETS[:3] for fold in range(3) for run in pair(data, 0.02 + 0.001 * fold, fold)]
    assert "over 9 splits, on these 3 datasets" in console_verdict(records)


def test_a_set_and_its_repaired_form_are_one_dataset() -> None:
    names = ("scene", "yeast", "enron", "bibtex", "rcv1subset1", "rcv1subset1_aligned")
    results = Results([run for number, data in enumerate(names) for run in pair(data, 0.01 * (number > 3) - 0.005)])
    (block,) = build_table(results, MACRO_AUC).blocks
    assert block.average_ranks == [1 + 1 / 5, 2 - 1 / 5], "Random is ahead on four of five"
    (verdict,) = judge(Results([run for number, data in enumerate(names) for run in pair(data, 0.01 * number)]))
    assert verdict.primary.evidence.units == 5
    assert sorted(verdict.primary.datasets.values())[-1] == pytest.approx(0.045)


def test_runs_that_agree_to_the_last_digit_are_said_to() -> None:
    records = [run for fold in range(3) for run in pair("yeast", 0.0, fold)]
    same = [replace(one, metrics={"macro_auc": MetricValue(0.8123457 + one.fold / 271, True)}) for one in records]
    text = console_verdict(same)
    assert "UBS and Random are equal within 0.001 in Macro-AUC" in text
    assert "The scores of all 3 runs are the same to the last digit" in text


def test_scores_that_no_pair_has_are_said_to_be_missing() -> None:
    records = [run for fold in range(3) for run in pair("yeast", math.nan, fold)]
    assert "no two runs of Random and UBS have a number for Macro-AUC that can be compared" in console_verdict(records)
    with pytest.raises(ReportError, match="there are no runs to compare"):
        console_verdict([])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_the_same_p_on_random_samples_does_as_well_is_said(share: float) -> None:
    """The control gains nothing, or as much as the method."""
    records = []
    for fold in range(5):
        random, ours = pair("yeast", 0.02 + 0.001 * fold, fold)
        dealt = {"macro_auc": random.metrics["macro_auc"].value + share * (0.02 + 0.0012 * (4 - fold))}
        control = fake_run("yeast", "mlp", "balance", fold, metrics=dealt, parameters={"of": "UBS"})
        records += [random, ours, replace(control, selection="shuffled", label="UBS, shuffled P")]
    (verdict,) = judge(Results(records))
    assert verdict.answer == "better"
    said = verdict.sentences[-1]
    assert said.startswith("But the same P on random samples does as well (+0.02") == bool(share)
    assert said.startswith("The same P on random samples does not do it: the difference is +0.02") != bool(share)


def test_what_is_said_of_a_control_that_shows_nothing_holds_no_word_of_another_answer() -> None:
    records = []
    for fold in range(5):
        random, ours = pair("yeast", 0.02 + 0.001 * fold, fold)
        dealt = {"macro_auc": random.metrics["macro_auc"].value + 0.02 + 0.05 * (-1) ** fold}
        control = fake_run("yeast", "mlp", "balance", fold, metrics=dealt, parameters={"of": "UBS"})
        records += [random, ours, replace(control, selection="shuffled", label="UBS, shuffled P")]
    text = console_verdict(records)
    assert "UBS is better than Random" in text
    assert "Whether the same P on random samples does as well is not shown: the difference is" in text
    assert "undecided" not in text


def test_the_cautious_interval_is_that_of_nadeau_and_bengio() -> None:
    gains = np.array([0.010, 0.012, 0.011, 0.013, 0.009])
    (verdict,) = judge(Results([run for fold, gain in enumerate(gains) for run in pair("yeast", gain, fold)]))
    half = 2.7764 * gains.std(ddof=1) * math.sqrt(1 / 5 + 1 / 4)  # five folds: a test set is a quarter of the rest
    assert f"is 95\u00a0% +{0.011 - half:.4f} to +{0.011 + half:.4f}." in verdict.sentences[1]


@pytest.mark.parametrize("failed", ["has no score", "failed"])
def test_runs_without_a_score_withhold_every_answer_in_favor_of_their_method(failed: str) -> None:
    gains = [0.010, 0.012, 0.011, 0.013, 0.009]

    def without(name: str) -> list[RunRecord]:
        """Five clear gains of UBS, and a sixth fold in which this method has nothing to show."""
        records = [run for fold, gain in enumerate(gains) for run in pair("yeast", gain, fold)]
        sixth = pair("yeast", 0.01, 5)
        lost = next(one for one in sixth if one.selection == name)
        sixth.remove(lost)
        nothing = {"metrics": {}, "curves": {}, "status": "failed", "error": "out of memory"}
        unscored = replace(lost, metrics={}) if failed == "has no score" else replace(lost, **nothing)
        return [*records, *sixth, unscored]

    said = "failed or has no score in 1 of 6 runs in which"
    (verdict,) = judge(Results(without("ubs")))
    assert verdict.answer == "undecided"
    assert f"UBS {said} Random has one, so nothing is said in its favor." in verdict.sentences[1]
    assert "better" not in console_verdict(without("ubs"))
    (verdict,) = judge(Results(without("random")))
    assert verdict.answer == "better", "that of the other one is not withheld"
    assert not any(said in sentence for sentence in verdict.sentences)


def test_a_dataset_without_a_difference_counts_for_neither_method() -> None:
    gains = dict(zip(DATASETS, (0.01, -0.02, 0.0, 0.01, 0.01, 0.0), strict=True))
    (verdict,) = judge(Results([run for data, gain in gains.items() for run in pair(data, gain)]))
    assert (verdict.primary.positive, verdict.primary.negative) == (3, 1)


@pytest.mark.parametrize(("folds", "overlap"), [(1, 1 / 3), (2, 1.0), (5, 0.25)])
def test_training_sets_overlap_as_folds_say(folds: int, overlap: float) -> None:
    evidence = Evidence.of([Difference("yeast", str(split), 0, 0.01 * split) for split in range(3)])
    assert overlap_of(evidence, folds) == pytest.approx(overlap)
    seeds = Evidence.of([Difference("yeast", "", seed, 0.01 * seed) for seed in range(3)])
    assert overlap_of(seeds, folds) == 0.0


def test_only_runs_with_the_same_data_model_fold_and_seed_are_compared(tmp_path: Path) -> None:
    lonely = fake_run("yeast", "mlp", "random", fold=7, metrics={"macro_auc": 0.0})
    results = load(tmp_path, *pair("yeast", 0.01), *pair("yeast", 0.03, fold=1), lonely)
    assert results.reference is not None
    assert results.baseline is not None
    gain = gain_of(results.pairs(results.reference, results.baseline), MACRO_AUC)
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
    gain = gain_of(results.pairs(results.reference, results.baseline), RANKING_LOSS)
    assert gain is not None
    assert gain.evidence.kind == "datasets"
    assert gain.interval.mean == pytest.approx((4 * 0.01 + 0.06) / 5)


@pytest.mark.parametrize(("datasets", "unit", "pairs"), [(4, "splits", 8), (5, "datasets", 5)])
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


def test_speed_is_to_the_score_that_both_reach() -> None:
    slow, fast = curves([0.5, 0.6, 0.7, 0.65], 1.0), curves([0.5, 0.7, 0.8, 0.8], 1.5)
    never = curves([0.5, 0.5, 0.5, 0.6], 1.5)
    results = Results(
        [
            fake_run("yeast", "mlp", "random", 0, curves=slow),
            fake_run("yeast", "mlp", "ubs", 0, curves=fast),
            fake_run("yeast", "mlp", "random", 1, curves=slow),
            fake_run("yeast", "mlp", "ubs", 1, curves=never),
        ]
    )
    assert results.reference is not None
    assert results.baseline is not None
    speed = measure_speed(results, results.reference, results.baseline)
    back = measure_speed(results, results.baseline, results.reference)
    assert speed is not None
    assert speed.pairs == 2
    assert speed.epochs.value == pytest.approx(math.sqrt(2 / 3 * 4 / 2))  # 0.7 in 2 of 3 epochs, 0.6 in 4 of 2
    assert speed.seconds is not None
    assert speed.seconds.value == pytest.approx(1.5 * speed.epochs.value)
    assert speed.cost == pytest.approx(1.5)
    assert back is not None
    assert back.epochs.value == pytest.approx(1 / speed.epochs.value)
    assert speed.sentences[0].startswith("To the validation score that both reach, UBS needs 1.15 × the epochs of ")
    assert speed.sentences[1] == "An epoch of UBS costs 1.50 times an epoch of Random."


def test_missing_values_in_metrics_and_curves_are_left_out(tmp_path: Path) -> None:
    broken = fake_run(
        "yeast",
        "mlp",
        "ubs",
        1,
        metrics={"macro_auc": None},
        curves=curves([None, None], 1.0),  # type: ignore[list-item]
    )
    (verdict,) = judge(load(tmp_path, *pair("yeast", 0.01), fake_run("yeast", "mlp", "random", 1), broken))
    assert verdict.primary.evidence.units == 1
