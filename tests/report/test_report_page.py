"""The whole report on made-up results: page, files, escaping, and nothing left behind in matplotlib."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_fixtures import fake_run, fake_trace, full_results, save

from lightning_ubs import report as report_package
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.methods import METHODS
from lightning_ubs.report import build_report
from lightning_ubs.report.gallery import KINDS, map_in_order

PAPER = """metric,model,dataset,method,value
Macro-AUC,CLIF,yeast,Random,0.7107
Macro-AUC,CLIF,yeast,Ours,0.7222
Macro-AUC,CLIF,scene,Random,0.9418
Macro-AUC,CLIF,scene,Ours,0.9476
"""


class Structure(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self._silent = tag == "style"
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.text += data + " "

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


def read(path: Path) -> Structure:
    structure = Structure()
    structure.feed(path.read_text(encoding="utf-8"))
    structure.text = re.sub(r"\s+", " ", structure.text)
    return structure


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    store = full_results(folder, folds=2, models=("clif",))
    store.append(fake_run(selection="random", label="Random half", parameters={"epoch_size": 0.5}))
    (folder / "paper.csv").write_text(PAPER)
    return build_report(
        folder, paper=folder / "paper.csv", title="Made-up results", formats=("html", "svg", "png", "csv", "latex")
    )


def test_every_kind_of_figure_appears_when_its_data_are_there(full: Path) -> None:
    page = read(full)
    assert "Not in these results" not in page.text
    for kind in KINDS:
        assert kind.title in page.text
    names = {path.stem for path in (full.parent / "figures").glob("*.svg")}
    assert {
        "gain",
        "critical-difference-macro-auc-clif",
        "train-loss-yeast-clif",
        "val-macro-auc-yeast-clif",
        "time-yeast-clif",
        "correlation-drift-yeast-clif",
        "correlation-yeast-clif-first",
        "correlation-yeast-clif-last",
        "correlation-yeast-clif-change",
        "ablation-yeast-clif",
        "lambda1-yeast-clif",
        "grid-yeast-clif",
        "data-map-yeast-clif",
    } <= names
    assert names == {path.stem for path in (full.parent / "figures").glob("*.png")}
    assert page.tags["figure"] == len(names - {"gain"}), "the page draws the gains without an image"
    assert 'class="forest"' in full.read_text()


def test_the_verdict_comes_before_tables_and_tables_before_figures(full: Path) -> None:
    text = full.read_text()
    places = [text.index(f'<section id="{name}"') for name in ("verdict", "tables", "significance", "paper", "figures")]
    assert places == sorted(places)


def test_the_page_needs_no_other_file_and_no_server(full: Path) -> None:
    page = read(full)
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    for name in ("src", "href", "xlink:href"):
        assert all(value.startswith(("#", "data:")) for value in page.values(name)), name
    text = re.sub(r"base64,[\w+/=\s]+", "", full.read_text())
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text
    assert "http://" not in text.replace("http-equiv", "")
    assert "https://" not in text


def test_identifiers_are_unique_and_references_hit_them(full: Path) -> None:
    page = read(full)
    identifiers = Counter(page.values("id"))
    assert [name for name, count in identifiers.items() if count > 1] == []
    used = re.findall(r"url\(#([^)]+)\)", full.read_text()) + [
        value[1:] for name in ("href", "xlink:href") for value in page.values(name) if value.startswith("#")
    ]
    assert used
    assert set(used) <= set(identifiers)


def test_figures_have_alternative_text_and_tables_have_captions_and_scopes(full: Path) -> None:
    page = read(full)
    figures = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(figures) == page.tags["svg"] == page.tags["figure"]
    assert all(len(text) > 20 for text in figures)
    assert (
        page.values("scope").count("col") + page.values("scope").count("row") + page.values("scope").count("rowgroup")
        == page.tags["th"]
    )
    assert 'lang="en"' in full.read_text()


def test_drawings_follow_the_theme_of_the_page(full: Path) -> None:
    text = full.read_text()
    svgs = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--ink)" in svgs
    assert not re.findall(r"#1d2733|#5d6875|#fefefe", svgs)
    assert "prefers-color-scheme: dark" in text
    used = set(re.findall(r"var\((--[\w-]+)\)", text))
    defined = set(re.findall(r"(--[\w-]+):", text))
    assert used <= defined


def test_tables_hold_value_rank_best_and_average_rank(full: Path) -> None:
    rows = list(csv.DictReader((full.parent / "tables" / "macro_auc.csv").read_text().splitlines()))
    yeast = [row for row in rows if row["dataset"] == "yeast" and row["rank"]]
    assert [row["method"] for row in yeast] == ["Random", "Balance", "Active", "Recent", "Hard", "UBS"]
    best = max(yeast, key=lambda row: float(row["value"]))
    assert best["rank"] == "1"
    text = full.read_text()
    shown = (
        rf'class="best">{float(best["value"]):.4f}<span class="rank">\(1\)</span> <small>± {float(best["spread"]):.4f}'
    )
    assert re.search(shown, text)
    assert rf"\textbf{{{float(best['value']):.4f}(1)}}" in (full.parent / "tables" / "macro_auc.tex").read_text()
    ranks = list(csv.DictReader((full.parent / "tables" / "average_ranks.csv").read_text().splitlines()))
    hard = [int(row["rank"]) for row in rows if row["method"] == "Hard" and row["rank"]]
    (average,) = [row for row in ranks if (row["metric"], row["method"]) == ("Macro-AUC", "Hard")]
    assert float(average["average_rank"]) == pytest.approx(np.mean(hard), abs=1e-4)
    assert f"{np.mean(hard):.2f}</td>" in text


def test_rare_and_frequent_labels_stand_in_a_table_of_what_all_methods_share(tmp_path: Path) -> None:
    runs = [fake_run(selection=name, fold=fold) for name in ("random", "ubs") for fold in range(3)]
    old = fake_run(selection="ubs", fold=3, metrics={"macro_auc": 0.7, "macro_f1": 0.4}, draws={})
    plain = fake_run(selection="random", fold=3)
    save(tmp_path, *runs, old, plain)
    page = read(build_report(tmp_path, formats=("html", "csv")))
    rows = list(csv.DictReader((tmp_path / "report" / "tables" / "labels.csv").read_text().splitlines()))
    assert [(row["method"], row["runs"], row["draws_rare"]) for row in rows] == [
        ("Random", "3", "1.0"),
        ("UBS", "3", "1.5"),
    ]
    rare = np.mean([run.metrics["map_rare"].value for run in runs[3:]])
    assert float(rows[1]["map_rare"]) == pytest.approx(rare)
    assert f"UBS {rare:.4f}" in page.text
    assert "1 run recorded none of this and is left out" in page.text


def test_the_paper_stands_beside_ours(full: Path) -> None:
    rows = list(csv.DictReader((full.parent / "tables" / "paper_macro_auc.csv").read_text().splitlines()))
    assert {(row["dataset"], row["method"], row["paper"]) for row in rows} == {
        ("yeast", "Random", "0.7107"),
        ("yeast", "UBS", "0.7222"),
        ("scene", "Random", "0.9418"),
        ("scene", "UBS", "0.9476"),
    }
    assert "paper 0.7222" in read(full).text


def test_the_samples_selected_most_and_least_are_listed_with_their_labels(full: Path) -> None:
    trace = fake_trace()
    rows = list(csv.DictReader((full.parent / "tables" / "samples.csv").read_text().splitlines()))
    most = [row for row in rows if row["end"] == "most"]
    first = int(trace["times_selected"].argmax())
    assert int(most[0]["row"]) == trace["sample_rows"][first]
    assert int(most[0]["times_selected"]) == trace["times_selected"].max()
    expected = [str(name) for name, has in zip(trace["label_names"], trace["labels"][first], strict=True) if has]
    assert most[0]["labels"].split(" | ") == expected
    assert min(int(row["times_selected"]) for row in rows) == trace["times_selected"].min()


def test_failed_runs_are_listed_with_their_error(full: Path) -> None:
    assert "UBS mediamill clif 0 0 MemoryError: cannot allocate 96 GiB" in read(full).text


@pytest.mark.slow
def test_the_same_results_give_the_same_page_in_any_process(tmp_path: Path) -> None:
    for fold, selection in itertools.product(range(3), ("random", "balance", "active", "recent", "hard", "ubs")):
        ResultsStore(tmp_path).append(fake_run(selection=selection, fold=fold))
    pages = []
    for seed in "12":  # another order of the texts in a set
        code = f"from lightning_ubs.report import build_report; build_report({str(tmp_path)!r}, formats=('html',))"
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, check=True)
        pages.append((tmp_path / "report" / "index.html").read_text())
    assert "Significance tests" in pages[0]
    assert pages[0] == pages[1]


def test_a_figure_without_data_is_a_line_that_says_what_to_run(tmp_path: Path) -> None:
    ResultsStore(tmp_path).append(fake_run(selection="random", curves={}))
    page = read(build_report(tmp_path, formats=("html",)))
    for name in ("ablation", "lambda_sensitivity", "grid_s0_T", "convergence", "correlation_drift", "time"):
        assert f"lightning-ubs compare experiment={name}" in page.text
    assert "There is no verdict: the runs of Random hold no two methods to compare" in page.text
    assert page.tags["figure"] == 0


@pytest.mark.parametrize("datasets", [4, 5])
def test_methods_without_ubs_are_still_ranked_from_five_datasets_on(tmp_path: Path, datasets: int) -> None:
    for data, selection in itertools.product(range(datasets), ("random", "active", "hard")):
        ResultsStore(tmp_path).append(fake_run(f"set{data}", selection=selection, curves={}))
    page = read(build_report(tmp_path, formats=("html",)))
    assert "Active against Random" in page.text
    assert "Hard over Random" in page.text
    for words in ("Friedman test and critical differences", "Average rank"):
        assert (words in page.text) == (datasets == 5)


def test_savings_are_told_from_two_budgets_of_plain_shuffling_on(tmp_path: Path) -> None:
    short = {"epoch_size": 0.5}
    for fold, (selection, parameters) in itertools.product(range(3), (("random", {}), ("ubs", {}), ("ubs", short))):
        samples = {"samples": [750 if parameters else 1500] * 40}
        record = fake_run(selection=selection, fold=fold, parameters=parameters)
        save(tmp_path, replace(record, curves={**record.curves, **samples}))
    assert "Samples trained" not in build_report(tmp_path, formats=("html",)).read_text()
    for fold in range(3):
        record = fake_run(selection="random", fold=fold, parameters=short)
        save(tmp_path, replace(record, curves={**record.curves, "samples": [750] * 40}))
    assert "Samples trained" in build_report(tmp_path, formats=("html",)).read_text()


def test_the_page_says_what_was_run_and_by_which_command(tmp_path: Path) -> None:
    versions = {"torch": "2.6.0", "machine": "Linux x86_64, 2 processors"}
    save(
        tmp_path,
        *(fake_run(selection=name, fold=fold, versions=versions) for name in ("random", "ubs") for fold in range(3)),
    )
    page = read(build_report(tmp_path, formats=("html",), command="lightning-ubs compare data=yeast")).text
    what = page[page.rindex("What was run") :]
    told = ("1500 training samples", "lambda1 0.5", "40 epochs", "torch 2.6.0", "Linux x86_64", "compare data=yeast")
    assert [words for words in told if words not in what] == []


def test_few_datasets_are_said_to_be_no_independent_evidence(tmp_path: Path) -> None:
    for fold in range(3):
        for selection in ("random", "ubs"):
            ResultsStore(tmp_path).append(fake_run(selection=selection, fold=fold, curves={}))
    text = read(build_report(tmp_path, formats=("html",))).text
    assert "fewer than 5 datasets, so the unit is a split of a dataset" in text
    assert "Folds share training data and are not independent" in text
    assert "the smallest possible corrected p-value is 0.2500: no result here could be significant" in text


EVIL = '<script>alert("x")</script>'


def test_names_with_markup_are_shown_and_never_run(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    for fold in range(2):
        for selection in ("random", "hard", "ubs"):
            traced = selection == "ubs" and fold == 0
            label = f"{selection} {EVIL} $x_{{ & 'q'"
            record = fake_run(EVIL, f"m {EVIL}", selection, fold, label=label, trace=traced, warnings=(EVIL,))
            if traced:
                store.write_trace(record.key, **fake_trace([f"{EVIL}{number}" for number in range(6)], 50))
            store.append(record)
    store.append(fake_run(EVIL, status="failed", error=EVIL, metrics={}, curves={}))
    path = build_report(tmp_path, title=EVIL)
    page = read(path)
    assert page.tags["script"] == 0
    assert "<script" not in path.read_text().lower()
    assert page.text.count(EVIL) > 10
    assert f"ubs {EVIL} $x_{{ & 'q'" in page.text
    svg = (path.parent / "figures" / "gain.svg").read_text()
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert all("script" in file.name or "<" not in file.name for file in (path.parent / "figures").iterdir())
    assert r"\textless{}script\textgreater{}" in (path.parent / "tables" / "macro_auc.tex").read_text()


def test_a_broken_trace_costs_its_figures_and_nothing_else(tmp_path: Path) -> None:
    store = ResultsStore(tmp_path)
    record = fake_run(trace=True)
    store.append(record)
    store.write_trace(record.key, **fake_trace(samples=50)).write_bytes(b"PK broken")
    page = read(build_report(tmp_path, formats=("html",)))
    assert "Data map: lightning-ubs compare" in page.text


def test_formats_that_were_not_asked_for_are_not_written(tmp_path: Path) -> None:
    ResultsStore(tmp_path).append(fake_run(curves={}))
    assert build_report(tmp_path, formats=("csv",)) == tmp_path / "report"
    assert {path.suffix for path in (tmp_path / "report").rglob("*") if path.is_file()} == {".csv"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of fourteen datasets and three models, enough for folds and progress."""
    folder = tmp_path_factory.mktemp("many")
    curves = {"epoch": [0, 1, 2], "val_macro_auc": [0.5, 0.7, 0.6]}
    cells = itertools.product(range(14), ("mlp", "clif", "dela"), ("random", "ubs"))
    save(folder, *(fake_run(f"set{number}", model, name, curves=curves, best_epoch=1) for number, model, name in cells))
    return folder


