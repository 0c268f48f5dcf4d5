"""The arrays that runs left behind: correlation matrices, and what became of each sample."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_ubs.experiment.store import StoreError
from lightning_ubs.report.results import Results, Run

log = logging.getLogger(__name__)
Trace = dict[str, np.ndarray[Any, Any]]


def find_traces(results: Results, needed: Sequence[str]) -> Iterator[tuple[Run, Trace]]:
    """One run per data and model whose trace has all of ``needed``: the reference method's first fold and seed."""
    methods = [results.reference] if results.reference else []
    methods += [method for method in results.methods if method not in methods]
    for data, model in results.settings():
        runs = [run for method in methods for _, run in sorted(results.cell(method, data, model).items())]
        for run in runs:
            trace = _read(results, run)
            if trace is not None and all(name in trace and trace[name].size for name in needed):
                yield run, trace
                break


def _read(results: Results, run: Run) -> Trace | None:
    if not run.record.get("trace"):
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


def extremes(results: Results, count: int = 8) -> list[Extremes]:
    """The samples selected most and least, for one run per data and model; ties go to the smaller row."""
    found = []
    for run, trace in find_traces(results, ("times_selected",)):
        times = trace["times_selected"]
        most = np.argsort(-times.astype(np.int64), kind="stable")[:count]
        least = np.argsort(times, kind="stable")[:count]
        found.append(Extremes(run, [_sample(trace, i) for i in most], [_sample(trace, i) for i in least]))
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
