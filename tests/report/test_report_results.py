"""How runs are told apart, and what is refused with a sentence."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import VERSIONS, fake_run, full_results

from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report import ReportError, build_report
from lightning_ubs.report.measures import MACRO_AUC
from lightning_ubs.report.results import Results, load_results
from lightning_ubs.report.tables import build_table


def load(folder: Path, *records: dict[str, Any]) -> Results:
    store = ResultsStore(folder)
    for record in records:
        store.append(record)
    return load_results(folder)


def test_ablations_and_sweeps_stay_out_of_the_comparison(tmp_path: Path) -> None:
    full_results(tmp_path, folds=1, models=("clif",))
    results = load_results(tmp_path)
    assert [method.label for method in results.compared] == ["Random", "Balance", "Active", "Recent", "Hard", "UBS"]
    assert len(results.methods) > 25
    assert results.reference is not None
    assert results.reference.values == {"lambda1": 0.5, "window": 5.0, "s0": 100.0, "bins": 5.0}


def test_a_sweep_alone_is_compared_within_itself(tmp_path: Path) -> None:
    results = load(
        tmp_path,
        *(fake_run(label=f"UBS λ1={value}", parameters={"lambda1": value}) for value in (0.1, 0.5, 0.9)),
    )
    assert [method.label for method in results.compared] == ["UBS λ1=0.1", "UBS λ1=0.5", "UBS λ1=0.9"]
    assert results.competitors == []  # other settings of the same method are no competitors


def test_a_large_sweep_alone_has_a_grid_and_no_verdict_and_no_crowded_figure(tmp_path: Path) -> None:
    settings = itertools.product((2.0, 10.0, 100.0), (3, 5, 7, 9))
    records = [fake_run(label=f"UBS s0={s0} T={t}", parameters={"s0": s0, "window": t}) for s0, t in settings]
    results = load(tmp_path, *records)
    assert (len(results.compared), len(results.drawn)) == (12, 1)
    page = build_report(tmp_path, formats=("html", "svg"))
    figures = {path.stem for path in (page.parent / "figures").iterdir()}
    assert "grid-yeast-clif" in figures
    assert not {name for name in figures if name.startswith(("gain", "critical"))}
    assert "no other method than UBS" in page.read_text()


def test_an_ablation_alone_has_its_full_method_as_reference(tmp_path: Path) -> None:
    results = load(tmp_path, *(fake_run(variant=name, label=name, gain=0.01) for name in "ABCD"))
    assert results.reference is not None
    assert results.reference.variant == "A"
    assert [method.label for method in results.competitors] == ["B", "C", "D"]


def test_two_configurations_with_one_label_are_never_mixed(tmp_path: Path) -> None:
    results = load(tmp_path, fake_run(), fake_run(parameters={"window": 7}), fake_run(selection="random"))
    assert sorted(method.label for method in results.methods) == ["Random", "UBS (window=5)", "UBS (window=7)"]


def test_whole_numbers_and_decimals_are_the_same_parameter(tmp_path: Path) -> None:
    results = load(tmp_path, fake_run(parameters={"s0": 100}), fake_run(fold=1, parameters={"s0": 100.0}))
    assert len(results.methods) == 1


def test_a_run_that_failed_and_then_finished_is_not_listed_as_failed(tmp_path: Path) -> None:
    results = load(tmp_path, fake_run(status="failed", error="power cut", metrics={}, curves={}), fake_run())
    assert results.failed == []
    assert len(results.runs) == 1


def test_runs_that_differ_in_settings_unknown_to_the_table_are_noted(tmp_path: Path) -> None:
    results = load(tmp_path, fake_run(), fake_run(key="f" * 16, metrics={"macro_auc": 0.123}))
    (note,) = results.notes
    assert note.startswith("1 run(s) repeat")
    cell = build_table(results, MACRO_AUC).blocks[0].rows["yeast"][0]
    assert cell is not None
    assert cell.value == 0.123


def test_results_of_two_versions_get_a_visible_note(tmp_path: Path) -> None:
    load(tmp_path, fake_run(), fake_run(fold=1, versions={**VERSIONS, "lightning_ubs": "0.2.0"}))
    page = build_report(tmp_path, formats=("html",)).read_text()
    assert "several versions of lightning_ubs are mixed: 0.1.0 (1 runs), 0.2.0 (1 runs)" in page
    assert 'class="banner"' in page


def test_results_of_one_version_get_no_note(tmp_path: Path) -> None:
    assert load(tmp_path, fake_run(), fake_run(fold=1)).notes == []


def test_an_unknown_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    ResultsStore(tmp_path).append(fake_run())
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write(json.dumps({**fake_run(fold=1), "schema": 7}) + "\n")
    with pytest.raises(ReportError, match=r"schema 7 \(1 runs\), this version reads schema 1; make the report with"):
        build_report(tmp_path)


@pytest.mark.parametrize("make", [True, False])
def test_an_empty_folder_is_one_sentence_with_the_way_out(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "results"
    if make:
        folder.mkdir()
    with pytest.raises(ReportError, match=r"there are no results in .*; run `lightning-ubs compare` first") as caught:
        build_report(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "report").exists()


def test_results_without_a_finished_run_name_the_last_error(tmp_path: Path) -> None:
    ResultsStore(tmp_path).append(fake_run(status="failed", error="Traceback\n  line\nValueError: no such data"))
    with pytest.raises(ReportError, match=r"none of the 1 runs .* failed with: ValueError: no such data"):
        build_report(tmp_path)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="formats='pdf' is unknown; choose from html, png"):
        build_report(tmp_path, formats=("pdf",))


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    ResultsStore(tmp_path / "results").append(fake_run())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match=r"cannot write the report to .*; choose another output folder"):
        build_report(tmp_path / "results", output=tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric,model,dataset,method\n", "lack the column 'value'"),
        ("metric,model,dataset,method,value\nMacro-AUC,CLIF,yeast,Ours,high\n", "no number"),
        (None, "cannot read the paper's tables"),
    ],
)
def test_a_wrong_paper_file_is_one_sentence(tmp_path: Path, text: str | None, message: str) -> None:
    ResultsStore(tmp_path).append(fake_run())
    if text is not None:
        (tmp_path / "paper.csv").write_text(text)
    with pytest.raises(ReportError, match=message):
        build_report(tmp_path, paper=tmp_path / "paper.csv")
