"""One colour and one dash pattern per method, the same in every figure.

Hues follow Okabe and Ito's set for colour-blind readers; the dashes tell methods apart without any colour. Each has
a light-ground and a dark-ground tone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_ubs.report.results import Method


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    colour: str
    dark: str
    dash: Any = "-"
    width: float = 1.5


_KNOWN = {
    "random": Look("#454c56", "#dbe1e8", (0, (5, 2))),
    "balance": Look("#009e73", "#1fa881", (0, (1, 1.3))),
    "active": Look("#cc6fa5", "#d97fb3", (0, (4, 1.5, 1, 1.5))),
    "recen": Look("#0060a8", "#5ab0f0", (0, (7, 1.5))),
    "hard": Look("#dd9c00", "#f5cf55", (0, (3, 1, 1, 1, 1, 1))),
    "ubs": Look("#c23b00", "#ff7433", "-", 2.3),
}
_MORE = (
    Look("#6f4fb8", "#b39cf0", (0, (2, 1))),
    Look("#20899b", "#6fd3e3", (0, (6, 2, 1, 2))),
    Look("#7d5a3c", "#c9a483", (0, (1, 2))),
    Look("#5f7d1d", "#b0cf63", (0, (3, 2))),
    Look("#a3364a", "#f0909f", (0, (8, 2, 2, 2))),
    Look("#3d4f8f", "#9badf0", (0, (2, 2, 6, 2))),
)


def looks(methods: Sequence[Method]) -> dict[Method, Look]:
    """A look per method; the main method of a known selection always has the same one."""
    chosen: dict[Method, Look] = {}
    taken: set[str] = set()
    spare = 0
    for method in methods:
        known = next((start for start in _KNOWN if method.selection.startswith(start)), None)
        if known is not None and known not in taken:
            taken.add(known)
            chosen[method] = _KNOWN[known]
        else:
            chosen[method] = _MORE[spare % len(_MORE)]
            spare += 1
    return chosen


def dark_theme() -> dict[str, tuple[str, str]]:
    """CSS variable → (light, dark) colour, for the page."""
    every = [*_KNOWN.values(), *_MORE]
    return {f"--m{index}": (look.colour, look.dark) for index, look in enumerate(every)}


def theme() -> dict[str, str]:
    """Colour of a drawing → CSS variable."""
    return {light: f"var({name})" for name, (light, _) in dark_theme().items()}
