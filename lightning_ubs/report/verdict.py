"""The answer in words: which method is better than which, on what evidence, and what could not be told.

The monitored metric decides. Each comparison gets one of four answers, from the t-interval of its paired differences:
better or worse, where the interval excludes 0; equal, where it lies within the margin; else undecided. Intervals are
corrected for the number of comparisons by Holm's procedure. Other metrics are shown with their own intervals and
without an answer.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np

from lightning_ubs.errors import ReportError
from lightning_ubs.report.evidence import (
    MIN_DATASETS,
    MIN_UNITS,
    UNSEEN,
    Difference,
    Evidence,
    Interval,
    holm_divisors,
    resolution,
)
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results, Run, plain_model
from lightning_ubs.report.words import count_of, join, plain, runs_of, signed

Answer = Literal["better", "worse", "equal", "undecided"]
ANSWERS: tuple[Answer, ...] = ("better", "worse", "equal", "undecided")
#: A difference of one in the third decimal is the smallest that tables of results show, and lies below the spread
#: between seeds of every training in this package's own stores.
DEFAULT_MARGIN = 0.001
USUAL_UNITS = 10
_ALPHA = 0.05
_MOST_NAMED = 8
_MOST_UNITS = 1000


@dataclass(frozen=True)
class Gain:
    """Paired gain of one method over another in one metric: positive is better, also for losses.

    Attributes:
        metric: In what.
        evidence: The differences by unit of evidence.
        interval: 95 % interval of their mean, as if this were the only comparison.
        datasets: Mean gain in each dataset.
        overlap: Test samples over training samples of a split, which the more cautious interval allows for; 0 where
            units are not splits of one dataset.
    """

    metric: Metric
    evidence: Evidence
    interval: Interval
    datasets: Mapping[str, float]
    overlap: float = 0.0

    @property
    def positive(self) -> int:
        """Datasets with a positive mean gain."""
        return sum(value > 0 for value in self.datasets.values())

    @property
    def negative(self) -> int:
        """Datasets with a negative mean gain."""
        return sum(value < 0 for value in self.datasets.values())


@dataclass(frozen=True)
class Verdict:
    """All that is said about one method against another.

    Attributes:
        ours: The method.
        theirs: What it is compared with.
        gains: In every metric; the first is the monitored one, which decides.
        interval: Interval of the first gain, corrected for the number of comparisons.
        comparisons: How many that are.
        divisor: Number by which Holm's procedure divided the error that is allowed.
        margin: Differences that do not matter.
        places: Where it was measured, such as ``"yeast"``.
        control: The same probabilities dealt to random samples: the gain of the method over that; None if not run.
        control_gain: And the gain of that control over the same baseline.
        unscored: Runs of either method that failed or have no score where the other has one.
        models: How many models each difference is the mean of.
    """

    ours: str
    theirs: str
    gains: Sequence[Gain]
    interval: Interval
    comparisons: int
    divisor: int
    margin: float
    places: Sequence[str] = ()
    control: Gain | None = None
    control_gain: Gain | None = None
    unscored: tuple[int, int] = (0, 0)
    models: int = 1

    @property
    def primary(self) -> Gain:
        """The gain in the monitored metric."""
        return self.gains[0]

    @property
    def answer(self) -> Answer:
        """What the evidence says in the monitored metric; nothing from fewer than three units.

        Nothing is said in favor of a method that has no score where the other has one: such runs are often bad ones.
        """
        found = self._answer()
        lacking = {"better": self.unscored[:1], "worse": self.unscored[1:], "equal": self.unscored}.get(found, ())
        return "undecided" if any(lacking) else found

    def _answer(self) -> Answer:
        if self.primary.evidence.units < MIN_UNITS:
            return "undecided"
        if self.interval.excludes_zero:
            return "better" if self.interval.low > 0 else "worse"
        return "equal" if -self.margin < self.interval.low <= self.interval.high < self.margin else "undecided"

    @property
    def headline(self) -> str:
        """The answer in one clause."""
        return f"{phrase([self.ours], [self.theirs], self.answer, self.margin)} in {self.primary.metric.title}"

    @property
    def scope(self) -> str:
        """What the evidence is about."""
        mean = f", mean of {self.models} models" if self.models > 1 else ""
        return scope(self.primary.evidence, self.places) + mean

    @property
    def told(self) -> str:
        """The answer with its interval, its scope and the correction."""
        text = f"{interval_text(self.interval)} {self.scope}"
        if self.comparisons > 1 and math.isfinite(self.interval.low):
            alone = self.primary.interval
            text += f"; corrected for {self.comparisons} comparisons, alone it would be {bounds_text(alone)}"
        return f"{self.headline}: {text}."

    @property
    def sentences(self) -> list[str]:
        """The answer, what qualifies it, and how much more it would take."""
        notes = (self.unscored_sentences, self.power_sentences, self.cautious_sentences, self.control_sentences)
        return [self.told, *(sentence for part in notes for sentence in part)]

    @property
    def unscored_sentences(self) -> list[str]:
        """Why an answer is withheld that the scores alone would give."""
        if self.answer == self._answer():
            return []
        names = (self.ours, self.theirs), (self.theirs, self.ours)
        return [
            f"{name} failed or has no score in {runs_of(count, count + self.primary.evidence.pairs)} in which {other} "
            "has one, so nothing is said in its favor. Repeat them, or log a score that is a number."
            for (name, other), count in zip(names, self.unscored, strict=True)
            if count
        ]

    @property
    def missed(self) -> float:
        """The difference below which such comparisons mostly show nothing, with the correction; NaN if unknown."""
        evidence = self.primary.evidence
        return evidence.missed(self._confidence) if evidence.units >= MIN_UNITS else math.nan

    @property
    def needed(self) -> int | None:
        """Units that would show the difference that was seen; None if unknown, or if these do."""
        evidence = self.primary.evidence
        count = evidence.needed(evidence.mean, self._confidence)
        return None if count is None or count <= evidence.units else count

    @property
    def power_sentences(self) -> list[str]:
        """Where undecided: which differences would be missed, and how much more it would take."""
        evidence = self.primary.evidence
        if self.answer == "equal" and not evidence.values.any():
            return [f"The scores of all {evidence.counted} are the same to the last digit: was anything selected?"]
        if self.answer != "undecided" or self.unscored_sentences:
            return []
        if evidence.units < MIN_UNITS:
            return [
                f"Fewer than {MIN_UNITS} units of evidence allow no answer; {USUAL_UNITS} seeds, each with its own "
                "split, are usual."
            ]
        text = f"With {evidence.counted} a difference below {plain(self.missed)} would mostly be missed"
        if self.needed is not None:
            text += f"; {would_show(evidence, self.needed, plain(abs(evidence.mean)))}"
        elif evidence.groups and evidence.kind != "seeds":
            text += f"; no number of {evidence.noun} on these datasets would show {plain(abs(evidence.mean))}"
        return [f"{text}."]

    @property
    def cautious_sentences(self) -> list[str]:
        """The interval that allows for training sets that overlap."""
        overlap = self.primary.overlap
        if not overlap or not math.isfinite(self.interval.low):
            return []
        cautious = self.primary.evidence.interval(self._confidence, overlap)
        return [
            f"The more cautious interval, which allows for training sets that overlap (Nadeau and Bengio), is "
            f"{bounds_text(cautious)}."
        ]

    @property
    def control_sentences(self) -> list[str]:
        """Whether the same probabilities on random samples do as well, as far as that is shown."""
        ahead, control = self.control, self.control_gain
        if self.answer != "better" or ahead is None or control is None or ahead.evidence.units < MIN_UNITS:
            return []
        if ahead.interval.low > 0:
            return [f"The same P on random samples does not do it: the difference is {interval_text(ahead.interval)}."]
        if control.interval.low > 0 and ahead.interval.high < self.primary.interval.mean / 2:
            return [
                f"But the same P on random samples does as well ({interval_text(control.interval)} against "
                f"{self.theirs}): at most half of the gain is due to which samples are emphasized."
            ]
        return [
            "Whether the same P on random samples does as well is not shown: the difference is "
            f"{interval_text(ahead.interval)}."
        ]

    @property
    def _confidence(self) -> float:
        return 1 - _ALPHA / self.divisor

    @property
    def others(self) -> list[str]:
        """The other metrics, with intervals and without an answer."""
        return [f"{gain.metric.title} {interval_text(gain.interval)}" for gain in self.gains[1:]]


def judge(results: Results, margin: float | None = None) -> list[Verdict]:
    """A verdict per comparison; none without pairs or where nobody said which way the monitored metric is better."""
    margin = margin_of(results, margin)
    found: list[tuple[Method, Method, list[Gain], list[tuple[Run, Run]]]] = []
    for ours, theirs in results.comparisons:
        pairs = results.pairs(ours, theirs)
        gains = [gain for metric in results.metrics if (gain := gain_of(pairs, metric)) is not None]
        if gains and gains[0].metric == results.primary:
            found.append((ours, theirs, gains, pairs))
    divisors = holm_divisors([gains[0].evidence.p() for _, _, gains, _ in found], _ALPHA)
    controls = {method: control for control in results.methods if (method := results.control_of(control)) is not None}
    verdicts = []
    for (ours, theirs, gains, pairs), divisor in zip(found, divisors, strict=True):
        control, primary = controls.get(ours), gains[0]
        verdicts.append(
            Verdict(
                ours.label,
                theirs.label,
                gains,
                primary.evidence.interval(1 - _ALPHA / divisor),
                len(found),
                divisor,
                margin,
                sorted({run.data for run, _ in pairs}),
                None if control is None else gain_of(results.pairs(ours, control), primary.metric),
                None if control is None else gain_of(results.pairs(control, theirs), primary.metric),
                (_unscored(results, ours, theirs), _unscored(results, theirs, ours)),
                len({plain_model(run) for run, _ in pairs}),
            )
        )
    return verdicts


def gain_of(pairs: Sequence[tuple[Run, Run]], metric: Metric) -> Gain | None:
    """The gain behind these pairs of runs; None without any, or where nobody said which way is better."""
    if metric.higher_is_better is None:
        return None
    differences, by_data = [], defaultdict(list)
    values: list[float] = []
    for run, other in pairs:
        both = run.metrics.get(metric.key, math.nan), other.metrics.get(metric.key, math.nan)
        value = metric.sign * (both[0] - both[1])
        if math.isfinite(value) and run.record.metrics[metric.key].stage == other.record.metrics[metric.key].stage:
            values += both
            differences.append(Difference(run.dataset, run.split, run.unit[1], value, run.setting))
            by_data[run.dataset].append(value)
    if not differences:
        return None
    evidence = Evidence.of(differences, resolution(values))
    means = {data: float(np.mean(values)) for data, values in by_data.items()}
    folds = len({run.unit[0] for run, _ in pairs})
    return Gain(metric, evidence, evidence.interval(), means, overlap_of(evidence, folds))


def _unscored(results: Results, ours: Method, theirs: Method) -> int:
    """Runs of a method that failed or have no score in the monitored metric, where the other method has one."""
    key, found = results.primary.key, 0
    for data, model in results.settings():
        mine = results.cell(ours, data, model)
        for unit, run in results.cell(theirs, data, model).items():
            if math.isfinite(run.metrics.get(key, math.nan)):
                own = mine.get(unit)
                failed = (ours, data, model, unit) in results.failures
                found += failed if own is None else not math.isfinite(own.metrics.get(key, math.nan))
    return found


def summary(verdicts: Sequence[Verdict]) -> str:
    """The whole answer in the monitored metric, in a few sentences; methods of which the same is said share one."""
    groups: dict[tuple[str, Answer, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.theirs, verdict.answer, verdict.scope), []).append(verdict)
    parts = []
    for (theirs, answer, where), group in groups.items():
        one = group[0]
        ours = list(dict.fromkeys(verdict.ours for verdict in group))
        parts.append(f"{phrase(ours, [theirs], answer, one.margin)} in {one.primary.metric.title}, {where}.")
    return " ".join(parts)


def no_verdict(results: Results) -> str:
    """Why there is none, and what to do."""
    if results.primary.higher_is_better is None and results.comparisons:
        return (
            f"There is no verdict: nobody said whether {results.primary.title} should be large or small. Monitor it "
            "with mode=max or mode=min."
        )
    names = join([method.label for method in results.methods], _MOST_NAMED)
    if results.comparisons:
        return (
            f"There is no verdict: no two runs of {names} have a number for {results.primary.title} that can be "
            "compared. Log one in each, as test_NAME in test_step."
        )
    return (
        f"There is no verdict: the runs of {names} hold no two methods to compare on the same data, model, fold and "
        "seed. Include random and one other method among the selections of `lightning-ubs compare`."
    )


def phrase(ours: Sequence[str], theirs: Sequence[str], answer: Answer, margin: float) -> str:
    """An answer in words.

    >>> phrase(["UBS"], ["Random"], "equal", 0.001)
    'UBS and Random are equal within 0.001'
    """
    names, other = join(ours, _MOST_NAMED), join(theirs, _MOST_NAMED)
    if answer == "undecided":
        return f"{names} against {other}: undecided"
    if answer == "equal":
        return f"{join([*ours, *theirs], _MOST_NAMED)} are equal within {margin:g}"
    return f"{names} {'are' if len(ours) > 1 else 'is'} {answer} than {other}"


def scope(evidence: Evidence, places: Sequence[str]) -> str:
    """What the evidence is about, and what it says nothing about.

    >>> scope(Evidence.of([Difference("a", "", seed, 0.1) for seed in range(10)]), ["a"])
    'over 10 seeds on one split of the data: says nothing about another split; let data take the seed'
    """
    if evidence.kind != "seeds" and evidence.datasets >= MIN_DATASETS:
        return f"over {evidence.units} datasets"
    first = f", a first look: {USUAL_UNITS} are usual" if evidence.units < USUAL_UNITS else ""
    if evidence.kind == "seeds":
        where = "one split of the data" if evidence.splits == 1 else f"{evidence.splits} splits of the data"
        if evidence.datasets > 1:
            where = f"one split of each of these {evidence.datasets} datasets"
        little = "nothing" if evidence.splits == evidence.datasets else "next to nothing"
        seeds = count_of(evidence.units, "seed")
        return f"over {seeds} on {where}: says {little} about another split; let data take the seed{first}"
    if evidence.datasets == 1:
        return f"over {count_of(evidence.units, 'split')} of {places[0] if places else 'the data'}{first}"
    return f"over {count_of(evidence.splits, 'split')}, on these {evidence.datasets} datasets{first}"


def interval_text(interval: Interval) -> str:
    """A mean with its bounds."""
    return f"{signed(interval.mean, _decimals(interval))} ({bounds_text(interval)})"


def bounds_text(interval: Interval) -> str:
    """The bounds of an interval."""
    if not math.isfinite(interval.low):
        return "one pair only, so no interval"
    low, high = (signed(bound, _decimals(interval)) for bound in (interval.low, interval.high))
    return f"95\u00a0% {low} to {high}"


def _decimals(interval: Interval) -> int:
    """Four, or as many as a narrower interval needs, such as that of a loss of small size."""
    width = interval.high - interval.low
    return max(4, -math.floor(math.log10(width))) if width > 0 else 4


def overlap_of(evidence: Evidence, folds: int) -> float:
    """Test samples over training samples: k folds hold 1/(k - 1). 0 where units are not splits of one dataset.

    Splits that are no folds do not tell how large their test sets are; a quarter of the samples is taken.
    """
    if evidence.kind != "splits" or evidence.datasets > 1:
        return 0.0
    return 1 / (folds - 1) if folds > 1 else UNSEEN


def would_show(evidence: Evidence, count: int, what: str) -> str:
    """How many units would show something; where all runs lie on one or two splits, each needs one of its own.

    The number is that of a pilot, so it has two digits, and none where nobody would do as many.

    >>> would_show(Evidence(np.array([0.1, 0.2, 0.3]), "splits", pairs=3), 117, "0.01")
    'about 120 runs would show 0.01'
    >>> would_show(Evidence(np.array([0.1, 0.2, 0.3]), "splits", pairs=3), 117876, "0.01")
    'more than 1,000 runs would be needed to show 0.01'
    """
    own = ", each on a split of its own" if evidence.kind == "seeds" else ""
    if count > _MOST_UNITS:
        return f"more than {_MOST_UNITS:,} {evidence.noun} would be needed to show {what}{own}"
    step = 10 if count > 99 else 1
    return f"about {math.ceil(count / step) * step} {evidence.noun} would show {what}{own}"


def margin_of(results: Results, margin: float | None) -> float:
    """The margin; by default 0.001, or a hundredth of the scores' median size where that is less, to one digit."""
    if margin is not None:
        return checked_margin(margin)
    sizes = [abs(run.metrics.get(results.primary.key, math.nan)) for run in results.runs]
    sizes = [size for size in sizes if math.isfinite(size) and size > 0]
    share = float(np.median(sizes)) / 100 if sizes else DEFAULT_MARGIN
    return min(DEFAULT_MARGIN, float(f"{share:.0e}"))


def checked_margin(margin: float | None) -> float:
    """The margin that was given, `DEFAULT_MARGIN` if none was.

    Raises:
        ReportError: If it is not a number above 0.
    """
    if margin is None:
        return DEFAULT_MARGIN
    number = isinstance(margin, Real) and not isinstance(margin, bool)
    if not (number and math.isfinite(margin) and margin > 0):
        raise ReportError(
            f"margin={margin!r} is out of range; give the difference that does not matter, a number above 0 such as "
            "0.001."
        )
    return float(margin)
