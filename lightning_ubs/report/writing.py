"""From a results folder to the files of its report."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from lightning_ubs._utils.files import write_file
from lightning_ubs.report import csv_tables, latex_tables
from lightning_ubs.report.contents import Report, make_report
from lightning_ubs.report.errors import ReportError
from lightning_ubs.report.gallery import render_gallery
from lightning_ubs.report.page import render_page
from lightning_ubs.report.results import load_results
from lightning_ubs.report.saving import check_margin

log = logging.getLogger(__name__)
FORMATS = ("html", "svg", "png", "csv", "latex")
DEFAULT_FORMATS = ("html", "svg", "csv", "latex")


def build_report(
    results: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    paper: str | os.PathLike[str] | None = None,
    title: str = "Batch selection, compared",
    formats: str | Sequence[str] = DEFAULT_FORMATS,
    metrics: str | Sequence[str] | None = None,
    margin: float | None = None,
) -> Path:
    """Write the report of a results folder.

    Args:
        results: Folder with ``runs.jsonl``.
        output: Where to write; default ``results/report``.
        paper: CSV (metric, model, dataset, method, value) of printed tables to show beside ours.
        title: Heading of the page.
        formats: What to write: ``html`` (one self-contained page), ``svg`` and ``png`` (figures), ``csv`` and ``latex``
            (tables). Figures are drawn only for the formats that need them; ``png`` about doubles the time.
        metrics: Which to show, such as ``["macro_auc", "one_error"]``; default: the paper's three and macro average
            precision of the built-in models, and every metric of your own.
        margin: Non-inferiority margin: the loss in the first metric up to which a cheaper training counts as no worse.

    Returns:
        The path of ``index.html``, or the output folder if ``html`` is not among the formats.

    Raises:
        ReportError: If there is nothing to report or it cannot be written; the message says what to do.
    """
    formats = [formats] if isinstance(formats, str) else list(formats)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ReportError(f"formats={unknown[0]!r} is unknown; choose from {', '.join(FORMATS)}.")
    check_margin(margin)
    folder = Path(output) if output is not None else Path(results) / "report"
    found = load_results(Path(results), metrics)
    report = make_report(found, title, Path(paper) if paper is not None else None, margin)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        gallery = render_gallery(report, folder / "figures", formats)
        if {"csv", "latex"} & set(formats):
            _write_tables(report, folder / "tables", formats)
        if "html" not in formats:
            return folder
        page = folder / "index.html"
        write_file(page, render_page(report, gallery))
    except OSError as error:
        raise ReportError(
            f"cannot write the report to {str(folder)!r} ({error.strerror}); choose another output folder."
        ) from error
    log.info("report written to %s", page)
    return page


def _write_tables(report: Report, folder: Path, formats: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "average_ranks.csv": csv_tables.rank_csv(report.tables),
        "significance.csv": csv_tables.significance_csv(report.tests),
        "significance.tex": latex_tables.significance_latex(report.tests),
        "verdict.csv": csv_tables.verdict_csv(report.verdicts),
        "verdict.tex": latex_tables.verdict_latex(report.verdicts),
        "speed.csv": csv_tables.speed_csv(report.speeds),
        "samples.csv": csv_tables.samples_csv(report.samples),
        "failed.csv": csv_tables.failed_csv(report.results),
    }
    for table in report.tables:
        texts[f"{table.metric.key}.csv"] = csv_tables.table_csv(table)
        texts[f"{table.metric.key}.tex"] = latex_tables.table_latex(table)
    for table, cells in report.paper.cells if report.paper is not None else ():
        texts[f"paper_{table.metric.key}.csv"] = csv_tables.paper_csv(table.metric.title, cells)
    for name, text in texts.items():
        if ("csv" if name.endswith(".csv") else "latex") in formats:
            write_file(folder / name, text)
