"""The answer in words: is the reference method better than each competitor, by how much, at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.measures import MACRO_AUC, MEASURES, Measure
from lightning_ubs.report.results import Method, Results
from lightning_ubs.report.significance import DATASETS, MIN_DATASETS, RUNS
from lightning_ubs.report.speed import Speed, measure_speed
from lightning_ubs.report.statistics import Interval, paired_interval


@dataclass(frozen=True)
class Gain:
    """Paired gain in one metric (positive is better), and the datasets in which the mean gain is so."""

    measure: Measure
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


@dataclass(frozen=True)
class Verdict:
    """All that is said about one competitor."""

    competitor: str
    tone: str
    headline: str
    sentences: Sequence[str]
    gains: Sequence[Gain]


def judge(results: Results) -> list[Verdict]:
    """A verdict per competitor of the reference method; none without it or without pairs."""
    if results.reference is None:
        return []
    speed = measure_speed(results, results.reference)
    verdicts = []
    for competitor in results.competitors:
        found = [paired_gain(results, measure, results.reference, competitor) for measure in MEASURES]
        gains = [gain for gain in found if gain is not None]
        if gains and gains[0].measure == MACRO_AUC:
            verdicts.append(_verdict(results, results.reference, competitor, gains, speed))
    return verdicts


def paired_gain(results: Results, measure: Measure, ours: Method, theirs: Method) -> Gain | None:
    """Differences of runs paired by data, model, fold and seed; averaged per dataset where there are five or more.

    A dataset counts once: its gain is the mean over models of the mean over folds and seeds.
    """
    runs: list[float] = []
    datasets: dict[str, float] = {}
    for data in results.datasets:
        by_model = []
        for model in results.models:
            mine, other = results.cell(ours, data, model), results.cell(theirs, data, model)
            pairs = [
                measure.sign
                * (mine[unit].metrics.get(measure.key, math.nan) - other[unit].metrics.get(measure.key, math.nan))
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
        return Gain(measure, paired_interval(list(datasets.values())), DATASETS, datasets)
    return Gain(measure, paired_interval(runs), RUNS, datasets)


def summary(results: Results, verdicts: Sequence[Verdict]) -> str:
    """The whole answer in one or two sentences."""
    if results.reference is None or not verdicts:
        return ""
    name = results.reference.label
    groups = {
        tone: [verdict.competitor for verdict in verdicts if verdict.tone == tone]
        for tone in ("better", "worse", "none")
    }
    parts = []
    if groups["better"]:
        parts.append(f"{name} is better than {_join(groups['better'])} in Macro-AUC.")
    if groups["worse"]:
        parts.append(f"{name} is worse than {_join(groups['worse'])} in Macro-AUC.")
    if groups["none"]:
        parts.append(f"There is no evidence that {name} differs from {_join(groups['none'])} in Macro-AUC.")
    return " ".join(parts)


def _verdict(results: Results, ours: Method, theirs: Method, gains: Sequence[Gain], speed: Speed | None) -> Verdict:
    gain = gains[0]
    interval = gain.interval
    tone = interval.verdict
    name, other = ours.label, theirs.label
    if tone == "better":
        headline = f"{name} is better than {other}"
    elif tone == "worse":
        headline = f"{name} is worse than {other}"
    else:
        headline = f"No evidence that {name} differs from {other}"
    sentences = [_gain_sentence(gain), _dataset_sentence(name, gain)]
    sentences += _speed_sentences(results, ours, theirs, speed)
    return Verdict(other, tone, headline, sentences, gains)


def _gain_sentence(gain: Gain) -> str:
    interval = gain.interval
    mean = f"Mean gain in {gain.measure.title}: {signed(interval.mean)}"
    if not math.isfinite(interval.low):
        return f"{mean}, from one pair only: there is no interval, so this is no evidence."
    unit = f"{interval.pairs} {gain.unit}"
    bounds = f"95\u00a0% t-interval {signed(interval.low)} to {signed(interval.high)} over {unit}"
    return f"{mean} ({bounds}{', which contains 0' if interval.verdict == 'none' else ''})."


def _dataset_sentence(name: str, gain: Gain) -> str:
    total = len(gain.datasets)
    noun = "datasets" if total > 1 else "dataset"
    text = f"By the mean, {name} is better in {gain.better} of {total} {noun}, worse in {gain.worse}"
    equal = total - gain.better - gain.worse
    return f"{text}, equal in {equal}." if equal else f"{text}."


def _speed_sentences(results: Results, ours: Method, theirs: Method, speed: Speed | None) -> list[str]:
    baseline = results.baseline
    if baseline is None or speed is None:
        return ["Time to Random's best validation score is unknown: these results hold no paired runs of Random."]
    goal = f"To reach {baseline.label}'s best validation score:"
    if theirs == baseline:
        own = f"{baseline.label} itself {_effort(speed.baseline_epochs, speed.baseline_seconds)}"
        end = f"{_reach(ours, speed)}; {own}" if speed.reached else _reach(ours, speed)
        sentences = [f"{goal} {end}."]
        if math.isfinite(speed.cost):
            sentences.append(f"An epoch of {ours.label} costs {speed.cost:.2f} times an epoch of {baseline.label}.")
        return sentences
    other = measure_speed(results, theirs)
    if other is None:
        return [f"{goal} {_reach(ours, speed)}."]
    sentences = [f"{goal} {_reach(ours, speed)}; {_reach(theirs, other)}."]
    if math.isfinite(speed.cost) and math.isfinite(other.cost):
        sentences.append(
            f"Cost per epoch relative to {baseline.label}: {ours.label} {speed.cost:.2f}, "
            f"{theirs.label} {other.cost:.2f}."
        )
    return sentences


def _reach(method: Method, speed: Speed) -> str:
    if not speed.reached:
        return f"{method.label} did not in any of {speed.pairs} runs"
    effort = _effort(speed.epochs, speed.seconds)
    return f"{method.label} {effort} (reached in {speed.reached} of {speed.pairs} runs)"


def _effort(epochs: float, seconds: float) -> str:
    return f"{epochs:g} epochs" + (f", {seconds:.3g} s" if math.isfinite(seconds) else "")


def signed(value: float) -> str:
    """A difference with its sign and a real minus.

    >>> signed(0.01234), signed(-0.5)
    ('+0.0123', '−0.5000')
    """
    return f"{value:+.4f}".replace("-", "−")


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
