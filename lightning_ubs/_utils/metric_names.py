"""The metrics that the models of this package log: one row says all that identifies one. Users' own need no row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownMetric:
    """A metric that `lightning_ubs.models` log.

    Attributes:
        key: Its name in logs, without ``val_`` or ``test_``, and in results.
        title: Its name in print.
        higher_is_better: Which way is better.
        reported: Whether a report has a table of it by default.
        collected: Whether `lightning_ubs.metrics.multilabel_metrics` has it; the models derive the others.
    """

    key: str
    title: str
    higher_is_better: bool
    reported: bool = False
    collected: bool = True


THIRDS: tuple[str, ...] = ("rare", "medium", "frequent")
"""Thirds of the labels by how many training samples have them."""


METRICS: tuple[KnownMetric, ...] = (
    KnownMetric("macro_auc", "Macro-AUC", True, reported=True),
    KnownMetric("ranking_loss", "Ranking loss", False, reported=True),
    KnownMetric("hamming_loss", "Hamming loss", False, reported=True),
    KnownMetric("map", "Macro average precision", True, reported=True),
    KnownMetric("one_error", "One-error", False),
    KnownMetric("coverage", "Coverage", False),
    KnownMetric("micro_f1", "Micro-F1", True),
    KnownMetric("macro_f1", "Macro-F1", True),
    KnownMetric("brier_score", "Brier score", False),
    KnownMetric("calibration_error", "Calibration error", False),
    KnownMetric("macro_auc_half", "Macro-AUC, ties half", True, collected=False),
    *(KnownMetric(f"map_{third}", f"Average precision, {third} labels", True, collected=False) for third in THIRDS),
)
"""The paper's three come first, then macro average precision."""

TITLES: dict[str, str] = {row.key: row.title for row in METRICS}
"""What each key is called in print."""

REPORTED: tuple[str, ...] = tuple(row.key for row in METRICS if row.reported)
"""What a report shows by default: the paper's three, and macro average precision."""
