"""Training loss, validation Macro-AUC and correlation drift by epoch: mean and spread over folds and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from lightning_ubs.report.figures.canvas import Drawing, Idea, clip, heading, new_figure, slug
from lightning_ubs.report.figures.palette import looks
from lightning_ubs.report.results import Array, Results, Run


def draw_curves(results: Results, curve: str, title: str) -> Iterator[Drawing]:
    """One drawing per data and model that has this curve."""
    look = looks(results.drawn)
    for data, model in results.settings():
        lines = {}
        for method in results.drawn:
            line = band(list(results.cell(method, data, model).values()), curve)
            if line is not None:
                lines[method] = line
        if not lines:
            continue
        figure, axes = new_figure()
        for method, (epochs, mean, spread) in lines.items():
            style = look[method]
            axes.plot(
                epochs, mean, color=style.colour, linestyle=style.dash, linewidth=style.width, label=clip(method.label)
            )
            axes.fill_between(epochs, mean - spread, mean + spread, color=style.colour, alpha=0.13, linewidth=0)
        axes.set_xlabel("Epoch")
        axes.set_title(heading(title, data, model), loc="left")
        axes.margins(x=0.02)
        figure.legend(loc="outside lower center", ncols=min(3, len(lines)), handlelength=2.8)
        ends = ", ".join(f"{method.label} {line[1][-1]:.4g}" for method, line in lines.items())
        yield Drawing(slug(curve, data, model), f"{data}, {model}", f"{title} by epoch. At the end: {ends}.", figure)


def band(runs: Sequence[Run], curve: str) -> tuple[Array, Array, Array] | None:
    """Epochs, mean and standard deviation over runs, at the epochs that at least half of them have.

    Runs may stop early; a mean over the few that go on would compare different runs.
    """
    curves = [run.curves for run in runs if np.isfinite(run.curves.get(curve, np.zeros(0))).any()]
    if not curves:
        return None
    epochs = np.unique(np.concatenate([one["epoch"] for one in curves]))
    values = np.full((len(curves), len(epochs)), np.nan)
    for row, one in zip(values, curves, strict=True):
        row[np.searchsorted(epochs, one["epoch"])] = one[curve]
    keep = 2 * np.isfinite(values).sum(axis=0) >= len(curves)
    values, epochs = values[:, keep], epochs[keep]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one run has no spread
        spread = np.nan_to_num(np.nanstd(values, axis=0, ddof=1))
    return epochs, np.nanmean(values, axis=0), spread


def _loss(results: Results) -> Iterator[Drawing]:
    return draw_curves(results, "train_loss", "Training loss")


def _validation(results: Results) -> Iterator[Drawing]:
    return draw_curves(results, "val_macro_auc", "Validation Macro-AUC")


def _drift(results: Results) -> Iterator[Drawing]:
    return draw_curves(results, "correlation_drift", "Correlation drift")


_BANDS = "Lines are means over folds and seeds, bands one standard deviation."
LOSS = Idea("Training loss", _BANDS, _loss, "lightning-ubs compare experiment=convergence")
VALIDATION = Idea("Validation Macro-AUC", _BANDS, _validation, "lightning-ubs compare experiment=convergence")
DRIFT = Idea(
    "Correlation drift",
    f"How much the label correlation matrix C changes from one epoch to the next. {_BANDS}",
    _drift,
    "lightning-ubs compare experiment=correlation_drift",
)
