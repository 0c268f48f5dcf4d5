"""Which columns of a table are labels: by an XML list, by names, by a prefix, or by a count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.data.readers.formats import bare_name
from lightning_ubs.data.readers.stream import require_file
from lightning_ubs.data.readers.xml import read_label_names
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


def label_columns(
    columns: Sequence[str], labels: LabelSpec, xml: Path | None, count: int | None, budget: Budget
) -> list[int]:
    """Return the positions of the labels, ascending.

    Args:
        columns: The names of all columns.
        labels: What the user gave: names, one name, a prefix (with or without ``*``), a count, or nothing.
        xml: The list of labels that :func:`label_list` found.
        count: What the file itself says; negative counts from the last column.
        budget: That of the file.
    """
    source, width = budget.source, len(columns)
    if isinstance(labels, int) or (labels is None and count is not None):
        number = labels if isinstance(labels, int) else int(count or 0)
        if not 1 <= abs(number) < width:
            raise DataError(f"{source}: {number} labels do not fit {width} columns; give another count with labels=.")
        return list(range(number)) if number > 0 else list(range(width + number, width))
    if xml is not None:
        budget.unpack(xml.stat().st_size)
        names = read_label_names(xml)
    elif labels is None:
        raise DataError(
            f"{source}: its labels are not known; say which columns they are with labels=PREFIX, labels=[NAME,...] or "
            "labels=COUNT (negative: the last ones), or, for ARFF, put Mulan's XML list beside it."
        )
    elif isinstance(labels, str):
        names = _named(columns, labels, source)
    else:
        names = [str(name) for name in labels]  # type: ignore[union-attr]
    return _positions(columns, names, source)


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
