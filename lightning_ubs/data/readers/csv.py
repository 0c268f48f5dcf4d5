"""CSV: a line of names, then one line of numbers per sample."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lightning_ubs.data.readers.budget import OBJECT, Budget
from lightning_ubs.data.readers.stream import text_lines
from lightning_ubs.data.readers.table import LabelChoice, check_names, split_table
from lightning_ubs.data.types import MultiLabelData
from lightning_ubs.errors import DataError

_WORDS = {"false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}
_MISSING = ("", "?", "na", "n/a", "nan", "null", "none")


def read_csv(path: Path, labels: LabelChoice, budget: Budget) -> MultiLabelData:
    """Return the content of a CSV file; the first line names the columns, and decides between ``,``, ``;`` and tab.

    Args:
        path: The file, plain or compressed.
        labels: Which columns are labels.
        budget: What the file may fill.
    """
    with text_lines(path, budget) as lines:
        first = next(lines, "")
        separator = max(",;\t", key=first.count)
        reader = csv.reader(_chained(first, lines), delimiter=separator, skipinitialspace=True, strict=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            budget.hold(OBJECT * len(names))
            check_names(names, path.name)
            label_columns = labels.among(names)
            table = _rows(reader, names, budget)
        except csv.Error as error:
            raise DataError(f"{path.name}, line {reader.line_num}: {error}; correct the line.") from None
    if not table:
        raise DataError(f"{path.name}: no row follows the names of the columns; give at least one.")
    return split_table(np.frombuffer(table, np.float32).reshape(-1, len(names)), names, label_columns, budget)


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _rows(reader: Iterator[list[str]], names: list[str], budget: Budget) -> array[float]:
    table = array("f")
    for row in reader:
        if not row:
            continue
        where = f"{budget.source}, line {reader.line_num}"  # type: ignore[attr-defined]
        if len(row) != len(names):
            raise DataError(f"{where}: {len(row)} values for {len(names)} columns; correct the line.")
        budget.hold(4 * len(row))
        try:
            table.extend([float(cell) for cell in row])
        except ValueError:
            table.extend(
                [_number(cell, f"{where}, column {name[:60]!r}") for cell, name in zip(row, names, strict=True)]
            )
    return table


def _number(cell: str, where: str) -> float:
    """Return a cell as a number; true, false, yes and no are 1 and 0."""
    word = cell.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if word in _MISSING:
        raise DataError(f"{where}: the value is missing; fill it or drop the row first.")
    try:
        return float(word)
    except ValueError:
        raise DataError(f"{where}: {cell[:40]!r} is not a number; encode the column as numbers first.") from None
