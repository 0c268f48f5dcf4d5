"""From a results folder to an answer: tables, tests, a verdict in words, figures, one HTML page."""

from lightning_ubs.report.build import build_report
from lightning_ubs.report.results import ReportError

__all__ = ["ReportError", "build_report"]
