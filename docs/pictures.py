"""Pictures of the results page, from the committed runs; ``python docs/tables.py`` writes them beside the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from alternative_tables import ALTERNATIVE_TABLES
from method_tables import METRICS, kinds
from model_tables import NAMES, by_model
from stored_results import ByMethod, evidence, gains, mean, savings, stored

from lightning_ubs.methods import looks
from lightning_ubs.report.evidence import Interval, paired_interval
from lightning_ubs.report.figures.canvas import INK, MUTED, house_style, name_width, new_figure
from lightning_ubs.report.gallery import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BETTER, WORSE = "#5b3fd6", "#c2410c"
# The two kinds of sets of experiment=savings, as its file names them.
RARE, PLENTY = ("rcv1subset1_aligned", "bibtex", "yahoo-Arts1"), "tmc2007-500"
BUDGETS = (20, 40, 80)
# Methods of experiment=savings, and the length of their epochs against a plain one.
SHOWN = {"Random": 1.0, "UBS": 1.0, "Loss": 1.0, "InfoBatch": 0.75, "Random half": 0.5}


def gain_by_set() -> Figure:
    """UBS against Random on each set with its interval over the folds, the largest gain of each kind first."""
    rows: list[tuple[str, list[float]]] = []
    for name, by_data in kinds().items():
        found = {data: gains(runs["UBS"], runs["Random"]) for data, runs in by_data.items()}
        rows += [(name, []), *sorted(found.items(), key=lambda one: -np.mean(one[1]))]
    return _forest(rows)


def gain_by_model() -> Figure:
    """The same with the paper's models on small sets, at its learning rate and at those of the models' authors."""
    rows: list[tuple[str, list[float]]] = []
    for words, store in (("learning rate 1e-4", "paper_models"), ("authors' learning rates", "authors_rate")):
        rows.append((words, []))
        rows += [
            (f"{NAMES[model]}, {data}", gains(runs["UBS"], runs["Random"]))
            for model, by_data in by_model(stored(store)).items()
            for data, runs in by_data.items()
        ]
    return _forest(rows)


def _forest(rows: list[tuple[str, list[float]]]) -> Figure:
    """Mean, interval and folds of each row; a row without values is a heading."""
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


def gain_by_kind() -> Figure:
    """Each method against Random on the two kinds of the paper's sets, in two metrics."""
    columns: dict[str, list[Row]] = {}
    for metric, title, _ in METRICS[:2]:
        rows = columns.setdefault(title, [])
        for name, by_data in kinds().items():
            rows += [(name, None), *_against_random(list(by_data.values()), metric)]
    return _side_by_side(columns)


def gain_at_equal_training() -> Figure:
    """Each method of experiment=savings against Random with as many epochs."""
    rare = {budget: [of_budget(data, budget) for data in RARE] for budget in BUDGETS}
    every = [runs for one in rare.values() for runs in one]
    return _side_by_side(
        {
            "rare labels: average precision": _against_random(every, "map"),
            "rare labels, 20 epochs: Macro-AUC": _against_random(rare[20], "macro_auc"),
            "plenty of samples: Macro-AUC": _against_random([of_budget(PLENTY, 80)], "macro_auc"),
        }
    )


def gain_by_selection() -> Figure:
    """Each selection on top of a weighted or balanced loss, over the sets of the short trainings."""
    rows = [line.replace("**", "").split(" | ") for line in ALTERNATIVE_TABLES["short_selections"]().splitlines()[2:]]
    chosen = {row[0].strip("| ").partition(": ")[2]: row for row in rows if row[0].startswith("| weighted or balanced")}
    return _side_by_side(
        {
            title: [(name, _bounds(row[column])) for name, row in chosen.items()]
            for title, column in (("Macro-AUC", -2), ("average precision", -1))
        }
    )


def _bounds(cell: str) -> Bounds:
    """The numbers of a cell with an interval."""
    return Bounds(*(float(one.replace("−", "-")) for one in re.findall(r"[+−][\d.]+", cell)))


def of_budget(data: str, budget: int) -> ByMethod:
    """The runs of experiment=savings on one set that trained as many epochs."""
    return {method: folds for (method, epochs), folds in savings()[data].items() if epochs == budget}


class Bounds(NamedTuple):
    """A mean and its interval."""

    mean: float
    low: float
    high: float


Row = tuple[str, Interval | Bounds | None]


def _against_random(units: Sequence[ByMethod], metric: str) -> list[Row]:
    methods = [method for method in units[0] if method != "Random"]
    return [(method, evidence(units, method, metric).interval()) for method in methods]


def _side_by_side(columns: Mapping[str, Sequence[Row]]) -> Figure:
    """A panel for each column, with the same rows; a row without an interval is a heading."""
    names = [name for name, _ in next(iter(columns.values()))]
    left, height = name_width(names), 0.9 + 0.24 * len(names)
    figure, axes = new_figure("", 6.8, height, left=left, top=0.3)
    axes.set_axis_off()
    start, width = left / 6.8, (1 - left / 6.8) / len(columns)
    for number, (title, rows) in enumerate(columns.items()):
        panel = figure.add_axes((start + number * width, 0.42 / height, width - 0.035, 1 - 0.75 / height))
        panel.set_title(title, fontsize=9)
        for row, (_, gain) in enumerate(rows):
            if gain is not None:
                color = BETTER if gain.mean > 0 else WORSE
                panel.plot([gain.low, gain.high], [row, row], color=color, linewidth=2.5, alpha=0.45, zorder=2)
                panel.scatter([gain.mean], [row], s=36, color=color, zorder=4)
        panel.axvline(0, color=INK, linewidth=1)
        panel.set_yticks(range(len(rows)), names if number == 0 else [""] * len(rows))
        for label, (_, gain) in zip(panel.get_yticklabels(), rows, strict=True):
            label.set_fontweight("bold" if gain is None else "normal")
        panel.tick_params(axis="y", length=0)
        panel.locator_params(axis="x", nbins=4)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.grid(axis="x", visible=True)
    return figure


def savings_by_samples() -> Figure:
    """Macro-AUC against the length of a training, counted in plain epochs: a panel for each set, three budgets each."""
    by_data, look = savings(), looks(SHOWN)
    figure, axes = new_figure("", 7.0, 5.2, left=0.6, bottom=0.8, top=0.3)
    axes.set_axis_off()
    handles = []
    for number, (data, runs) in enumerate(by_data.items()):
        place = (0.1 + 0.49 * (number % 2), 0.6 - 0.42 * (number // 2), 0.38, 0.32)
        panel = figure.add_axes(place)
        panel.set_title(data, fontsize=9)
        handles = [
            panel.plot(
                [budget * SHOWN[method] for budget in BUDGETS],
                [mean(runs[method, budget]) for budget in BUDGETS],
                color=look[method].color,
                linestyle=look[method].dash,
                marker="o",
                markersize=4,
                label=method,
            )[0]
            for method in SHOWN
        ]
        panel.set_xlim(left=0)
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), handlelength=2.6)
    figure.text(0.5, 0.085, "length of the training in plain epochs", ha="center", fontsize=9)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "gain_by_set": gain_by_set,
    "gain_by_model": gain_by_model,
    "gain_by_kind": gain_by_kind,
    "gain_at_equal_training": gain_at_equal_training,
    "gain_by_selection": gain_by_selection,
    "savings_by_samples": savings_by_samples,
}


def drawn(name: str) -> str:
    """A picture as SVG, the same text every time."""
    with house_style():
        return to_svg(PICTURES[name](), name)
