"""Which differences are more than chance: Wilcoxon with Holm's correction, Friedman with mean ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_ubs.report.measures import Measure
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

    measure: Measure
    model: str
    methods: Sequence[str]
    kind: str
    values: Array


@dataclass(frozen=True)
class PairTest:
    """The reference method against one competitor."""

    competitor: str
    pairs: int
    wins: int
    losses: int
    p: float
    p_holm: float

    @property
    def smallest(self) -> float:
        """The smallest p-value that this many unequal pairs allow."""
        return smallest_wilcoxon_p(self.wins + self.losses)


@dataclass(frozen=True)
class RankTest:
    """All methods at once: Friedman's test, mean ranks, and Nemenyi's p-values between them."""

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
    return Units(table.measure, block.model, table.methods, DATASETS, block.values)


def result_units(results: Results, table: Table, block: Block) -> Units:
    """Datasets where there are at least five, else single runs paired by data, fold and seed."""
    if len(block.rows) >= MIN_DATASETS:
        return table_units(table, block)
    rows = []
    for data in block.rows:
        cells = [results.cell(method, data, block.model) for method in results.compared]
        for unit in sorted({unit for cell in cells for unit in cell}):
            rows.append(
                [cell[unit].metrics.get(table.measure.key, math.nan) if unit in cell else math.nan for cell in cells]
            )
    return Units(table.measure, block.model, table.methods, RUNS, np.array(rows, dtype=float))


def run_tests(units: Units, reference: int | None) -> Significance:
    """All tests for one metric and model; Holm's correction is over the competitors."""
    return Significance(units, _pairs(units, reference) if reference is not None else [], _ranks(units))


def _pairs(units: Units, reference: int) -> list[PairTest]:
    found = []
    for index, name in enumerate(units.methods):
        both = units.values[np.isfinite(units.values[:, [reference, index]]).all(axis=1)]
        if index == reference or not len(both):
            continue
        ours, theirs = both[:, reference], both[:, index]
        gains = units.measure.sign * (ours - theirs)
        wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
        found.append((name, len(both), wins, losses, exact_wilcoxon(ours, theirs)))
    adjusted = holm([test[-1] for test in found])
    return [PairTest(*test, p_holm=p) for test, p in zip(found, adjusted, strict=True)]


def _ranks(units: Units) -> RankTest | None:
    complete = units.values[np.isfinite(units.values).all(axis=1)]
    count, methods = complete.shape
    if methods < 3 or count < 2:
        return None
    chi2, p = friedman(complete)
    ranks = mean_ranks(complete, units.measure.higher_is_better)
    return RankTest(units, count, chi2, p, ranks, nemenyi(complete), critical_difference(methods, count))
