"""Ranks, tests and intervals for comparing methods over datasets: pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lightning_ubs._utils.extras import optional_import

Array = np.ndarray[Any, np.dtype[np.float64]]


def printed(value: float, decimals: int = 4) -> float:
    """The number a table shows, so that ranks agree with what the reader sees.

    >>> printed(0.93564)
    0.9356
    """
    return float(f"{value:.{decimals}f}")


def competition_ranks(values: ArrayLike, higher_is_better: bool, decimals: int = 4) -> list[int]:
    """Ranks of one row of a table, from 1; ties share the smallest rank and the next one is left out.

    >>> competition_ranks([0.9303, 0.9396, 0.93958, 0.9001], higher_is_better=True)
    [3, 1, 1, 4]
    """
    row = [printed(value, decimals) for value in np.asarray(values, dtype=float)]
    return [1 + sum((other > value) == higher_is_better and other != value for other in row) for value in row]


def exact_wilcoxon(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test on pairs, from the exact distribution.

    Differences are ranked as they are, without rounding, and pairs that are equal are left out; ``exact`` is
    fixed because SciPy would switch to another null distribution where absolute differences are tied.

    >>> exact_wilcoxon([1, 2, 3, 4, 5], [0, 0, 0, 0, 0])
    0.0625
    >>> exact_wilcoxon([1, 2], [1, 2])
    1.0
    """
    differences = np.asarray(ours, dtype=float) - np.asarray(theirs, dtype=float)
    differences = differences[differences != 0]
    if differences.size == 0:
        return 1.0
    return float(optional_import("scipy.stats").wilcoxon(differences, method="exact").pvalue)


def smallest_wilcoxon_p(pairs: int) -> float:
    """The smallest p-value the exact two-sided test can give with this many pairs.

    >>> smallest_wilcoxon_p(5)
    0.0625
    """
    return min(1.0, 2.0 ** (1 - pairs))


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's step-down correction for several tests.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(pvalues)), key=lambda index: pvalues[index])
    adjusted, running = [0.0] * len(pvalues), 0.0
    for position, index in enumerate(order):
        running = max(running, min(1.0, (len(pvalues) - position) * pvalues[index]))
        adjusted[index] = running
    return adjusted


def mean_ranks(table: ArrayLike, higher_is_better: bool) -> Array:
    """Mean ranks over the rows of (units, methods) with ties shared, as Friedman's test needs them."""
    values = np.asarray(table, dtype=float)
    ranks = optional_import("scipy.stats").rankdata(-values if higher_is_better else values, axis=1)
    return np.asarray(np.mean(ranks, axis=0), dtype=float)


def friedman(table: ArrayLike) -> tuple[float, float]:
    """Friedman's χ² and p-value over the rows of (units, methods); at least 3 methods and 2 units."""
    values = np.asarray(table, dtype=float)
    if np.all(values == values[:, :1]):  # all tied: SciPy would divide by zero
        return 0.0, 1.0
    result = optional_import("scipy.stats").friedmanchisquare(*values.T)
    return float(result.statistic), float(result.pvalue)


def nemenyi(table: ArrayLike) -> Array:
    """Nemenyi's post-hoc p-values (methods, methods) for the rows of (units, methods)."""
    posthocs = optional_import("scikit_posthocs")
    return np.asarray(posthocs.posthoc_nemenyi_friedman(np.asarray(table, dtype=float)), dtype=float)


def critical_difference(methods: int, units: int, alpha: float = 0.05) -> float:
    """Difference of mean ranks that Nemenyi's test calls significant: q_α √(k(k+1) / 6N).

    >>> round(critical_difference(6, 13), 2)
    2.09
    """
    quantile = optional_import("scipy.stats").studentized_range.ppf(1 - alpha, methods, np.inf) / math.sqrt(2)
    return float(quantile) * math.sqrt(methods * (methods + 1) / (6 * units))


@dataclass(frozen=True)
class Interval:
    """Mean of paired differences with its confidence interval; no bounds from fewer than two pairs."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or ``none`` where the interval contains 0 or does not exist."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "none"


def paired_interval(differences: ArrayLike, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean of paired differences.

    >>> interval = paired_interval([0.01, 0.02, 0.03])
    >>> round(interval.low, 4), round(interval.high, 4), interval.verdict
    (-0.0048, 0.0448, 'none')
    """
    values = np.asarray(differences, dtype=float)
    mean = float(values.mean())
    if values.size < 2:
        return Interval(mean, math.nan, math.nan, int(values.size))
    quantile = float(optional_import("scipy.stats").t.ppf(0.5 + confidence / 2, values.size - 1))
    half = quantile * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(mean, mean - half, mean + half, int(values.size))
