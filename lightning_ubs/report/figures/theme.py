"""Colors of figures as variables of the page, which have one value on light ground and one on dark."""

from __future__ import annotations

from lightning_ubs.methods import METHODS, SPARE_LOOKS
from lightning_ubs.report.figures.canvas import THEME


def method_colors() -> dict[str, tuple[str, str]]:
    """CSS variable → (light, dark) color of each look that a method may have."""
    every = [*(row.look for row in METHODS), *SPARE_LOOKS]
    return {f"--m{index}": (look.color, look.dark) for index, look in enumerate(every)}


def figure_theme() -> dict[str, str]:
    """Color of a figure → CSS variable."""
    return THEME | {light: f"var({name})" for name, (light, _) in method_colors().items()}
