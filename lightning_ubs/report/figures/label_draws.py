"""Which labels a method draws: how often their samples came against plain passes, by how frequent a label is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.report.figures.canvas import MUTED, Plot, heading, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.method import method_looks
from lightning_ubs.report.results import Array
from lightning_ubs.report.traces import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        make = partial(_figure, share, ratio, looks[run.method].color, title)
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


def _figure(share: Array, ratio: Array, color: str, title: str) -> Figure:
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
