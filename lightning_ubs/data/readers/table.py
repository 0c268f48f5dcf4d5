"""From a numeric table, some of whose columns are labels, to features and labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.types import MultiLabelData, binary_labels
from lightning_ubs.errors import DataError


def check_names(names: Sequence[str], source: str) -> None:
    """Raise if a column has no name, or two have the same."""
    seen = set[str]()
    for number, name in enumerate(names, start=1):
        if not name:
            raise DataError(f"{source}: column {number} has no name; name every column in the first line.")
        if name in seen:
            raise DataError(f"{source}: two columns are called {name[:60]!r}; give each its own name.")
        seen.add(name)


def split_table(
    table: npt.NDArray[np.float32], names: Sequence[str], label_columns: list[int], budget: Budget
) -> MultiLabelData:
    """Return the columns of a table (n, d + q) as features and labels."""
    feature_columns = np.setdiff1d(np.arange(len(names)), label_columns)
    budget.hold(4 * table.shape[0] * len(feature_columns) + 8 * table.shape[0] * len(label_columns))
    labels = np.empty((table.shape[0], len(label_columns)), dtype=np.uint8)
    for j, column in enumerate(label_columns):
        where = f"{budget.source}, label {names[column][:60]!r}"
        labels[:, j : j + 1] = binary_labels(table[:, column : column + 1], where)
    return MultiLabelData(
        table[:, feature_columns], labels, [names[j] for j in label_columns], [names[j] for j in feature_columns]
    )
