"""How soon a method reaches the best validation score of Random, and what an epoch costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.method import Method
from lightning_ubs.report.results import Array, Results, Run


@dataclass(frozen=True)
class Speed:
    """Medians over paired runs; those of epochs and seconds are over the runs that reached the score.

    ``baseline_epochs`` and ``baseline_seconds`` are Random's own in those same runs. A value is NaN where unknown.
    """

    method: Method
    pairs: int
    reached: int
    epochs: float
    baseline_epochs: float
    seconds: float
    baseline_seconds: float
    cost: float


def measure_speed(results: Results, method: Method) -> Speed | None:
    """Compare ``method`` with the baseline run by run; None without a pair that has validation curves."""
    if results.baseline is None:
        return None
    reached: list[tuple[float, float, float, float]] = []
    costs: list[float] = []
    for data, model in results.settings():
        baseline = results.cell(results.baseline, data, model)
        for unit, run in results.cell(method, data, model).items():
            other = baseline.get(unit)
            if other is None or not (np.isfinite(run.scores).any() and np.isfinite(other.scores).any()):
                continue
            costs.append(_epoch_cost(run) / _epoch_cost(other))
            target = float(np.nanmax(other.scores))
            steps = epochs_to(run, target)
            if steps is not None:
                own = epochs_to(other, target) or 0
                reached.append((steps, own, _seconds(run, steps), _seconds(other, own)))
    if not costs:
        return None
    columns = np.array(reached, dtype=float).reshape(-1, 4)
    epochs, baseline_epochs, seconds, baseline_seconds = (_median(column) for column in columns.T)
    return Speed(
        method, len(costs), len(reached), epochs, baseline_epochs, seconds, baseline_seconds, _median(np.array(costs))
    )


def epochs_to(run: Run, target: float) -> int | None:
    """How many epochs until the validation score is at least ``target``; None if it never is."""
    hits = np.flatnonzero(run.scores >= target)
    return int(hits[0]) + 1 if hits.size else None


def _seconds(run: Run, epochs: int) -> float:
    times = run.curves.get("epoch_seconds")
    return float("nan") if times is None else float(times[:epochs].sum())


def _epoch_cost(run: Run) -> float:
    times = run.curves.get("epoch_seconds")
    median = float("nan") if times is None else _median(times)
    return median if median > 0 else float("nan")


def _median(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
