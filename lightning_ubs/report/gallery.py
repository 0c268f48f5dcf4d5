"""All figures of a report: found, rendered one by one on all processors, written as files where asked for."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_ubs._utils.extras import optional_import
from lightning_ubs._utils.files import write_file
from lightning_ubs._utils.progress import show_progress
from lightning_ubs.report.contents import Contents
from lightning_ubs.report.figures.canvas import FigureKind, Material, Plot, figure_theme, house_style
from lightning_ubs.report.figures.comparisons import gain_plot, rank_plot
from lightning_ubs.report.figures.cost import SAVING, TIME
from lightning_ubs.report.figures.curves import DRIFT, LOSS, VALIDATION
from lightning_ubs.report.figures.settings import ABLATION, GRID_S0_T, LAMBDA
from lightning_ubs.report.figures.traces import CORRELATION, DATA_MAP, LABEL_DRAWS
from lightning_ubs.report.method import method_looks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: tuple[FigureKind, ...] = (
    SAVING, VALIDATION, LOSS, TIME, DRIFT, CORRELATION, ABLATION, LAMBDA, GRID_S0_T, DATA_MAP, LABEL_DRAWS,
)  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A rendered figure: its file's name, and its SVG for the page."""

    name: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Section:
    """The figures of one kind."""

    kind: FigureKind
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Gallery:
    """All figures of a report, and the kinds of which there is none."""

    gains: Sequence[Picture] = ()
    diagrams: Sequence[Picture] = ()
    sections: Sequence[Section] = ()
    missing: Sequence[FigureKind] = ()


def render_gallery(report: Contents, folder: Path, formats: Sequence[str]) -> Gallery:
    """Render what ``formats`` ask for: ``html``, ``svg`` and ``png`` need figures, the others none."""
    if not {"html", "svg", "png"} & set(formats):
        return Gallery()
    if {"svg", "png"} & set(formats):
        folder.mkdir(parents=True, exist_ok=True)
    colors = {method.label: look.color for method, look in method_looks(report.results.methods).items()}
    # The page draws the gains itself, to fit any width; the figure is for papers.
    gains = [gain_plot(report.verdicts, colors)] if report.verdicts and {"svg", "png"} & set(formats) else []
    shown = report.results.ranked and not report.results.swept
    ranked = [test.ranks for test in report.tests if test.ranks is not None and shown]
    diagrams = [rank_plot(test, colors) for test in ranked]
    material = Material(report.results, report.traced)
    sections = [(kind, list(kind.plots(material))) for kind in KINDS]
    plots = [*gains, *diagrams, *(plot for _, own in sections for plot in own)]
    rendered = iter(_render_all(plots, folder, formats))
    return Gallery(
        list(islice(rendered, len(gains))),
        list(islice(rendered, len(diagrams))),
        [Section(kind, list(islice(rendered, len(own)))) for kind, own in sections if own],
        [kind for kind, own in sections if not own],
    )


def _render_all(plots: Sequence[Plot], folder: Path, formats: Sequence[str]) -> list[Picture]:
    """The pictures of all plots, in their order."""
    theme = figure_theme()

    def render(named: tuple[str, Plot]) -> Picture:
        name, plot = named
        figure = plot.make()
        svg = to_svg(figure, name) if {"html", "svg"} & set(formats) else ""
        if "svg" in formats:
            write_file(folder / f"{name}.svg", svg)
        if "png" in formats:
            write_file(folder / f"{name}.png", to_png(figure))
        inline = for_page(svg, plot.alt, theme) if "html" in formats else ""
        return Picture(name, plot.title, plot.alt, inline)

    pictures = []
    names = _free_names([plot.name for plot in plots])
    with house_style(), show_progress("figures", len(plots)) as advance:
        for picture in map_in_order(render, list(zip(names, plots, strict=True))):
            pictures.append(picture)
            advance()
    return pictures


def _free_names(wanted: Sequence[str]) -> list[str]:
    """The names, with a number behind those that came before.

    >>> _free_names(["loss", "loss", "time"])
    ['loss', 'loss-2', 'time']
    """
    found: list[str] = []
    for name in wanted:
        numbered = (f"{name}-{number}" for number in count(2))
        found.append(next(one for one in chain([name], numbered) if one not in found))
    return found


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
    return _shortened(buffer.getvalue())


def for_page(svg: str, alt: str, theme: dict[str, str]) -> str:
    """An SVG file made ready to stand inside HTML: themed, scalable, named, without prologue."""
    escape = optional_import("markupsafe").escape
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    body = re.sub(r'<g id="[A-Za-z0-9.]+_\d+"', "<g", body)
    for color, variable in theme.items():
        body = body.replace(color, variable)
    return re.sub(
        r"<svg ([^>]*?)>",
        lambda match: f'<svg role="img" aria-label="{escape(alt)}" {_without_size(match[1])}>',
        body,
        count=1,
    )


def _shortened(svg: str) -> str:
    """Coordinates of paths with two decimals: a hundredth of a point is seen by nobody, and half of the file."""
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", " ".join(path[0].split("\n"))), svg)


def _without_size(attributes: str) -> str:
    return re.sub(r'\b(width|height|version|xmlns:xlink|xmlns)="[^"]*"\s*', "", attributes).strip()


Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 40

# What the children of a fork inherit: figures are made from closures, which cannot be sent to another process.
_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def map_in_order(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in their order; few items stay in this process.

    >>> list(map_in_order(abs, [-1, 2]))
    [1, 2]
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(items) < _FEW or processors < 2 or not sys.platform.startswith("linux"):
        yield from map(function, items)
        return
    global _work
    _work = function, items
    try:
        with multiprocessing.get_context("fork").Pool(processors) as pool:
            yield from pool.imap(_do, range(len(items)), chunksize=4)
    finally:
        _work = None


def _do(index: int) -> Any:
    if _work is None:
        raise RuntimeError("there is no work in this process; it was not forked by map_in_order.")
    function, items = _work
    return function(items[index])
