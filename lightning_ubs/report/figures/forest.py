"""The verdict as a picture: gain over each competitor with its interval, and the gain in each dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_ubs.report.figures.canvas import INK, MUTED, Drawing, clip, new_figure
from lightning_ubs.report.verdict import Verdict


def draw(verdicts: Sequence[Verdict], reference: str, colour: str) -> Drawing:
    """Macro-AUC; right of the line the reference method is better."""
    figure, axes = new_figure(4.8, 0.9 + 0.36 * len(verdicts))
    for row, verdict in enumerate(verdicts):
        gain = verdict.gains[0]
        values = list(gain.datasets.values())
        axes.scatter(values, [row] * len(values), s=22, facecolors="none", edgecolors=MUTED, linewidths=0.9, zorder=2)
        interval = gain.interval
        if np.isfinite(interval.low):
            axes.plot([interval.low, interval.high], [row, row], color=colour, linewidth=3, zorder=3)
        axes.scatter([interval.mean], [row], s=46, color=colour, zorder=4)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(verdicts)), [f"over {clip(verdict.competitor)}" for verdict in verdicts])
    axes.set_ylim(len(verdicts) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlabel(f"Gain of {clip(reference)} in Macro-AUC")
    alt = f"Gain of {reference} in Macro-AUC with 95 % intervals: " + ", ".join(
        f"over {verdict.competitor} {verdict.gains[0].interval.mean:+.4f}" for verdict in verdicts
    )
    return Drawing("gain", "Gain in Macro-AUC", f"{alt}.", figure)
