"""By how much one method is better than another: paired differences with their interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import DATASETS, MIN_DATASETS, RUNS
from lightning_ubs.report.statistics import Interval, paired_interval


@dataclass(frozen=True)
class Gain:
    """Paired gain in one metric (positive is better), and the mean gain in each dataset."""

    metric: Metric
    interval: Interval
    unit: str
    datasets: Mapping[str, float]

    @property
    def better(self) -> int:
        """Datasets with a positive mean gain."""
        return sum(value > 0 for value in self.datasets.values())

    @property
    def worse(self) -> int:
        """Datasets with a negative mean gain."""
        return sum(value < 0 for value in self.datasets.values())

    @property
    def tone(self) -> str:
        """``better``, ``worse`` or ``none``."""
        return self.interval.verdict


def paired_gain(results: Results, metric: Metric, ours: Method, theirs: Method) -> Gain | None:
    """Differences of runs paired by data, model, fold and seed; averaged per dataset where there are five or more.

    A dataset counts once: its gain is the mean over models of the mean over folds and seeds. None without a pair, or
    where nobody said which way is better.
    """
    if metric.higher_is_better is None:
        return None
    runs: list[float] = []
    datasets: dict[str, float] = {}
    for data in results.datasets:
        by_model = []
        for model in results.models:
            mine, other = results.cell(ours, data, model), results.cell(theirs, data, model)
            pairs = [
                metric.sign
                * (mine[unit].metrics.get(metric.key, math.nan) - other[unit].metrics.get(metric.key, math.nan))
                for unit in sorted(mine.keys() & other.keys())
            ]
            pairs = [value for value in pairs if math.isfinite(value)]
            if pairs:
                runs += pairs
                by_model.append(float(np.mean(pairs)))
        if by_model:
            datasets[data] = float(np.mean(by_model))
    if not runs:
        return None
    if len(datasets) >= MIN_DATASETS:
        return Gain(metric, paired_interval(list(datasets.values())), DATASETS, datasets)
    return Gain(metric, paired_interval(runs), RUNS, datasets)
