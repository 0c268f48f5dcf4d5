"""What a result costs: how soon a method is where another one gets, and whether a cheaper training does the same.

A budget is the number of epochs that a run was asked for; its cost is the number of samples it trained on. A training
counts as cheaper only if plain shuffling of that length does not do the same: that is the control.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_ubs.methods import BASELINE
from lightning_ubs.report.evidence import Difference, Evidence, holm, resolution
from lightning_ubs.report.method import Method
from lightning_ubs.report.results import Results, Run, plain_model
from lightning_ubs.report.verdict import bounds_text, interval_text, margin_of
from lightning_ubs.report.words import count_of, p_text, signed

Setting = tuple[str, str]
Place = tuple[str, str, int, int]
Trained = tuple[Method, int]
Pairs = Sequence[tuple[Run, Run]]
_LESS = 0.99
_MOST_NAMED = 5
_ALPHA = 0.05
# The budget of runs that have as many epochs as Random's, whatever their number.
EQUAL = 0


@dataclass(frozen=True)
class Ratio:
    """A cost as a share of another one: the geometric mean of pairs, and its 95 % t-interval."""

    value: float
    low: float
    high: float

    def of(self, what: str) -> str:
        """The ratio of something, with its range."""
        return f"{self.value:.2f} × {what}{self.range}"

    @property
    def range(self) -> str:
        """The interval in brackets; empty where there is none."""
        return f" ({self.low:.2f} to {self.high:.2f})" if math.isfinite(self.low) else ""


@dataclass(frozen=True)
class Speed:
    """What a method needs until the score that both it and another reach in a pair of runs, as a share of the other.

    The score is the smaller of the two best validation scores of a pair, so every pair counts, and two methods that are
    the same have ratios around 1. ``cost`` is the median ratio of an epoch's seconds.
    """

    method: Method
    against: Method
    pairs: int
    epochs: Ratio
    samples: Ratio | None
    seconds: Ratio | None
    cost: float

    @property
    def sentences(self) -> list[str]:
        """The ratios, and what an epoch costs; none of them is an answer."""
        parts = [self.epochs.of(f"the epochs of {self.against.label}")]
        parts += [self.samples.of("the samples")] if self.samples is not None else []
        parts += [self.seconds.of("the seconds")] if self.seconds is not None else []
        found = [f"To the validation score that both reach, {self.method.label} needs {', '.join(parts)}."]
        if math.isfinite(self.cost):
            found.append(
                f"An epoch of {self.method.label} costs {self.cost:.2f} times an epoch of {self.against.label}."
            )
        return found


def measure_speed(results: Results, method: Method, against: Method) -> Speed | None:
    """Compare two methods run by run; None without a pair that has validation curves."""
    pairs = [
        (run, other)
        for run, other in results.pairs(method, against)
        if np.isfinite(run.scores).any() and np.isfinite(other.scores).any()
    ]
    needed = [_needed(run, other) for run, other in pairs]
    epochs = _ratio(pairs, [(float(mine), float(theirs)) for mine, theirs in needed])
    if epochs is None:
        return None
    counts = zip(pairs, needed, strict=True)
    used = [(_until(run, mine, "samples"), _until(other, theirs, "samples")) for (run, other), (mine, theirs) in counts]
    counts = zip(pairs, needed, strict=True)
    times = [
        (_until(run, mine, "epoch_seconds"), _until(other, theirs, "epoch_seconds"))
        for (run, other), (mine, theirs) in counts
    ]
    costs = [_epoch_seconds(run) / _epoch_seconds(other) for run, other in pairs]
    return Speed(method, against, len(pairs), epochs, _ratio(pairs, used), _ratio(pairs, times), _median(costs))


def epochs_to(run: Run, target: float) -> int | None:
    """How many epochs until the validation score is at least ``target``; None if it never is."""
    hits = np.flatnonzero(run.scores >= target)
    return int(hits[0]) + 1 if hits.size else None


def speed_ratio(pairs: Pairs) -> Ratio | None:
    """Epochs to the score that both reach, as a ratio."""
    return _ratio(pairs, [(float(mine), float(theirs)) for mine, theirs in (_needed(*pair) for pair in pairs)])


@dataclass(frozen=True)
class Point:
    """A method trained with one budget on one dataset and model: what it cost and what it reached, each (runs,).

    Attributes:
        budget: Epochs.
        samples: Samples trained.
        seconds: Seconds of training.
        values: The first metric.
        evidence: Its differences from Random with the largest budget; None for that itself.
    """

    budget: int
    samples: Sequence[float]
    seconds: Sequence[float]
    values: Sequence[float]
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Saving:
    """A cheaper training of a method, against plain shuffling.

    Attributes:
        method: Its name.
        budget: Its epochs.
        cost: Its samples, as a share of those of the baseline.
        seconds: Its seconds, likewise.
        gain: In the first metric, over the best plain training.
        control: Name and epochs of the plain training that has as many samples, or the next more; empty without one.
        control_cost: Its samples, as a share of those of the baseline.
        control_gain: Gain over that control.
        p: That it is no more than the margin behind the best plain training and ahead of the control; corrected.
    """

    method: str
    budget: int
    cost: float
    seconds: float
    gain: Evidence
    control: str
    control_cost: float
    control_gain: Evidence | None
    p: float

    @property
    def shown(self) -> bool:
        """Whether it does the same for less, and plain shuffling for less does not."""
        return self.p < _ALPHA


@dataclass(frozen=True)
class Length:
    """When plain training is at its best on a dataset.

    Attributes:
        name: Name of the plain training.
        data: Name of the dataset.
        budget: Epochs that it was given.
        best: Best epochs of its runs, counted from 1, in order.
    """

    name: str
    data: str
    budget: int
    best: Sequence[int]

    @property
    def median(self) -> float:
        """Of the best epochs."""
        return float(np.median(self.best))

    @property
    def overlong(self) -> bool:
        """Whether training is at its best in the first half of its budget."""
        return self.median <= self.budget / 2

    @property
    def sentence(self) -> str:
        """The cost until the best epoch beside the cost of the budget."""
        last = self.best[-1]
        advice = (
            f"a plain training of {last} epochs does the same; compare against that."
            if last < 0.9 * self.budget
            else "see whether a shorter plain training does the same, and compare against that."
        )
        return (
            f"On {self.data}, {self.name}'s best epoch is {self.median:g} of {self.budget} (median; {self.best[0]} to "
            f"{last}), {self.median / self.budget:.2f} × the cost of the budget: {advice}"
        )


@dataclass(frozen=True)
class Savings:
    """What cheaper trainings do.

    Attributes:
        metric: Title of the first metric.
        margin: Differences that do not matter.
        baseline: Name of the plain training.
        budget: Epochs of the best plain training.
        plain: Name and epochs of the cheapest plain training that does the same within the margin.
        plain_cost: Its samples, as a share.
        lengths: How long plain training needs on each dataset.
        found: One per method and budget that cost less; from the cheapest on.
    """

    metric: str
    margin: float
    baseline: str
    budget: int
    plain: str
    plain_cost: float
    lengths: Sequence[Length]
    found: Sequence[Saving]

    @property
    def sentences(self) -> list[str]:
        """What plain shuffling needs, and for each method its cheapest training that saves, or its nearest."""
        said = [one.sentence for one in self.lengths if one.overlong][:_MOST_NAMED]
        if self.plain_cost < _LESS:
            said.append(f"{self.plain} does the same within {self.margin:g} for {self.plain_cost:.2f} × the samples.")
        for method in dict.fromkeys(one.method for one in self.found):
            own = [one for one in self.found if one.method == method]
            shown = [one for one in own if one.shown]
            said.append(self._shown(shown[0]) if shown else self._not_shown(max(own, key=lambda one: one.gain.mean)))
        return said

    def _shown(self, one: Saving) -> str:
        seconds = f", {one.seconds:.2f} × the seconds" if math.isfinite(one.seconds) else ""
        return (
            f"{one.method} saves training: {self._what(one)} with {one.cost:.2f} × the samples{seconds}; "
            f"{self.metric} {interval_text(one.gain.interval())}, within {self.margin:g} of {self._best()}"
            f"{self._ahead(one)}; corrected for {count_of(len(self.found), 'training')} ({p_text(one.p)})."
        )

    def _not_shown(self, one: Saving) -> str:
        text = (
            f"No cheaper training of {one.method} was shown to do what {self._best()} does within {self.margin:g}: "
            f"{self._what(one)}, {one.cost:.2f} × the samples, {self.metric} {interval_text(one.gain.interval())}"
        )
        if not one.control_cost * _LESS < one.cost:
            return f"{text}. No plain training of that length was run; controls=True adds one."
        return f"{text}{self._ahead(one)}."

    def _ahead(self, one: Saving) -> str:
        if one.control_gain is None:
            return ""
        gain = one.control_gain.interval()
        return f", and {signed(gain.mean)} ({bounds_text(gain)}) against the control, {one.control}"

    def _what(self, one: Saving) -> str:
        return "as many epochs" if one.budget == EQUAL else f"{one.budget} epochs"

    def _best(self) -> str:
        return self.baseline if self.budget == EQUAL else f"{self.baseline} in {self.budget} epochs"


def find_savings(results: Results, margin: float | None = None) -> Savings | None:
    """Which cheaper trainings do what plain shuffling does at its best; None where no training is cheaper.

    A training saves if two things are shown: it is behind the best plain training by less than the margin, and it is
    ahead of the plain training that has as many samples, or the next more. Holm's correction is over all methods and
    budgets. Trainings that cost as much as plain shuffling until its best epoch are not tried.
    """
    margin, base = margin_of(results, margin), results.baseline
    runs = _comparable(_by_budget(results))
    plain = {trained: own for trained, own in runs.items() if trained[0].key == BASELINE}
    mine = {budget: own for (method, budget), own in plain.items() if method == base}
    if base is None or not mine or results.primary.higher_is_better is None:
        return None
    budget = max(mine, key=lambda one: (results.primary.sign * _mean(results, mine[one].values()), one))
    best = mine[budget]
    costs = {trained: _cost(own, best) for trained, own in runs.items()}
    cheapest = _cheapest(results, plain, (base, budget), costs, margin)
    lengths = _lengths(base, best.values())
    until_best = max((one.best[-1] / one.budget for one in lengths), default=1.0)
    limit = min(costs[cheapest], until_best, 1.0) * _LESS
    tried: list[tuple[Trained, Evidence, Trained | None, Evidence | None, float]] = []
    for trained, own in runs.items():
        gain = _evidence(results, own, best)
        if trained in plain or not gain.units or not costs[trained] < limit:
            continue
        control = _control(trained, costs, plain)
        control_gain = None if control is None else _evidence(results, own, plain[control])
        ahead = 1.0 if control_gain is None else control_gain.p_above(0.0)
        tried.append((trained, gain, control, control_gain, max(gain.p_above(-margin), ahead)))
    adjusted, labels = holm([one[-1] for one in tried]), [method.label for method in results.methods]
    found = [
        Saving(
            trained[0].label,
            trained[1],
            costs[trained],
            _seconds_share(runs[trained], best),
            gain,
            "" if control is None else _name(control),
            math.nan if control is None else costs[control],
            control_gain,
            p,
        )
        for (trained, gain, control, control_gain, _), p in zip(tried, adjusted, strict=True)
    ]
    return Savings(
        results.primary.title,
        margin,
        base.label,
        budget,
        _name(cheapest),
        costs[cheapest],
        lengths,
        sorted(found, key=lambda one: (one.cost, labels.index(one.method), one.budget)),
    )


def _cheapest(
    results: Results,
    plain: Mapping[Trained, Mapping[Place, Run]],
    best: Trained,
    costs: Mapping[Trained, float],
    margin: float,
) -> Trained:
    """The cheapest plain training that does what the best does within the margin.

    They are tried from the costliest on until one fails, which keeps all of them together to the error of one.
    """
    cheapest = best
    for trained in sorted(plain, key=lambda one: -costs[one]):
        if trained != best and costs[trained] < costs[best]:
            if _evidence(results, plain[trained], plain[best]).p_above(-margin) >= _ALPHA:
                break
            cheapest = trained
    return cheapest


def saving_curves(results: Results) -> dict[Setting, dict[Method, list[Point]]]:
    """The points of each method by data and model, from cheap to costly, where cost differs at all."""
    groups: dict[Setting, dict[Method, list[Point]]] = defaultdict(lambda: defaultdict(list))
    by_setting: dict[Setting, dict[Trained, dict[Place, Run]]] = defaultdict(lambda: defaultdict(dict))
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


def samples_of(run: Run) -> float:
    """Samples that were trained on; in results that did not count them, epochs times samples."""
    known = run.record.samples_trained
    return float(known if known is not None else max(1, run.record.epochs) * run.record.shape.get("n", 1))


def _needed(run: Run, other: Run) -> tuple[int, int]:
    """Epochs of both until the score that both reach."""
    target = min(float(np.nanmax(run.scores)), float(np.nanmax(other.scores)))
    return epochs_to(run, target) or 1, epochs_to(other, target) or 1


def _ratio(pairs: Pairs, amounts: Sequence[tuple[float, float]]) -> Ratio | None:
    """The geometric mean of ratios over units of evidence; None where nothing was measured."""
    logs = [
        Difference(run.dataset, run.split, run.unit[1], math.log(mine / theirs), run.setting)
        for (run, _), (mine, theirs) in zip(pairs, amounts, strict=True)
        if mine > 0 and theirs > 0
    ]
    if not logs:
        return None
    interval = Evidence.of(logs).interval()
    return Ratio(*(math.exp(value) for value in (interval.mean, interval.low, interval.high)))


def _until(run: Run, epochs: int, curve: str) -> float:
    values = run.curves.get(curve)
    return math.nan if values is None else float(values[:epochs].sum())


def _control(trained: Trained, costs: Mapping[Trained, float], plain: Iterable[Trained]) -> Trained | None:
    """The plain training that has as many samples, or the next more; None if none was run."""
    longer = [one for one in plain if costs[one] >= costs[trained] * _LESS]
    return min(longer, key=lambda one: (costs[one], -one[1]), default=None)


def _name(trained: Trained) -> str:
    method, budget = trained
    return method.label if budget == EQUAL else f"{method.label} in {budget} epochs"


def _lengths(base: Method, runs: Iterable[Run]) -> list[Length]:
    best: dict[tuple[str, int], list[int]] = defaultdict(list)
    for run in runs:
        if run.record.best_epoch is not None and run.record.max_epochs:
            best[run.data, run.record.max_epochs].append(run.record.best_epoch + 1)
    return [Length(base.label, data, budget, sorted(epochs)) for (data, budget), epochs in sorted(best.items())]


def _both(mine: Mapping[Place, Run], theirs: Mapping[Place, Run]) -> list[tuple[Run, Run]]:
    return [(mine[place], theirs[place]) for place in sorted(mine.keys() & theirs.keys())]


def _evidence(results: Results, mine: Mapping[Place, Run], theirs: Mapping[Place, Run]) -> Evidence:
    key, sign, pairs = results.primary.key, results.primary.sign, _both(mine, theirs)
    differences = [
        Difference(run.dataset, run.split, run.unit[1], sign * (run.metrics[key] - other.metrics[key]), run.setting)
        for run, other in pairs
    ]
    return Evidence.of(differences, resolution([run.metrics[key] for pair in pairs for run in pair]))


def _cost(mine: Mapping[Place, Run], theirs: Mapping[Place, Run]) -> float:
    return _median(samples_of(run) / samples_of(other) for run, other in _both(mine, theirs))


def _seconds_share(mine: Mapping[Place, Run], theirs: Mapping[Place, Run]) -> float:
    return _median(_seconds(run) / _seconds(other) for run, other in _both(mine, theirs))


def _point(results: Results, budget: int, by_place: Mapping[Place, Run], base: Mapping[Place, Run]) -> Point:
    runs, values = by_place.values(), [run.metrics[results.primary.key] for run in by_place.values()]
    evidence = _evidence(results, by_place, base)
    return Point(
        budget,
        [samples_of(run) for run in runs],
        [_seconds(run) for run in runs],
        values,
        evidence if evidence.units else None,
    )


def _mean(results: Results, runs: Iterable[Run]) -> float:
    return float(np.mean([run.metrics[results.primary.key] for run in runs]))


def _by_budget(results: Results) -> dict[Trained, dict[Place, Run]]:
    """The runs that measured the first metric, by method and budget and, within, by data, model, fold and seed."""
    found: dict[Trained, dict[Place, Run]] = defaultdict(dict)
    for run in results.runs:
        if run.method.loss not in ("", results.losses[0]) or results.control_of(run.method) is not None:
            continue  # another loss is no saving, nor is a control
        if run.record.max_epochs is not None and math.isfinite(run.metrics.get(results.primary.key, math.nan)):
            found[run.method, run.record.max_epochs][run.data, plain_model(run), *run.unit] = run
    return found


def _comparable(by_budget: dict[Trained, dict[Place, Run]]) -> dict[Trained, dict[Place, Run]]:
    """The same runs; where budgets differ between datasets alone, they are one: as many epochs as Random has there."""
    places = [(method, place) for (method, _), runs in by_budget.items() for place in runs]
    if len({budget for _, budget in by_budget}) == 1 or len(set(places)) < len(places):
        return by_budget
    found: dict[Trained, dict[Place, Run]] = defaultdict(dict)
    for (method, _), runs in by_budget.items():
        found[method, EQUAL] |= runs
    return found


def _seconds(run: Run) -> float:
    times = run.curves.get("epoch_seconds")
    total = math.nan if times is None else float(np.nansum(times))
    return total if total > 0 else math.nan


def _epoch_seconds(run: Run) -> float:
    times = run.curves.get("epoch_seconds")
    median = math.nan if times is None else _median(times)
    return median if median > 0 else math.nan


def _median(values: Iterable[float] | np.ndarray[Any, Any]) -> float:
    found = np.array(list(values), dtype=float)
    finite = found[np.isfinite(found)]
    return float(np.median(finite)) if finite.size else math.nan