@pytest.fixture(scope="module")
def large(many: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Their page, and what was printed meanwhile."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        page = build_report(many, tmp_path_factory.mktemp("large"), formats=("html",))
    return page, [line for line in printed.getvalue().splitlines() if line.startswith("report: ")]


@pytest.mark.slow
def test_a_large_report_shows_its_progress_and_folds_what_is_long(large: tuple[Path, list[str]]) -> None:
    path, lines = large
    total = read(path).tags["figure"]
    assert lines[-1] == f"report: {total} of {total} figures"
    assert len(lines) == 5
    text = path.read_text()
    for title in ("Ranking loss", "Hamming loss", "Macro average precision", "36 more"):
        assert f"<summary>{title}</summary>" in text
    assert "<summary>Macro-AUC</summary>" not in text
    assert len(text) < 15e6 / 5  # a fifth of the runs of the paper's grid


@pytest.mark.slow
def test_one_processor_gives_the_same_page_as_many(
    many: Path, large: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert build_report(many, tmp_path, formats=("html",)).read_bytes() == large[0].read_bytes()


def test_an_error_in_a_forked_process_reaches_the_caller() -> None:
    def fail(number: int) -> int:
        if number == 30:
            raise OSError(28, "No space left on device")
        return number

    with pytest.raises(OSError, match="No space left"):
        list(map_in_order(fail, range(60)))


def test_tables_alone_draw_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, fake_run(), fake_run(selection="random"))
    monkeypatch.setattr("lightning_ubs.report.gallery._render_all", lambda *_: pytest.fail("a figure was drawn"))
    build_report(tmp_path, formats=("csv", "latex"))


FRESH = """
import json, sys
before = set(sys.modules)
import lightning_ubs.report, lightning_ubs.experiment.store
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"__mp_main__"}
import matplotlib
settings = dict(matplotlib.rcParams.copy())
lightning_ubs.report.build_report(sys.argv[1])
heavy = [name for name in ("torch", "lightning", "hydra") if name in sys.modules]
now = dict(matplotlib.rcParams.copy())
from matplotlib import pyplot
print(json.dumps({"imports": sorted(new), "heavy": heavy, "figures": pyplot.get_fignums(),
                  "settings": [name for name in settings if settings[name] != now[name]]}))
"""


@pytest.fixture(scope="module")
def fresh_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    folder = tmp_path_factory.mktemp("fresh")
    for selection in ("random", "hard", "ubs"):
        ResultsStore(folder).append(fake_run(selection=selection))
    done = subprocess.run([sys.executable, "-c", FRESH, str(folder)], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def test_the_report_leaves_matplotlib_as_it_found_it(fresh_process: dict[str, list[object]]) -> None:
    assert fresh_process["settings"] == []
    assert fresh_process["figures"] == []


def test_importing_the_report_imports_no_optional_package(fresh_process: dict[str, list[object]]) -> None:
    assert set(fresh_process["imports"]) <= {"lightning_ubs", "numpy", "filelock"}  # filelock comes with torch


def test_a_report_of_current_results_needs_neither_torch_nor_lightning(fresh_process: dict[str, list[object]]) -> None:
    assert fresh_process["heavy"] == []


# Machado, Oliveira and Fernandes (2009), full severity.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def lab(color: str, sight: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """CIE Lab of an sRGB color as seen with a kind of color blindness."""
    values = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(sight @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("sight", BLINDNESS)
@pytest.mark.parametrize("tone", ["color", "dark"])
def test_colors_of_methods_stay_apart_for_color_blind_readers(sight: str, tone: str) -> None:
    looks = {row.key: row.look for row in METHODS if row.paper}
    seen = {name: lab(getattr(look, tone), BLINDNESS[sight]) for name, look in looks.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)


def test_the_report_reads_records_and_knows_nothing_of_how_they_are_made() -> None:
    used = set()
    for path in Path(report_package.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_ubs."):
                parts = str(node.module).removeprefix("lightning_ubs.").split(".")
                used.add(".".join(parts[:2]) if parts[0] == "experiment" else parts[0])
    assert used <= {
        *("_utils", "data", "errors", "inspection", "methods", "report"),
        *("experiment.record", "experiment.store"),
    }
