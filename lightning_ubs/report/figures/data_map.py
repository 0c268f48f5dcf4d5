"""A map of the training samples: mean uncertainty against fluctuation, colored by how often selected."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.inspection.pictures import plot_data_map
from lightning_ubs.report.figures.canvas import Plot, heading, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.traces import Trace

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
        make = partial(_figure, one.trace, title)
        yield Plot(slug("data-map", run.data, run.model), f"{run.data}, {run.model}", alt, make)


def _figure(trace: Trace, title: str) -> Figure:
    _, axes = new_figure(title, 4.0, 3.1, right=0.55)
    return plot_data_map(trace["mean_uncertainty"], trace["fluctuation"], trace["times_selected"], axes=axes)


DATA_MAP = FigureKind(
    "Data map",
    "Each point is a training sample of one run: how uncertain the model was about it, how much its predictions moved, "
    "and how often it was selected.",
    data_map_plots,
    "lightning-ubs compare experiment=convergence",
)
