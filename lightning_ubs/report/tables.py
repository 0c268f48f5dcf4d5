"""Tables like the paper's: value(rank) per dataset and method, blocks per model, average ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.measures import Measure
from lightning_ubs.report.results import Array, Results, Unit
from lightning_ubs.report.statistics import competition_ranks


@dataclass(frozen=True)
class Cell:
    """One value of a table; ``rank`` is None where the row is not ranked, ``spread`` NaN for a single run."""

    value: float
    spread: float = math.nan
    runs: int = 0
    rank: int | None = None

    @property
    def best(self) -> bool:
        """Whether no other value of the row is better."""
        return self.rank == 1


@dataclass(frozen=True)
class Block:
    """The rows of one model: datasets by methods."""

    model: str
    rows: Mapping[str, Sequence[Cell | None]]
    average_ranks: Sequence[float] | None
    notes: Sequence[str] = ()

    @property
    def values(self) -> Array:
        """The values as (datasets, methods), NaN where there is none."""
        rows = [[math.nan if cell is None else cell.value for cell in row] for row in self.rows.values()]
        return np.array(rows, dtype=float)


@dataclass(frozen=True)
class Table:
    """All models for one metric."""

    measure: Measure
    methods: Sequence[str]
    blocks: Sequence[Block]

    @property
    def ranked(self) -> bool:
        """Whether there is anything to rank."""
        return any(block.average_ranks is not None for block in self.blocks)


def make_block(
    model: str, rows: Mapping[str, Sequence[Cell | None]], measure: Measure, notes: Sequence[str] = ()
) -> Block:
    """Rank every complete row, and average the ranks over them."""
    ranked: dict[str, Sequence[Cell | None]] = {}
    ranks = []
    for name, row in rows.items():
        cells = [cell for cell in row if cell is not None]
        if len(cells) < len(row) or len(cells) < 2:
            ranked[name] = row
            continue
        ranks.append(competition_ranks([cell.value for cell in cells], measure.higher_is_better))
        ranked[name] = [
            Cell(cell.value, cell.spread, cell.runs, rank) for cell, rank in zip(cells, ranks[-1], strict=True)
        ]
    return Block(model, ranked, np.mean(ranks, axis=0).tolist() if ranks else None, tuple(notes))


def build_table(results: Results, measure: Measure) -> Table:
    """Mean and standard deviation over the folds and seeds that all methods of a row share."""
    blocks = []
    for model in results.models:
        rows: dict[str, list[Cell | None]] = {}
        notes = []
        for data in results.datasets:
            found = [_values(results, measure, index, data, model) for index in range(len(results.compared))]
            present = [values for values in found if values]
            if not present:
                continue
            shared = set.intersection(*(set(values) for values in present))
            most = max(len(values) for values in present)
            if not shared:
                notes.append(f"{data}: the methods share no fold and seed, so the row is not comparable")
            elif len(shared) < most:
                notes.append(f"{data}: {len(shared)} of {most} folds and seeds, those that all methods have")
            rows[data] = [_cell(values, shared or set(values)) if values else None for values in found]
        if rows:
            blocks.append(make_block(model, rows, measure, notes))
    return Table(measure, [method.label for method in results.compared], blocks)


def _values(results: Results, measure: Measure, index: int, data: str, model: str) -> dict[Unit, float]:
    runs = results.cell(results.compared[index], data, model)
    values = {unit: run.metrics.get(measure.key, math.nan) for unit, run in runs.items()}
    return {unit: value for unit, value in values.items() if math.isfinite(value)}


def _cell(values: Mapping[Unit, float], units: set[Unit]) -> Cell:
    used = np.array([values[unit] for unit in sorted(units)])
    spread = float(used.std(ddof=1)) if used.size > 1 else math.nan
    return Cell(float(used.mean()), spread, int(used.size))
