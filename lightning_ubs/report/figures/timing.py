"""Time per epoch, and how much of it is batch selection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lightning_ubs.report.figures.canvas import INK, Drawing, Idea, clip, heading, new_figure, slug
from lightning_ubs.report.figures.palette import looks
from lightning_ubs.report.results import Method, Results


def draw(results: Results) -> Iterator[Drawing]:
    """One drawing per data and model: median seconds per epoch, the selection's share in full colour."""
    look = looks(results.drawn)
    for data, model in results.settings():
        times = {method: _median_times(results, method, data, model) for method in results.drawn}
        known = {method: time for method, time in times.items() if time is not None}
        if not known:
            continue
        figure, axes = new_figure(height=0.9 + 0.36 * len(known))
        for row, (method, (total, selection)) in enumerate(known.items()):
            axes.barh(row, total, color=look[method].colour, alpha=0.35, height=0.62)
            axes.barh(row, selection, left=total - selection, color=look[method].colour, height=0.62)
            axes.annotate(
                f"{total:.3g} s", (total, row), (5, 0), textcoords="offset points", va="center", color=INK, fontsize=8.5
            )
        axes.set_yticks(range(len(known)), [clip(method.label) for method in known])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.16)
        axes.set_xlim(left=0)
        axes.set_xlabel("Seconds per epoch")
        axes.set_title(heading("Time per epoch", data, model), loc="left")
        alt = "Median seconds per epoch: " + ", ".join(f"{m.label} {time[0]:.3g}" for m, time in known.items()) + "."
        yield Drawing(slug("time", data, model), f"{data}, {model}", alt, figure)


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


TIME = Idea(
    "Time per epoch",
    "Median over epochs and runs; the strong end of a bar is the time of batch selection. Runs that shared the machine "
    "also shared its time.",
    draw,
    "lightning-ubs compare experiment=time",
)
