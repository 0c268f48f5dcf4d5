"""What is said before a result is believed, on the console and on the page alike."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import VERSIONS, fake_run, save

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.training import _warnings as own_warnings
from lightning_ubs.report import build_report, console_verdict


def both(folder: Path, *records: RunRecord) -> tuple[str, str]:
    """What the console and the page say."""
    save(folder, *records)
    return console_verdict(records), html.unescape(build_report(folder, formats=("html",)).read_text())


def pair(data: str = "yeast", folds: int = 2, **changes: Any) -> list[RunRecord]:
    return [fake_run(data, selection=name, fold=fold, **changes) for name in ("random", "ubs") for fold in range(folds)]


def test_few_pairs_and_a_small_validation_set_are_named(tmp_path: Path) -> None:
    for text in both(tmp_path, *pair(shape={"n": 1500, "val": 120})):
        assert "Few pairs: 2 pairs of runs can show large differences only." in text
        assert "A small validation set of 120 samples chooses the best epoch" in text
    assert "small validation" not in console_verdict(pair(shape={"n": 1500, "val": 1200}))


def test_a_training_that_ends_in_the_warm_up_is_said_to_have_selected_nothing(tmp_path: Path) -> None:
    records = [replace(one, first_selected_epoch=None if one.selection == "random" else 40) for one in pair()]
    for text in both(tmp_path, *records):
        assert (
            "Nothing was selected in 2 of 2 runs of UBS: training has 40 epochs, and selection starts in epoch 40"
            in text
        )
        assert "Nothing was selected in 2 of 2 runs of Random" not in text
        assert "The best epoch lies in the warm-up" not in text


def test_a_best_epoch_in_the_warm_up_is_named(tmp_path: Path) -> None:
    records = [replace(one, best_epoch=4 if one.fold else 5) for one in pair()]
    for text in both(tmp_path, *records):
        assert "The best epoch lies in the warm-up in 1 of 2 runs of UBS" in text
        assert "1 of 2 runs of Random" not in text


def test_a_training_whose_best_epoch_is_its_last_is_named(tmp_path: Path) -> None:
    records = [*pair(), *(replace(one, best_epoch=39) for one in pair("scene"))]
    for text in both(tmp_path, *records):
        assert "Not converged: more steps would help more than selection." in text
        assert "The best epoch is the last in 4 of 4 runs of scene, clif." in text


@pytest.mark.parametrize(("last", "said"), [(0.9003, False), (0.9100, True)])
def test_a_last_epoch_that_is_best_by_chance_is_not_called_unfinished(tmp_path: Path, last: float, said: bool) -> None:
    level = [0.7, *[0.9, 0.899] * 19, last]
    curves = {"epoch": list(range(40)), "val_macro_auc": level}
    for text in both(tmp_path, *(replace(one, best_epoch=39, curves=curves) for one in pair())):
        assert ("Not converged" in text) == said


def test_a_defective_dataset_is_named_and_its_repaired_form_is_not(tmp_path: Path) -> None:
    for text in both(tmp_path, *pair("rcv1subset1"), *pair("rcv1subset1_aligned")):
        assert "The dataset rcv1subset1 is defective. In samples 3000 to 5999 the labels are shifted" in text
        assert "rcv1subset1_aligned is defective" not in text


def test_versions_that_differ_are_named(tmp_path: Path) -> None:
    for text in both(tmp_path, *pair(), *pair("scene", versions={**VERSIONS, "torch": "2.7.0"})):
        assert "several versions of torch are mixed: 2.6.0 (4 runs), 2.7.0 (4 runs)" in text


def test_a_warning_of_the_runs_themselves_is_repeated_once(tmp_path: Path) -> None:
    for text in both(tmp_path, *pair(warnings=("The loss was NaN in 3 batches.",))):
        assert text.count("The loss was NaN in 3 batches. (4 of 4 runs)") == 1


@pytest.mark.parametrize("change", [{"first_selected_epoch": 40}, {"best_epoch": 2}])
def test_what_each_run_says_of_itself_is_said_once_for_all(tmp_path: Path, change: dict[str, int]) -> None:
    records = [replace(one, **change) for one in pair() if one.selection == "ubs"]  # type: ignore[arg-type]
    records = [replace(one, warnings=tuple(own_warnings(one))) for one in records]
    assert all(one.warnings for one in records)
    assert console_verdict(records).count("Warning") == 1


def test_failed_runs_are_counted(tmp_path: Path) -> None:
    for text in both(tmp_path, *pair(), fake_run("scene", status="failed", error="no", metrics={}, curves={})):
        assert "1 of 5 runs failed and are in no table" in text


@pytest.mark.parametrize("budget", [40, 41])
def test_a_sound_comparison_has_no_warning(tmp_path: Path, budget: int) -> None:
    console, page = both(tmp_path, *(replace(one, max_epochs=budget) for one in pair(folds=5)))
    assert "Warning" not in console
    assert 'class="banner"' not in page
