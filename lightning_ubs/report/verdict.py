"""The answer in words: which method is better than which, in what, by how much, at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.report.cautions import find_cautions
from lightning_ubs.report.gains import Gain, paired_gain
from lightning_ubs.report.method import Method
from lightning_ubs.report.results import Results, checked_results
from lightning_ubs.report.saving import check_margin, find_savings, saving_sentence
from lightning_ubs.report.significance import Significance, result_tests
from lightning_ubs.report.speed import Speed, measure_speed
from lightning_ubs.report.tables import build_tables
from lightning_ubs.report.words import join, pvalue, signed

_ALPHA = 0.05
_MOST_NAMED = 6
_PHRASES = {"better": "better", "worse": "worse", "none": "no evidence of a difference"}


@dataclass(frozen=True)
class Verdict:
    """All that is said about one method against another; the first gain is of the monitored metric."""

    ours: str
    theirs: str
    gains: Sequence[Gain]
    sentences: Sequence[str]

    @property
    def tone(self) -> str:
        """``better``, ``worse`` or ``none``, in the first metric."""
        return self.gains[0].tone

    @property
    def headline(self) -> str:
        """What holds in which metric."""
        groups = {tone: [gain.metric.title for gain in self.gains if gain.tone == tone] for tone in _PHRASES}
        parts = [f"{_PHRASES[tone]} in {join(titles)}" for tone, titles in groups.items() if titles]
        return f"{self.ours} against {self.theirs}: {'; '.join(parts)}"


def judge(results: Results, tests: Sequence[Significance]) -> list[Verdict]:
    """A verdict per comparison; none without pairs."""
    speeds = {method: measure_speed(results, method) for method in results.methods}
    verdicts = []
    for ours, theirs in results.comparisons:
        found = [paired_gain(results, metric, ours, theirs) for metric in results.metrics]
        gains = [gain for gain in found if gain is not None]
        if gains:
            sentences = [*map(gain_sentence, gains[:1]), dataset_sentence(ours.label, gains[0])]
            sentences += _test_sentences(gains, tests, ours, theirs)
            sentences += _speed_sentences(results, ours, theirs, speeds)
            verdicts.append(Verdict(ours.label, theirs.label, gains, sentences))
    return verdicts


def summary(verdicts: Sequence[Verdict]) -> str:
    """The whole answer in the first metric, in a few sentences; methods of which the same is said share one."""
    own = Counter(verdict.ours for verdict in verdicts)
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        shared = f"of {verdict.ours}" if own[verdict.ours] > 1 else f"against {verdict.theirs}"
        groups.setdefault((shared, verdict.tone, verdict.gains[0].metric.title), []).append(verdict)
    parts = []
    for (_, tone, title), group in groups.items():
        ours = join(list(dict.fromkeys(one.ours for one in group)), _MOST_NAMED)
        theirs = join(list(dict.fromkeys(one.theirs for one in group)), _MOST_NAMED)
        many = len({one.ours for one in group}) > 1
        if tone == "none":
            parts.append(f"There is no evidence that {ours} differ{'' if many else 's'} from {theirs} in {title}.")
        else:
            parts.append(f"{ours} {'are' if many else 'is'} {tone} than {theirs} in {title}.")
    return " ".join(parts)


def console_verdict(records: Sequence[RunRecord], monitor: str | None = None, margin: float | None = None) -> str:
    """The verdict for a terminal, in a few lines per comparison, and every warning that concerns it.

    Args:
        records: All runs, finished or failed.
        monitor: The logged name of the metric to begin with, such as ``val_auc``; None: what the runs monitored.
        margin: Non-inferiority margin: the loss up to which a cheaper training counts as no worse.

    Raises:
        ReportError: If no run finished, or none recorded that metric.
    """
    check_margin(margin)
    results = checked_results(records, monitor=monitor)
    verdicts = judge(results, result_tests(results, build_tables(results)))
    lines: list[str] = []
    for verdict in verdicts:
        width = max(len(gain.metric.title) for gain in verdict.gains)
        lines.append(f"{verdict.ours} against {verdict.theirs}")
        lines += [f"  {gain.metric.title:<{width}}  {_gain_line(gain)}" for gain in verdict.gains]
        lines += [f"  {sentence}" for sentence in verdict.sentences[2:]]
    if not verdicts:
        lines.append(no_verdict(results))
    lines += [saving_sentence(saving, margin) for saving in find_savings(results, margin)]
    lines += [f"Warning: {sentence}" for sentence in find_cautions(results)]
    return "\n".join(lines).replace("\u00a0", " ")


def no_verdict(results: Results) -> str:
    """Why there is none, and what to do."""
    names = join([method.label for method in results.methods])
    return (
        f"There is no verdict: the runs of {names} hold no two methods to compare on the same data, model, fold and "
        "seed. Include random and one other method among the selections of `lightning-ubs compare`."
    )


def gain_sentence(gain: Gain) -> str:
    """The mean gain and its interval."""
    interval = gain.interval
    mean = f"Mean gain in {gain.metric.title}: {signed(interval.mean)}"
    if not math.isfinite(interval.low):
        return f"{mean}, from one pair only: there is no interval, so this is no evidence."
    return f"{mean} ({_bounds(gain)}{', which contains 0' if gain.tone == 'none' else ''})."


def dataset_sentence(name: str, gain: Gain) -> str:
    """In how many datasets the mean is better."""
    total = len(gain.datasets)
    noun = "datasets" if total > 1 else "dataset"
    text = f"By the mean, {name} is better in {gain.better} of {total} {noun}, worse in {gain.worse}"
    equal = total - gain.better - gain.worse
    return f"{text}, equal in {equal}." if equal else f"{text}."


def _gain_line(gain: Gain) -> str:
    interval = gain.interval
    bounds = _bounds(gain) if math.isfinite(interval.low) else "one pair only, so no interval"
    noun = "datasets" if len(gain.datasets) > 1 else "dataset"
    return (
        f"{signed(interval.mean)} ({bounds}), better in {gain.better} of {len(gain.datasets)} {noun}: "
        f"{_PHRASES[gain.tone]}"
    )


def _bounds(gain: Gain) -> str:
    interval = gain.interval
    return f"95\u00a0% t-interval {signed(interval.low)} to {signed(interval.high)} over {interval.pairs} {gain.unit}"


def _test_sentences(gains: Sequence[Gain], tests: Sequence[Significance], ours: Method, theirs: Method) -> list[str]:
    """What the table of Wilcoxon's tests says otherwise than the intervals, so that the two never contradict."""
    found = []
    tones = {gain.metric.key: gain.tone for gain in gains}
    for test in tests:
        for pair in test.pairs:
            if (pair.ours, pair.theirs) != (ours.label, theirs.label) or pair.p_holm >= _ALPHA:
                continue
            tone = "better" if pair.wins > pair.losses else "worse"
            if tone != tones.get(test.units.metric.key):
                found.append(
                    f"Wilcoxon's test with {test.units.model} alone calls {ours.label} {tone} in "
                    f"{test.units.metric.title} (p {pvalue(pair.p_holm)} with Holm's correction, {pair.wins} : "
                    f"{pair.losses} {test.units.kind}), which the interval over all models does not."
                )
    return found


def _speed_sentences(results: Results, ours: Method, theirs: Method, speeds: dict[Method, Speed | None]) -> list[str]:
    baseline, speed = results.baseline, speeds[ours]
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
    other = speeds[theirs]
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
