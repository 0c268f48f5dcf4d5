"""The tables of a report as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_ubs.report.paper import PaperCell
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import Significance
from lightning_ubs.report.speed import Speed
from lightning_ubs.report.tables import Table
from lightning_ubs.report.traces import Extremes
from lightning_ubs.report.verdict import Verdict


def table_csv(table: Table) -> str:
    """One line per value: metric, model, dataset, method, value, rank, spread, runs."""
    return _csv(
        ("metric", "model", "dataset", "method", "value", "rank", "spread", "runs"),
        (
            (
                table.metric.title,
                block.model,
                data,
                method,
                _number(cell.value),
                cell.rank,
                _number(cell.spread),
                cell.runs,
            )
            for block in table.blocks
            for data, row in block.rows.items()
            for method, cell in zip(table.methods, row, strict=True)
            if cell is not None
        ),
    )


def rank_csv(tables: Sequence[Table]) -> str:
    """Average ranks of all tables."""
    return _csv(
        ("metric", "model", "method", "average_rank"),
        (
            (table.metric.title, block.model, method, f"{rank:.4f}")
            for table in tables
            for block in table.blocks
            if block.average_ranks is not None
            for method, rank in zip(table.methods, block.average_ranks, strict=True)
            if rank is not None
        ),
    )


def significance_csv(tests: Sequence[Significance]) -> str:
    """Wilcoxon's test of each comparison, and Friedman's over all."""
    rows: list[Sequence[Any]] = []
    for test in tests:
        head = (test.units.metric.title, test.units.model, test.units.kind)
        rows += [
            (*head, "Wilcoxon", pair.ours, pair.theirs, pair.pairs, pair.wins, pair.losses, pair.p, pair.p_holm)
            for pair in test.pairs
        ]
        if test.ranks is not None:
            rows.append((*head, "Friedman", "", "", test.ranks.count, "", "", test.ranks.p, ""))
    names = ("metric", "model", "unit", "test", "method", "against", "pairs", "wins", "losses", "p", "p_holm")
    return _csv(names, rows)


def verdict_csv(verdicts: Sequence[Verdict]) -> str:
    """Gain, interval and datasets per comparison and metric."""
    interval = ("gain", "low", "high", "pairs", "unit", "verdict")
    return _csv(
        ("method", "against", "metric", *interval, "better", "worse", "datasets"),
        (
            (
                verdict.ours,
                verdict.theirs,
                gain.metric.title,
                _number(gain.interval.mean),
                _number(gain.interval.low),
                _number(gain.interval.high),
                gain.interval.pairs,
                gain.unit,
                gain.tone,
                gain.better,
                gain.worse,
                len(gain.datasets),
            )
            for verdict in verdicts
            for gain in verdict.gains
        ),
    )


def speed_csv(speeds: Sequence[Speed]) -> str:
    """Epochs and seconds to the baseline's best validation score, and cost per epoch."""
    return _csv(
        ("method", "pairs", "reached", "epochs", "random_epochs", "seconds", "random_seconds", "cost_per_epoch"),
        (
            (
                speed.method.label,
                speed.pairs,
                speed.reached,
                _number(speed.epochs),
                _number(speed.baseline_epochs),
                _number(speed.seconds),
                _number(speed.baseline_seconds),
                _number(speed.cost),
            )
            for speed in speeds
        ),
    )


def samples_csv(found: Sequence[Extremes]) -> str:
    """The samples selected most and least."""
    return _csv(
        ("data", "model", "method", "end", "row", "times_selected", "mean_uncertainty", "fluctuation", "labels"),
        (
            (one.run.data, one.run.model, one.run.method.label, end, sample.row, sample.times,
             _number(sample.uncertainty), _number(sample.fluctuation), " | ".join(sample.labels))
            for one in found
            for end, samples in (("most", one.most), ("least", one.least))
            for sample in samples
        ),
    )  # fmt: skip


def failed_csv(results: Results) -> str:
    """Runs that failed, with their errors."""
    names = ("key", "data", "model", "selection", "variant", "fold", "seed", "error")
    return _csv(names, ([getattr(record, name) for name in names] for record in results.failed))


def paper_csv(metric: str, cells: Sequence[PaperCell]) -> str:
    """The paper's values beside ours."""
    return _csv(
        ("metric", "model", "dataset", "method", "paper", "ours", "difference"),
        ((metric, c.model, c.data, c.method, _number(c.paper), _number(c.ours), _number(c.difference)) for c in cells),
    )


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ""


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return buffer.getvalue()
