"""The picture of the README, from the equations: ``python docs/mechanism.py`` writes it for light and dark pages."""

from __future__ import annotations

from pathlib import Path

import torch

from lightning_ubs.functional import selection_pressure, selection_probabilities

HERE = Path(__file__).parent
WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 44, 216, 52, 62
START, END, S0, SAMPLES = 5, 99, 100.0, 201
# Epochs that are shown, each with its words: the first selected one, the middle, the last.
SHOWN = ((START, "first selected epoch"), (52, "halfway"), (END, "last: plain shuffling"))
THEMES = {
    "light": {"ink": "#1f2933", "muted": "#5d6875", "grid": "#d9dee4", "lines": ("#5b3fd6", "#8f7be8", "#5d6875")},
    "dark": {"ink": "#e7ebf0", "muted": "#a2adb9", "grid": "#3a4450", "lines": ("#b3a4ff", "#8370d8", "#a2adb9")},
}


def mechanism(theme: str) -> str:
    """How often a sample is drawn per epoch, by how unsure the model is about it: SVG."""
    colors = THEMES[theme]
    weights = torch.linspace(0, 1, SAMPLES)
    draws = [
        selection_probabilities(weights, selection_pressure(epoch, START, END, S0)) * SAMPLES for epoch, _ in SHOWN
    ]
    most = max(float(one.max()) for one in draws)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    small = f'font-size="14.5" fill="{colors["muted"]}"'

    def place(weight: float, drawn: float) -> str:
        return f"{LEFT + wide * weight:.1f},{TOP + high * (1 - drawn / most):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>Samples the model is unsure about are drawn more often; at the end of training, all alike</title>",
        f'<text x="0" y="24" font-size="18" font-weight="600" fill="{colors["ink"]}">'
        "How often each training sample is drawn in an epoch</text>",
    ]
    for count in range(int(most) + 1):
        y = place(0, count).split(",")[1]
        parts.append(f'<path d="M{LEFT} {y}H{LEFT + wide}" stroke="{colors["grid"]}"/>')
        parts.append(f'<text x="{LEFT - 10}" y="{float(y) + 4}" text-anchor="end" {small}>{count}×</text>')
    for (epoch, words), own, color in zip(SHOWN, draws, colors["lines"], strict=True):
        line = " ".join(place(float(w), float(d)) for w, d in zip(weights, own, strict=True))
        dash = ' stroke-dasharray="6 5"' if epoch == END else ""
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="3.5"{dash}/>')
        y = float(place(1, float(own[-1])).split(",")[1])
        parts.append(f'<text x="{LEFT + wide + 12}" y="{y + 2}" font-size="16" fill="{colors["ink"]}">{words}</text>')
        share = round(float(own[-1] / own[0]))
        if share > 1:
            told = f"unsure to sure {share} : 1"
            parts.append(f'<text x="{LEFT + wide + 12}" y="{y + 21}" {small}>{told}</text>')
    base = HEIGHT - BOTTOM + 22
    parts += [
        f'<text x="{LEFT}" y="{base}" {small}>sure samples</text>',
        f'<text x="{LEFT + wide}" y="{base}" text-anchor="end" {small}>unsure samples</text>',
        f'<text x="{LEFT}" y="{base + 26}" {small}>'
        "As many samples per epoch as ever. Unsure: by the predictions of its own steps.</text>",
        "</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    for theme in THEMES:
        (HERE / f"mechanism_{theme}.svg").write_text(mechanism(theme), encoding="utf-8")
