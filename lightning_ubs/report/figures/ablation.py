"""Ablation bars: what each part of the method is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.methods import REFERENCE
from lightning_ubs.report.figures.canvas import INK, MUTED, Plot, clip, heading, name_width, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results
from lightning_ubs.report.statistics import Interval, paired_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANTS = {
    "B": "B  entropy only (λ1 = 0)",
    "C": "C  fluctuation only (λ1 = 1)",
    "D": "D  no label correlation",
    "Active_LC": "Active_LC",
    "Recent_LC": "Recent_LC",
}


@dataclass(frozen=True)
class _Bar:
    """A method's mean, the full method's in the same runs, and the interval of their difference."""

    name: str
    value: float
    full: float
    difference: Interval


def ablation_plots(material: Material) -> Iterator[Plot]:
    """Bars start at the full method, so that their length is the difference."""
    results = material.results
    full = [method for method in results.methods if method.variant == "A"]
    full += [results.reference] if results.reference is not None else []
    others = _others(results)
    title = results.primary.title
    for data, model in results.settings():
        best = next((method for method in full if results.cell(method, data, model)), None)
        if best is None:
            continue
        found = [_bar(results, best, method, name, data, model) for method, name in others]
        bars = [bar for bar in found if bar is not None]
        if not any(bar.name in VARIANTS.values() for bar in bars):
            continue
        alt = ", ".join(f"{bar.name} {bar.value:.4f}" for bar in bars)
        yield Plot(
            slug("ablation", data, model),
            f"{data}, {model}",
            f"{title}: full method {bars[0].full:.4f}, {alt}.",
            partial(_figure, bars, heading("Ablation", data, model), results.primary),
        )


def _others(results: Results) -> list[tuple[Method, str]]:
    """The variants, each of the last two after the plain method that it adds label correlation to."""
    found = []
    for variant, name in VARIANTS.items():
        for method in results.methods:
            if method.variant == variant:
                plain = [m for m in results.main if m.key == method.key and not m.variant]
                found += [(m, clip(m.label)) for m in plain if method.key != REFERENCE]
                found.append((method, name))
                break
    return found


def _figure(bars: Sequence[_Bar], title: str, metric: Metric) -> Figure:
    names = ["A  full method", *(bar.name for bar in bars)]
    figure, axes = new_figure(title, height=1.2 + 0.33 * len(bars), left=name_width(names), right=0.6)
    axes.axvline(0, color=INK, linewidth=1.2)
    for place, bar in enumerate(bars, start=1):
        half = (bar.difference.high - bar.difference.low) / 2
        error = half if np.isfinite(half) else None
        axes.barh(place, bar.difference.mean, color=MUTED, alpha=0.55, height=0.6, xerr=error, ecolor=INK, capsize=2.5)
    for place, value in enumerate([bars[0].full, *(bar.value for bar in bars)]):
        axes.text(1.02, place, f"{value:.4f}", va="center", fontsize=8.5, transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(bars) + 0.6, -0.6)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel(f"{clip(metric.title)} minus full method")
    return figure


def _bar(results: Results, full: Method, other: Method, name: str, data: str, model: str) -> _Bar | None:
    ours, theirs = results.cell(full, data, model), results.cell(other, data, model)
    pairs = np.array(
        [
            (ours[unit].metrics.get(results.primary.key, np.nan), theirs[unit].metrics.get(results.primary.key, np.nan))
            for unit in sorted(ours.keys() & theirs.keys())
        ]
    ).reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if not len(pairs):
        return None
    means = pairs.mean(axis=0)
    return _Bar(name, float(means[1]), float(means[0]), paired_interval(pairs[:, 1] - pairs[:, 0]))


ABLATION = FigureKind(
    "Ablation",
    "Bars are paired differences to the full method with 95 % t-intervals; the numbers are the means themselves. "
    "Active_LC and Recent_LC are Active and Recent with label correlation added.",
    ablation_plots,
    "lightning-ubs compare experiment=ablation",
)
