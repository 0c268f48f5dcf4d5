"""Label correlation matrices at two epochs and their difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.figures.canvas import GRID, Drawing, Idea, clip, heading, new_figure, slug
from lightning_ubs.report.results import Array, Results
from lightning_ubs.report.traces import find_traces, label_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMES = 24


def draw(results: Results) -> Iterator[Drawing]:
    """The first and the last kept matrix of one run per data and model, then last minus first."""
    for run, trace in find_traces(results, ("correlations",)):
        matrices = np.array(trace["correlations"], dtype=float)
        if matrices.ndim != 3 or len(matrices) < 2 or matrices.shape[1] < 2:
            continue
        epochs = [int(epoch) for epoch in trace.get("correlation_epochs", np.arange(len(matrices)))]
        names = label_names(trace, matrices.shape[1])
        first, last = _without_diagonal(matrices[0]), _without_diagonal(matrices[-1])
        top, bound = _largest(np.stack([first, last])), _largest(np.abs(last - first))
        for part, matrix, limits, title in (
            ("first", first, (0.0, top), heading(f"C in epoch {epochs[0]}", run.data, run.model)),
            ("last", last, (0.0, top), heading(f"C in epoch {epochs[-1]}", run.data, run.model)),
            (
                "change",
                last - first,
                (-bound, bound),
                heading(f"Epoch {epochs[-1]} − {epochs[0]}", run.data, run.model),
            ),
        ):
            values = matrix[np.isfinite(matrix)]
            alt = f"{title}: heat map of {len(names)} by {len(names)} labels, {values.min():.3g} to {values.max():.3g}."
            figure = correlation_figure(matrix, names, title, limits)
            yield Drawing(slug("correlation", run.data, run.model, part), f"{run.data}, {run.model}", alt, figure)


def correlation_figure(matrix: Array, names: Sequence[str], title: str, limits: tuple[float, float]) -> Figure:
    """Heat map of a (q, q) matrix; limits on both sides of 0 mean a difference, and diverging colours."""
    figure, axes = new_figure(4.0, 3.6)
    axes.set_facecolor(GRID)
    colours = "PuOr_r" if limits[0] < 0 else "cividis"
    image = axes.imshow(matrix, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axes.grid(visible=False)
    if len(names) <= _MOST_NAMES:
        ticks = [clip(name, 14) for name in names]
        size = 8.5 if len(names) <= 12 else 6.5
        axes.set_xticks(range(len(names)), ticks, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), ticks, fontsize=size)
    else:
        axes.set_xlabel("Label")
        axes.set_ylabel("Label")
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02).outline.set_visible(False)
    axes.set_title(title, loc="left")
    return figure


def _without_diagonal(matrix: Array) -> Array:
    """The diagonal is 1 by definition and would use up the colour scale."""
    copy = matrix.copy()
    np.fill_diagonal(copy, np.nan)
    return copy


def _largest(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(max(finite.max(), 1e-9)) if finite.size else 1.0


MATRICES = Idea(
    "Label correlation at two epochs",
    "Mutual information between the uncertainties of labels (C), in one run per setting. The diagonal is 1 by "
    "definition and left out.",
    draw,
    "lightning-ubs compare experiment=correlation_drift",
)
