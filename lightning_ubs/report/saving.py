"""How much training a method saves: the same result from fewer epochs, or from fewer samples per epoch.

A budget is the number of epochs that a run was asked for. Its cost is the number of samples it trained on. Methods are
compared with Random over all budgets, run by run: same data, model, fold and seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.errors import ReportError
from lightning_ubs.report.method import Method
from lightning_ubs.report.results import Results, Run
from lightning_ubs.report.significance import MIN_DATASETS
from lightning_ubs.report.statistics import Interval, paired_interval
from lightning_ubs.report.words import signed

Setting = tuple[str, str]
Place = tuple[str, str, int, int]
_LESS = 0.99
# The budget of runs that have as many epochs as Random's, whatever their number.
EQUAL = 0


@dataclass(frozen=True)
class Point:
    """A method trained with one budget on one dataset and model: what it cost and what it reached, each (runs,).

    Attributes:
        budget: epochs.
        samples: samples trained.
        seconds: seconds of training.
        values: the first metric.
        differences: of it from Random with the largest budget, run by run; empty for that itself.
    """

    budget: int
    samples: Sequence[float]
    seconds: Sequence[float]
    values: Sequence[float]
    differences: Sequence[float] = ()


@dataclass(frozen=True)
class Saving:
    """A method with one budget against Random with another: cost as a share, gain with its interval."""

    method: str
    budget: int
    baseline: str
    baseline_budget: int
    cost: float
    seconds: float
    gain: Interval
    metric: str


def check_margin(margin: float | None) -> None:
    """Refuse a non-inferiority margin that is none."""
    number = isinstance(margin, int | float) and not isinstance(margin, bool)
    if margin is not None and not (number and math.isfinite(margin) and margin > 0):
        raise ReportError(
            f"margin={margin!r} is out of range; give the loss that you would accept, a number above 0 such as 0.001."
        )


def saving_curves(results: Results) -> dict[Setting, dict[Method, list[Point]]]:
    """The points of each method by data and model, from cheap to costly, where cost differs at all."""
    groups: dict[Setting, dict[Method, list[Point]]] = defaultdict(lambda: defaultdict(list))
    by_setting: dict[Setting, dict[tuple[Method, int], dict[Place, Run]]] = defaultdict(lambda: defaultdict(dict))
    for trained, runs in _by_budget(results).items():
        for place, run in runs.items():
            by_setting[place[0], place[1]][trained][place] = run
    for setting, by_budget in by_setting.items():
        largest = max((budget for method, budget in by_budget if method == results.baseline), default=None)
        base = {} if results.baseline is None or largest is None else by_budget[results.baseline, largest]
        for (method, budget), runs in sorted(by_budget.items(), key=lambda item: item[0][1]):
            groups[setting][method].append(_point(results, budget, runs, {} if runs is base else base))
    found = {}
    for setting, curves in groups.items():
        costs = [float(np.mean(point.samples)) for points in curves.values() for point in points]
        if min(costs) < _LESS * max(costs):
            found[setting] = {method: curves[method] for method in results.methods if method in curves}
    return found


def find_savings(results: Results, margin: float | None = None) -> list[Saving]:
    """For each method the cheapest budget that does what Random does at its best, and equal epochs if they cost less.

    With a margin, "does" means: the 95 % interval excludes a loss of more than the margin; without, a mean gain of at
    least 0. Where no budget does, the best one is given.
    """
    base, runs = results.baseline, _comparable(_by_budget(results))
    budgets: dict[Method, list[int]] = {
        method: sorted(budget for other, budget in runs if other == method) for method in results.methods
    }
    if base is None or not budgets[base] or results.primary.higher_is_better is None:
        return []
    best = max(budgets[base], key=lambda budget: results.primary.sign * _mean(results, runs[base, budget].values()))
    found: list[Saving] = []
    for method, own in budgets.items():
        tried = [_saving(results, runs, method, budget, best) for budget in own if method != base or budget < best]
        known = [one for one in tried if one is not None]
        cheap = [one for one in known if _holds(one, margin) and one.cost < _LESS]
        if cheap:
            found.append(min(cheap, key=lambda one: one.cost))
        elif known and len(own) > 1 and method != base:
            found.append(max(known, key=lambda one: one.gain.mean))
        if own and method != base:
            equal = _saving(results, runs, method, own[-1], own[-1])
            found += [equal] if equal is not None and equal.cost < _LESS and equal not in found else []
    return found


def saving_sentence(saving: Saving, margin: float | None = None) -> str:
    """What is saved, and what it costs in the metric."""
    gain = saving.gain
    bounds = (
        f" (95\u00a0% {signed(gain.low)} to {signed(gain.high)})" if math.isfinite(gain.low) else " (one pair only)"
    )
    change = f"{saving.metric} {signed(gain.mean)}{bounds}"
    if margin is not None:
        change += (
            f", not worse by more than {margin:g} (non-inferior)"
            if gain.low > -margin
            else f", a loss of more than {margin:g} is not excluded"
        )
    if saving.cost >= _LESS or not (_holds(saving, margin) or saving.budget == saving.baseline_budget):
        return (
            f"{saving.method} saves no training: nothing cheaper reaches what {saving.baseline} reaches in "
            f"{saving.baseline_budget} epochs. With {saving.budget} epochs, {change}."
        )
    if saving.budget == saving.baseline_budget:
        epochs = "as many" if saving.budget == EQUAL else saving.budget
        return f"{saving.method}: {100 * (1 - saving.cost):.0f}\u00a0% fewer samples in {epochs} epochs, {change}."
    times = f", {saving.seconds:.2f} × the seconds" if math.isfinite(saving.seconds) else ""
    return (
        f"{saving.method} reaches in {saving.budget} epochs what {saving.baseline} reaches in "
        f"{saving.baseline_budget}: {saving.cost:.2f} × the training{times}. {change}."
    )


def _holds(saving: Saving, margin: float | None) -> bool:
    return saving.gain.mean >= 0 if margin is None else saving.gain.low > -margin


def _saving(
    results: Results, runs: dict[tuple[Method, int], dict[Place, Run]], method: Method, budget: int, other: int
) -> Saving | None:
    base = results.baseline
    if base is None:
        return None
    mine, theirs = runs.get((method, budget), {}), runs.get((base, other), {})
    places = sorted(mine.keys() & theirs.keys())
    if not places:
        return None
    key, sign = results.primary.key, results.primary.sign
    by_data: dict[str, list[float]] = defaultdict(list)
    for place in places:
        by_data[place[0]].append(sign * (mine[place].metrics[key] - theirs[place].metrics[key]))
    means = [float(np.mean(values)) for values in by_data.values()]
    every = [value for values in by_data.values() for value in values]
    return Saving(
        method.label,
        budget,
        base.label,
        other,
        float(np.median([_samples(mine[place]) / _samples(theirs[place]) for place in places])),
        float(np.median([_seconds(mine[place]) / _seconds(theirs[place]) for place in places])),
        paired_interval(means if len(means) >= MIN_DATASETS else every),
        results.primary.title,
    )


def _point(results: Results, budget: int, by_place: Mapping[Place, Run], base: Mapping[Place, Run]) -> Point:
    key, runs = results.primary.key, by_place.values()
    differences = [run.metrics[key] - base[place].metrics[key] for place, run in by_place.items() if place in base]
    values = [run.metrics[key] for run in runs]
    return Point(budget, [_samples(run) for run in runs], [_seconds(run) for run in runs], values, differences)


def _mean(results: Results, runs: Iterable[Run]) -> float:
    return float(np.mean([run.metrics[results.primary.key] for run in runs]))


def _by_budget(results: Results) -> dict[tuple[Method, int], dict[Place, Run]]:
    """The runs that measured the first metric, by method and budget and, within, by data, model, fold and seed."""
    found: dict[tuple[Method, int], dict[Place, Run]] = defaultdict(dict)
    for run in results.runs:
        if run.record.max_epochs is not None and math.isfinite(run.metrics.get(results.primary.key, math.nan)):
            found[run.method, run.record.max_epochs][run.data, _plain_model(run), *run.unit] = run
    return found


def _comparable(by_budget: dict[tuple[Method, int], dict[Place, Run]]) -> dict[tuple[Method, int], dict[Place, Run]]:
    """The same runs; where budgets differ between datasets alone, they are one: as many epochs as Random has there."""
    places = [(method, place) for (method, _), runs in by_budget.items() for place in runs]
    if len({budget for _, budget in by_budget}) == 1 or len(set(places)) < len(places):
        return by_budget
    found: dict[tuple[Method, int], dict[Place, Run]] = defaultdict(dict)
    for (method, _), runs in by_budget.items():
        found[method, EQUAL] |= runs
    return found


def _samples(run: Run) -> float:
    """Samples that were trained on; in results that did not count them, epochs times samples."""
    known = run.record.samples_trained
    return float(known if known is not None else max(1, run.record.epochs) * run.record.shape.get("n", 1))


def _seconds(run: Run) -> float:
    times = run.curves.get("epoch_seconds")
    total = math.nan if times is None else float(np.nansum(times))
    return total if total > 0 else math.nan


def _plain_model(run: Run) -> str:
    """The model's name without the budget that a sweep of trainer.max_epochs adds to it."""
    budget = f"max_epochs={run.record.max_epochs}"
    return " ".join(word for word in run.model.split(" ") if word != budget)
