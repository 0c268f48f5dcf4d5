"""How every figure of the report looks, without touching matplotlib's global state, and what a kind of figure is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.inspection.pictures import MISSING
from lightning_ubs.methods import METHODS, SPARE_LOOKS
from lightning_ubs.report.results import Results
from lightning_ubs.report.traces import TracedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colors that the page replaces by its own variables, so that one figure is legible on light and on dark.
INK, MUTED, GRID, PAPER = "#1d2733", "#5d6875", MISSING, "#fefefe"
THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "none"}

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "text.parse_math": False,  # names of data and labels may contain dollar signs
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "savefig.facecolor": "auto",
    "legend.frameon": False,
    "svg.fonttype": "none",
}
_LEGEND_ROW = 0.2  # inches


@dataclass(frozen=True)
class Plot:
    """A figure that can be made: ``name`` becomes the file's, ``alt`` says in words what is seen.

    The figure is made when it is rendered, so that a report of hundreds holds one at a time.
    """

    name: str
    title: str
    alt: str
    make: Callable[[], Figure]


@contextmanager
def house_style() -> Iterator[None]:
    """Make and render figures inside this; the caller's settings of matplotlib come back afterwards."""
    matplotlib = optional_import("matplotlib")
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # The browser has the glyphs that the measuring font may lack.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield


def new_figure(
    title: str,
    width: float = 4.0,
    height: float = 2.8,
    *,
    left: float = 0.62,
    right: float = 0.14,
    bottom: float = 0.5,
    top: float = 0.36,
) -> tuple[Figure, Axes]:
    """One figure with one set of axes, unknown to pyplot; sizes and margins are inches.

    Margins are given because finding them costs matplotlib as much as the whole rest of a figure.
    """
    figure = optional_import("matplotlib.figure").Figure(figsize=(width, height))
    place = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    if title:
        figure.text(0.1 / width, 1 - 0.1 / height, title, va="top", fontsize=10)
    return figure, figure.add_axes(place)


def legend_height(names: Sequence[str]) -> float:
    """Inches that the legend of these names takes below a figure."""
    return _LEGEND_ROW * -(-len(names) // _legend_columns(names)) + 0.06


def add_legend(figure: Figure, names: Sequence[str]) -> None:
    """The legend below the axes, in as many columns as the names leave room for."""
    figure.legend(
        loc="lower center",
        ncols=_legend_columns(names),
        handlelength=2.8,
        borderaxespad=0.3,
        columnspacing=1.2,
        labelspacing=0.3,
    )


def _legend_columns(names: Sequence[str]) -> int:
    """At most three; a column takes the handle and the longest name of a figure four inches wide.

    >>> _legend_columns(["UBS", "Random"]), _legend_columns(["a name of 18 chars"] * 2)
    (2, 2)
    """
    return max(1, min(3, len(names), int(3.9 / (0.4 + name_width(names)))))


def slug(*parts: str) -> str:
    """A file name from names that may hold anything.

    >>> slug("loss", "yahoo-Arts/1", "<b>")
    'loss-yahoo-arts-1-b'
    """
    return "-".join(word for part in parts for word in re.findall(r"[a-z0-9]+", part.lower())) or "figure"


def clip(name: str, limit: int = 18) -> str:
    """A name short enough for a figure; the page's tables have it whole.

    >>> clip("a very long name", 7)
    'a very…'
    """
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def name_width(names: Sequence[str]) -> float:
    """Inches that the longest of these names takes beside the axes.

    >>> name_width(["UBS"]) < name_width(["a long name"])
    True
    """
    return 0.18 + 0.066 * max((len(name) for name in names), default=0)


def heading(what: str, data: str, model: str) -> str:
    """The title of a figure."""
    return ", ".join([what, clip(data), clip(model)])


@dataclass(frozen=True)
class Material:
    """What figures are made of: the runs, and the arrays that some of them left behind."""

    results: Results
    traced: Sequence[TracedRun]


@dataclass(frozen=True)
class FigureKind:
    """A section of figures.

    Attributes:
        title: Its heading.
        text: What the figures show.
        plots: Finds what can be plotted.
        command: What to run if that is nothing.
        first: Whether a page with few datasets shows it unfolded.
    """

    title: str
    text: str
    plots: Callable[[Material], Iterable[Plot]]
    command: str
    first: bool = False


def method_colors() -> dict[str, tuple[str, str]]:
    """CSS variable → (light, dark) color of each look that a method may have."""
    every = [*(row.look for row in METHODS), *SPARE_LOOKS]
    return {f"--m{index}": (look.color, look.dark) for index, look in enumerate(every)}


def figure_theme() -> dict[str, str]:
    """Color of a figure → CSS variable."""
    return THEME | {light: f"var({name})" for name, (light, _) in method_colors().items()}
