"""ARFF as Mulan and MEKA write it: dense or sparse, with labels listed in an XML file or counted by ``-C``.

The grammar is small, so it is read here, by expressions that cannot backtrack: parsers built on nested wildcards take
exponential time on a damaged header.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import OBJECT, Budget
from lightning_ubs.data.readers.stream import text_lines
from lightning_ubs.data.readers.table import LabelChoice
from lightning_ubs.data.types import MultiLabelData, binary_labels
from lightning_ubs.errors import DataError

_VALUE = r"""(?:'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)"|([^,'"]*+))\s*+(,|\Z)"""
_DENSE_VALUE = re.compile(r"\s*+" + _VALUE)
_SPARSE_VALUE = re.compile(r"\s*+([0-9]++)\s++" + _VALUE)
_NAME = re.compile(r"""(?:'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)"|([^\s{]++))""")
_MEKA_COUNT = re.compile(r"(?:^|[\s:])-C\s++(-?[0-9]{1,9})(?![0-9])")
_ESCAPE = re.compile(r"\\(.)")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
_NUMERIC = ("numeric", "real", "integer")


class Attribute(NamedTuple):
    """A column: its name, and its levels in declared order, or None where it is numeric."""

    name: str
    levels: list[str] | None

    def converter(self) -> Callable[[str], float]:
        """Return what turns a cell into a number: the value itself, or the position of its level."""
        if self.levels is None:
            return float
        return {level: float(code) for code, level in enumerate(self.levels)}.__getitem__


class Header(NamedTuple):
    """What stands before ``@data``."""

    relation: str
    attributes: list[Attribute]

    @property
    def label_count(self) -> int | None:
        """MEKA's ``-C``: positive counts labels from the first attribute, negative from the last.

        >>> Header("Music: -C 6", []).label_count, Header("x: -split 3 -C -4", []).label_count
        (6, -4)
        """
        found = _MEKA_COUNT.search(self.relation)
        return int(found[1]) if found else None


class _Line(ValueError):
    """What is wrong with the current line."""


def read_arff(path: Path, labels: LabelChoice, budget: Budget) -> MultiLabelData:
    """Return the content of an ARFF file.

    Args:
        path: The file, plain or compressed.
        labels: Which attributes are labels.
        budget: What the file may fill.
    """
    number = 0

    def numbered(lines: Iterator[str]) -> Iterator[str]:
        nonlocal number
        for line in lines:
            number += 1
            stripped = line.strip()
            if stripped and stripped[0] != "%":
                yield stripped

    with text_lines(path, budget) as lines:
        rows = numbered(lines)
        try:
            header = _read_header(rows, budget)
            label_columns = labels.among([attribute.name for attribute in header.attributes], header.label_count)
            table = _read_rows(rows, header.attributes, budget)
        except DataError:
            raise
        except (_Line, ValueError, KeyError) as error:
            told = str(error)[:120] + (" is not a declared level" if isinstance(error, KeyError) else "")
            raise DataError(f"{path.name}, line {number}: {told}; correct the line or fetch the file again.") from None
    return _assemble(table, header.attributes, label_columns, budget)


def _unquote(groups: tuple[str | None, ...]) -> str:
    single, double, bare = groups
    if bare is not None:
        return bare.strip()
    return _ESCAPE.sub(lambda found: _CONTROL.get(found[1], found[1]), single if single is not None else double or "")


def _read_header(rows: Iterator[str], budget: Budget) -> Header:
    relation, attributes, seen = "", list[Attribute](), set[str]()
    for line in rows:
        keyword, _, rest = line.replace("\t", " ").partition(" ")
        match keyword.lower(), rest.strip():
            case "@relation", text:
                found = _NAME.match(text)
                relation = _unquote(found.groups()) if found and text[0] in "'\"" else text
            case "@attribute", text:
                attribute = _read_attribute(text)
                if attribute.name in seen:
                    raise _Line(f"attribute {attribute.name!r} is declared twice")
                budget.hold(OBJECT * (3 + len(attribute.levels or ())))
                seen.add(attribute.name)
                attributes.append(attribute)
            case "@data", _:
                return Header(relation, attributes)
            case _:
                raise _Line(f"expected @attribute or @data, found {line[:40]!r}")
    raise _Line("the file ends before @data")


def _read_attribute(text: str) -> Attribute:
    found = _NAME.match(text)
    kind = text[found.end() :].strip() if found else ""
    if found is None or not kind:
        raise _Line(f"not an attribute: {text[:40]!r}")
    name = _unquote(found.groups())
    if kind.startswith("{") and kind.endswith("}"):
        levels = _dense_cells(kind[1:-1])
        if len(set(levels)) != len(levels):
            raise _Line(f"attribute {name!r} declares a level twice")
        return Attribute(name, levels)
    if kind.split()[0].lower() not in _NUMERIC:
        raise _Line(f"attribute {name!r} is of type {kind[:40]!r}, but only numbers and {{levels}} can be features")
    return Attribute(name, None)


def _dense_cells(text: str) -> list[str]:
    if "'" not in text and '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    cells, position, more = [], 0, True
    while more:
        found = _DENSE_VALUE.match(text, position)
        if found is None:
            raise _Line(f"cannot read the quotes from {text[position : position + 40]!r} on")
        *value, separator = found.groups()
        cells.append(_unquote(tuple(value)))
        position, more = found.end(), separator == ","
    return cells


def _sparse_cells(text: str) -> Iterator[tuple[int, str]]:
    position, more = 0, bool(text.strip())
    while more:
        found = _SPARSE_VALUE.match(text, position)
        if found is None:
            raise _Line(f"expected 'index value', found {text[position : position + 40]!r}")
        index, *value, separator = found.groups()
        yield int(index), _unquote(tuple(value))
        position, more = found.end(), separator == ","


def _read_rows(rows: Iterator[str], attributes: list[Attribute], budget: Budget) -> Any:
    """Return all columns, coded, as a dense or sparse float32 matrix; the first row decides which."""
    first = next(rows, None)
    if first is None:
        raise _Line("no row follows @data")
    converters = [attribute.converter() for attribute in attributes]
    read = _read_sparse if first.startswith("{") else _read_dense
    return read(itertools.chain([first], rows), converters, budget)


def _refuse_missing(cells: list[str]) -> None:
    if "?" in cells:
        raise _Line(f"the value of attribute {cells.index('?')} is missing ('?'), fill it first")


def _read_dense(
    rows: Iterator[str], converters: list[Callable[[str], float]], budget: Budget
) -> npt.NDArray[np.float32]:
    table, width = array("f"), len(converters)
    for line in rows:
        cells = _dense_cells(line)
        if len(cells) != width:
            raise _Line(f"{len(cells)} values for {width} attributes")
        if "?" in line:
            _refuse_missing(cells)
        budget.hold(4 * width)
        table.extend([convert(cell) for convert, cell in zip(converters, cells, strict=True)])
    return np.frombuffer(table, dtype=np.float32).reshape(-1, width)


def _read_sparse(rows: Iterator[str], converters: list[Callable[[str], float]], budget: Budget) -> Any:
    values, columns, ends = array("f"), array("q"), array("q", [0])
    for line in rows:
        if not (line.startswith("{") and line.endswith("}")):
            raise _Line(f"expected a sparse row {{...}}, found {line[:40]!r}")
        row: dict[int, float] = {}
        for column, cell in _sparse_cells(line[1:-1]):
            if column >= len(converters) or column in row:
                raise _Line(f"index {column} is given twice or exceeds the {len(converters)} attributes")
            if cell == "?":
                _refuse_missing([cell])
            row[column] = converters[column](cell)
        budget.hold(12 * len(row) + 8)
        order = sorted(row)
        columns.extend(order)
        values.extend([row[column] for column in order])
        ends.append(len(columns))
    return optional_import("scipy.sparse").csr_matrix(
        (np.frombuffer(values, np.float32), np.frombuffer(columns, np.int64), np.frombuffer(ends, np.int64)),
        shape=(len(ends) - 1, len(converters)),
        copy=True,
    )


def _assemble(table: Any, attributes: list[Attribute], label_columns: list[int], budget: Budget) -> MultiLabelData:
    feature_columns = np.setdiff1d(np.arange(len(attributes)), label_columns)
    budget.hold(len(label_columns) * table.shape[0] * 5)  # as float32 and as bits
    if isinstance(table, np.ndarray):
        budget.hold(4 * table.shape[0] * len(feature_columns))
        features, labels = table[:, feature_columns], table[:, label_columns]
    else:
        features, labels = table[:, feature_columns], table[:, label_columns].toarray()
        features.eliminate_zeros()
    bits = np.empty(labels.shape, dtype=np.uint8)
    for j, column in enumerate(label_columns):
        name, levels = attributes[column]
        where = f"{budget.source}, label {name[:60]!r}"
        if levels is None:
            bits[:, j : j + 1] = binary_labels(labels[:, j : j + 1], where)
        else:
            bits[:, j] = _level_bits(levels, where)[labels[:, j].astype(np.int64)]
    return MultiLabelData(
        features, bits, [attributes[j].name for j in label_columns], [attributes[j].name for j in feature_columns]
    )


def _level_bits(levels: list[str], where: str) -> npt.NDArray[np.uint8]:
    """Return 0 or 1 for each level, by what it says and not by its position.

    >>> _level_bits(["1", "0"], "here"), _level_bits(["false", "true"], "here")
    (array([1, 0], dtype=uint8), array([0, 1], dtype=uint8))
    """
    words = {"false": 0.0, "no": 0.0, "true": 1.0, "yes": 1.0}
    try:
        numbers = [words[level.lower()] if level.lower() in words else float(level) for level in levels]
    except ValueError:
        raise DataError(
            f"{where}: the levels {str(levels)[:60]} are not binary; choose other labels with labels=."
        ) from None
    return binary_labels([[number] for number in numbers], where)[:, 0]
