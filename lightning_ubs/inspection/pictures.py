"""Pictures of a selection that loggers, the report and notebooks share: data map, label correlation, schedule.

Each is a pure function of arrays or tensors and returns a matplotlib figure; ``axes`` says where to plot it.
Figures are made without pyplot, so that nothing global changes and nothing is left open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lightning_ubs._utils.extras import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    Values = NDArray[Any] | Tensor | Sequence[Any]

MISSING = "#dfe3e8"
_MOST_NAMES = 24
_LONGEST_NAME = 14


def plot_data_map(
    uncertainty: Values,
    fluctuation: Values,
    selected: Values,
    *,
    title: str = "",
    fluctuation_label: str = "Fluctuation of predictions",
    selected_label: str = "Times selected",
    axes: Axes | None = None,
) -> Figure:
    """Return a scatter plot of the training samples.

    Args:
        uncertainty: Mean uncertainty of each sample, (n,): the vertical axis.
        fluctuation: How much its predictions move, (n,): the horizontal axis.
        selected: How often, or how probably, it is selected, (n,): the color.
        title: Heading of the picture.
        fluctuation_label: What the horizontal axis shows.
        selected_label: What the color shows.
        axes: Where to plot; None makes a new figure.

    Raises:
        ValueError: If the three do not hold one value per sample each.

    >>> plot_data_map([0.1, 0.9], [0.0, 0.2], [1, 7], title="Samples").axes[0].get_title(loc="left")
    'Samples'
    """
    columns = {"uncertainty": _array(uncertainty), "fluctuation": _array(fluctuation), "selected": _array(selected)}
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or columns["selected"].ndim != 1:
        raise ValueError(f"a data map needs one value per sample, (n,), got {shapes}; reduce each over the labels.")
    order = np.argsort(columns["selected"], kind="stable")  # the rare, often selected samples stay visible on top
    axes = axes if axes is not None else _new_axes()
    points = axes.scatter(
        columns["fluctuation"][order],
        columns["uncertainty"][order],
        c=columns["selected"][order],
        cmap="cividis",
        s=float(np.clip(9000 / max(len(order), 1), 3, 16)),
        linewidths=0,
        alpha=0.85,
        rasterized=True,
    )
    axes.set_xlabel(fluctuation_label)
    axes.set_ylabel("Mean uncertainty")
    axes.set_title(title, loc="left")
    return _with_color_bar(axes, points, selected_label)


def plot_correlation(
    matrix: Values,
    names: Sequence[str] | None = None,
    *,
    title: str = "",
    limits: tuple[float, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Return a heat map of a label correlation matrix, without its diagonal, which is 1 by definition.

    Args:
        matrix: The correlation C, or the difference of two, (q, q).
        names: Names of the labels; up to 24 of them are written at the axes.
        title: Heading of the picture.
        limits: Ends of the color scale; a negative lower end means a difference and gets diverging colors. None: from
            0 to the largest value.
        axes: Where to plot; None makes a new figure.

    Raises:
        ValueError: If the matrix is not square.

    >>> plot_correlation([[1.0, 0.2], [0.2, 1.0]], ["beach", "sunset"], title="C").axes[0].get_title(loc="left")
    'C'
    """
    values = _array(matrix).astype(float)
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise ValueError(f"a correlation matrix is square, (q, q), got {values.shape}; pass selection.correlation.")
    np.fill_diagonal(values, np.nan)
    low, high = limits or (0.0, largest(values))
    axes = axes if axes is not None else _new_axes()
    axes.set_facecolor(MISSING)
    image = axes.imshow(values, cmap="PuOr_r" if low < 0 else "cividis", vmin=low, vmax=high, interpolation="nearest")
    axes.grid(visible=False)
    if names is not None and len(names) == len(values) <= _MOST_NAMES:
        ticks = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in map(str, names)]
        size = 8.5 if len(ticks) <= 12 else 6.5
        axes.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize=size)
        axes.set_yticks(range(len(ticks)), ticks, fontsize=size)
    else:
        axes.set_xlabel("Label")
        axes.set_ylabel("Label")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(title, loc="left")
    return _with_color_bar(axes, image)


def plot_schedule(
    epochs: Sequence[int], curves: Mapping[str, Sequence[float]], *, selected: Sequence[bool], title: str = ""
) -> Figure:
    """Return one small plot per curve, one above the other, over the epochs.

    Args:
        epochs: The horizontal axis.
        curves: Name to one value per epoch.
        selected: Which epochs are selected; the others are shaded.
        title: Heading of the picture.

    >>> figure = plot_schedule([0, 1], {"Pressure": [1, 100]}, selected=[False, True], title="UBS")
    >>> figure.axes[0].get_ylabel()
    'Pressure'
    """
    figure = _new_figure(5, 1 + 1.4 * len(curves))
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(panels, curves.items(), strict=True):
        axes.plot(epochs, values, drawstyle="steps-mid", color="#1f4e79")
        axes.set_ylabel(name, fontsize=8.5)
        axes.set_ylim(0, 1.05 * largest(np.asarray(values, dtype=float)))
        for epoch, chosen in zip(epochs, selected, strict=True):
            if not chosen:
                axes.axvspan(epoch - 0.5, epoch + 0.5, color=MISSING, linewidth=0)
    panels[0].set_title(title, loc="left")
    panels[-1].set_xlabel("Epoch (shaded: shuffled, not selected)" if not all(selected) else "Epoch")
    return figure


def largest(values: NDArray[Any]) -> float:
    """The largest finite value, or 1 where there is none, as the upper end of a color scale that is above 0."""
    finite = values[np.isfinite(values)]
    return float(max(finite.max(), 1e-9)) if finite.size else 1.0


def _array(values: Values) -> NDArray[Any]:
    """A copy as NumPy's; a tensor comes from its device, in float32 where NumPy lacks its type."""
    if hasattr(values, "detach"):
        tensor: Any = values.detach().cpu()
        return np.array((tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor).numpy())
    return np.array(values)


def _new_figure(width: float, height: float) -> Figure:
    figure: Figure = optional_import("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    optional_import("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    return figure


def _new_axes() -> Axes:
    return _new_figure(5, 4).add_subplot()


def _with_color_bar(axes: Axes, colored: Any, label: str = "") -> Figure:
    figure: Any = axes.figure
    bar = figure.colorbar(colored, ax=axes, pad=0.02, label=label)
    bar.outline.set_visible(False)
    whole: Figure = figure
    return whole
