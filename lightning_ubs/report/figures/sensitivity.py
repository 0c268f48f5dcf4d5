"""Sensitivity to parameters: λ1 as a curve, s0 × T as a grid."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.methods import METHODS, REFERENCE
from lightning_ubs.report.figures.canvas import GRID, Plot, clip, heading, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Array, Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
