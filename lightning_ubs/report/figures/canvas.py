"""How every figure looks, and how it becomes SVG and PNG without touching matplotlib's global state."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning_ubs._extras import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lightning_ubs.report.results import Results

# Colours that the page replaces by its own variables, so that one drawing is legible on light and on dark.
INK, MUTED, GRID, PAPER = "#1d2733", "#5d6875", "#dfe3e8", "#fefefe"
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


@dataclass(frozen=True)
class Drawing:
    """A figure to be rendered: ``name`` becomes the file's, ``alt`` says in words what is seen."""

    name: str
    title: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Idea:
    """A kind of figure: its heading, what it shows, how to draw it, and what to run if the data are missing."""

    title: str
    text: str
    draw: Callable[[Results], Iterator[Drawing]]
    command: str


@contextmanager
def house_style() -> Iterator[None]:
    """Draw and render inside this; the caller's settings of matplotlib come back afterwards."""
    matplotlib = optional_import("matplotlib")
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # The browser has the glyphs that the measuring font may lack.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield


def new_figure(width: float = 4.0, height: float = 2.8) -> tuple[Figure, Axes]:
    """One figure with one set of axes, unknown to pyplot."""
    figure = optional_import("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def settle(figure: Figure) -> None:
    """Compute the layout once; each file would else compute it again."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def to_png(figure: Figure, dpi: int = 160) -> bytes:
    """The figure as PNG on a white ground."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def to_svg(figure: Figure, name: str) -> str:
    """The figure as SVG; identifiers are derived from ``name`` so that several live in one page."""
    buffer = io.StringIO()
    with optional_import("matplotlib").rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return buffer.getvalue()


def for_page(svg: str, alt: str, theme: dict[str, str]) -> str:
    """An SVG file made ready to stand inside HTML: themed, scalable, named, without prologue."""
    escape = optional_import("markupsafe").escape
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'<g id="[A-Za-z0-9.]+_\d+"', "<g", body)
    for colour, variable in theme.items():
        body = body.replace(colour, variable)
    return re.sub(
        r"<svg ([^>]*?)>",
        lambda match: f'<svg role="img" aria-label="{escape(alt)}" {_without_size(match[1])}>',
        body,
        count=1,
    )


def _without_size(attributes: str) -> str:
    return re.sub(r'\b(width|height|version|xmlns:xlink|xmlns)="[^"]*"\s*', "", attributes).strip()


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


def heading(what: str, data: str, model: str) -> str:
    """The title of a figure."""
    return ", ".join([what, clip(data), clip(model)])
