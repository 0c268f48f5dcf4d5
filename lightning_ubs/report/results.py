"""The runs of a results folder by method, data and model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs.errors import ReportError, StoreError
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.methods import BASELINE, CONTROL, REFERENCE
from lightning_ubs.report.evidence import MIN_DATASETS
from lightning_ubs.report.method import (
    Method,
    clean,
    distinct_methods,
    identity_of,
    loss_order,
    losses_of,
    main_methods,
    ordered,
)
from lightning_ubs.report.metric import Metric, recorded_metrics

Array = np.ndarray[Any, np.dtype[np.float64]]
Unit = tuple[int, int]
Comparison = tuple[Method, Method]
_MOST_DRAWN = 8
#: Published sets whose repaired form has a name of its own.
REPAIRED = {"langlog": "LLOG-F"}


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        key: Key of its record.
        method: Its batch selection.
        data: Name of its data, with what a sweep added.
        model: Name of its model, likewise; without its loss where there are several, which then is part of the method.
        unit: Fold and seed.
        dataset: The dataset as a unit of evidence: without a sweep's values, and one name for a set and its repaired
            form.
        split: Which split of the dataset it was trained on.
        metrics: Value by name.
        curves: Values by epoch.
        record: All that is known of it.
    """

    key: str
    method: Method
    data: str
    model: str
    unit: Unit
    dataset: str
    split: str
    metrics: Mapping[str, float]
    curves: Mapping[str, Array]
    record: RunRecord = field(repr=False)

    @property
    def setting(self) -> str:
        """With what it was trained besides the method: its model, and swept values of its data."""
        return " ".join([self.model, *(word for word in self.data.split(" ") if "=" in word)])

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
        self.store, self.monitor = store, monitor
        finished = {record.key: record for record in records if record.finished}
        self.failed = list({record.key: record for record in records if record.key not in finished}.values())
        done = list(finished.values())
        losses = losses_of([clean(record.model) for record in done])
        methods, splits = distinct_methods(done, losses), _splits(done)
        self.runs = [
            _run(record, methods[identity_of(record, losses)], losses[clean(record.model)][0], splits[record.key])
            for record in done
        ]
        self.metrics: Sequence[Metric] = recorded_metrics(done, metrics, monitor)
        self.losses = loss_order(loss for _, loss in losses.values())
        self.methods = ordered(list(dict.fromkeys(run.method for run in self.runs)), self.losses)
        self.datasets = list(dict.fromkeys(run.data for run in self.runs))
        self.models = list(dict.fromkeys(run.model for run in self.runs))
        self._cells: dict[tuple[Method, str, str], dict[Unit, Run]] = defaultdict(dict)
        self.repeated = 0
        for run in self.runs:
            cell = self._cells[run.method, run.data, run.model]
            self.repeated += run.unit in cell
            cell[run.unit] = max(cell.get(run.unit, run), run, key=_started)
        self._counts = Counter(run.method for run in self.runs)
        self.main = main_methods(self.methods, self._counts)
        # A table holds every setting of a sweep; a figure with a line for each of many would be unreadable.
        self.drawn = self.methods if len(self.methods) <= _MOST_DRAWN else self.main
        self.reference = next((method for method in self.main if method.key == REFERENCE), None)
        self.baseline = next((method for method in self.main if method.key == BASELINE), None)
        places = [(one, clean(one.model), (one.fold, one.seed)) for one in self.failed]
        self.failures = {
            (methods[identity_of(one, losses)], clean(one.data), losses[model][0], unit)
            for one, model, unit in places
            if model in losses and identity_of(one, losses) in methods
        }

    @property
    def primary(self) -> Metric:
        """The metric that the verdict is about first."""
        return self.metrics[0]

    def cell(self, method: Method, data: str, model: str) -> dict[Unit, Run]:
        """Runs of one cell of a table, by (fold, seed)."""
        return self._cells.get((method, data, model), {})

    def pairs(self, ours: Method, theirs: Method) -> list[tuple[Run, Run]]:
        """Runs of two methods on the same data, model, fold and seed."""
        found = []
        for data, model in self.settings():
            mine, other = self.cell(ours, data, model), self.cell(theirs, data, model)
            found += [(mine[unit], other[unit]) for unit in sorted(mine.keys() & other.keys())]
        return found

    def settings(self) -> list[tuple[str, str]]:
        """All (data, model) that have runs, in the order of appearance."""
        return list(dict.fromkeys((run.data, run.model) for run in self.runs))

    @property
    def ranked(self) -> bool:
        """Whether there are enough datasets for ranks, Friedman's test and critical differences."""
        return len({run.dataset for run in self.runs}) >= MIN_DATASETS

    @property
    def several_budgets(self) -> bool:
        """Whether plain shuffling was trained with several budgets, without which no saving can be shown."""
        plain = [run for run in self.runs if run.method.key == BASELINE]
        return len({(run.record.max_epochs, str(run.method.values.get("epoch_size"))) for run in plain}) > 1

    @property
    def swept(self) -> bool:
        """Whether only settings of one method are compared."""
        return all(method.is_setting_of(self.methods[0]) for method in self.methods)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Each method with one other: Random; a part of an ablation with the whole method, where that is there.

        Without Random, the paper's method is compared with every other one. Settings of a method (a sweep) are not
        compared with each other, and a control that emphasizes nothing is compared with the method it belongs to.
        A grid of losses is read both ways: each method with the first loss (see `loss_order`), if the metric is the
        same for all losses; and with Random of the same loss.
        """
        ours, found = self.reference, []
        for method in self.methods:
            if self.control_of(method) is not None:
                continue
            if method.loss != self.losses[0] and self.primary.key != "loss":
                found += [
                    (method, one)
                    for one in self.methods
                    if one == replace(method, label=one.label, loss=one.loss) and one.loss == self.losses[0]
                ]
            whole, base = self._whole(method), self._plain(method.loss)
            other = whole if whole is not None else base
            if other is not None and method != other:
                found.append((whole, method) if whole is not None else (method, other))
        if self.baseline is None and ours is not None:
            found = [(ours, method) for method in self.methods if not method.is_setting_of(ours)]
        return [pair for pair in found if self.pairs(*pair)]

    def control_of(self, method: Method) -> Method | None:
        """The method whose probabilities this one deals to random samples; None for any other."""
        if method.key != CONTROL:
            return None
        of = method.values.get("of")
        return next((one for one in self.methods if (one.name, one.loss) == (of, method.loss) and one != method), None)

    def _plain(self, loss: str) -> Method | None:
        """Random with this loss."""
        same = [one for one in self.methods if one.loss == loss]
        return next((one for one in main_methods(same, self._counts) if one.key == BASELINE), None)

    def _whole(self, method: Method) -> Method | None:
        """The full method of which this is a part left out in an ablation."""
        same = [one for one in self.methods if one.loss == method.loss]
        own = [one for one in main_methods(same, self._counts) if one.key == method.key and one.variant in ("", "A")]
        return own[0] if own and method.variant not in ("", "A") else None


def load_results(folder: Path, metrics: Sequence[str] | None = None, monitor: str | None = None) -> Results:
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
    return checked_results(records, store, metrics, monitor)


def checked_results(
    records: Sequence[RunRecord],
    store: ResultsStore | None = None,
    metrics: Sequence[str] | None = None,
    monitor: str | None = None,
) -> Results:
    """The results of these records, if any of them finished and measured something."""
    if not records:
        raise ReportError("there are no runs to compare; run `lightning-ubs compare` first.")
    if not any(record.finished for record in records):
        last = (str(records[-1].error or "no message").strip().splitlines() or [""])[-1]
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


def dataset_of(data: str) -> str:
    """The dataset behind a name: without the values of a sweep, a repaired form under the name of the original.

    >>> dataset_of("rcv1subset1_aligned"), dataset_of("digits label_noise=0.2")
    ('rcv1subset1', 'digits')
    """
    words = [word for word in data.split(" ") if "=" not in word] or [data]
    name = " ".join(words)
    return REPAIRED.get(name, name.removesuffix("_aligned"))


def plain_model(run: Run) -> str:
    """The model's name without the budget that a sweep of trainer.max_epochs adds to it."""
    budget = f"max_epochs={run.record.max_epochs}"
    return " ".join(word for word in run.model.split(" ") if word != budget)


