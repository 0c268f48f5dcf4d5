"""Tables some of whose columns are labels: by an XML list, by names, by a prefix, or by a count; CSV and Parquet."""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from xml.parsers import expat

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import OBJECT, Budget
from lightning_ubs.data.readers.stream import bare_name, require_file, text_lines
from lightning_ubs.data.types import MultiLabelData, binary_labels
from lightning_ubs.errors import DataError

LabelSpec: TypeAlias = str | Path | int | Sequence[str] | None


def label_list(path: Path, labels: LabelSpec, beside: bool) -> Path | None:
    """Return the XML list of labels, or None where none is given or found.

    Args:
        path: The table.
        labels: What the user gave; a path, or text that ends in ``.xml`` or is the name of a file, is such a list.
        beside: Whether a list of the same name, or of that name without ``-train``, ``-test`` and ``-sparse``, counts.
    """
    if isinstance(labels, Path) or (isinstance(labels, str) and (_is_xml(labels) or os.path.isfile(labels))):
        require_file(Path(labels), f"labels={str(labels)!r}")
        return Path(labels)
    if labels is not None or not beside:
        return None
    stem = Path(bare_name(path)).stem
    while stem:
        found = path.with_name(stem + ".xml")
        if os.path.isfile(found):
            return found
        stem = next((stem[: -len(end)] for end in ("-train", "-test", "-sparse") if stem.endswith(end)), "")
    return None


def _is_xml(text: str) -> bool:
    return text.lower().endswith(".xml")


@dataclass(frozen=True)
class LabelChoice:
    """Which columns of a table are its labels.

    Attributes:
        labels: What the user gave: names, one name, a prefix (with or without ``*``), a count, or nothing.
        xml: The list of labels that :func:`label_list` found.
        budget: That of the file.
    """

    labels: LabelSpec
    xml: Path | None
    budget: Budget

    def among(self, columns: Sequence[str], count: int | None = None) -> list[int]:
        """Return the positions of the labels, ascending; readers ask as soon as they know the columns.

        Args:
            columns: The names of all columns.
            count: What the file itself says; negative counts from the last column.
        """
        source, labels, width = self.budget.source, self.labels, len(columns)
        if isinstance(labels, int) or (labels is None and count is not None):
            number = labels if isinstance(labels, int) else int(count or 0)
            if not 1 <= abs(number) < width:
                raise DataError(
                    f"{source}: {number} labels do not fit {width} columns; give another count with labels=."
                )
            return list(range(number)) if number > 0 else list(range(width + number, width))
        if self.xml is not None:
            self.budget.unpack(self.xml.stat().st_size)
            names = _listed_names(self.xml)
        elif labels is None:
            raise DataError(
                f"{source}: its labels are not known; say which columns they are with labels=PREFIX, labels=[NAME,...] "
                "or labels=COUNT (negative: the last ones), or, for ARFF, put Mulan's XML list beside it."
            )
        elif isinstance(labels, str):
            names = _named(columns, labels, source)
        else:
            names = [str(name) for name in labels]  # type: ignore[union-attr]
        return _positions(columns, names, source)


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


def _named(columns: Sequence[str], text: str, source: str) -> list[str]:
    """Return the one column of this name, or all that begin with it."""
    if text in columns:
        return [text]
    prefix = text.removesuffix("*")
    found = [name for name in columns if name.startswith(prefix)] if prefix else []
    if not found:
        raise DataError(
            f"{source}: no column is called {text[:60]!r} or begins with it; its columns are {_shown(columns)}, "
            "so choose labels= among them."
        )
    return found


def _positions(columns: Sequence[str], names: list[str], source: str) -> list[int]:
    position = {name: column for column, name in enumerate(columns)}
    unknown = [name for name in names if name not in position]
    if unknown or len(set(names)) != len(names) or not 1 <= len(names) < len(columns):
        reason = f"{str(unknown)[:100]} are not among them" if unknown else "a label repeats or no feature is left"
        raise DataError(
            f"{source}: the {len(names)} labels do not fit its {len(columns)} columns, {reason}; correct the list."
        )
    return sorted(position[name] for name in names)


def _shown(columns: Sequence[str]) -> str:
    shown = [repr(name[:30]) for name in columns[:6]]
    return ", ".join(shown) + (", ..." if len(columns) > 6 else "")


def _listed_names(path: Path) -> list[str]:
    """Return the ``name`` in Mulan's XML list of every ``<label>``, also of nested ones, in the order of the file.

    A document type declaration is refused: it is the only way to define entities, and thereby to blow a file up.
    """
    names: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")

    def element(tag: str, attributes: dict[str, str]) -> None:
        if tag.rsplit(" ", 1)[-1] == "label":
            if "name" not in attributes:
                raise DataError(f'{path.name}: a <label> has no name; add name="..." to it.')
            names.append(attributes["name"])

    def refuse(*_: object) -> None:
        raise DataError(f"{path.name}: a DOCTYPE is not allowed in a list of labels; remove it.")

    parser.StartElementHandler = element
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        raise DataError(f"{path.name}: not well-formed XML ({error}); fetch or write it again.") from None
    if not names:
        raise DataError(f'{path.name}: no <label name="..."> in it; give Mulan\'s list of labels.')
    if len(set(names)) != len(names):
        raise DataError(f"{path.name}: a label is listed twice; remove the duplicate.")
    return names


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
