"""The paper's printed tables, read from a CSV with the columns metric, model, dataset, method, value."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_ubs.report.measures import MEASURES
from lightning_ubs.report.results import Method, ReportError, Results
from lightning_ubs.report.tables import Cell, Table, make_block

_COLUMNS = ("metric", "model", "dataset", "method", "value")


def read_paper(path: Path) -> list[Table]:
    """One table per metric of the file that this report knows."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"cannot read the paper's tables {str(path)!r} ({error}); give a CSV file") from error
    if missing:
        raise ReportError(
            f"the paper's tables {str(path)!r} lack the column {missing[0]!r}; needed are {', '.join(_COLUMNS)}"
        )
    try:
        values = {
            (_plain(row["metric"]), row["model"], row["dataset"], row["method"]): float(row["value"]) for row in rows
        }
    except (TypeError, ValueError) as error:
        raise ReportError(f"the paper's tables {str(path)!r} hold a value that is no number ({error})") from error
    methods = list(dict.fromkeys(key[3] for key in values))
    tables = []
    for measure in MEASURES:
        own = {key[1:]: value for key, value in values.items() if key[0] == _plain(measure.title)}
        blocks = []
        for model in dict.fromkeys(key[0] for key in own):
            cells: dict[str, list[Cell | None]] = {}
            for data in dict.fromkeys(key[1] for key in own if key[0] == model):
                row = [own.get((model, data, method)) for method in methods]
                cells[data] = [None if value is None else Cell(value) for value in row]
            blocks.append(make_block(model, cells, measure))
        if blocks:
            tables.append(Table(measure, methods, blocks))
    return tables


@dataclass(frozen=True)
class Beside:
    """One value of the paper and ours."""

    model: str
    data: str
    method: str
    paper: float
    ours: float

    @property
    def difference(self) -> float:
        """Ours minus the paper's."""
        return self.ours - self.paper


def beside(ours: Table, paper: Table, results: Results) -> list[Beside]:
    """The cells that both have; names are matched without case and punctuation."""
    theirs = {
        (_plain(block.model), _dataset(data), method): cell.value
        for block in paper.blocks
        for data, row in block.rows.items()
        for method, cell in zip(paper.methods, row, strict=True)
        if cell is not None
    }
    found = []
    for block in ours.blocks:
        for data, row in block.rows.items():
            for method, cell in zip(results.compared, row, strict=True):
                value = theirs.get((_plain(block.model), _dataset(data), _paper_name(method, paper.methods)))
                if cell is not None and value is not None:
                    found.append(Beside(block.model, data, method.label, value, cell.value))
    return found


def paper_index(methods: Sequence[str]) -> int | None:
    """Where the paper's own method stands among its columns."""
    names = [_plain(name) for name in methods]
    return next((names.index(name) for name in ("ours", "ubs") if name in names), None)


_ALIASES: Mapping[str, tuple[str, ...]] = {
    "ours": ("ubs",),
    "active": ("activebias",),
    "recent": ("recency", "recencybias"),
    "hard": ("hardimbalance",),
}


def _paper_name(method: Method, names: Sequence[str]) -> str:
    """The paper's name of a method, empty for what the paper does not have."""
    if method.variant not in ("", "A"):
        return ""
    own = _plain(method.selection)
    return next((name for name in names if own == _plain(name) or own in _ALIASES.get(_plain(name), ())), "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _dataset(name: str) -> str:
    """The paper calls the Yahoo sets by a number at the end that only says which file of the source it was."""
    plain = _plain(name)
    return plain.rstrip("1") if plain.startswith("yahoo") else plain
