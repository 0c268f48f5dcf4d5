"""A map of the training samples: mean uncertainty against fluctuation, coloured by how often selected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.figures.canvas import Drawing, Idea, heading, new_figure, slug
from lightning_ubs.report.results import Array, Results
from lightning_ubs.report.traces import find_traces

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Results) -> Iterator[Drawing]:
    """One run per data and model."""
    for run, trace in find_traces(results, ("mean_uncertainty", "fluctuation", "times_selected")):
        uncertainty, times = trace["mean_uncertainty"], trace["times_selected"]
        title = heading("Samples", run.data, run.model)
        related = np.corrcoef(uncertainty, times)[0, 1] if np.ptp(times) and np.ptp(uncertainty) else 0.0
        alt = (
            f"Scatter plot of {len(times)} training samples. Selected {times.min()} to {times.max()} times; "
            f"correlation of mean uncertainty with times selected {related:.2f}."
        )
        figure = data_map_figure(uncertainty, trace["fluctuation"], times, title)
        yield Drawing(slug("data-map", run.data, run.model), f"{run.data}, {run.model}", alt, figure)


def data_map_figure(uncertainty: Array, fluctuation: Array, times: Array, title: str) -> Figure:
    """Scatter plot of samples, each argument of shape (n,)."""
    order = np.argsort(times, kind="stable")  # the rare, often selected samples stay visible on top
    figure, axes = new_figure(4.0, 3.1)
    points = axes.scatter(
        fluctuation[order],
        uncertainty[order],
        c=times[order],
        cmap="cividis",
        s=float(np.clip(9000 / max(len(times), 1), 3, 16)),
        linewidths=0,
        alpha=0.85,
        rasterized=True,
    )
    axes.set_xlabel("Fluctuation of predictions")
    axes.set_ylabel("Mean uncertainty")
    axes.set_title(title, loc="left")
    figure.colorbar(points, ax=axes, pad=0.02, label="Times selected").outline.set_visible(False)
    return figure


DATA_MAP = Idea(
    "Data map",
    "Each point is a training sample of one run: how uncertain the model was about it, how much its predictions moved, "
    "and how often it was selected.",
    draw,
    "lightning-ubs compare experiment=convergence",
)
