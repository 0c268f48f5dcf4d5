"""From a figure to SVG and PNG, and from SVG to what stands inside the page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from lightning_ubs._utils.extras import optional_import

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
