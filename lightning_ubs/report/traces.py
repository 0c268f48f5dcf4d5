"""The arrays that runs left behind: correlation matrices, and what became of each sample."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from lightning_ubs.errors import StoreError
from lightning_ubs.report.results import Results, Run, Unit

log = logging.getLogger(__name__)
Trace = dict[str, np.ndarray[Any, Any]]
_NEEDED = ("times_selected", "mean_uncertainty", "fluctuation", "correlations")


@dataclass(frozen=True)
class TracedRun:
    """A run and the arrays that it left behind."""

    run: Run
    trace: Trace


def find_traces(results: Results) -> list[TracedRun]:
    """One run per data and model that kept most of what figures need, the reference method's if it did."""
    methods = [results.reference] if results.reference else []
    methods += [method for method in results.methods if method not in methods]
    found = []
    for data, model in results.settings():
        candidates: list[TracedRun] = []
        for method in methods:
            candidates += islice(_traced(results, sorted(results.cell(method, data, model).items())), 1)
            if candidates and _completeness(candidates[-1]) == len(_NEEDED):
                break
        if candidates:
            found.append(max(candidates, key=_completeness))
    return found


def _traced(results: Results, runs: Iterable[tuple[Unit, Run]]) -> Iterator[TracedRun]:
    for _, run in runs:
        trace = _load_trace(results, run)
        if trace is not None and "times_selected" in trace:
            yield TracedRun(run, trace)


def _completeness(one: TracedRun) -> int:
    return sum(name in one.trace for name in _NEEDED)


def _load_trace(results: Results, run: Run) -> Trace | None:
    if not run.record.trace or results.store is None:
        return None
    try:
        return results.store.read_trace(run.key)
    except StoreError as error:
        log.warning("%s", error)
        return None


def label_names(trace: Trace, count: int) -> list[str]:
    """The names of the labels, or their numbers."""
    names = [str(name) for name in trace.get("label_names", ())]
    return names if len(names) == count else [str(number) for number in range(count)]


@dataclass(frozen=True)
class Sample:
    """One training sample: its row in the full data, how often it was selected, its uncertainty, its labels."""

    row: int
    times: int
    uncertainty: float
    fluctuation: float
    labels: Sequence[str]


@dataclass(frozen=True)
class Extremes:
    """The samples selected most and least in one run."""

    run: Run
    most: Sequence[Sample]
    least: Sequence[Sample]


def find_extremes(traced: Sequence[TracedRun], count: int = 8) -> list[Extremes]:
    """The samples selected most and least in each run; ties go to the smaller row."""
    found = []
    for one in traced:
        times = one.trace["times_selected"]
        most = np.argsort(-times.astype(np.int64), kind="stable")[:count]
        least = np.argsort(times, kind="stable")[:count]
        ends = [[_sample(one.trace, index) for index in order] for order in (most, least)]
        found.append(Extremes(one.run, *ends))
    return found


def _sample(trace: Trace, index: int) -> Sample:
    labels: list[str] = []
    if "labels" in trace:
        names = label_names(trace, trace["labels"].shape[1])
        labels = [names[column] for column in np.flatnonzero(trace["labels"][index])]
    return Sample(
        int(trace["sample_rows"][index]) if "sample_rows" in trace else int(index),
        int(trace["times_selected"][index]),
        float(trace["mean_uncertainty"][index]) if "mean_uncertainty" in trace else float("nan"),
        float(trace["fluctuation"][index]) if "fluctuation" in trace else float("nan"),
        labels,
    )
