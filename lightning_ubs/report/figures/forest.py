"""The verdict as a picture: the gain of each comparison with its interval, and the gain in each dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs.report.figures.canvas import INK, MUTED, Plot, clip, name_width, new_figure
from lightning_ubs.report.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gain_plot(verdicts: Sequence[Verdict], colors: Mapping[str, str]) -> Plot:
    """The first metric of each verdict; right of the line its own method is better."""
    title = verdicts[0].gains[0].metric.title
    parts = ", ".join(
        f"{verdict.ours} over {verdict.theirs} {verdict.gains[0].interval.mean:+.4f}" for verdict in verdicts
    )
    make = partial(_figure, verdicts, colors, title)
    return Plot("gain", f"Gain in {title}", f"Gain in {title} with 95 % intervals: {parts}.", make)


def _figure(verdicts: Sequence[Verdict], colors: Mapping[str, str], title: str) -> Figure:
    names = [f"{clip(verdict.ours)} over {clip(verdict.theirs)}" for verdict in verdicts]
    figure, axes = new_figure("", 4.8, 0.7 + 0.36 * len(verdicts), left=name_width(names), top=0.1)
    for row, verdict in enumerate(verdicts):
        gain, color = verdict.gains[0], colors[verdict.ours]
        values = list(gain.datasets.values())
        axes.scatter(values, [row] * len(values), s=22, facecolors="none", edgecolors=MUTED, linewidths=0.9, zorder=2)
        interval = verdict.interval
        if np.isfinite(interval.low):
            axes.plot([interval.low, interval.high], [row, row], color=color, linewidth=3, zorder=3)
        axes.scatter([interval.mean], [row], s=46, color=color, zorder=4)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(verdicts)), names)
    axes.set_ylim(len(verdicts) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(f"Gain in {clip(title, 30)}")
    return figure