def _splits(records: Sequence[RunRecord]) -> dict[str, str]:
    """The split of each run, by key.

    A fold is a split, and so are runs of the same data with the same training targets, and all runs of a dataset where
    neither folds nor targets tell them apart. A fold and seed stand for the same split in every form of a dataset: in
    its repaired form, or with swept values that change the targets.
    """
    by_data: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        by_data[dataset_of(clean(record.data))].append(record)
    found: dict[str, str] = {}
    for group in by_data.values():
        by_fold = len({record.fold for record in group}) > 1
        joined: dict[Hashable, Hashable] = {}
        for record in group:
            unit = ("unit", record.fold, record.seed)
            if by_fold:
                _join(joined, unit, ("fold", record.fold))
            if record.split or not by_fold:
                _join(joined, unit, ("targets", record.data if record.split else "", record.split))
        names = {root: str(number) for number, root in enumerate(dict.fromkeys(_root(joined, one) for one in joined))}
        found |= {record.key: names[_root(joined, ("unit", record.fold, record.seed))] for record in group}
    return found


def _started(run: Run) -> tuple[str, int, str]:
    """What tells the last of several runs of one cell and unit, whatever the order in which they were written."""
    return run.record.started, run.record.max_epochs or 0, run.key


def _root(joined: dict[Hashable, Hashable], one: Hashable) -> Hashable:
    while joined.setdefault(one, one) != one:
        one = joined[one]
    return one


def _join(joined: dict[Hashable, Hashable], one: Hashable, other: Hashable) -> None:
    joined[_root(joined, one)] = _root(joined, other)


def _run(record: RunRecord, method: Method, model: str, split: str) -> Run:
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
        model=model,
        unit=(record.fold, record.seed),
        dataset=dataset_of(clean(record.data)),
        split=split,
        metrics={name: metric.value for name, metric in record.metrics.items()},
        curves={name: values for name, values in curves.items() if len(values) == length},
        record=record,
    )
