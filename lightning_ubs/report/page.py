"""The page: one HTML file that needs no other and asks no server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.report.contents import Contents
from lightning_ubs.report.figures.canvas import figure_theme, method_colors
from lightning_ubs.report.gallery import Gallery
from lightning_ubs.report.method import clean, method_looks
from lightning_ubs.report.results import Results
from lightning_ubs.report.significance import DATASETS, Significance
from lightning_ubs.report.verdict import Answer, Verdict, no_verdict, phrase
from lightning_ubs.report.words import count_of, join, pvalue, signed

_MOST_NAMED = 4
_MOST_OPEN = 2
_MOST_LISTED = 20
_OWN_DATA = "lightning-ubs compare data=file data.path=FILE"


def render_page(report: Contents, gallery: Gallery) -> str:
    """The whole page as text; every name is escaped."""
    jinja = optional_import("jinja2")
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "signed": signed,
        "pvalue": pvalue,
        "svg": optional_import("markupsafe").Markup,
    }
    environment.tests["finite"] = math.isfinite
    variables = figure_theme()
    looks = method_looks(report.results.methods)
    colors = {method.label: variables[look.color] for method, look in looks.items()}
    template = environment.get_template("report.html")
    text: str = template.render(
        report=report,
        gallery=gallery,
        results=report.results,
        facts=facts(report),
        ranked=report.results.ranked,
        sections=_sections(report),
        intervals=forest(report.verdicts, colors) if report.verdicts else None,
        answers=answers(report.verdicts),
        next_steps=next_steps(report),
        what_was_run=what_was_run(report),
        no_verdict=no_verdict(report.results),
        method_colors=colors,
        colors=method_colors(),
        unit_notes=unit_notes(report.tests),
        monitors=sorted({run.record.monitor for run in report.results.runs}),
        dark_media="(prefers-color-scheme: dark)",
    )
    return text


@dataclass(frozen=True)
class Row:
    """One comparison of the forest plot; places are percentages of its width."""

    ours: str
    theirs: str
    answer: str
    gain: str
    range: str
    color: str
    mean: float
    left: float
    width: float
    rings: Sequence[float]


@dataclass(frozen=True)
class Forest:
    """The gains of all comparisons on one scale, which the page draws without an image so that it fits any width."""

    rows: Sequence[Row]
    zero: float
    ticks: Sequence[tuple[float, str]]
    note: str


def forest(verdicts: Sequence[Verdict], colors: Mapping[str, str]) -> Forest:
    """Place each gain in the deciding metric, with its interval and, of several datasets, each of them."""
    ends = [0.0]
    for verdict in verdicts:
        ends += [verdict.interval.mean, *verdict.primary.datasets.values()]
        ends += [end for end in (verdict.interval.low, verdict.interval.high) if math.isfinite(end)]
    step = _step((max(ends) - min(ends)) or 0.01)
    low, high = step * math.floor(min(ends) / step), step * math.ceil(max(ends) / step)
    high = high if high > low else low + step

    def place(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    rows = []
    for verdict in verdicts:
        interval, single = verdict.interval, list(verdict.primary.datasets.values())
        known = math.isfinite(interval.low)
        left, right = (place(interval.low), place(interval.high)) if known else (0.0, 0.0)
        span = f"{signed(interval.low)} to {signed(interval.high)}" if known else ""
        rings = [place(value) for value in single] if len(single) > 1 else []
        places = (place(interval.mean), left, right - left, rings)
        color, gain = colors[verdict.ours], signed(interval.mean)
        rows.append(Row(verdict.ours, verdict.theirs, verdict.answer, gain, span, color, *places))
    digits = max(0, -math.floor(math.log10(step)))
    ticks = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        text = "0" if abs(value) < step / 2 else f"{value:+.{digits}f}".replace("-", "−")
        ticks.append((place(value), text))
    return Forest(rows, place(0.0), ticks, f", corrected for {len(rows)} comparisons" if len(rows) > 1 else "")


def _step(span: float) -> float:
    """A round distance of which three to seven fit into the span.

    >>> _step(0.21), _step(0.0045)
    (0.05, 0.001)
    """
    power = 10.0 ** math.floor(math.log10(span))
    return next(power * part for part in (0.2, 0.5, 1, 2) if span <= 5 * power * part)


def answers(verdicts: Sequence[Verdict]) -> list[tuple[str, list[str]]]:
    """The answers in few words by what the evidence is about; methods of which the same is said share a sentence."""
    found: dict[str, dict[tuple[str, Answer], list[Verdict]]] = {}
    for verdict in verdicts:
        about = f"in {verdict.primary.metric.title}, {verdict.scope}"
        found.setdefault(about, {}).setdefault((verdict.theirs, verdict.answer), []).append(verdict)
    return [
        (
            about,
            [phrase([one.ours for one in group], [theirs], answer, group[0].margin) for (theirs, answer), group in own],
        )
        for about, own in ((about, groups.items()) for about, groups in found.items())
    ]


def facts(report: Contents) -> list[str]:
    """What the results are, in a few words each."""
    results = report.results
    found = [
        count_of(len(results.runs), "run") + (f", {len(results.failed)} failed" if results.failed else ""),
        results.datasets[0] if len(results.datasets) == 1 else count_of(len(results.datasets), "dataset"),
        join(results.models, _MOST_NAMED),
        f"{count_of(len({run.unit[0] for run in results.runs}), 'fold')}, "
        f"{count_of(len({run.unit[1] for run in results.runs}), 'seed')}",
    ]
    return [*found, *_dates(report)]


def _dates(report: Contents) -> list[str]:
    dates = sorted({run.record.started[:10] for run in report.results.runs if run.record.started})
    return [dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"] if dates else []


def _sections(report: Contents) -> list[tuple[str, str]]:
    """The links of the page: id and title of each section, in the order of the page."""
    ranked = report.results.ranked
    found = [("verdict", "Verdict")]
    found += [("tables", "Tables"), ("significance", "Significance")] if ranked else [("figures", "Curves")]
    found += [] if ranked else [("tables", "All metrics")]
    found += [("paper", "Paper")] if report.paper else []
    found += [("figures", "Figures")] if ranked else []
    found += [("samples", "Samples")] if report.samples else []
    found += [("failed", "Failed runs")] if report.results.failed else []
    return [*found, ("run", "What was run"), ("method", "How to read this")]


def next_steps(report: Contents) -> list[tuple[str, str]]:
    """What the answer suggests, each with a command where one does it."""
    found = []
    better = [verdict for verdict in report.verdicts if verdict.answer == "better"]
    if better:
        best = max(better, key=lambda verdict: verdict.interval.mean)
        found.append((f"Keep {best.ours}: it gained most ({signed(best.interval.mean)} over {best.theirs}).", ""))
    worse = list(dict.fromkeys(verdict.ours for verdict in report.verdicts if verdict.answer == "worse"))
    if worse:
        found.append((f"Leave out {join(worse, _MOST_NAMED)} here.", ""))
    undecided = [verdict for verdict in report.verdicts if verdict.answer == "undecided"]
    for verdict in sorted(undecided, key=lambda one: -abs(one.interval.mean))[:_MOST_OPEN]:
        text = " ".join(verdict.power_sentences)
        found.append((f"{verdict.ours} over {verdict.theirs} is open. {text}", ""))
    if report.results.ranked:
        return found
    return [*found, ("Ask the same of your own data, or call compare() with your own module:", _OWN_DATA)]


def what_was_run(report: Contents) -> list[tuple[str, list[str]]]:
    """Data, settings, versions, machine and command, as lines of text."""
    results = report.results
    shapes: dict[str, str] = {}
    for run in results.runs:
        shape = run.record.shape
        known = [(shape.get("n"), "training samples"), (shape.get("val"), "validation samples")]
        known += [(shape.get("d"), "features"), (shape.get("q"), "labels"), (shape.get("batches"), "batches per epoch")]
        shapes.setdefault(run.data, ", ".join(f"{count} {noun}" for count, noun in known if count))
    data = [f"{name}: {text}" if text else name for name, text in shapes.items()]
    if len(data) > _MOST_LISTED:
        data = [*data[:_MOST_LISTED], f"and {len(data) - _MOST_LISTED} more"]
    settings = []
    for method in results.methods:
        told = [f"{name} {_plain(value)}" for name, value in method.values.items() if value not in (None, "", False)]
        settings.append(method.label + (f": {', '.join(told)}" if told else ""))
    epochs = sorted({run.record.max_epochs for run in results.runs if run.record.max_epochs})
    training = [join([str(one) for one in epochs], _MOST_NAMED) + " epochs"] if epochs else []
    training += [f"best epoch by {join(sorted({run.record.monitor for run in results.runs}), _MOST_NAMED)}"]
    seconds = [run.record.seconds for run in results.runs if run.record.seconds]
    training += [f"{sum(seconds) / 60:.1f} minutes of training in all"] if seconds else []
    found = [
        ("Data", data),
        ("Model", list(results.models)),
        ("Methods", settings),
        ("Training", training),
        ("Versions", _versions(results)),
    ]
    found += [("Machine", machines)] if (machines := _told(results, "machine")) else []
    return [*found, *([("Command", [report.command])] if report.command else [])]


def _plain(value: Any) -> str:
    return clean(f"{value:g}" if isinstance(value, float) else str(value))


def _versions(results: Results) -> list[str]:
    names = dict.fromkeys(name for run in results.runs for name in run.record.versions if name != "machine")
    return [f"{name} {', '.join(_told(results, name))}" for name in names]


def _told(results: Results, name: str) -> list[str]:
    return sorted({clean(str(run.record.versions[name])) for run in results.runs if name in run.record.versions})


def unit_notes(tests: Sequence[Significance]) -> list[str]:
    """Which unit the tests use, and what that means for how far to trust them."""
    notes = []
    kinds = {test.units.kind for test in tests if test.pairs or test.ranks}
    if DATASETS in kinds:
        notes.append(
            "The unit is the dataset: its mean over folds and seeds counts once, and so do a set and its repaired form."
        )
    if kinds - {DATASETS}:
        notes.append(
            "There are fewer than 5 datasets, so the unit is a split of a dataset; seeds are averaged. Folds share "
            "training data and are not independent: these p-values look more certain than they are."
        )
    floors = [min(1.0, len(test.pairs) * min(p.smallest for p in test.pairs)) for test in tests if test.pairs]
    if floors and max(floors) > 0.05:
        notes.append(
            f"With so few pairs the smallest possible corrected p-value is {min(floors):.4f}: no result here "
            "could be significant at 0.05."
            if min(floors) > 0.05
            else f"Some tests have so few pairs that their corrected p-value cannot be below {max(floors):.4f}."
        )
    return notes


def _number(value: Any, form: str = ".4f") -> str:
    return format(value, form) if isinstance(value, int | float) and math.isfinite(value) else "–"
