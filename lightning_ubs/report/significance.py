"""Which differences are more than chance: Wilcoxon with Holm's correction, Friedman with mean ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Array, Results
from lightning_ubs.report.statistics import (
    critical_difference,
    exact_wilcoxon,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    smallest_wilcoxon_p,
)
from lightning_ubs.report.tables import Block, Table

MIN_DATASETS = 5
DATASETS = "datasets"
RUNS = "paired runs"


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
    """Datasets where there are at least five, else single runs paired by data, fold and seed."""
    if len(block.rows) >= MIN_DATASETS:
        return table_units(table, block)
    rows = []
    for data in block.rows:
        cells = [results.cell(method, data, block.model) for method in results.methods]
        for unit in sorted({unit for cell in cells for unit in cell}):
            rows.append(
                [cell[unit].metrics.get(table.metric.key, math.nan) if unit in cell else math.nan for cell in cells]
            )
    return Units(table.metric, block.model, table.methods, RUNS, np.array(rows, dtype=float))


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
