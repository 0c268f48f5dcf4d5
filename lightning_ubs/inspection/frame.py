"""Frames and pictures of a selection: samples, labels, label errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Subset

from lightning_ubs._utils.checks import check_range
from lightning_ubs._utils.extras import optional_import
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.inspection import pictures as plots
from lightning_ubs.reading import Column, DatasetLabels
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.strategies import Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

# Columns of every frame, whatever the strategy is; those that only some strategy has come after them.
_MEASURED = ("mean_uncertainty", "fluctuation", "latest_loss")
# The scale of a correlation map reaches at least so many times what is there by chance, so that noise stays dark.
_NOISE = 4
_TOO_EARLY = "it is measured from the second epoch on; look again later."


class Inspected(Protocol):
    """What is asked of a :class:`BatchSelection`; asking changes nothing."""

    strategy: Strategy
    refresh: EvaluationPass | None
    known_labels: KnownLabels

    @property
    def correlation(self) -> Tensor | None:
        """C, (q, q)."""

    @property
    def weights(self) -> Tensor | None:
        """The sample weights w, (n,)."""

    @property
    def probabilities(self) -> Tensor | None:
        """P, (n,)."""

    @property
    def times_drawn(self) -> Tensor | None:
        """How often each sample was trained on."""

    @property
    def last_epoch_drawn(self) -> Tensor | None:
        """The epoch in which each sample was last trained on."""

    def settle(self) -> None:
        """Update the strategy with all steps so far."""


def to_frame(selection: Inspected) -> DataFrame:
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


def to_label_frame(selection: Inspected) -> DataFrame:
    """One row per label; see :meth:`BatchSelection.to_frame`."""
    pandas = optional_import("pandas")
    n = known_samples(selection)
    labels = label_matrix(selection, n)
    names = selection.known_labels.names(labels.shape[1])
    samples, drawn, plain = label_draws(labels, selection.times_drawn)
    columns: dict[str, Any] = {
        "label": list(range(labels.shape[1])) if names is None else names,
        "samples": samples.numpy(),
        "times_drawn": drawn.numpy(),
        "plain_times_drawn": plain.numpy(),
        "ratio": (drawn / plain).numpy(),
    }
    frame: DataFrame = pandas.DataFrame(columns)
    return frame


def label_draws(labels: Tensor, times: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Of each label (q,): how many samples have it, how often they were drawn, and would have been in plain passes.

    Args:
        labels: (n, q) of 0 and 1.
        times: (n,), how often each sample was drawn; None where it is not known, and draws are NaN.
    """
    n = len(labels)
    samples = labels.sum(0, dtype=torch.int64)
    if times is None:
        unknown = torch.full((labels.shape[1],), torch.nan, dtype=torch.float64)
        return samples, unknown, unknown
    times = times.double()
    drawn = torch.cat([times @ block.double() for block in torch.split(labels, max(1, 2**20 // n), 1)])
    return samples, drawn, samples * (times.sum() / n)


def history(selection: Inspected) -> tuple[Tensor, Tensor]:
    """The window of predictions of each sample; see :meth:`BatchSelection.history`."""
    known_samples(selection)
    kept = selection.strategy.prediction_history()
    if kept is None:
        way = "keeps no history of predictions; use UBS, RecencyBias or D2ACE."
        if hasattr(selection.strategy, "window"):
            way = "has seen no predictions yet; train at least one step, and save checkpoints with save_state='full'."
        raise SelectionError(f"{selection.strategy!r} {way}")
    return kept


def plot_data_map(selection: Inspected, label: str | int | None = None) -> Figure:
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


def plot_correlation(selection: Inspected) -> Figure:
    """A heat map of the label correlation; see :meth:`BatchSelection.plot_correlation`."""
    known_samples(selection)
    matrix = selection.correlation
    if matrix is None:
        used = getattr(selection.strategy, "correlation", None) is not None
        raise SelectionError(
            f"there is no label correlation with {selection.strategy!r}; "
            + (_TOO_EARLY if used else "use UBS(), or RecencyBias or ActiveBias with correlation='mutual_information'.")
        )
    values = matrix.detach().double().cpu().fill_diagonal_(torch.nan)
    high = max(plots.largest(values.numpy()), _NOISE * independent_labels(selection))
    names = selection.known_labels.names(len(matrix))
    return plots.plot_correlation(matrix, names, title="Label correlation C", limits=(0.0, high))


def independent_labels(selection: Inspected) -> float:
    """C that two labels without any correlation have on average, by chance: (bins - 1)²/2n in the logarithm's base."""
    bins, base = (getattr(selection.strategy, name, value) for name, value in (("bins", 5), ("log_base", math.e)))
    return float((bins - 1) ** 2 / (2 * selection.strategy.num_samples) / math.log(base))


def known_samples(selection: Inspected) -> int:
    """The number of training samples, all of whose predictions are learned; refuses a selection that has seen none."""
    selection.settle()
    n = selection.strategy.num_samples
    if n == 0:
        raise SelectionError(
            "this selection has seen no training data yet, so there is nothing to look at; call Trainer.fit with it "
            "first, or give its load_state_dict the state in a checkpoint."
        )
    return n


def sample_columns(selection: Inspected) -> dict[str, Tensor]:
    """What the strategy tells of each sample, (n,) each."""
    n = known_samples(selection)
    labels = selection.known_labels.matrix(n, selection.strategy.num_labels)
    told = selection.strategy.sample_columns(None if labels is None else lambda ids: labels[ids].float())
    times, loss = selection.times_drawn, told.get("latest_loss")
    if loss is not None and times is not None and selection.refresh is None:
        told["latest_loss"] = loss.masked_fill((times == 0).to(loss.device), torch.nan)
    return told


def label_matrix(selection: Inspected, num_samples: int) -> Tensor:
    """The true labels (n, q) of 0 and 1; refuses to continue without them."""
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


def _label_texts(selection: Inspected, n: int) -> list[str | None]:
    labels = selection.known_labels.matrix(n, selection.strategy.num_labels)
    if labels is None:
        return [None] * n
    names = selection.known_labels.names(labels.shape[1]) or [str(j) for j in range(labels.shape[1])]
    texts: list[list[str]] = [[] for _ in range(n)]
    for row, column in labels.nonzero().tolist():
        texts[row].append(names[column])
    return ["; ".join(text) for text in texts]


def suspicious_labels(selection: Inspected, top: int | float = 100) -> DataFrame:
    """The (sample, label) pairs that the model contradicts most; see :meth:`BatchSelection.suspicious_labels`."""
    pandas = optional_import("pandas")
    n = known_samples(selection)
    means, counts = mean_predictions(selection)
    labels = label_matrix(selection, n)
    scores = (means - labels).abs().masked_fill_(counts.unsqueeze(1) == 0, -1.0)
    known = int((counts > 0).sum()) * labels.shape[1]
    places = scores.flatten().argsort(descending=True, stable=True)[: _number(top, known)]
    ids, columns = places // labels.shape[1], places % labels.shape[1]
    names = selection.known_labels.names(labels.shape[1])
    frame: DataFrame = pandas.DataFrame(
        {
            "id": ids.numpy(),
            "label": columns.numpy() if names is None else [names[column] for column in columns.tolist()],
            "given": labels[ids, columns].long().numpy(),
            "mean_prediction": means[ids, columns].numpy(),
            "score": scores[ids, columns].numpy(),
        }
    )
    return frame


def mean_predictions(selection: Inspected) -> tuple[Tensor, Tensor]:
    """Mean of the predictions in the history (n, q) and their number (n,), on the CPU."""
    strategy, n = selection.strategy, known_samples(selection)
    rows = block_rows((strategy.num_labels or 1) * getattr(strategy, "window", 1))
    blocks = [strategy.mean_predictions(first, min(first + rows, n)) for first in range(0, n, rows)]
    known = [block for block in blocks if block is not None]
    if not known:
        raise SelectionError(
            f"{strategy!r} remembers no predictions that labels could be compared with; train with UBS, RecencyBias or "
            "ActiveBias, and save_state='full' if training resumes from a checkpoint."
        )
    return torch.cat([mean.cpu() for mean, _ in known]), torch.cat([counts.cpu() for _, counts in known])


def _number(top: int | float, known: int) -> int:
    """How many of the ``known`` pairs: a share below 1, or a number."""
    check_range("top", top, 0)
    if isinstance(top, float) and top < 1:
        return round(top * known)
    check_range("top", top, 0, whole=True)
    return min(int(top), known)


class KnownLabels:
    """Labels that are read when they are asked for, from wherever they can be read.

    Of a dataset only its column of labels is kept after the training.

    Args:
        names: What the user calls the labels; None looks for ``label_names`` in the datamodule and in the dataset, then
            for the dataset's ``classes``.

    >>> KnownLabels(["beach", "sunset"]).names(2)
    ['beach', 'sunset']
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        if isinstance(names, str) or not (names is None or all(isinstance(name, str) for name in names)):
            raise ValueError(
                f"label_names={names!r} must be a list of strings, one per label; leave it out for numbers."
            )
        self._given = None if names is None else list(names)
        self._found: list[str] = []
        self._column: Column | None = None

    def see(self, labels: DatasetLabels, *places: Any) -> None:
        """A dataset shows its labels; ``places`` may know what they are called."""
        self._column = labels.column
        self._found = next((names for names in map(_names_in, places) if names), [])

    def names(self, num_labels: int) -> list[str] | None:
        """One name per label; None where nobody says."""
        if self._given is not None and len(self._given) != num_labels:
            raise SelectionError(
                f"label_names holds {len(self._given)} names, but there are {num_labels} labels; pass one name per "
                "label."
            )
        return self._given or (self._found if len(self._found) == num_labels else None)

    def position(self, label: str | int, num_labels: int) -> int:
        """Which label is meant by a name or a number."""
        names = self.names(num_labels) or []
        if label in names:
            return names.index(str(label))
        if isinstance(label, int) and 0 <= label < num_labels:
            return label
        known = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        raise SelectionError(
            f"label={label!r} is not known; use a number from 0 to {num_labels - 1}"
            + (f", or {known}." if known else ".")
        )

    def matrix(self, num_samples: int, num_labels: int | None = None) -> Tensor | None:
        """The labels (n, q) as uint8 of 0 and 1, on the CPU; None where they are not known, or are no such labels.

        Class indices (n,) become one-hot rows. ``num_labels`` is q, where predictions tell it.
        """
        if self._column is None or self._column.length != num_samples:
            return None
        values = self._column.all()
        if values.ndim == 1 and num_labels != 1 and not values.is_floating_point() and bool((values >= 0).all()):
            classes = num_labels or max(int(values.max()) + 1, len(self._given or self._found))
            return (values.unsqueeze(1) == torch.arange(classes)).to(torch.uint8)
        values = values.unsqueeze(1) if values.ndim == 1 else values
        fits = values.ndim == 2 and num_labels in (None, values.shape[1])
        return values.to(torch.uint8) if fits and bool(((values == 0) | (values == 1)).all()) else None


def _names_in(place: Any) -> list[str]:
    while isinstance(place, Subset):
        place = place.dataset
    for attribute in ("label_names", "classes"):
        with suppress(Exception):  # a property may raise whatever it likes
            names = getattr(place, attribute, None)
            if isinstance(names, Sequence) and not isinstance(names, str) and len(names):
                return [str(name) for name in names]
    return []
