"""The paper's printed tables, read from a CSV with the columns metric, model, dataset, method, value."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_ubs._utils.metric_names import METRICS
from lightning_ubs.errors import ReportError
from lightning_ubs.methods import REFERENCE, find_method
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Results
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
        raise ReportError(f"cannot read the paper's tables {str(path)!r} ({error}); give a CSV file.") from error
    if missing:
        raise ReportError(
            f"the paper's tables {str(path)!r} lack the column {missing[0]!r}; give a CSV file with the columns "
            f"{', '.join(_COLUMNS)}."
        )
    try:
        values = {
            (_plain(row["metric"]), row["model"], row["dataset"], row["method"]): float(row["value"]) for row in rows
        }
    except (TypeError, ValueError) as error:
        raise ReportError(
            f"the paper's tables {str(path)!r} hold a value that is not a number ({error}); correct it."
        ) from error
    methods = list(dict.fromkeys(key[3] for key in values))
    tables = []
    for metric in (Metric(row.key, row.title, row.higher_is_better) for row in METRICS):
        own = {key[1:]: value for key, value in values.items() if key[0] == _plain(metric.title)}
        blocks = []
        for model in dict.fromkeys(key[0] for key in own):
            cells: dict[str, list[Cell | None]] = {}
            for data in dict.fromkeys(key[1] for key in own if key[0] == model):
                row = [own.get((model, data, method)) for method in methods]
                cells[data] = [None if value is None else Cell(value) for value in row]
            blocks.append(make_block(model, cells, metric))
        if blocks:
            tables.append(Table(metric, methods, blocks))
    return tables


@dataclass(frozen=True)
class PaperCell:
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


def compare_with_paper(ours: Table, paper: Table, results: Results) -> list[PaperCell]:
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
            for method, cell in zip(results.methods, row, strict=True):
                name = _paper_name(method, paper.methods) if method in results.main else ""
                value = theirs.get((_plain(block.model), _dataset(data), name))
                if cell is not None and value is not None:
                    found.append(PaperCell(block.model, data, method.label, value, cell.value))
    return found


def paper_comparisons(methods: Sequence[str]) -> list[tuple[int, int]]:
    """The paper's own method with each of its other columns; none if it is not among them."""
    rows = [find_method(name) for name in methods]
    own = [index for index, row in enumerate(rows) if row is not None and row.key == REFERENCE]
    return [(own[0], index) for index in range(len(methods)) if index != own[0]] if own else []


def _paper_name(method: Method, names: Sequence[str]) -> str:
    """The paper's name of a method, empty for what the paper does not have."""
    row = find_method(method.selection)
    return next((name for name in names if row is not None and find_method(name) == row), "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def _dataset(name: str) -> str:
    """The catalog's name of a dataset, which the paper may call otherwise; else the name as it is."""
    from lightning_ubs.data import catalog
    from lightning_ubs.errors import DataError

    try:
        return _plain(catalog.entry(name).name)
    except DataError:
        return _plain(name)
