"""Frames and pictures of a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.errors import SelectionError
from lightning_ubs.inspection import pictures as plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from lightning_ubs.inspection.views import SelectionViews

# Columns of every frame, whatever the strategy is; those that only some strategy has come after them.
_MEASURED = ("mean_uncertainty", "fluctuation", "latest_loss")
_TOO_EARLY = "it is measured from the second epoch on; look again later."


def to_frame(selection: SelectionViews) -> DataFrame:
    """One row per training sample; see :meth:`BatchSelection.to_frame`."""
    pandas = optional_import("pandas")
    n, told = known_samples(selection), sample_columns(selection)
    columns: dict[str, Any] = {
        "id": range(n),
        "weight": _floats(selection.weights, n),
        "probability": _floats(selection.probabilities, n),
        "times_drawn": _counts(pandas, selection.times_drawn, n),
        "last_epoch_drawn": _counts(pandas, selection.last_epoch_drawn, n),
    }
    columns |= {name: _floats(told.pop(name, None), n) for name in _MEASURED}
    columns |= {name: _floats(values, n) for name, values in told.items()}
    columns["labels"] = pandas.array(_label_texts(selection, n), dtype="string")
    frame: DataFrame = pandas.DataFrame(columns)
    return frame


def plot_data_map(selection: SelectionViews, label: str | int | None = None) -> Figure:
    """A scatter plot of the samples; see :meth:`BatchSelection.plot_data_map`."""
    n, told = known_samples(selection), sample_columns(selection)
    missing = [name for name in ("mean_uncertainty", "fluctuation") if name not in told]
    if missing:
        early = selection.strategy.measured.weights is None and selection.strategy.num_labels is not None
        raise SelectionError(
            f"there is no {missing[0]} of the samples with {selection.strategy!r}; "
            + (_TOO_EARLY if early else "a data map needs a strategy with a window, UBS or RecencyBias.")
        )
    title, shown = "Data map", torch.ones(n, dtype=torch.bool)
    if label is not None:
        labels = label_matrix(selection, n)
        place = selection.known_labels.position(label, labels.shape[1])
        names = selection.known_labels.names(labels.shape[1])
        title, shown = f"Data map, samples with {names[place] if names else f'label {place}'}", labels[:, place] > 0
    times = selection.times_drawn
    drawn = torch.zeros(n) if times is None else times
    columns = [told["mean_uncertainty"].cpu(), told["fluctuation"].cpu(), drawn]
    return plots.plot_data_map(*(column[shown] for column in columns), title=title, selected_label="Times drawn")


def plot_correlation(selection: SelectionViews) -> Figure:
    """A heat map of the label correlation; see :meth:`BatchSelection.plot_correlation`."""
    known_samples(selection)
    matrix = selection.correlation
    if matrix is None:
        used = getattr(selection.strategy, "correlation", None) is not None
        raise SelectionError(
            f"there is no label correlation with {selection.strategy!r}; "
            + (_TOO_EARLY if used else "use UBS(), or RecencyBias or ActiveBias with correlation='mutual_information'.")
        )
    return plots.plot_correlation(matrix, selection.known_labels.names(len(matrix)), title="Label correlation C")


def known_samples(selection: SelectionViews) -> int:
    """The number of training samples, all of whose predictions are learned; refuses a selection that has seen none."""
    selection.settle()
    n = selection.strategy.num_samples
    if n == 0:
        raise SelectionError(
            "this selection has seen no training data yet, so there is nothing to look at; call Trainer.fit with it "
            "first, or give its load_state_dict the state in a checkpoint."
        )
    return n


def sample_columns(selection: SelectionViews) -> dict[str, Tensor]:
    """What the strategy tells of each sample, (n,) each."""
    n = known_samples(selection)
    labels = selection.known_labels.matrix(n, selection.strategy.num_labels)
    told = selection.strategy.sample_columns(None if labels is None else lambda ids: labels[ids].float())
    times, loss = selection.times_drawn, told.get("latest_loss")
    if loss is not None and times is not None and selection.refresh is None:
        told["latest_loss"] = loss.masked_fill((times == 0).to(loss.device), torch.nan)
    return told


def label_matrix(selection: SelectionViews, num_samples: int) -> Tensor:
    """The true labels (n, q) of 0 and 1; refuses to go on without them."""
    labels = selection.known_labels.matrix(num_samples, selection.strategy.num_labels)
    if labels is None:
        raise SelectionError(
            "the true labels of the training samples are not known as zeros and ones, one column per predicted label; "
            "pass BatchSelection(..., labels=matrix) with shape [samples, labels]."
        )
    return labels


def _floats(values: Tensor | None, n: int) -> Any:
    return (torch.full((n,), torch.nan) if values is None else values.detach().cpu()).double().numpy()


def _counts(pandas: Any, values: Tensor | None, n: int) -> Any:
    """Whole numbers; missing where they are not known, and where -1 stands for never."""
    values = torch.full((n,), -1) if values is None else values
    return pandas.array(values.double().masked_fill(values < 0, torch.nan).numpy(), dtype="Int64")


def _label_texts(selection: SelectionViews, n: int) -> list[str | None]:
    labels = selection.known_labels.matrix(n, selection.strategy.num_labels)
    if labels is None:
        return [None] * n
    names = selection.known_labels.names(labels.shape[1]) or [str(j) for j in range(labels.shape[1])]
    texts: list[list[str]] = [[] for _ in range(n)]
    for row, column in labels.nonzero().tolist():
        texts[row].append(names[column])
    return ["; ".join(text) for text in texts]
