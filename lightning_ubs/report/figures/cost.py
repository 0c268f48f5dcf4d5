"""Figures of cost: the metric against what it cost, and the time of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.evidence import Evidence
from lightning_ubs.report.figures.canvas import (
    INK,
    FigureKind,
    Material,
    Plot,
    add_legend,
    clip,
    heading,
    legend_height,
    name_width,
    new_figure,
    slug,
)
from lightning_ubs.report.method import Method, method_looks
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results
from lightning_ubs.report.training_cost import Point, saving_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[Method, Sequence[Point]]
_COSTS = (("samples", "Saving", "Samples trained"), ("seconds", "Saving in time", "Seconds of training"))


def saving_plots(material: Material) -> Iterator[Plot]:
    """Two plots per data and model: against samples trained, and against seconds of training."""
    results = material.results
    if not results.several_budgets:
        return
    for (data, model), every in saving_curves(results).items():
        curves = {method: points for method, points in every.items() if method in results.drawn}
        for cost, title, label in _COSTS if curves else ():
            ends = ", ".join(
                f"{method.label} {np.mean(points[-1].values):.4f} for {np.mean(getattr(points[-1], cost)):.4g}"
                for method, points in curves.items()
            )
            make = partial(
                _saving_figure, curves, results.methods, cost, label, heading(title, data, model), results.primary
            )
            alt = f"{results.primary.title} against {label.lower()}. At the largest budget: {ends}."
            yield Plot(slug("saving", cost, data, model), f"{data}, {model}", alt, make)


def _saving_figure(
    curves: Curves, methods: Sequence[Method], cost: str, label: str, title: str, metric: Metric
) -> Figure:
    look = method_looks(methods)
    names = [clip(method.label) for method in curves]
    space = legend_height(names)
    figure, axes = new_figure(title, height=2.6 + space, left=0.8, bottom=0.5 + space)
    for method, points in curves.items():
        style = look[method]
        axes.errorbar(
            [float(np.mean(getattr(point, cost))) for point in points],
            [float(np.mean(point.values)) for point in points],
            yerr=[_half_interval(point.evidence) for point in points],
            color=style.color,
            linestyle=style.dash,
            linewidth=style.width,
            marker="o",
            markersize=4,
            ecolor=(style.color, 0.4),  # bars behind, curves before
            capsize=2.5,
            elinewidth=1,
            label=clip(method.label),
        )
    axes.set_xlabel(label)
    axes.set_ylabel(clip(metric.title, 24))
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}")
    # A wide bar must not hide what the points show.
    means = [float(np.mean(point.values)) for points in curves.values() for point in points]
    room = 0.4 * (max(means) - min(means)) or 0.01
    axes.set_ylim(min(means) - room, max(means) + room)
    add_legend(figure, names)
    return figure


def _half_interval(evidence: Evidence | None) -> float:
    """Half of the 95 % interval of the mean; 0 where there is none."""
    if evidence is None or evidence.units < 2:
        return 0.0
    span = evidence.interval()
    return (span.high - span.low) / 2


SAVING = FigureKind(
    "Saving: the metric against its cost",
    "Each point is one budget (trainer.max_epochs); further left is cheaper. Bars are 95 % t-intervals of the "
    "difference from Random with the largest budget, over the same folds and seeds; long ones are cut. Runs that "
    "shared the machine also shared its time.",
    saving_plots,
    "lightning-ubs compare experiment=savings",
)


def time_plots(material: Material) -> Iterator[Plot]:
    """One plot per data and model: median seconds per epoch, the selection's share in full color."""
    results = material.results
    for data, model in results.settings():
        times = {method: _median_times(results, method, data, model) for method in results.drawn}
        known = {method: time for method, time in times.items() if time is not None}
        if known:
            parts = ", ".join(f"{method.label} {time[0]:.3g}" for method, time in known.items())
            make = partial(_time_figure, known, results.drawn, heading("Time per epoch", data, model))
            name = slug("time", data, model)
            yield Plot(name, f"{data}, {model}", f"Median seconds per epoch: {parts}.", make)


def _time_figure(times: Mapping[Method, tuple[float, float]], drawn: Sequence[Method], title: str) -> Figure:
    look = method_looks(drawn)
    names = [clip(method.label) for method in times]
    figure, axes = new_figure(title, height=0.95 + 0.36 * len(times), left=name_width(names))
    for row, (method, (total, selection)) in enumerate(times.items()):
        axes.barh(row, total, color=look[method].color, alpha=0.35, height=0.62)
        axes.barh(row, selection, left=total - selection, color=look[method].color, height=0.62)
        axes.annotate(
            f"{total:.3g} s", (total, row), (5, 0), textcoords="offset points", va="center", color=INK, fontsize=8.5
        )
    axes.set_yticks(range(len(times)), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("Seconds per epoch")
    return figure


def _median_times(results: Results, method: Method, data: str, model: str) -> tuple[float, float] | None:
    curves = [run.curves for run in results.cell(method, data, model).values() if "epoch_seconds" in run.curves]
    totals = np.concatenate([one["epoch_seconds"] for one in curves]) if curves else np.zeros(0)
    totals = totals[np.isfinite(totals)]
    if not totals.size:
        return None
    parts = [one["selection_seconds"] for one in curves if "selection_seconds" in one]
    shares = np.concatenate(parts) if parts else np.zeros(0)
    shares = shares[np.isfinite(shares)]
    total = float(np.median(totals))
    return total, min(total, float(np.median(shares))) if shares.size else 0.0


TIME = FigureKind(
    "Time per epoch",
    "Median over epochs and runs; the strong end of a bar is the time of batch selection. Runs that shared the machine "
    "also shared its time.",
    time_plots,
    "lightning-ubs compare experiment=time",
)
