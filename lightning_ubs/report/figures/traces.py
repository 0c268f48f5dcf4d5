"""Figures of what runs left behind: a map of the samples, label correlation at two epochs, the labels drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.inspection.pictures import largest, plot_correlation, plot_data_map
from lightning_ubs.report.figures.canvas import MUTED, FigureKind, Material, Plot, heading, name_width, new_figure, slug
from lightning_ubs.report.method import method_looks
from lightning_ubs.report.results import Array
from lightning_ubs.report.traces import Trace, label_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data_map_plots(material: Material) -> Iterator[Plot]:
    """One run per data and model."""
    for one in material.traced:
        if not all(name in one.trace for name in ("mean_uncertainty", "fluctuation")):
            continue
        run, uncertainty, times = one.run, one.trace["mean_uncertainty"], one.trace["times_selected"]
        related = np.corrcoef(uncertainty, times)[0, 1] if np.ptp(times) and np.ptp(uncertainty) else 0.0
        alt = (
            f"Scatter plot of {len(times)} training samples. Selected {times.min()} to {times.max()} times; "
            f"correlation of mean uncertainty with times selected {related:.2f}."
        )
        title = heading("Samples", run.data, run.model)
        make = partial(_map_figure, one.trace, title)
        yield Plot(slug("data-map", run.data, run.model), f"{run.data}, {run.model}", alt, make)


def _map_figure(trace: Trace, title: str) -> Figure:
    _, axes = new_figure(title, 4.0, 3.1, right=0.55)
    return plot_data_map(trace["mean_uncertainty"], trace["fluctuation"], trace["times_selected"], axes=axes)


DATA_MAP = FigureKind(
    "Data map",
    "Each point is a training sample of one run: how uncertain the model was about it, how much its predictions moved, "
    "and how often it was selected.",
    data_map_plots,
    "lightning-ubs compare experiment=convergence",
)


def correlation_plots(material: Material) -> Iterator[Plot]:
    """The first and the last kept matrix of one run per data and model, then last minus first."""
    for one in material.traced:
        run, trace = one.run, one.trace
        matrices = np.array(trace.get("correlations", ()), dtype=float)
        if matrices.ndim != 3 or len(matrices) < 2 or matrices.shape[1] < 2:
            continue
        epochs = [int(epoch) for epoch in trace.get("correlation_epochs", np.arange(len(matrices)))]
        names = label_names(trace, matrices.shape[1])
        others = ~np.eye(len(names), dtype=bool)
        first, last = matrices[0], matrices[-1]
        top, bound = largest(matrices[[0, -1]][:, others]), largest(np.abs(last - first))
        for part, matrix, limits, what in (
            ("first", first, (0.0, top), f"C in epoch {epochs[0]}"),
            ("last", last, (0.0, top), f"C in epoch {epochs[-1]}"),
            ("change", last - first, (-bound, bound), f"Epoch {epochs[-1]} − {epochs[0]}"),
        ):
            title = heading(what, run.data, run.model)
            low, high = float(np.nanmin(matrix[others])), float(np.nanmax(matrix[others]))
            alt = f"{title}: heat map of {len(names)} by {len(names)} labels, {low:.3g} to {high:.3g}."
            yield Plot(
                slug("correlation", run.data, run.model, part),
                f"{run.data}, {run.model}",
                alt,
                partial(_correlation_figure, matrix, names, title, limits),
            )


def _correlation_figure(matrix: Array, names: Sequence[str], title: str, limits: tuple[float, float]) -> Figure:
    margin = min(1.3, name_width([*names])) if len(names) <= 24 else 0.5
    _, axes = new_figure(title, 4.0, 3.5, left=margin, bottom=margin, right=0.42)
    return plot_correlation(matrix, names, limits=limits, axes=axes)


CORRELATION = FigureKind(
    "Label correlation at two epochs",
    "Mutual information between the uncertainties of labels (C), in one run per setting. The diagonal is 1 by "
    "definition and left out.",
    correlation_plots,
    "lightning-ubs compare experiment=correlation_drift",
)


def label_draws_plots(material: Material) -> Iterator[Plot]:
    """One run per data and model."""
    looks = method_looks(material.results.methods)
    for one in material.traced:
        found = draw_ratios(one.trace)
        if found is None:
            continue
        share, ratio = found
        run = one.run
        order = np.argsort(share, kind="stable")
        alt = (
            f"Scatter plot of {len(share)} labels. In epochs that {run.method.label} chose, samples with the rarest "
            f"label were drawn {ratio[order[0]]:.2f} times as often as in plain passes, with the most frequent label "
            f"{ratio[order[-1]]:.2f} times."
        )
        title = heading("Labels drawn", run.data, run.model)
        make = partial(_draws_figure, share, ratio, looks[run.method].color, title)
        yield Plot(slug("labels-drawn", run.data, run.model), f"{run.data}, {run.model}", alt, make)


def draw_ratios(trace: Trace) -> tuple[Array, Array] | None:
    """Of each label with samples, their share of all samples and how often they came against plain passes."""
    times = trace["times_selected"].astype(float)
    labels = trace.get("labels")
    if labels is None or labels.shape != (len(times), *labels.shape[1:]) or labels.ndim != 2 or not times.sum():
        return None
    samples = labels.sum(0, dtype=np.int64)
    known = samples > 0
    share = samples[known] / len(times)
    return (share, times @ labels[:, known] / (share * times.sum())) if known.any() else None


def _draws_figure(share: Array, ratio: Array, color: str, title: str) -> Figure:
    figure, axes = new_figure(title, 4.0, 3.1)
    axes.axhline(1.0, color=MUTED, linewidth=1)
    axes.scatter(share, ratio, s=float(np.clip(2000 / len(share), 6, 24)), color=color, linewidths=0, alpha=0.8)
    axes.set_xscale("log")
    ticker = optional_import("matplotlib.ticker")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.2g} %")
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("Share of the samples that have the label")
    axes.set_ylabel("Draws against plain passes")
    return figure


LABEL_DRAWS = FigureKind(
    "Labels drawn",
    "Each point is a label of one run: how many training samples have it, and how often these were drawn in the epochs "
    "that the method chose, against as many draws of plain passes.",
    label_draws_plots,
    "lightning-ubs compare experiment=convergence",
)
