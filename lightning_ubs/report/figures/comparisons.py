"""Figures of comparisons: the gain of each with its interval, and critical-difference diagrams of mean ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.report.figures.canvas import INK, MUTED, Plot, clip, name_width, new_figure, slug
from lightning_ubs.report.significance import RankTest
from lightning_ubs.report.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gain_plot(verdicts: Sequence[Verdict], colors: Mapping[str, str]) -> Plot:
    """The first metric of each verdict; right of the line its own method is better."""
    title = verdicts[0].gains[0].metric.title
    parts = ", ".join(
        f"{verdict.ours} over {verdict.theirs} {verdict.gains[0].interval.mean:+.4f}" for verdict in verdicts
    )
    make = partial(_gain_figure, verdicts, colors, title)
    return Plot("gain", f"Gain in {title}", f"Gain in {title} with 95 % intervals: {parts}.", make)


def _gain_figure(verdicts: Sequence[Verdict], colors: Mapping[str, str], title: str) -> Figure:
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


def rank_plot(test: RankTest, colors: Mapping[str, str]) -> Plot:
    """One diagram; a bar joins methods whose difference is not significant at 0.05."""
    order = sorted(zip(test.ranks.tolist(), test.units.methods, strict=True))
    alt = f"Critical-difference diagram, mean ranks: {', '.join(f'{name} {rank:.2f}' for rank, name in order)}; "
    alt += f"critical difference {test.critical_difference:.2f}."
    title = f"{test.units.metric.title}, {test.units.model}"
    name = slug("critical-difference", test.units.metric.key, test.units.model)
    return Plot(name, title, alt, partial(_rank_figure, test, colors))


def _rank_figure(test: RankTest, colors: Mapping[str, str]) -> Figure:
    names = list(test.units.methods)
    pandas, posthocs = optional_import("pandas"), optional_import("scikit_posthocs")
    heading = f"{test.units.metric.title}, {clip(test.units.model)}"
    labels = [f"{clip(name)} ({rank:.2f})" for name, rank in zip(names, test.ranks, strict=True)]
    margin = min(1.5, name_width(labels) - 0.1)
    figure, axes = new_figure(heading, 4.0, 1.25 + 0.26 * len(names), left=margin, right=margin, bottom=0.1, top=0.65)
    # Keys are numbers because two long names may be equal once cut.
    keys = [str(index) for index in range(len(names))]
    artists = posthocs.critical_difference_diagram(
        dict(zip(keys, test.ranks.tolist(), strict=True)),
        pandas.DataFrame(test.pairwise, index=keys, columns=keys),
        ax=axes,
        label_fmt_left="{label}",
        label_fmt_right="{label}",
        color_palette={key: colors[name] for key, name in zip(keys, names, strict=True)},
        crossbar_props={"color": INK, "linewidth": 3, "marker": None},
        elbow_props={"linewidth": 1.4},
        marker_props={"s": 26},
        text_h_margin=0.05,
    )
    for text in artists["labels"]:
        index = int(text.get_text())
        text.set_text(labels[index])
        text.set_color(INK)
    # The points of a bar come from a set, in another order each time; the same results make the same file.
    for (bar,) in artists["crossbars"]:
        bar.set_xdata(sorted(bar.get_xdata()))
    axes.grid(visible=False)
    axes.set_xlabel("")
    return figure
