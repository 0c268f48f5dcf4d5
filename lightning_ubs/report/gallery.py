"""All figures of a report: found, rendered one by one, written as files where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

from lightning_ubs._utils.files import write_file
from lightning_ubs.report.contents import Contents
from lightning_ubs.report.figures.ablation import ABLATION
from lightning_ubs.report.figures.canvas import Plot, house_style
from lightning_ubs.report.figures.correlation import CORRELATION
from lightning_ubs.report.figures.critical_difference import rank_plot
from lightning_ubs.report.figures.curves import DRIFT, LOSS, VALIDATION
from lightning_ubs.report.figures.data_map import DATA_MAP
from lightning_ubs.report.figures.forest import gain_plot
from lightning_ubs.report.figures.kinds import FigureKind, Material
from lightning_ubs.report.figures.label_draws import LABEL_DRAWS
from lightning_ubs.report.figures.rendering import for_page, to_png, to_svg
from lightning_ubs.report.figures.saving import SAVING
from lightning_ubs.report.figures.sensitivity import GRID_S0_T, LAMBDA
from lightning_ubs.report.figures.theme import figure_theme
from lightning_ubs.report.figures.timing import TIME
from lightning_ubs.report.forking import map_in_order
from lightning_ubs.report.method import method_looks
from lightning_ubs.report.progress import show_progress

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
