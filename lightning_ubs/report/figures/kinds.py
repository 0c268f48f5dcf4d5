"""What a kind of figure is: its heading, its plots, and what to run if there is nothing to plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lightning_ubs.report.figures.canvas import Plot
from lightning_ubs.report.results import Results
from lightning_ubs.report.traces import TracedRun


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
