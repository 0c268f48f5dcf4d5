"""From a results folder to an answer: tables, tests, a verdict in words, figures, one HTML page."""

from pathlib import Path

from lightning_ubs.report.errors import ReportError
from lightning_ubs.report.verdict import console_verdict
from lightning_ubs.report.writing import build_report

#: The numbers printed in the paper's three tables: metric, model, dataset, method, value, rank.
PAPER_TABLES = Path(__file__).parent / "paper_tables.csv"

__all__ = ["PAPER_TABLES", "ReportError", "build_report", "console_verdict"]
