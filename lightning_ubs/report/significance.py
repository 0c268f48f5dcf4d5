"""Which differences are more than chance: Wilcoxon with Holm's correction, Friedman with mean ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_ubs.report.evidence import (
    MIN_DATASETS,
    critical_difference,
    exact_wilcoxon,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    smallest_wilcoxon_p,
)
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Array, Results, Run, Unit
from lightning_ubs.report.tables import Block, Table

DATASETS = "datasets"
SPLITS = "splits"


@dataclass(frozen=True)
class Units:
    """What is compared: the values (units, methods) of one model and metric, NaN where missing."""

    metric: Metric
    model: str
    methods: Sequence[str]
    kind: str
    values: Array


@dataclass(frozen=True)
class PairTest:
    """One method against another."""

    ours: str
    theirs: str
    pairs: int
    wins: int
    losses: int
    p: float
    p_holm: float

    @property
    def name(self) -> str:
        """Both methods."""
        return f"{self.ours} – {self.theirs}"

    @property
    def smallest(self) -> float:
        """The smallest p-value that this many unequal pairs allow."""
        return smallest_wilcoxon_p(self.wins + self.losses)


@dataclass(frozen=True)
class RankTest:
    """Several methods at once: Friedman's test, mean ranks, and Nemenyi's p-values between them."""

    units: Units
    count: int
    chi2: float
    p: float
    ranks: Array
    pairwise: Array
    critical_difference: float


@dataclass(frozen=True)
class Significance:
    """All tests of one metric and model."""

    units: Units
    pairs: Sequence[PairTest]
    ranks: RankTest | None


def table_units(table: Table, block: Block) -> Units:
    """Datasets as units, for instance of the paper's own tables."""
    return Units(table.metric, block.model, table.methods, DATASETS, block.values)


def result_units(results: Results, table: Table, block: Block) -> Units:
    """Datasets where there are at least five, else splits of a dataset: the units of evidence.

    What was measured on one unit is averaged first: seeds, swept values, a set and its repaired form.
    """
    key = table.metric.key
    by_unit: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[] for _ in results.methods])
    datasets = {run.dataset for run in results.runs if run.model == block.model and run.data in block.rows}
    by_data = len(datasets) >= MIN_DATASETS
    for data in block.rows:
        cells = [results.cell(method, data, block.model) for method in results.methods]
        shared = _shared([cells[index] for index in block.ranked])
        for column, cell in enumerate(cells):
            for unit, run in cell.items():
                value = run.metrics.get(key, math.nan)
                if math.isfinite(value) and (not shared or unit in shared or column not in block.ranked):
                    by_unit[run.dataset, "" if by_data else run.split][column].append(value)
    rows = [[float(np.mean(values)) if values else math.nan for values in columns] for columns in by_unit.values()]
    return Units(table.metric, block.model, table.methods, DATASETS if by_data else SPLITS, np.array(rows, dtype=float))


def _shared(cells: Sequence[Mapping[Unit, Run]]) -> set[Unit]:
    """The folds and seeds that all methods have where they have any."""
    present = [set(cell) for cell in cells if cell]
    return set.intersection(*present) if present else set()


def result_tests(results: Results, tables: Sequence[Table]) -> list[Significance]:
    """All tests of all metrics and models; pairs are those of `Results.comparisons`."""
    places = {method: index for index, method in enumerate(results.methods)}
    compared = [(places[ours], places[theirs]) for ours, theirs in results.comparisons]
    return [
        run_tests(result_units(results, table, block), compared, block.ranked)
        for table in tables
        for block in table.blocks
    ]


def run_tests(units: Units, compared: Sequence[tuple[int, int]], ranked: Sequence[int]) -> Significance:
    """All tests for one metric and model.

    Args:
        units: The values.
        compared: Columns to compare in pairs; Holm's correction is over them.
        ranked: Columns to rank together.
    """
    if units.metric.higher_is_better is None:
        return Significance(units, [], None)
    return Significance(units, _pair_tests(units, compared), _rank_test(units, ranked))


def _pair_tests(units: Units, compared: Sequence[tuple[int, int]]) -> list[PairTest]:
    found = []
    for ours, theirs in compared:
        both = units.values[:, [ours, theirs]]
        both = both[np.isfinite(both).all(axis=1)]
        if not len(both):
            continue
        gains = units.metric.sign * (both[:, 0] - both[:, 1])
        wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
        names = units.methods[ours], units.methods[theirs]
        found.append((*names, len(both), wins, losses, exact_wilcoxon(both[:, 0], both[:, 1])))
    adjusted = holm([test[-1] for test in found])
    return [PairTest(*test, p_holm=p) for test, p in zip(found, adjusted, strict=True)]


def _rank_test(units: Units, ranked: Sequence[int]) -> RankTest | None:
    values = units.values[:, list(ranked)]
    complete = values[np.isfinite(values).all(axis=1)]
    count, methods = complete.shape
    if methods < 3 or count < 2:
        return None
    chi2, p = friedman(complete)
    ranks = mean_ranks(complete, bool(units.metric.higher_is_better))
    limit = critical_difference(methods, count)
    own = replace(units, methods=[units.methods[index] for index in ranked], values=values)
    return RankTest(own, count, chi2, p, ranks, nemenyi(complete), limit)
