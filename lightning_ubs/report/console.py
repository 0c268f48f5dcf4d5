"""What a report says in a terminal: at most twelve lines, the most needed first; the page has the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_ubs.report.contents import Contents
from lightning_ubs.report.training_cost import Speed
from lightning_ubs.report.verdict import Answer, Verdict, no_verdict, phrase, would_show
from lightning_ubs.report.words import join, plain, signed

MOST_LINES = 12
SIGN = "A difference is positive where the method named first is ahead, also in losses."
_MOST_SINGLE = 4
_MOST_DECIDED = 6
_MOST_NAMED = 4


@dataclass(frozen=True)
class _Line:
    """A line, how much it is needed (0: most), and what is missing without it."""

    text: str
    rank: int
    what: str = "comparisons"


def console_text(report: Contents) -> str:
    """The verdict, its scope and power, what it costs, and warnings, as far as twelve lines hold them."""
    verdicts = report.verdicts
    if len(verdicts) <= _MOST_SINGLE:
        lines = [line for verdict in verdicts for line in _single(verdict, report.speeds, len(verdicts))]
    else:
        lines = _grouped(verdicts)
    if len(verdicts) > 2:
        lines += [_Line(text, 2, "power") for text in _power(verdicts)]
    if len(verdicts) > 1:
        lines += [_Line(text, 5, "speed") for text in _speeds(report.speeds)]
    savings = report.savings.sentences if report.savings is not None else []
    if not verdicts:
        lines.append(_Line(no_verdict(report.results), 0))
    lines += [_Line(text, 5 + number, "savings") for number, text in enumerate(savings)]
    lines += [_Line(SIGN, 1)] if verdicts else []
    for number, text in enumerate(report.cautions):
        lines.append(_Line(f"Warning: {text}", 3 + number, "warnings"))
    return "\n".join(_fitting(lines)).replace("\u00a0", " ")


def _single(verdict: Verdict, speeds: Sequence[Speed], count: int) -> list[_Line]:
    """All about one comparison; of one among several, the answer alone and what a control says of it."""
    found = [_Line(verdict.told, 0)]
    found += [_Line(f"  {text}", 1, "note") for text in (*verdict.unscored_sentences, *verdict.control_sentences)]
    if count <= 2:
        found += [_Line(f"  {text}", 2, "power") for text in verdict.power_sentences]
    if count > 1:
        return found
    others = f"  Other metrics, which decide nothing: {'; '.join(verdict.others)}."
    found += [_Line(others, 6, "other metrics")] if verdict.others else []
    found += [_Line(f"  {text}", 7, "cautious interval") for text in verdict.cautious_sentences]
    return found + [_Line(f"  {' '.join(speed.sentences)}", 5, "speed") for speed in speeds]


def _grouped(verdicts: Sequence[Verdict]) -> list[_Line]:
    """The decided comparisons one by one, if they are few; the others by answer, each with its difference."""
    groups: dict[tuple[Answer, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.answer, verdict.theirs, verdict.scope), []).append(verdict)
    decided = [one for (answer, _, _), group in groups.items() if answer != "undecided" for one in group]
    lines = []
    if len(decided) <= _MOST_DECIDED:
        for verdict in decided:
            notes = (*verdict.unscored_sentences, *verdict.control_sentences)
            lines += [_Line(verdict.told, 0), *(_Line(f"  {text}", 1, "note") for text in notes)]
        groups = {key: group for key, group in groups.items() if key[0] == "undecided"}
    for (answer, theirs, where), group in groups.items():
        one, names = group[0], [verdict.ours for verdict in group]
        gains = sorted(verdict.interval.mean for verdict in group)
        values = signed(gains[0]) if len(gains) == 1 else f"differences {signed(gains[0])} to {signed(gains[-1])}"
        lines.append(
            _Line(
                f"{phrase(names, [theirs], answer, one.margin)} in {one.primary.metric.title}: {values} {where}; "
                f"corrected for {one.comparisons} comparisons.",
                0 if answer != "undecided" else 2,
            )
        )
    return lines


def _power(verdicts: Sequence[Verdict]) -> list[str]:
    """Which differences the undecided comparisons would miss, in one sentence for all with as much evidence."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.answer == "undecided":
            groups.setdefault(verdict.primary.evidence.counted, []).append(verdict)
    found = []
    for counted, group in groups.items():
        missed = sorted(verdict.missed for verdict in group if verdict.missed > 0)
        if not missed:
            found += group[0].power_sentences
            continue
        bounds = " to ".join(dict.fromkeys(plain(one) for one in (missed[0], missed[-1])))
        text = f"With {counted} a difference below {bounds} would mostly be missed"
        largest = max(group, key=lambda verdict: abs(verdict.interval.mean))
        if largest.needed:
            what = f"the {plain(abs(largest.interval.mean))} of {largest.ours}"
            text += f"; {would_show(largest.primary.evidence, largest.needed, what)}"
        found.append(f"{text}.")
    return found


def _speeds(speeds: Sequence[Speed]) -> list[str]:
    """Epochs to the score that both reach, all methods in one sentence."""
    found = []
    for against in dict.fromkeys(speed.against.label for speed in speeds):
        own = [speed for speed in speeds if speed.against.label == against]
        named = [f"{one.method.label} {one.epochs.value:.2f} ×{one.epochs.range}" for one in own]
        found.append(f"Epochs to the validation score that both reach, against {against}: {join(named, _MOST_NAMED)}.")
    return found


def _fitting(lines: Sequence[_Line]) -> list[str]:
    """The most needed of these lines in their order, and what was left out."""
    if len(lines) <= MOST_LINES:
        return [line.text for line in lines]
    order = sorted(range(len(lines)), key=lambda index: (lines[index].rank, index))
    kept = set(order[: MOST_LINES - 1])
    left = dict.fromkeys(line.what for index, line in enumerate(lines) if index not in kept)
    return [*(lines[index].text for index in sorted(kept)), f"More in the report: {join(list(left))}."]
