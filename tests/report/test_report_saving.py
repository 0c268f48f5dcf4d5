"""What is saved: fewer epochs or fewer samples for the same result, in words and as a picture."""

from __future__ import annotations

import html
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_fixtures import fake_key, fake_run, save

from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.report import build_report, console_verdict
from lightning_ubs.report.results import Results
from lightning_ubs.report.training_cost import Savings, find_savings, saving_curves

# Macro-AUC by method and budget: UBS with 30 epochs is where Random is with 80, and InfoBatch needs fewer samples.
LEVELS = {
    "random": {30: 0.940, 80: 0.950},
    "ubs": {30: 0.951, 80: 0.9525},
    "infobatch": {30: 0.940, 80: 0.950},
}
SHARES = {"random": 1.0, "ubs": 1.0, "infobatch": 0.75}


def trained(name: str, budget: int, fold: int, data: str = "bibtex", noise: float = 0.0) -> RunRecord:
    usual = "ubs" if name == "ubs" else "random"
    value = LEVELS[name][budget] + noise
    record = fake_run(data, f"mlp max_epochs={budget}", usual, fold, epochs=budget, metrics={"macro_auc": value})
    samples = int(1500 * SHARES[name])
    curves = {**record.curves, "samples": [samples] * budget, "epoch_seconds": [samples / 1000] * budget}
    changes = {
        "curves": curves,
        "best_epoch": budget - 3,
        "selection": name,
        "label": {"infobatch": "InfoBatch"}.get(name, record.label),
    }
    return RunRecord(**{**vars(record), **changes, "key": fake_key(name, budget, fold, data)})


def replace_value(record: RunRecord, value: float) -> RunRecord:
    return replace(record, metrics={"macro_auc": MetricValue(value, True)})


def grid(*names: str, spread: float = 0.0002) -> list[RunRecord]:
    random = np.random.default_rng(0)
    return [
        trained(name, budget, fold, noise=random.normal(0, spread))
        for name, budget, fold in itertools.product(names, (30, 80), range(3))
    ]


def savings(records: list[RunRecord], margin: float | None = None) -> Savings:
    found = find_savings(Results(records), margin)
    assert found is not None
    return found


def test_fewer_epochs_for_the_same_result_are_said_in_words() -> None:
    found = savings(grid("random", "ubs"), margin=0.002)
    (saving,) = found.found
    assert (saving.method, saving.budget, found.budget, saving.shown) == ("UBS", 30, 80, True)
    assert saving.cost == pytest.approx(30 / 80)
    assert saving.gain.mean == pytest.approx(0.001, abs=0.0004)
    (text,) = (one for one in found.sentences if "saves" in one)
    assert text.startswith("UBS saves training: 30 epochs with 0.38 × the samples, 0.38 × the seconds; Macro-AUC +0.00")
    assert "within 0.002 of Random in 80 epochs, and +0.011" in text
    assert "against the control, Random in 30 epochs; corrected for 1 training (p = 0.0" in text


def test_a_cheaper_training_saves_nothing_where_plain_shuffling_of_that_length_does_the_same() -> None:
    records = grid("random", "ubs", "infobatch")
    level = [replace_value(one, 0.950 + 0.0001 * one.fold + 1e-6 * one.epochs) for one in records]
    assert not any(one.shown for one in savings(level, margin=0.002).found)
    text = "\n".join(savings(level, margin=0.002).sentences)
    assert "saves" not in text
    assert "does the same within 0.002 for 0.38 × the samples" in text


def test_fewer_samples_per_epoch_need_a_control_of_that_length() -> None:
    text = "\n".join(savings(grid("random", "infobatch"), margin=0.002).sentences)
    assert (
        "No cheaper training of InfoBatch was shown to do what Random in 80 epochs does within 0.002: 80 epochs" in text
    )
    assert "0.75 × the samples" in text
    assert "No plain training of that length was run; controls=True adds one." in text


def test_plain_training_that_is_at_its_best_in_the_first_half_of_its_budget_is_named() -> None:
    records = [replace(one, best_epoch=9 + one.fold) for one in grid("random", "ubs")]
    found = savings(records)
    assert found.sentences[0] == (
        "On bibtex, Random's best epoch is 11 of 80 (median; 10 to 12), 0.14 × the cost of the budget: a plain "
        "training of 12 epochs does the same; compare against that."
    )
    assert found.found == []  # 30 epochs are more than plain shuffling needs


def test_costs_and_values_of_the_picture_are_those_of_the_runs() -> None:
    curves = saving_curves(Results(grid("random", "ubs", "infobatch", spread=0.0)))
    assert list(curves) == [("bibtex", "mlp")]
    points = {method.label: own for method, own in curves["bibtex", "mlp"].items()}
    assert [point.budget for point in points["UBS"]] == [30, 80]
    assert [np.mean(point.samples) for point in points["InfoBatch"]] == [30 * 1125, 80 * 1125]
    assert [np.mean(point.seconds) for point in points["Random"]] == [45.0, 120.0]
    assert [np.mean(point.values) for point in points["UBS"]] == pytest.approx([0.951, 0.9525])
    base = np.array(points["Random"][-1].values)
    for label, own in points.items():
        for point in own:
            if (label, point.budget) == ("Random", 80):
                assert point.evidence is None
            else:
                assert point.evidence is not None
                assert point.evidence.values.tolist() == pytest.approx((point.values - base).tolist())


def test_page_and_console_show_the_saving(tmp_path: Path) -> None:
    records = grid("random", "ubs", "infobatch")
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "svg"), margin=0.002)
    sentence = "UBS saves training: 30 epochs with 0.38 × the samples"
    assert sentence in html.unescape(page.read_text())
    assert sentence in console_verdict(records, margin=0.002)
    names = {path.stem for path in (page.parent / "figures").iterdir()}
    assert {"saving-samples-bibtex-mlp", "saving-seconds-bibtex-mlp"} <= names


def test_one_budget_at_equal_cost_has_no_saving() -> None:
    records = [fake_run(selection=name, fold=fold) for name in ("random", "ubs") for fold in range(2)]
    assert savings(records).found == []
    assert saving_curves(Results(records)) == {}


def test_budgets_that_differ_between_datasets_alone_are_no_budgets_to_choose_from() -> None:
    runs = [
        trained(name, budget, fold, data, noise=0.0001 * fold)
        for name in ("random", "ubs", "infobatch")
        for data, budget in (("bibtex", 80), ("yeast", 30))
        for fold in range(3)
    ]
    (saving,) = savings(runs).found
    assert (saving.method, saving.gain.pairs, saving.cost) == ("InfoBatch", 6, pytest.approx(0.75))
    assert "as many epochs, 0.75 × the samples, Macro-AUC +0.0000" in savings(runs).sentences[-1]
    curves = saving_curves(Results(runs))
    for (data, _), methods in curves.items():
        points = [point for own in methods.values() for point in own]
        assert {point.budget for point in points} == {80 if data == "bibtex" else 30}
        assert [point.evidence.units if point.evidence else 0 for point in points] == [0, 3, 3]


def test_results_without_budgets_have_no_saving() -> None:
    records = [fake_run(selection=name, max_epochs=None) for name in ("random", "ubs")]
    assert find_savings(Results(records)) is None
