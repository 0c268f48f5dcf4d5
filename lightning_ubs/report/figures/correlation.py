"""Label correlation at two epochs and their difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.inspection.pictures import largest, plot_correlation
from lightning_ubs.report.figures.canvas import Plot, heading, name_width, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.results import Array
from lightning_ubs.report.traces import label_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
                partial(_figure, matrix, names, title, limits),
            )


def _figure(matrix: Array, names: Sequence[str], title: str, limits: tuple[float, float]) -> Figure:
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
