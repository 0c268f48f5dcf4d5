"""Any metric that runs recorded, and a verdict that names it."""

from __future__ import annotations

import csv
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_fixtures import DATASETS, fake_run, save

from lightning_ubs.experiment.record import MetricValue, Mode, RunRecord
from lightning_ubs.report import ReportError, build_report, console_verdict
from lightning_ubs.report.results import Results, load_results


def own_metrics(gain: float, stage: str = "test", **directions: bool | None) -> list[RunRecord]:
    """Runs of a user's own module, which logs ``auc`` and ``error``."""
    found = []
    for name, fold in itertools.product(("random", "ubs"), range(3)):
        better = (gain + 0.001 * fold) * (name == "ubs")
        record = fake_run("mine", "cnn", name, fold, monitor="val_auc")
        curves = {key: values for key, values in record.curves.items() if key != "val_macro_auc"}
        metrics = {
            "auc": MetricValue(0.8 + better, directions.get("auc", True), stage),  # type: ignore[arg-type]
            "error": MetricValue(0.2 - better, directions.get("error", False), stage),  # type: ignore[arg-type]
        }
        found.append(replace(record, metrics=metrics, curves={**curves, "val_auc": record.curves["val_macro_auc"]}))
    return found


def test_a_users_own_metrics_are_in_tables_verdict_and_figures(tmp_path: Path) -> None:
    records = own_metrics(0.02)
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "csv", "svg"))
    assert "UBS is better than Random in auc" in page.read_text()
    assert {"auc.csv", "error.csv"} <= {path.name for path in (page.parent / "tables").iterdir()}
    assert (page.parent / "figures" / "val-auc-mine-cnn.svg").is_file()
    assert "best val_auc." in page.read_text()
    text = console_verdict(records)
    assert "UBS is better than Random in auc: +0.0210 (95 % +0.0185 to +0.0235) over 3 splits of mine" in text
    assert "Other metrics, which decide nothing: error +0.0210 (95 % +0.0185 to +0.0235)." in text
    assert "To the validation score that both reach, UBS needs" in text
    assert "An epoch of UBS costs 1.0" in text


def test_the_monitored_metric_comes_first_unless_another_is_asked_for() -> None:
    records = own_metrics(0.02)
    assert Results(records).primary.key == "auc"
    assert console_verdict(records, monitor="val_error").startswith("UBS is better than Random in error")
    with pytest.raises(
        ReportError, match=r"monitor='val_f1' is not a metric of these runs; they recorded auc, error\."
    ):
        console_verdict(records, monitor="val_f1")


def test_lower_is_better_where_the_record_says_so() -> None:
    records = [replace(one, monitor="val_auc", mode="min") for one in own_metrics(0.02, auc=False)]
    text = console_verdict(records)
    assert text.startswith("UBS is worse than Random in auc: −0.0210")


def test_a_metric_without_a_direction_is_shown_but_neither_ranked_nor_judged(tmp_path: Path) -> None:
    records = own_metrics(0.02, error=None)
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "csv"))
    rows = list(csv.DictReader((page.parent / "tables" / "error.csv").read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["", ""]
    assert "error: which direction is good is unknown" in page.read_text()
    assert "UBS is better than Random in auc" in page.read_text()
    assert "error: which direction is good is unknown" in console_verdict(records)


def test_values_of_the_validation_set_are_called_so(tmp_path: Path) -> None:
    save(tmp_path, *own_metrics(0.02, "val"))
    text = build_report(tmp_path, formats=("html",)).read_text()
    assert "auc and error: values are of the validation set in the best epoch, because no test step logged them" in text
    assert "over folds and seeds on the validation set" in text


def test_built_in_models_show_the_papers_three_and_macro_average_precision(tmp_path: Path) -> None:
    save(tmp_path, fake_run(), fake_run(selection="random"))
    assert [one.title for one in load_results(tmp_path).metrics] == [
        "Macro-AUC",
        "Ranking loss",
        "Hamming loss",
        "Macro average precision",
    ]
    chosen = load_results(tmp_path, ["one_error", "test_map"]).metrics
    assert [one.key for one in chosen] == ["macro_auc", "one_error", "map"]  # what was monitored is always there
    told = f"report.metrics='f2' is not a metric of these runs; they recorded {', '.join(sorted(fake_run().metrics))}."
    with pytest.raises(ReportError, match=re.escape(told)):
        build_report(tmp_path, metrics=["f2"])


def test_runs_without_any_metric_are_refused(tmp_path: Path) -> None:
    save(tmp_path, fake_run(metrics={}))
    with pytest.raises(ReportError, match=r"none of the 1 runs recorded a metric; log one as val_NAME"):
        build_report(tmp_path)


def test_a_metric_without_a_direction_gives_no_verdict_and_the_way_out() -> None:
    text = console_verdict(own_metrics(0.02, error=None), monitor="val_error")
    assert "There is no verdict: nobody said whether error should be large or small. Monitor it with mode=max" in text
    assert "better" not in text.splitlines()[0]


@pytest.mark.parametrize(("mode", "answer"), [("max", "better"), ("min", "worse")])
def test_the_mode_of_the_monitor_is_the_direction_where_the_metric_has_none(mode: Mode, answer: str) -> None:
    records = [replace(one, mode=mode) for one in own_metrics(0.02, auc=None)]
    assert console_verdict(records).startswith(f"UBS is {answer} than Random in auc")
    mixed = [
        *records,
        *(replace(one, key=f"f{one.key[1:]}", seed=1, mode="max") for one in own_metrics(0.02, auc=None)),
    ]
    assert ("There is no verdict" in console_verdict(mixed)) == (mode == "min")


def test_only_the_monitored_metric_is_marked_in_the_table_of_tests(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for data, fold, name in itertools.product(DATASETS, range(2), ("random", "ubs")):
        gains = random.normal(0.01 * (name == "ubs"), 0.002, 3)
        metrics = {"macro_auc": 0.8 + gains[0], "ranking_loss": 0.2 - gains[1], "hamming_loss": 0.1 - gains[2]}
        save(tmp_path, fake_run(data, "mlp", name, fold, metrics=metrics))
    page = build_report(tmp_path, formats=("html",)).read_text()
    table = page[page.index('aria-label="Wilcoxon') :]
    rows = table[: table.index("</table>")].split("<tr>")
    assert [' class="best"' in row for row in rows if 'scope="row"' in row] == [True, False, False]
