"""Mulan's XML list of labels."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from lightning_ubs.errors import DataError


def read_label_names(path: Path) -> list[str]:
    """Return the ``name`` of every ``<label>``, also of nested ones, in the order of the file.

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
