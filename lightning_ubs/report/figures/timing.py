"""Time per epoch, and how much of it is batch selection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.figures.canvas import INK, Plot, clip, heading, name_width, new_figure, slug
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.method import Method, method_looks
from lightning_ubs.report.results import Results

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def time_plots(material: Material) -> Iterator[Plot]:
    """One plot per data and model: median seconds per epoch, the selection's share in full color."""
    results = material.results
    for data, model in results.settings():
        times = {method: _median_times(results, method, data, model) for method in results.drawn}
        known = {method: time for method, time in times.items() if time is not None}
        if known:
            parts = ", ".join(f"{method.label} {time[0]:.3g}" for method, time in known.items())
            make = partial(_figure, known, results.drawn, heading("Time per epoch", data, model))
            name = slug("time", data, model)
            yield Plot(name, f"{data}, {model}", f"Median seconds per epoch: {parts}.", make)


def _figure(times: Mapping[Method, tuple[float, float]], drawn: Sequence[Method], title: str) -> Figure:
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
