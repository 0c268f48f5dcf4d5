"""Parquet, where pyarrow is installed: numeric columns, some of which are labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import OBJECT, Budget
from lightning_ubs.data.readers.table import LabelChoice, check_names, split_table
from lightning_ubs.data.types import MultiLabelData
from lightning_ubs.errors import DataError

_ROWS = 65_536


def read_parquet(path: Path, labels: LabelChoice, budget: Budget) -> MultiLabelData:
    """Return the content of a Parquet file.

    Args:
        path: The file.
        labels: Which columns are labels.
        budget: What the file may fill; what the file claims is counted first, then what it holds.
    """
    parquet = optional_import("pyarrow.parquet", extra="parquet")
    budget.hold(path.stat().st_size)  # the footer that describes the columns is read at once
    file = parquet.ParquetFile(path)
    names = list(file.schema_arrow.names)
    rows, width = file.metadata.num_rows, len(names)
    budget.hold(OBJECT * width + 8 * min(rows, _ROWS) * width + 4 * rows * width)
    check_names(names, path.name)
    label_columns = labels.among(names)
    _check_kinds(file.schema_arrow, path.name)
    table = np.empty((rows, width), dtype=np.float32)
    start = 0
    for batch in file.iter_batches(batch_size=_ROWS):
        budget.unpack(batch.nbytes)
        _fill(table[start : start + batch.num_rows], batch, path.name)
        start += batch.num_rows
    if start != rows:
        raise ValueError(f"it claims {rows} rows and holds {start}")
    return split_table(table, names, label_columns, budget)


def _check_kinds(schema: Any, source: str) -> None:
    kinds = optional_import("pyarrow", extra="parquet").types
    for field in schema:
        if not (kinds.is_integer(field.type) or kinds.is_floating(field.type) or kinds.is_boolean(field.type)):
            raise DataError(
                f"{source}: column {field.name[:60]!r} is of type {str(field.type)[:40]}, not a number; encode it as "
                "numbers or drop it first."
            )


def _fill(part: Any, batch: Any, source: str) -> None:
    for j, column in enumerate(batch.columns):
        if column.null_count:
            name = batch.schema.names[j][:60]
            raise DataError(f"{source}, column {name!r}: a value is missing; fill it or drop the row first.")
        with np.errstate(over="ignore"):
            part[:, j] = column.to_numpy(zero_copy_only=False)
