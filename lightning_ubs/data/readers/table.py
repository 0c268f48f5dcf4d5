"""A table some of whose columns are labels: by an XML list, by names, by a prefix, or by a count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from xml.parsers import expat

import numpy as np
import numpy.typing as npt

from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.formats import bare_name
from lightning_ubs.data.readers.stream import require_file
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
