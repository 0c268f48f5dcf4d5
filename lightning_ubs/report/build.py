"""The report: reads a results folder, computes everything once, writes page, figures and tables."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lightning_ubs.report import export
from lightning_ubs.report.figures import critical_difference, forest
from lightning_ubs.report.figures.ablation import ABLATION
from lightning_ubs.report.figures.canvas import THEME, Drawing, Idea, for_page, house_style, settle, to_png, to_svg
from lightning_ubs.report.figures.curves import DRIFT, LOSS, VALIDATION
from lightning_ubs.report.figures.data_map import DATA_MAP
from lightning_ubs.report.figures.matrices import MATRICES
from lightning_ubs.report.figures.palette import looks, theme
from lightning_ubs.report.figures.sensitivity import GRID_S0_T, LAMBDA
from lightning_ubs.report.figures.timing import TIME
from lightning_ubs.report.measures import MEASURES
from lightning_ubs.report.page import Picture, Section, render_page
from lightning_ubs.report.paper import Beside, beside, paper_index, read_paper
from lightning_ubs.report.results import ReportError, Results, load_results
from lightning_ubs.report.significance import Significance, result_units, run_tests, table_units
from lightning_ubs.report.speed import Speed, measure_speed
from lightning_ubs.report.tables import Table, build_table
from lightning_ubs.report.traces import Extremes, extremes
from lightning_ubs.report.verdict import Verdict, judge, summary

log = logging.getLogger(__name__)
FORMATS = ("html", "png", "svg", "csv", "latex")
IDEAS: tuple[Idea, ...] = (
    VALIDATION,
    LOSS,
    TIME,
    DRIFT,
    MATRICES,
    ABLATION,
    LAMBDA,
    GRID_S0_T,
    DATA_MAP,
)


@dataclass
class Report:
    """Everything the page says, before it is laid out."""

    title: str
    results: Results
    tables: Sequence[Table]
    tests: Sequence[Significance]
    verdicts: Sequence[Verdict]
    summary: str
    speeds: Sequence[Speed]
    samples: Sequence[Extremes]
    paper: Sequence[Table] = ()
    paper_tests: Sequence[Significance] = ()
    beside: Sequence[tuple[Table, Sequence[Beside]]] = ()
    gain: Picture | None = None
    diagrams: Sequence[Picture] = ()
    sections: list[Section] = field(default_factory=list)
    missing: list[Idea] = field(default_factory=list)


def build_report(
    results: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    paper: str | os.PathLike[str] | None = None,
    title: str = "Batch selection, compared",
    formats: Sequence[str] = FORMATS,
) -> Path:
    """Write the report of a results folder.

    Args:
        results: folder with ``runs.jsonl``.
        output: where to write; default ``results/report``.
        paper: CSV (metric, model, dataset, method, value) of printed tables to show beside ours.
        title: heading of the page.
        formats: what to write: ``html`` (one self-contained page), ``png`` and ``svg`` (figures), ``csv`` and
            ``latex`` (tables).

    Returns:
        The path of ``index.html``, or the output folder if ``html`` is not among the formats.

    Raises:
        ReportError: if there is nothing to report or it cannot be written; the message says what to do.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ReportError(f"formats={unknown[0]!r} is unknown; choose from {', '.join(FORMATS)}")
    folder = Path(output) if output is not None else Path(results) / "report"
    report = compute(load_results(Path(results)), title, Path(paper) if paper is not None else None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _draw(report, folder / "figures", formats)
        if {"csv", "latex"} & set(formats):
            _write_tables(report, folder / "tables", formats)
        if "html" not in formats:
            return folder
        page = folder / "index.html"
        page.write_text(render_page(report), encoding="utf-8")
    except OSError as error:
        raise ReportError(
            f"cannot write the report to {str(folder)!r} ({error.strerror}); choose another output folder"
        ) from error
    log.info("report written to %s", page)
    return page


def compute(results: Results, title: str, paper: Path | None) -> Report:
    """All numbers and words of the report."""
    tables = [table for measure in MEASURES if (table := build_table(results, measure)).blocks]
    reference = results.compared.index(results.reference) if results.reference and results.competitors else None
    tests = [run_tests(result_units(results, table, block), reference) for table in tables for block in table.blocks]
    verdicts = judge(results)
    speeds = [speed for method in results.compared if (speed := measure_speed(results, method)) is not None]
    report = Report(title, results, tables, tests, verdicts, summary(results, verdicts), speeds, extremes(results))
    if paper is not None:
        report.paper = read_paper(paper)
        report.paper_tests = [
            run_tests(table_units(table, block), paper_index(table.methods))
            for table in report.paper
            for block in table.blocks
        ]
        printed = {table.measure: table for table in report.paper}
        report.beside = [
            (table, cells)
            for table in tables
            if table.measure in printed and (cells := beside(table, printed[table.measure], results))
        ]
    return report


def _draw(report: Report, folder: Path, formats: Sequence[str]) -> None:
    look = looks(report.results.compared)
    colours = {method.label: style.colour for method, style in look.items()}
    taken: set[str] = set()

    def pictures(drawings: Iterable[Drawing]) -> list[Picture]:
        return [_write_figure(drawing, folder, formats, taken) for drawing in drawings]

    with house_style():
        if report.verdicts and report.results.reference is not None:
            style = look[report.results.reference]
            (report.gain,) = pictures([forest.draw(report.verdicts, report.results.reference.label, style.colour)])
        ranked = [test.ranks for test in report.tests if test.ranks is not None and not report.results.swept]
        report.diagrams = pictures(critical_difference.draw(test, colours) for test in ranked)
        for idea in IDEAS:
            found = pictures(idea.draw(report.results))
            if found:
                report.sections.append(Section(idea, found))
            else:
                report.missing.append(idea)


def _write_figure(drawing: Drawing, folder: Path, formats: Sequence[str], taken: set[str]) -> Picture:
    name, number = drawing.name, 2
    while name in taken:
        name, number = f"{drawing.name}-{number}", number + 1
    taken.add(name)
    settle(drawing.figure)
    svg = to_svg(drawing.figure, name) if {"html", "svg"} & set(formats) else ""
    if {"png", "svg"} & set(formats):
        folder.mkdir(parents=True, exist_ok=True)
    if "svg" in formats:
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    if "png" in formats:
        (folder / f"{name}.png").write_bytes(to_png(drawing.figure))
    inline = for_page(svg, drawing.alt, THEME | theme()) if "html" in formats else ""
    return Picture(name, drawing.title, drawing.alt, inline)


def _write_tables(report: Report, folder: Path, formats: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "average_ranks.csv": export.rank_csv(report.tables),
        "significance.csv": export.significance_csv(report.tests),
        "significance.tex": export.significance_latex(report.tests),
        "verdict.csv": export.verdict_csv(report.verdicts),
        "speed.csv": export.speed_csv(report.speeds),
        "samples.csv": export.samples_csv(report.samples),
        "failed.csv": export.failed_csv(report.results),
    }
    for table in report.tables:
        texts[f"{table.measure.key}.csv"] = export.table_csv(table)
        texts[f"{table.measure.key}.tex"] = export.table_latex(table)
    for table, cells in report.beside:
        texts[f"paper_{table.measure.key}.csv"] = export.beside_csv(table.measure.title, cells)
    for name, text in texts.items():
        if ("csv" if name.endswith(".csv") else "latex") in formats:
            (folder / name).write_text(text, encoding="utf-8")
