"""The runs of a results folder by method, data and model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs.errors import StoreError
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.methods import BASELINE, REFERENCE, find_method
from lightning_ubs.report.errors import ReportError
from lightning_ubs.report.method import Method, clean, distinct_methods, main_methods, ordered
from lightning_ubs.report.metric import Metric, recorded_metrics

Array = np.ndarray[Any, np.dtype[np.float64]]
Unit = tuple[int, int]
Comparison = tuple[Method, Method]
_MOST_DRAWN = 8


@dataclass(frozen=True)
class Run:
    """One finished run."""

    key: str
    method: Method
    data: str
    model: str
    unit: Unit
    metrics: Mapping[str, float]
    curves: Mapping[str, Array]
    record: RunRecord = field(repr=False)

    @property
    def scores(self) -> Array:
        """The monitored metric by epoch, large is good; empty if it was not recorded."""
        values = self.curves.get(self.record.monitor, np.zeros(0))
        return values if self.record.mode == "max" else -values


class Results:
    """Finished runs by (method, data, model) and, within, by (fold, seed); failed runs.

    Args:
        records: All runs, finished or failed, in the order of writing.
        store: Where their traces are; None if nowhere.
        metrics: Keys of the metrics to show; None: see `recorded_metrics`.
        monitor: The logged name that the verdict is about; None: the one that the runs monitored.
    """

    def __init__(
        self,
        records: Sequence[RunRecord],
        store: ResultsStore | None = None,
        metrics: Sequence[str] | None = None,
        monitor: str | None = None,
    ) -> None:
        self.store = store
        finished = {record.key: record for record in records if record.finished}
        self.failed = list({record.key: record for record in records if record.key not in finished}.values())
        methods = distinct_methods(list(finished.values()))
        self.runs = [_run(record, methods[record.method]) for record in finished.values()]
        self.metrics: Sequence[Metric] = recorded_metrics(list(finished.values()), metrics, monitor)
        self.methods = ordered(list(dict.fromkeys(run.method for run in self.runs)))
        self.datasets = list(dict.fromkeys(run.data for run in self.runs))
        self.models = list(dict.fromkeys(run.model for run in self.runs))
        self._cells: dict[tuple[Method, str, str], dict[Unit, Run]] = defaultdict(dict)
        self.repeated = 0
        for run in self.runs:
            cell = self._cells[run.method, run.data, run.model]
            self.repeated += run.unit in cell
            cell[run.unit] = run
        self.main = main_methods(self.methods, Counter(run.method for run in self.runs))
        # A table holds every setting of a sweep; a figure with a line for each of many would be unreadable.
        self.drawn = self.methods if len(self.methods) <= _MOST_DRAWN else self.main
        self.reference = next((method for method in self.main if method.key == REFERENCE), None)
        self.baseline = next((method for method in self.main if method.key == BASELINE), None)

    @property
    def primary(self) -> Metric:
        """The metric that the verdict is about first."""
        return self.metrics[0]

    def cell(self, method: Method, data: str, model: str) -> dict[Unit, Run]:
        """Runs of one cell of a table, by (fold, seed)."""
        return self._cells.get((method, data, model), {})

    def settings(self) -> list[tuple[str, str]]:
        """All (data, model) that have runs, in the order of appearance."""
        return list(dict.fromkeys((run.data, run.model) for run in self.runs))

    @property
    def swept(self) -> bool:
        """Whether only settings of one method are compared."""
        return all(method.is_setting_of(self.methods[0]) for method in self.methods)

    @property
    def comparisons(self) -> list[Comparison]:
        """Which method is compared with which: the paper's with every other; all that the paper lacks with Random.

        Settings of the paper's method (a sweep) are not compared with each other, but each with Random.
        """
        ours, base = self.reference, self.baseline
        found = [(ours, method) for method in self.methods if ours is not None and not method.is_setting_of(ours)]
        if base is not None:
            found += [(method, base) for method in self.methods if method not in (ours, base) and self._is_new(method)]
        return [pair for pair in found if self._paired(*pair)]

    def _is_new(self, method: Method) -> bool:
        """Whether a method is more than one of the paper's competitors or a part of its ablation."""
        row = find_method(method.selection)
        known = row is not None and row.paper != "" and (method in self.main or method.variant not in ("", "A"))
        return self.reference is None or not known

    def _paired(self, ours: Method, theirs: Method) -> bool:
        return any(
            self.cell(ours, data, model).keys() & self.cell(theirs, data, model).keys()
            for data, model in self.settings()
        )


def load_results(folder: Path, metrics: Sequence[str] | None = None) -> Results:
    """Read and check a results folder."""
    store = ResultsStore(folder)
    try:
        records = store.records()
    except StoreError as error:
        raise ReportError(str(error)) from error
    if not records:
        raise ReportError(
            f"there are no results in {str(folder)!r}; run `lightning-ubs compare` first, or give the folder that "
            "holds runs.jsonl or runs.jsonl.xz."
        )
    return checked_results(records, store, metrics)


def checked_results(
    records: Sequence[RunRecord],
    store: ResultsStore | None = None,
    metrics: Sequence[str] | None = None,
    monitor: str | None = None,
) -> Results:
    """The results of these records, if any of them finished and measured something."""
    if not any(record.finished for record in records):
        last = (str(records[-1].error or "no message").strip().splitlines() or [""])[-1] if records else "no run"
        raise ReportError(
            f"none of the {len(records)} runs finished; the last failed with: {last.rstrip('.')}. Correct that and run "
            "the comparison again."
        )
    results = Results(records, store, metrics, monitor)
    if not results.metrics:
        raise ReportError(
            f"none of the {len(results.runs)} runs recorded a metric; log one as val_NAME or test_NAME and run again."
        )
    return results


def _run(record: RunRecord, method: Method) -> Run:
    curves = {
        name: np.array([np.nan if value is None else value for value in values], dtype=float)
        for name, values in record.curves.items()
        if values
    }
    length = len(curves.get("epoch", ()))
    return Run(
        key=record.key,
        method=method,
        data=clean(record.data),
        model=clean(record.model),
        unit=(record.fold, record.seed),
        metrics={name: metric.value for name, metric in record.metrics.items()},
        curves={name: values for name, values in curves.items() if len(values) == length},
        record=record,
    )
