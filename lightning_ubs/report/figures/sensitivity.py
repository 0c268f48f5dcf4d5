"""Sensitivity to parameters: λ1 as a curve, s0 × T as a grid."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from lightning_ubs.report.figures.canvas import GRID, Drawing, Idea, heading, new_figure, slug
from lightning_ubs.report.figures.palette import looks
from lightning_ubs.report.measures import MACRO_AUC
from lightning_ubs.report.results import REFERENCE, Method, Results


def draw_lambda(results: Results) -> Iterator[Drawing]:
    """Macro-AUC over λ1 with one standard deviation."""
    for data, model in results.settings():
        family = _family(results, ("lambda1",), data, model)
        points = sorted((method.values["lambda1"], *_mean(results, method, data, model)) for method in family)
        if len(points) < 2:
            continue
        values, means, spreads = np.array(points).T
        figure, axes = new_figure()
        colour = looks(family)[family[0]].colour
        axes.errorbar(values, means, yerr=np.nan_to_num(spreads), color=colour, marker="o", markersize=5, capsize=3)
        axes.set_xlabel("λ1 (0: entropy only, 1: fluctuation only)")
        axes.set_ylabel("Macro-AUC")
        axes.set_title(heading("λ1", data, model), loc="left")
        best = int(means.argmax())
        alt = f"Macro-AUC over λ1 from {values[0]:g} to {values[-1]:g}; best {means[best]:.4f} at {values[best]:g}."
        yield Drawing(slug("lambda1", data, model), f"{data}, {model}", alt, figure)


def draw_grid(results: Results) -> Iterator[Drawing]:
    """Mean Macro-AUC for each initial pressure s0 and window T."""
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
        figure, axes = new_figure()
        axes.set_facecolor(GRID)
        image = axes.imshow(grid, cmap="cividis", aspect="auto", origin="lower")
        low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
        for (row, column), value in np.ndenumerate(grid):
            if np.isfinite(value):
                dark = value < (low + high) / 2
                axes.text(
                    column,
                    row,
                    f"{value:.4f}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
        axes.set_xticks(range(len(pressures)), [f"{value:g}" for value in pressures])
        axes.set_yticks(range(len(windows)), [f"{value:g}" for value in windows])
        axes.grid(visible=False)
        axes.set_xlabel("Initial pressure s0")
        axes.set_ylabel("Window T")
        axes.set_title(heading("Macro-AUC", data, model), loc="left")
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        bar.outline.set_visible(False)
        window, pressure = np.unravel_index(int(np.nanargmax(grid)), grid.shape)
        alt = (
            f"Heat map of Macro-AUC over {len(pressures)} pressures and {len(windows)} windows; best {high:.4f} at "
            f"s0 = {pressures[pressure]:g}, T = {windows[window]:g}."
        )
        yield Drawing(slug("grid", data, model), f"{data}, {model}", alt, figure)


def _family(results: Results, varied: Sequence[str], data: str, model: str) -> list[Method]:
    """The largest set of the reference's configurations that differ in ``varied`` only and have runs here."""
    families: dict[str, list[Method]] = defaultdict(list)
    for method in results.methods:
        values = method.values
        usable = method.selection == REFERENCE and method.variant in ("", "A") and all(n in values for n in varied)
        if usable and np.isfinite(_mean(results, method, data, model)[0]):
            rest = json.dumps({name: value for name, value in values.items() if name not in varied}, sort_keys=True)
            if method.variant == "" or all(values != other.values for other in families[rest]):
                families[rest].append(method)
    return max(families.values(), key=len, default=[])


def _mean(results: Results, method: Method, data: str, model: str) -> tuple[float, float]:
    values = np.array([run.metrics.get(MACRO_AUC.key, np.nan) for run in results.cell(method, data, model).values()])
    values = values[np.isfinite(values)]
    if not values.size:
        return float("nan"), float("nan")
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else float("nan")


LAMBDA = Idea(
    "Sensitivity to λ1",
    "λ1 weighs the fluctuation of predictions against their entropy. Bars are one standard deviation over folds and "
    "seeds.",
    draw_lambda,
    "lightning-ubs compare experiment=lambda_sensitivity",
)
GRID_S0_T = Idea(
    "Initial pressure s0 and window T",
    "Mean Macro-AUC over folds and seeds.",
    draw_grid,
    "lightning-ubs compare experiment=grid_s0_T",
)
