"""A report: everything that a set of runs says, computed once, for the console, the page and the tables alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from lightning_ubs._utils.files import write_file
from lightning_ubs.errors import ReportError
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.report import table_files
from lightning_ubs.report.console import console_text
from lightning_ubs.report.contents import TITLE, Contents
from lightning_ubs.report.gallery import render_gallery
from lightning_ubs.report.page import render_page
from lightning_ubs.report.results import checked_results, load_results
from lightning_ubs.report.verdict import checked_margin

log = logging.getLogger(__name__)
FORMATS = ("html", "svg", "png", "csv", "latex")
DEFAULT_FORMATS = ("html", "svg", "csv", "latex")


class Report(Contents):
    """All numbers and words about a set of runs, with what can be done with them: read in a terminal, or written."""

    @classmethod
    def of(
        cls,
        records: Sequence[RunRecord],
        monitor: str | None = None,
        margin: float | None = None,
        store: ResultsStore | None = None,
    ) -> Report:
        """The report of these runs, finished or failed.

        Args:
            records: The runs, in the order of writing.
            monitor: The logged name of the metric that decides, such as ``val_auc``; None: what the runs monitored.
            margin: Differences that do not matter.
            store: Where their traces are.

        Raises:
            ReportError: If no run finished, or none recorded that metric.
        """
        if margin is not None:
            checked_margin(margin)
        return cls(checked_results(records, store, monitor=monitor), margin)

    @classmethod
    def of_folder(
        cls,
        results: str | os.PathLike[str],
        paper: str | os.PathLike[str] | None = None,
        title: str = TITLE,
        metrics: str | Sequence[str] | None = None,
        margin: float | None = None,
        monitor: str | None = None,
        command: str = "",
    ) -> Report:
        """The report of a results folder; arguments as for `build_report`.

        Raises:
            ReportError: If there is nothing to report.
        """
        checked_margin(margin)
        metrics = [metrics] if isinstance(metrics, str) else metrics
        found = load_results(Path(results), metrics, monitor)
        return cls(found, margin, title, Path(paper) if paper is not None else None, command)

    def about(self, records: Sequence[RunRecord]) -> Report:
        """The report of these runs: this one if it is about no others, so that nothing is computed twice."""
        own = [*(run.record for run in self.results.runs), *self.results.failed]
        same = {(one.key, one.label) for one in own} == {(one.key, one.label) for one in records}
        return self if same else Report.of(records, self.results.monitor, self.margin)

    @cached_property
    def summary(self) -> str:
        """The answer for a terminal, in at most twelve lines."""
        return console_text(self)

    def write(self, folder: str | os.PathLike[str], formats: str | Sequence[str] = DEFAULT_FORMATS) -> Path:
        """Write the report; return the path of the page, or the folder if ``html`` is not among the formats.

        Args:
            folder: Where to; it is made.
            formats: ``html`` (one self-contained page), ``svg`` and ``png`` (figures), ``csv`` and ``latex`` (tables).
                Figures are drawn only for the formats that need them.

        Raises:
            ReportError: If a format is unknown or the folder cannot be written.
        """
        formats = checked_formats(formats)
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return self._write(folder, formats)
        except OSError as error:
            raise ReportError(
                f"cannot write the report to {str(folder)!r} ({error.strerror}); choose another output folder."
            ) from error

    def _write(self, folder: Path, formats: Sequence[str]) -> Path:
        gallery = render_gallery(self, folder / "figures", formats)
        if {"csv", "latex"} & set(formats):
            (folder / "tables").mkdir(parents=True, exist_ok=True)
            for name, text in self._table_files().items():
                if ("csv" if name.endswith(".csv") else "latex") in formats:
                    write_file(folder / "tables" / name, text)
        if "html" not in formats:
            return folder
        page = folder / "index.html"
        write_file(page, render_page(self, gallery))
        log.info("report written to %s", page)
        return page

    def _table_files(self) -> dict[str, str]:
        texts = {
            "average_ranks.csv": table_files.rank_csv(self.tables),
            "significance.csv": table_files.significance_csv(self.tests),
            "significance.tex": table_files.significance_latex(self.tests),
            "verdict.csv": table_files.verdict_csv(self.verdicts),
            "verdict.tex": table_files.verdict_latex(self.verdicts),
            "speed.csv": table_files.speed_csv(self.speeds),
            "labels.csv": table_files.labels_csv(self.labels),
            "samples.csv": table_files.samples_csv(self.samples),
            "failed.csv": table_files.failed_csv(self.results),
        }
        for table in self.tables:
            texts[f"{table.metric.key}.csv"] = table_files.table_csv(table)
            texts[f"{table.metric.key}.tex"] = table_files.table_latex(table)
        for table, cells in self.paper.cells if self.paper is not None else ():
            texts[f"paper_{table.metric.key}.csv"] = table_files.paper_csv(table.metric.title, cells)
        return texts


def console_verdict(records: Sequence[RunRecord], monitor: str | None = None, margin: float | None = None) -> str:
    """The verdict for a terminal, in at most twelve lines; what they do not hold is named.

    Args:
        records: All runs, finished or failed.
        monitor: The logged name of the metric that decides, such as ``val_auc``; None: what the runs monitored.
        margin: Differences that do not matter; None: 0.001.

    Raises:
        ReportError: If no run finished, or none recorded that metric.
    """
    return Report.of(records, monitor, margin).summary


def build_report(
    results: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    paper: str | os.PathLike[str] | None = None,
    title: str = TITLE,
    formats: str | Sequence[str] = DEFAULT_FORMATS,
    metrics: str | Sequence[str] | None = None,
    margin: float | None = None,
    command: str = "",
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
        margin: Differences that do not matter: up to it two methods count as equal, and a cheaper training as no worse.
        command: What was typed to get here, for the page.

    Returns:
        The path of ``index.html``, or the output folder if ``html`` is not among the formats.

    Raises:
        ReportError: If there is nothing to report or it cannot be written; the message says what to do.
    """
    formats = checked_formats(formats)
    report = Report.of_folder(results, paper, title, metrics, margin, command=command)
    return report.write(output or Path(results) / "report", formats)


def checked_formats(formats: str | Sequence[str]) -> list[str]:
    """The formats as a list.

    Raises:
        ReportError: If one is unknown.
    """
    found = [formats] if isinstance(formats, str) else list(formats)
    unknown = [name for name in found if name not in FORMATS]
    if unknown:
        raise ReportError(f"formats={unknown[0]!r} is unknown; choose from {', '.join(FORMATS)}.")
    return found
