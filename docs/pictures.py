"""Pictures of the results page, from the committed runs; ``python docs/tables.py`` writes them beside the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from method_tables import kinds
from stored_results import gains

from lightning_ubs.report.figures.canvas import INK, MUTED, house_style, name_width, new_figure
from lightning_ubs.report.figures.rendering import to_svg
from lightning_ubs.report.statistics import paired_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#5b3fd6", "#c2410c"


def gain_by_set() -> Figure:
    """UBS against Random on each set with its interval over the folds, the largest gain of each kind first."""
    rows: list[tuple[str, list[float]]] = []
    for name, by_data in kinds().items():
        found = {data: gains(runs["UBS"], runs["Random"]) for data, runs in by_data.items()}
        rows += [(name, []), *sorted(found.items(), key=lambda one: -np.mean(one[1]))]
    names = [name for name, _ in rows]
    figure, axes = new_figure("", 6.2, 0.55 + 0.24 * len(rows), left=name_width(names), top=0.08)
    for row, (_, values) in enumerate(rows):
        if values:
            gain = paired_interval(values)
            color = BETTER if gain.mean > 0 else WORSE
            axes.plot([gain.low, gain.high], [row, row], color=color, linewidth=2.5, alpha=0.45, zorder=2)
            axes.scatter(values, [row] * len(values), s=9, color=MUTED, linewidths=0, zorder=3)
            axes.scatter([gain.mean], [row], s=42, color=color, zorder=4)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(rows)), names)
    for label, (_, values) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("normal" if values else "bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlabel("Macro-AUC of UBS − Random")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {"gain_by_set": gain_by_set}


def drawn(name: str) -> str:
    """A picture as SVG, the same text every time."""
    with house_style():
        return to_svg(PICTURES[name](), name)
