"""The page: one HTML file that needs no other and asks no server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.report.contents import Contents
from lightning_ubs.report.figures.theme import figure_theme, method_colors
from lightning_ubs.report.gallery import Gallery
from lightning_ubs.report.method import method_looks
from lightning_ubs.report.significance import DATASETS, Significance
from lightning_ubs.report.verdict import no_verdict
from lightning_ubs.report.words import pvalue, signed


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
    template = environment.get_template("report.html")
    text: str = template.render(
        report=report,
        gallery=gallery,
        results=report.results,
        facts=facts(report),
        no_verdict=no_verdict(report.results),
        method_colors={
            method.label: variables[look.color] for method, look in method_looks(report.results.methods).items()
        },
        colors=method_colors(),
        unit_notes=unit_notes(report.tests),
        monitors=sorted({run.record.monitor for run in report.results.runs}),
        dark_media="(prefers-color-scheme: dark)",
    )
    return text


def facts(report: Contents) -> list[tuple[str, str]]:
    """What the results are, in a few words each."""
    results = report.results
    versions = sorted({str(run.record.versions.get("lightning_ubs", "unknown")) for run in results.runs})
    dates = sorted(run.record.started[:10] for run in results.runs if run.record.started)
    found = [
        ("Runs", str(len(results.runs))),
        ("Failed", str(len(results.failed))),
        ("Datasets", str(len(results.datasets))),
        ("Models", ", ".join(results.models)),
        ("Folds", str(len({run.unit[0] for run in results.runs}))),
        ("Seeds", str(len({run.unit[1] for run in results.runs}))),
        ("lightning-ubs", ", ".join(versions)),
    ]
    if dates:
        found.append(("Date", dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    return found


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
