"""Tables like the paper's: value(rank) per dataset and method, a block per model; and of rare and frequent labels."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_ubs._utils.metric_names import THIRDS
from lightning_ubs.report.evidence import competition_ranks
from lightning_ubs.report.method import Method
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Array, Results, Run, Unit, dataset_of

Row = Sequence["Cell | None"]


@dataclass(frozen=True)
class Cell:
    """One value of a table; ``rank`` is None where it is not ranked, ``spread`` NaN for a single run."""

    value: float
    spread: float = math.nan
    runs: int = 0
    rank: int | None = None

    @property
    def best(self) -> bool:
        """Whether no other ranked value of the row is better."""
        return self.rank == 1


@dataclass(frozen=True)
class Block:
    """The rows of one model: datasets by methods.

    ``ranked`` are the columns that are ranked; ``average_ranks`` has one value per column, None where it is not, and is
    None as a whole where no row is ranked.
    """

    model: str
    rows: Mapping[str, Row]
    ranked: Sequence[int]
    average_ranks: Sequence[float | None] | None
    notes: Sequence[str] = ()

    @property
    def values(self) -> Array:
        """The values as (datasets, methods), NaN where there is none."""
        rows = [[math.nan if cell is None else cell.value for cell in row] for row in self.rows.values()]
        return np.array(rows, dtype=float)

    @property
    def best_average(self) -> float | None:
        """The smallest average rank."""
        return min((rank for rank in self.average_ranks or () if rank is not None), default=None)


@dataclass(frozen=True)
class Table:
    """All models for one metric."""

    metric: Metric
    methods: Sequence[str]
    blocks: Sequence[Block]

    @property
    def ranked(self) -> bool:
        """Whether there is anything to rank."""
        return any(block.average_ranks is not None for block in self.blocks)


def ranked_columns(present: Sequence[Sequence[bool]]) -> list[int]:
    """The columns that most rows have: a sweep or an ablation on few datasets does not undo the ranks of the rest.

    >>> ranked_columns([[True, True, False], [True, True, True], [True, True, False]])
    [0, 1]
    """
    columns = list(zip(*present, strict=True))
    return [index for index, column in enumerate(columns) if 2 * sum(column) > len(column)]


def make_block(model: str, rows: Mapping[str, Row], metric: Metric, notes: Sequence[str] = ()) -> Block:
    """Rank every row that has all ranked columns, and average the ranks over datasets.

    A dataset counts once, whether in its repaired form too or with several swept values.
    """
    columns = ranked_columns([[cell is not None for cell in row] for row in rows.values()])
    ranked: dict[str, Row] = {}
    ranks: dict[str, list[list[int]]] = defaultdict(list)
    for name, row in rows.items():
        cells = [cell for index in columns if (cell := row[index]) is not None]
        ranked[name] = row
        if metric.higher_is_better is None or len(cells) < max(2, len(columns)):
            continue
        own = competition_ranks([cell.value for cell in cells], metric.higher_is_better)
        ranks[dataset_of(name)].append(own)
        new = dict(zip(columns, (replace(c, rank=r) for c, r in zip(cells, own, strict=True)), strict=True))
        ranked[name] = [new.get(index, cell) for index, cell in enumerate(row)]
    if not ranks:
        return Block(model, ranked, columns, None, tuple(notes))
    by_dataset = [np.mean(rows, axis=0) for rows in ranks.values()]
    means = dict(zip(columns, np.mean(by_dataset, axis=0).tolist(), strict=True))
    width = len(next(iter(rows.values())))
    return Block(model, ranked, columns, [means.get(index) for index in range(width)], tuple(notes))


def build_tables(results: Results) -> list[Table]:
    """One table per metric that any run has."""
    return [table for metric in results.metrics if (table := build_table(results, metric)).blocks]


def build_table(results: Results, metric: Metric) -> Table:
    """Mean and standard deviation over the folds and seeds that the ranked methods of a row share."""
    blocks = []
    for model in results.models:
        found = {data: _values(results, metric, data, model) for data in results.datasets}
        found = {data: values for data, values in found.items() if any(values)}
        if not found:
            continue
        columns = ranked_columns([[bool(values) for values in row] for row in found.values()])
        rows, notes = {}, []
        for data, row in found.items():
            shared, note = _shared(data, [row[index] for index in columns if row[index]])
            rows[data] = [_cell(values, shared & set(values) or set(values)) if values else None for values in row]
            notes += note
        blocks.append(make_block(model, rows, metric, notes))
    return Table(metric, [method.label for method in results.methods], blocks)


def _shared(data: str, present: Sequence[Mapping[Unit, float]]) -> tuple[set[Unit], list[str]]:
    """The (fold, seed) that all of these have, and what the reader must know of it."""
    if not present:
        return set(), []
    shared = set.intersection(*(set(values) for values in present))
    most = max(len(values) for values in present)
    if not shared:
        return shared, [f"{data}: the methods share no fold and seed, so the row is not comparable"]
    if len(shared) < most:
        return shared, [f"{data}: {len(shared)} of {most} folds and seeds, those that all methods have"]
    return shared, []


def _values(results: Results, metric: Metric, data: str, model: str) -> list[dict[Unit, float]]:
    """The finite values of each method, by (fold, seed)."""
    found = []
    for method in results.methods:
        runs = results.cell(method, data, model)
        values = {unit: run.metrics.get(metric.key, math.nan) for unit, run in runs.items()}
        found.append({unit: value for unit, value in values.items() if math.isfinite(value)})
    return found


def _cell(values: Mapping[Unit, float], units: set[Unit]) -> Cell:
    used = np.array([values[unit] for unit in sorted(units)])
    spread = float(used.std(ddof=1)) if used.size > 1 else math.nan
    return Cell(float(used.mean()), spread, int(used.size))


PRECISION = tuple(f"map_{third}" for third in THIRDS)
DRAWS = tuple(f"draws_{third}" for third in THIRDS)
DECISIONS = ("micro_f1", "macro_f1", "brier_score", "calibration_error")
COLUMNS = (*PRECISION, *DRAWS, *DECISIONS)
"""Columns of the table: average precision and draws by thirds of the labels, then decisions and probabilities."""


@dataclass(frozen=True)
class LabelRow:
    """One method.

    Attributes:
        method: Which.
        runs: On how many folds and seeds, those of all methods of its block.
        values: Mean by column; NaN where it was not recorded.
    """

    method: Method
    runs: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class LabelBlock:
    """The methods on one set with one model."""

    data: str
    model: str
    rows: Sequence[LabelRow]
    left_out: int
    """Runs that recorded none of it: those of earlier releases, and of models that log other metrics."""


def find_label_blocks(results: Results) -> list[LabelBlock]:
    """A block per data and model whose runs recorded draws or average precision by label frequency."""
    found = []
    for data, model in results.settings():
        cells = {method: results.cell(method, data, model) for method in results.methods}
        told = {
            method: known
            for method, runs in cells.items()
            if (known := {unit: values for unit, run in runs.items() if (values := _label_values(run))})
        }
        shared = set.intersection(*(set(runs) for runs in told.values())) if told else set()
        rows = [
            LabelRow(method, len(units), {name: _finite_mean([runs[unit][name] for unit in units]) for name in COLUMNS})
            for method, runs in told.items()
            for units in [sorted(shared or runs)]
        ]
        if rows:
            recorded = sum(map(len, told.values()))
            found.append(LabelBlock(data, model, rows, sum(map(len, cells.values())) - recorded))
    return found


def _label_values(run: Run) -> dict[str, float]:
    """What a run recorded of the columns; empty if nothing by label frequency."""
    draws = {f"draws_{third}": float(value) for third, value in run.record.draws.items()}
    if not draws and not any(name in run.metrics for name in PRECISION):
        return {}
    return {name: draws.get(name, run.metrics.get(name, math.nan)) for name in COLUMNS}


def _finite_mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
