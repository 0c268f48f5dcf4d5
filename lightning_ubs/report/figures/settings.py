"""Figures of settings: what each part of the method is worth, and the sensitivity to λ1, s0 and T."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.methods import METHODS, REFERENCE
from lightning_ubs.report.evidence import Interval, paired_interval
from lightning_ubs.report.figures.canvas import (
    GRID,
    INK,
    MUTED,
    FigureKind,
    Material,
    Plot,
    clip,
    heading,
    name_width,
    new_figure,
    slug,
)
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Array, Results

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
    """Bars from the full method on, so that their length is the difference."""
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
            partial(_ablation_figure, bars, heading("Ablation", data, model), results.primary),
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


def _ablation_figure(bars: Sequence[_Bar], title: str, metric: Metric) -> Figure:
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


_COLOR = next(row.look.color for row in METHODS if row.key == REFERENCE)


def lambda_plots(material: Material) -> Iterator[Plot]:
    """The first metric over λ1 with one standard deviation."""
    results, metric = material.results, material.results.primary
    for data, model in results.settings():
        family = _family(results, ("lambda1",), data, model)
        points = np.array(sorted((method.values["lambda1"], *_mean(results, method, data, model)) for method in family))
        if len(points) < 2:
            continue
        best = points[_best(points[:, 1], metric)]
        alt = f"{metric.title} over λ1 from {points[0, 0]:g} to {points[-1, 0]:g}; best {best[1]:.4f} at {best[0]:g}."
        make = partial(_lambda_figure, points, heading("λ1", data, model), metric)
        yield Plot(slug("lambda1", data, model), f"{data}, {model}", alt, make)


def grid_plots(material: Material) -> Iterator[Plot]:
    """The mean of the first metric for each initial pressure s0 and window T."""
    results, metric = material.results, material.results.primary
    for data, model in results.settings():
        family = _family(results, ("s0", "window"), data, model)
        pressures = sorted({method.values["s0"] for method in family})
        windows = sorted({method.values["window"] for method in family})
        if len(pressures) < 2 or len(windows) < 2:
            continue
        grid = np.full((len(windows), len(pressures)), np.nan)
        for method in family:
            place = windows.index(method.values["window"]), pressures.index(method.values["s0"])
            grid[place] = _mean(results, method, data, model)[0]
        window, pressure = np.unravel_index(_best(grid, metric), grid.shape)
        alt = (
            f"Heat map of {metric.title} over {len(pressures)} pressures and {len(windows)} windows; best "
            f"{grid[window, pressure]:.4f} at s0 = {pressures[pressure]:g}, T = {windows[window]:g}."
        )
        make = partial(_grid_figure, grid, pressures, windows, heading(clip(metric.title), data, model))
        yield Plot(slug("grid", data, model), f"{data}, {model}", alt, make)


def _lambda_figure(points: Array, title: str, metric: Metric) -> Figure:
    values, means, spreads = points.T
    figure, axes = new_figure(title, left=0.8)
    axes.errorbar(values, means, yerr=np.nan_to_num(spreads), color=_COLOR, marker="o", markersize=5, capsize=3)
    axes.set_xlabel("λ1 (0: entropy only, 1: fluctuation only)")
    axes.set_ylabel(clip(metric.title, 24))
    return figure


def _grid_figure(grid: Array, pressures: Sequence[float], windows: Sequence[float], title: str) -> Figure:
    figure, axes = new_figure(title, left=0.5, right=0.3)
    axes.set_facecolor(GRID)
    image = axes.imshow(grid, cmap="cividis", aspect="auto", origin="lower")
    middle = (float(np.nanmin(grid)) + float(np.nanmax(grid))) / 2
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value):
            color = "white" if value < middle else "black"
            axes.text(column, row, f"{value:.4f}", ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(pressures)), [f"{value:g}" for value in pressures])
    axes.set_yticks(range(len(windows)), [f"{value:g}" for value in windows])
    axes.grid(visible=False)
    axes.set_xlabel("Initial pressure s0")
    axes.set_ylabel("Window T")
    figure.colorbar(image, ax=axes, pad=0.02).outline.set_visible(False)
    return figure


def _best(values: Array, metric: Metric) -> int:
    return int(np.nanargmin(values) if metric.higher_is_better is False else np.nanargmax(values))


def _family(results: Results, varied: Sequence[str], data: str, model: str) -> list[Method]:
    """The largest set of the reference's configurations that differ in ``varied`` only and have runs here."""
    families: dict[str, list[Method]] = defaultdict(list)
    for method in results.methods:
        values = method.values
        usable = method.key == REFERENCE and method.variant in ("", "A") and all(n in values for n in varied)
        if usable and np.isfinite(_mean(results, method, data, model)[0]):
            fixed = {name: value for name, value in values.items() if name not in varied} | {"loss": method.loss}
            rest = json.dumps(fixed, sort_keys=True)
            if method.variant == "" or all(values != other.values for other in families[rest]):
                families[rest].append(method)
    return max(families.values(), key=len, default=[])


def _mean(results: Results, method: Method, data: str, model: str) -> tuple[float, float]:
    runs = results.cell(method, data, model).values()
    values = np.array([run.metrics.get(results.primary.key, np.nan) for run in runs])
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else float("nan")


LAMBDA = FigureKind(
    "Sensitivity to λ1",
    "λ1 weighs the fluctuation of predictions against their entropy. Bars are one standard deviation over folds and "
    "seeds.",
    lambda_plots,
    "lightning-ubs compare experiment=lambda_sensitivity",
)
GRID_S0_T = FigureKind(
    "Initial pressure s0 and window T",
    "Means over folds and seeds.",
    grid_plots,
    "lightning-ubs compare experiment=grid_s0_T",
)
