"""R data files with an object of the package mldr."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.rdx import Numbers, RValue, read_variables
from lightning_ubs.data.readers.stream import open_decompressed
from lightning_ubs.data.types import Features, MultiLabelData, binary_labels
from lightning_ubs.errors import DataError

SPARSE_BELOW = 0.3
"""R does not tell sparse from dense; a dataset with a smaller share of non-zero features becomes a CSR matrix."""

_MEASURES = (".labelcount", ".SCUMBLE")  # mldr appends these columns of its own to the data frame

Column = tuple[str, RValue]


def read_rda(path: Path, budget: Budget) -> MultiLabelData:
    """Return the first mldr object: a list with the data frames ``dataset`` and ``labels``.

    ``labels$index`` says which columns are labels, counted from 1. A factor is coded by level, from 0.
    """
    with open_decompressed(path, budget) as stream:
        variables = read_variables(stream, budget)
    for variable in variables.values():
        members = dict(variable.members())
        if {"dataset", "labels"} <= members.keys():
            return _from_mldr(members["dataset"], dict(members["labels"].members()), budget)
    raise DataError(f"{path.name}: no mldr object (a list with 'dataset' and 'labels') in it; save() one.")


def _from_mldr(dataset: RValue, labels: dict[str, RValue], budget: Budget) -> MultiLabelData:
    source = budget.source
    columns = [column for column in dataset.members() if column[0] not in _MEASURES]
    index = labels["index"].value if "index" in labels else None
    if not isinstance(index, Numbers) or index.size == 0:
        raise DataError(f"{source}: labels$index is missing; rebuild the object with mldr.")
    budget.hold(8 * index.size)
    positions = index.dense()
    if not (np.isin(positions, np.arange(1, len(columns) + 1)).all() and np.unique(positions).size == positions.size):
        raise DataError(f"{source}: labels$index does not fit the {len(columns)} columns; rebuild it with mldr.")
    chosen = positions.astype(np.int64) - 1
    kept = np.setdiff1d(np.arange(len(columns)), chosen)
    if kept.size == 0 or len({_vector(column, source).size for column in columns}) != 1:
        raise DataError(f"{source}: no features, or columns of unequal length; rebuild the object with mldr.")
    budget.hold(chosen.size * _vector(columns[0], source).size)
    return MultiLabelData(
        _features([columns[j] for j in kept], budget),
        np.stack([_label(columns[j], budget) for j in chosen], axis=1),
        [columns[j][0] for j in chosen],
        [columns[j][0] for j in kept],
    )


def _vector(column: Column, source: str) -> Numbers:
    name, content = column
    if not isinstance(content.value, Numbers):
        raise DataError(f"{source}: column {name[:60]!r} holds no numbers; remove it or make it a factor.")
    return content.value


def _coded(column: Column, budget: Budget) -> Numbers:
    """Return a column as numbers; a factor by its level, from 0."""
    vector = _vector(column, budget.source)
    if "levels" not in column[1].attributes:
        return vector
    budget.hold(28 * vector.size)
    return Numbers.of(vector.dense() - 1)


def _label(column: Column, budget: Budget) -> npt.NDArray[np.uint8]:
    name, content = column
    numbers, where = _coded(column, budget), f"{budget.source}, label {name[:60]!r}"
    budget.hold(8 * numbers.size)
    values = numbers.dense()
    if "levels" in content.attributes:
        try:
            levels = np.array([float(level) for level in content.attributes["levels"].value])
        except ValueError:
            raise DataError(f"{where}: its levels are not binary; recode it as 0 and 1.") from None
        values = levels[values.astype(np.int64)]
    return binary_labels(values[:, None], where)[:, 0]


def _features(columns: list[Column], budget: Budget) -> Features:
    numbers = [_coded(column, budget) for column in columns]
    n, ends = numbers[0].size, np.cumsum([0, *(column.positions.size for column in numbers)])
    sparse = ends[-1] < SPARSE_BELOW * n * len(columns)
    budget.hold(12 * int(ends[-1]) + (8 * n + 12 * int(ends[-1]) if sparse else 4 * n * len(columns)))
    with np.errstate(over="ignore"):
        values = np.concatenate([column.values for column in numbers]).astype(np.float32)
    rows = np.concatenate([column.positions for column in numbers])
    matrix = optional_import("scipy.sparse").csc_matrix((values, rows, ends), shape=(n, len(columns)))
    return matrix.tocsr() if sparse else matrix.toarray()
