"""Training loss, validation score and correlation drift by epoch: mean and spread over folds and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs._utils.metric_names import TITLES
from lightning_ubs.report.figures.canvas import (
    FigureKind,
    Material,
    Plot,
    add_legend,
    clip,
    heading,
    legend_height,
    new_figure,
    slug,
)
from lightning_ubs.report.method import Method, method_looks
from lightning_ubs.report.results import Array, Results, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = tuple[Array, Array, Array]
# The share of the training whose values may lie outside the picture.
_COMMON = 0.2


def curve_plots(results: Results, curve: str, title: str) -> Iterator[Plot]:
    """One plot per data and model that has this curve."""
    for data, model in results.settings():
        lines: dict[Method, Line] = {}
        for method in results.drawn:
            line = band(list(results.cell(method, data, model).values()), curve)
            if line is not None:
                lines[method] = line
        if lines:
            ends = ", ".join(f"{method.label} {line[1][-1]:.4g}" for method, line in lines.items())
            alt = f"{title} by epoch. At the end: {ends}."
            make = partial(_figure, lines, results.drawn, heading(title, data, model))
            yield Plot(slug(curve, data, model), f"{data}, {model}", alt, make)


def band(runs: Sequence[Run], curve: str) -> Line | None:
    """Epochs, mean and standard deviation over runs, at the epochs that at least half of them have.

    Runs may stop early; a mean over the few that continue would compare different runs.
    """
    curves = [run.curves for run in runs if np.isfinite(run.curves.get(curve, np.zeros(0))).any()]
    if not curves:
        return None
    epochs = np.unique(np.concatenate([one["epoch"] for one in curves]))
    values = np.full((len(curves), len(epochs)), np.nan)
    for row, one in zip(values, curves, strict=True):
        row[np.searchsorted(epochs, one["epoch"])] = one[curve]
    keep = 2 * np.isfinite(values).sum(axis=0) >= len(curves)
    values, epochs = values[:, keep], epochs[keep]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one run has no spread
        spread = np.nan_to_num(np.nanstd(values, axis=0, ddof=1))
    return epochs, np.nanmean(values, axis=0), spread


def _figure(lines: Mapping[Method, Line], drawn: Sequence[Method], title: str) -> Figure:
    look = method_looks(drawn)
    names = [clip(method.label) for method in lines]
    space = legend_height(names)
    figure, axes = new_figure(title, height=2.5 + space, bottom=0.5 + space)
    for method, (epochs, mean, spread) in lines.items():
        style = look[method]
        axes.plot(
            epochs, mean, color=style.color, linestyle=style.dash, linewidth=style.width, label=clip(method.label)
        )
        if spread.any():
            axes.fill_between(epochs, mean - spread, mean + spread, color=style.color, alpha=0.13, linewidth=0)
    axes.set_xlabel("Epoch")
    axes.margins(x=0.02)
    low, high = _where_they_differ(list(lines.values()))
    axes.set_ylim(low, high)
    add_legend(figure, names)
    return figure


def _where_they_differ(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of values after the first fifth of the training: the common way there would flatten all that follows.

    >>> epochs, mean = np.arange(10.0), np.array([0.5, 0.7, 0.8, 0.86, 0.88, 0.89, 0.9, 0.9, 0.9, 0.9])
    >>> [round(end, 3) for end in _where_they_differ([(epochs, mean, np.zeros(10))])]
    [0.795, 0.905]
    """
    ends: list[float] = []
    for epochs, mean, spread in lines:
        later = epochs >= _COMMON * epochs[-1]
        ends += [*(mean - spread)[later], *(mean + spread)[later]]
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    room = 0.05 * (high - low) or 0.01
    return low - room, high + room


def _validation_plots(material: Material) -> Iterator[Plot]:
    for monitor in dict.fromkeys(run.record.monitor for run in material.results.runs):
        key = monitor.removeprefix("val_")
        title = f"Validation {TITLES[key]}" if key in TITLES else monitor
        yield from curve_plots(material.results, monitor, title)


def _loss_plots(material: Material) -> Iterator[Plot]:
    return curve_plots(material.results, "train_loss", "Training loss")


def _drift_plots(material: Material) -> Iterator[Plot]:
    return curve_plots(material.results, "correlation_drift", "Correlation drift")


_BANDS = (
    "Means over folds and seeds, bands of one standard deviation; cut to the range after the first fifth of training."
)
LOSS = FigureKind("Training loss", _BANDS, _loss_plots, "lightning-ubs compare experiment=convergence", first=True)
VALIDATION = FigureKind(
    "Validation score",
    f"The metric that chooses the best epoch. {_BANDS}",
    _validation_plots,
    "lightning-ubs compare experiment=convergence",
    first=True,
)
DRIFT = FigureKind(
    "Correlation drift",
    f"How much the label correlation matrix C changes from one epoch to the next. {_BANDS}",
    _drift_plots,
    "lightning-ubs compare experiment=correlation_drift",
)
