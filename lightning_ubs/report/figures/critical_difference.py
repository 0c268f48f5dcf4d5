"""Critical-difference diagrams: mean ranks, and which of them Nemenyi's test cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.report.figures.canvas import INK, Plot, clip, name_width, new_figure, slug
from lightning_ubs.report.significance import RankTest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rank_plot(test: RankTest, colors: Mapping[str, str]) -> Plot:
    """One diagram; a bar joins methods whose difference is not significant at 0.05."""
    order = sorted(zip(test.ranks.tolist(), test.units.methods, strict=True))
    alt = f"Critical-difference diagram, mean ranks: {', '.join(f'{name} {rank:.2f}' for rank, name in order)}; "
    alt += f"critical difference {test.critical_difference:.2f}."
    title = f"{test.units.metric.title}, {test.units.model}"
    name = slug("critical-difference", test.units.metric.key, test.units.model)
    return Plot(name, title, alt, partial(_figure, test, colors))


def _figure(test: RankTest, colors: Mapping[str, str]) -> Figure:
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
