"""How runs are told apart, and what is refused with a sentence."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_fixtures import VERSIONS, fake_run, full_results, save

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.report import ReportError, build_report, console_verdict
from lightning_ubs.report.cautions import find_cautions
from lightning_ubs.report.results import Results, load_results
from lightning_ubs.report.tables import build_table


def load(folder: Path, *records: RunRecord) -> Results:
    save(folder, *records)
    return load_results(folder)


def test_ablations_and_sweeps_are_columns_beside_the_ranked_methods(tmp_path: Path) -> None:
    full_results(tmp_path, folds=1, models=("clif",))
    results = load_results(tmp_path)
    assert [method.label for method in results.main] == ["Random", "Balance", "Active", "Recent", "Hard", "UBS"]
    assert len(results.methods) > 25
    assert results.reference is not None
    assert results.reference.values == {"lambda1": 0.5, "window": 5.0, "s0": 100.0, "bins": 5.0}
    table = build_table(results, results.primary)
    assert list(table.methods) == [method.label for method in results.methods]
    (block,) = table.blocks
    assert [table.methods[index] for index in block.ranked] == [method.label for method in results.main]
    assert all(cell is not None for cell in block.rows["yeast"])
    assert all(block.rows["scene"][index].rank is not None for index in block.ranked)  # type: ignore[union-attr]


def test_a_sweep_with_random_is_in_table_verdict_csv_and_latex(tmp_path: Path) -> None:
    records = [fake_run(selection="random", fold=fold) for fold in range(3)]
    values = (0.0, 0.5, 1.0)
    records += [
        fake_run(fold=fold, label=f"UBS λ1={value:g}", parameters={"lambda1": value})
        for fold in range(3)
        for value in values
    ]
    save(tmp_path, *records)
    page = build_report(tmp_path, formats=("html", "csv", "latex"))
    tables = page.parent / "tables"
    for value in values:
        label = f"UBS λ1={value:g}"
        assert f"{label} against Random: " in page.read_text()
        assert f",{label}," in (tables / "macro_auc.csv").read_text()
        assert f"{label},Random,Macro-AUC," in (tables / "verdict.csv").read_text()
        for name in ("macro_auc.tex", "verdict.tex", "significance.tex"):
            assert label.replace("λ", r"$\lambda$") in (tables / name).read_text()
        assert f"{label} against Random" in console_verdict(records)


def test_a_sweep_alone_is_compared_within_its_table(tmp_path: Path) -> None:
    results = load(
        tmp_path,
        *(fake_run(label=f"UBS λ1={value}", parameters={"lambda1": value}) for value in (0.1, 0.5, 0.9)),
    )
    assert [method.label for method in results.methods] == ["UBS λ1=0.1", "UBS λ1=0.5", "UBS λ1=0.9"]
    assert results.comparisons == []  # other settings of the same method are no competitors


def test_a_large_sweep_alone_has_a_grid_and_no_verdict_and_no_crowded_figure(tmp_path: Path) -> None:
    settings = itertools.product((2.0, 10.0, 100.0), (3, 5, 7, 9))
    records = [fake_run(label=f"UBS s0={s0} T={t}", parameters={"s0": s0, "window": t}) for s0, t in settings]
    results = load(tmp_path, *records)
    assert (len(results.methods), len(results.drawn)) == (12, 1)
    page = build_report(tmp_path, formats=("html", "svg"))
    figures = {path.stem for path in (page.parent / "figures").iterdir()}
    assert "grid-yeast-clif" in figures
    assert not {name for name in figures if name.startswith(("gain", "critical"))}
    assert "There is no verdict" in page.read_text()


def test_every_method_is_compared_with_random(tmp_path: Path) -> None:
    own = [replace(fake_run(selection="hard", fold=fold), selection="Mine", label="Mine") for fold in range(2)]
    others = [fake_run(selection=name, fold=fold) for name in ("random", "ubs") for fold in range(2)]
    results = load(tmp_path, *own, *others)
    assert [(ours.label, theirs.label) for ours, theirs in results.comparisons] == [
        ("Mine", "Random"),
        ("UBS", "Random"),
    ]


def test_an_ablation_alone_has_its_full_method_as_reference(tmp_path: Path) -> None:
    results = load(tmp_path, *(fake_run(variant=name, label=name, gain=0.01) for name in "ABCD"))
    assert results.reference is not None
    assert results.reference.variant == "A"
    assert [(ours.label, theirs.label) for ours, theirs in results.comparisons] == [("A", "B"), ("A", "C"), ("A", "D")]


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
    (note,) = find_cautions(results)
    assert note.startswith("1 run(s) repeat")
    cell = build_table(results, results.primary).blocks[0].rows["yeast"][0]
    assert cell is not None
    assert cell.value == 0.123


def test_results_of_two_versions_get_a_visible_note(tmp_path: Path) -> None:
    load(tmp_path, fake_run(), fake_run(fold=1, versions={**VERSIONS, "lightning_ubs": "0.2.0"}))
    page = build_report(tmp_path, formats=("html",)).read_text()
    assert "several versions of lightning_ubs are mixed: 0.1.0 (1 runs), 0.2.0 (1 runs)" in page
    assert 'class="banner"' in page


def test_results_of_one_version_get_no_note(tmp_path: Path) -> None:
    assert find_cautions(load(tmp_path, fake_run(), fake_run(fold=1))) == []


def test_an_unknown_schema_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save(tmp_path, fake_run())
    with open(tmp_path / "runs.jsonl", "a") as file:
        file.write(json.dumps({**json.loads(fake_run(fold=1).to_json()), "schema": 7}) + "\n")
    with pytest.raises(ReportError, match=r"schema 7.*use the version of lightning-ubs that wrote it"):
        build_report(tmp_path)


def test_results_of_the_first_schema_are_reported(tmp_path: Path) -> None:
    old = Path(__file__).parent.parent / "experiment" / "files" / "runs_schema_1.jsonl"
    (tmp_path / "runs.jsonl").write_bytes(old.read_bytes())
    page = build_report(tmp_path, formats=("html", "csv"))
    assert {"macro_auc.csv", "ranking_loss.csv", "hamming_loss.csv", "map.csv"} <= {
        path.name for path in (page.parent / "tables").iterdir()
    }


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
    save(tmp_path, fake_run(status="failed", error="Traceback\n  line\nValueError: no such data"))
    with pytest.raises(ReportError, match=r"none of the 1 runs finished; .* failed with: ValueError: no such data"):
        build_report(tmp_path)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="formats='pdf' is unknown; choose from html, svg"):
        build_report(tmp_path, formats=("pdf",))


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    save(tmp_path / "results", fake_run())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match=r"cannot write the report to .*; choose another output folder"):
        build_report(tmp_path / "results", output=tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric,model,dataset,method\n", "lack the column 'value'"),
        ("metric,model,dataset,method,value\nMacro-AUC,CLIF,yeast,Ours,high\n", "not a number"),
        (None, "cannot read the paper's tables"),
    ],
)
def test_a_wrong_paper_file_is_one_sentence(tmp_path: Path, text: str | None, message: str) -> None:
    save(tmp_path, fake_run())
    if text is not None:
        (tmp_path / "paper.csv").write_text(text)
    with pytest.raises(ReportError, match=message):
        build_report(tmp_path, paper=tmp_path / "paper.csv")
