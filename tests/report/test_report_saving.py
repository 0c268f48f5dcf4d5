"""What is saved: fewer epochs or fewer samples for the same result, in words and as a picture."""

from __future__ import annotations

import html
import itertools
from pathlib import Path

import numpy as np
import pytest
from report_fixtures import fake_key, fake_run, save

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.report import ReportError, build_report, console_verdict
from lightning_ubs.report.results import Results
from lightning_ubs.report.saving import find_savings, saving_curves, saving_sentence

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
    changes = {"curves": curves, "selection": name, "label": {"infobatch": "InfoBatch"}.get(name, record.label)}
    return RunRecord(**{**vars(record), **changes, "key": fake_key(name, budget, fold, data)})


def grid(*names: str, spread: float = 0.0002) -> list[RunRecord]:
    random = np.random.default_rng(0)
    return [
        trained(name, budget, fold, noise=random.normal(0, spread))
        for name, budget, fold in itertools.product(names, (30, 80), range(3))
    ]


def test_fewer_epochs_for_the_same_result_are_said_in_words() -> None:
    (saving,) = find_savings(Results(grid("random", "ubs")))
    assert (saving.method, saving.budget, saving.baseline_budget) == ("UBS", 30, 80)
    assert saving.cost == pytest.approx(30 / 80)
    assert saving.gain.mean == pytest.approx(0.001, abs=0.0004)
    text = saving_sentence(saving)
    assert text.startswith(
        "UBS reaches in 30 epochs what Random reaches in 80: 0.38 × the training, 0.38 × the seconds."
    )
    assert "Macro-AUC +0.00" in text


def test_fewer_samples_per_epoch_are_said_in_words_with_the_margin() -> None:
    results = Results(grid("random", "infobatch"))
    savings = [one for one in find_savings(results, margin=0.001) if one.budget == one.baseline_budget]
    assert len(savings) == 1
    text = saving_sentence(savings[0], margin=0.001)
    assert text.startswith("InfoBatch: 25\u00a0% fewer samples in 80 epochs, Macro-AUC ")
    assert text.endswith("not worse by more than 0.001 (non-inferior).")
    assert saving_sentence(savings[0], margin=1e-6).endswith("a loss of more than 1e-06 is not excluded.")


def test_a_method_that_saves_nothing_is_said_not_to() -> None:
    worse = [trained("random", budget, fold) for budget in (30, 80) for fold in range(3)]
    worse += [trained("ubs", budget, fold, noise=-0.02 + 0.001 * fold) for budget in (30, 80) for fold in range(3)]
    (saving,) = find_savings(Results(worse))
    assert saving_sentence(saving).startswith(
        "UBS saves no training: nothing cheaper reaches what Random reaches in 80 epochs. With 80 epochs, Macro"
    )


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
            paired = [] if (label, point.budget) == ("Random", 80) else (point.values - base).tolist()
            assert point.differences == pytest.approx(paired)


def test_page_and_console_show_the_saving(tmp_path: Path) -> None:
    records = grid("random", "ubs", "infobatch")
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "svg"), margin=0.001)
    sentence = "UBS reaches in 30 epochs what Random reaches in 80: 0.38 × the training"
    assert sentence in html.unescape(page.read_text())
    assert sentence in console_verdict(records)
    names = {path.stem for path in (page.parent / "figures").iterdir()}
    assert {"saving-samples-bibtex-mlp", "saving-seconds-bibtex-mlp"} <= names


def test_one_budget_at_equal_cost_has_no_saving(tmp_path: Path) -> None:
    records = [fake_run(selection=name, fold=fold) for name in ("random", "ubs") for fold in range(2)]
    assert find_savings(Results(records)) == []
    assert saving_curves(Results(records)) == {}


def test_budgets_that_differ_between_datasets_alone_are_no_budgets_to_choose_from() -> None:
    runs = [
        trained(name, budget, fold, data, noise=0.0001 * fold)
        for name in ("random", "ubs", "infobatch")
        for data, budget in (("bibtex", 80), ("yeast", 30))
        for fold in range(3)
    ]
    (saving,) = find_savings(Results(runs))
    assert (saving.method, saving.gain.pairs, saving.cost) == ("InfoBatch", 6, pytest.approx(0.75))
    assert saving_sentence(saving).startswith("InfoBatch: 25\u00a0% fewer samples in as many epochs, Macro-AUC +0.0000")
    curves = saving_curves(Results(runs))
    for (data, _), methods in curves.items():
        points = [point for own in methods.values() for point in own]
        assert {point.budget for point in points} == {80 if data == "bibtex" else 30}
        assert [len(point.differences) for point in points] == [0, 3, 3]


def test_results_without_budgets_have_no_saving() -> None:
    records = [fake_run(selection=name, max_epochs=None) for name in ("random", "ubs")]
    assert find_savings(Results(records)) == []


@pytest.mark.parametrize("margin", [0, -0.1, float("nan"), True, "small"])
def test_a_margin_that_is_none_is_refused(tmp_path: Path, margin: float) -> None:
    with pytest.raises(ReportError, match=r"margin=.* is out of range; give the loss that you would accept"):
        build_report(tmp_path, margin=margin)
