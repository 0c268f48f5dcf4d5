"""From a results folder to an answer: tables, tests, a verdict in words, figures, one HTML page."""

from pathlib import Path

from lightning_ubs.errors import ReportError
from lightning_ubs.report.report import Report, build_report, console_verdict

#: The numbers printed in the paper's three tables: metric, model, dataset, method, value, rank.
PAPER_TABLES = Path(__file__).parent / "paper_tables.csv"

__all__ = ["PAPER_TABLES", "Report", "ReportError", "build_report", "console_verdict"]
