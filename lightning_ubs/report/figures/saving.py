"""The metric against what it cost: one curve per method over training budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.figures.canvas import Plot, add_legend, clip, heading, legend_height, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.method import Method, method_looks
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.statistics import Evidence
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
            make = partial(_figure, curves, results.methods, cost, label, heading(title, data, model), results.primary)
            alt = f"{results.primary.title} against {label.lower()}. At the largest budget: {ends}."
            yield Plot(slug("saving", cost, data, model), f"{data}, {model}", alt, make)


def _figure(curves: Curves, methods: Sequence[Method], cost: str, label: str, title: str, metric: Metric) -> Figure:
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
