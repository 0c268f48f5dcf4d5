"""Which labels of the training set may be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_range
from lightning_ubs._utils.extras import optional_import
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.inspection.frame import known_samples, label_matrix

if TYPE_CHECKING:
    from pandas import DataFrame

    from lightning_ubs.inspection.views import SelectionViews


def suspicious_labels(selection: SelectionViews, top: int | float = 100) -> DataFrame:
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


def mean_predictions(selection: SelectionViews) -> tuple[Tensor, Tensor]:
    """Mean of the remembered predictions (n, q) and how many they are (n,), on the CPU."""
    strategy, n = selection.strategy, known_samples(selection)
    rows = block_rows((strategy.num_labels or 1) * getattr(strategy, "window", 1))
    blocks = [strategy.mean_predictions(first, min(first + rows, n)) for first in range(0, n, rows)]
    known = [block for block in blocks if block is not None]
    if not known:
        raise SelectionError(
            f"{strategy!r} remembers no predictions that labels could be compared with; train with UBS, RecencyBias or "
            "ActiveBias, and save_state='full' if training goes on from a checkpoint."
        )
    return torch.cat([mean.cpu() for mean, _ in known]), torch.cat([counts.cpu() for _, counts in known])


def _number(top: int | float, known: int) -> int:
    """How many of the ``known`` pairs: a share below 1, or a number."""
    check_range("top", top, 0)
    if isinstance(top, float) and top < 1:
        return round(top * known)
    check_range("top", top, 0, whole=True)
    return min(int(top), known)
