"""Ranks, tests and intervals for comparing methods over datasets: pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

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
    def excludes_zero(self) -> bool:
        """Whether the interval exists and lies on one side of 0."""
        return self.low > 0 or self.high < 0


def paired_interval(differences: ArrayLike, confidence: float = 0.95) -> Interval:
    """Student-t interval of the mean of paired differences, each of which is a unit of evidence.

    >>> interval = paired_interval([0.01, 0.02, 0.03])
    >>> round(interval.low, 4), round(interval.high, 4), interval.excludes_zero
    (-0.0048, 0.0448, False)
    """
    values = np.asarray(differences, dtype=float)
    return Evidence(values, "splits").interval(confidence)


def resolution(values: ArrayLike, finest: int = 1000) -> float:
    """The step of which all values are multiples, such as 1/k for accuracies of k samples; 0 if there is none.

    Equal values of such a metric say little: two methods may differ by a good part of a step. It is the greatest
    common divisor, from a thousandth to a tenth of the largest value: a larger one is that of few values.

    >>> round(resolution([0.82, 0.84, 0.9]), 6), resolution([0.8231, 0.84702, 0.90003]), resolution([1.0, 1.0])
    (0.02, 0.0, 0.1)
    """
    found = np.unique(np.abs(np.asarray(values, dtype=float)))
    found = found[np.isfinite(found) & (found > 0)]
    if not found.size:
        return 0.0
    largest = float(found[-1])
    # Euclid's algorithm; a remainder of almost nothing, or of almost the divisor, is one of rounding.
    step, noise = largest, 1e-5 * largest
    for value in found:
        other = float(value)
        while other > noise:
            step, other = other, step - other * round(step / other)
            other = abs(other)
        if step < largest / finest:
            return 0.0
    return min(step, largest / 10)


Kind = Literal["datasets", "splits", "seeds"]
MIN_DATASETS = 5
MIN_UNITS = 3
#: Variance that is assumed between splits where all runs share one, and between datasets where there are two to four,
#: as a share of the variance between pairs of runs. The correction of Nadeau and Bengio (2003) has the same form, with
#: the size of the test set over that of the training set; a third lies between its values for four folds and for three.
UNSEEN = 1 / 3
POWER = 0.8
_MOST_NEEDED = 1e8


@dataclass(frozen=True)
class Difference:
    """One paired difference, and where it was measured; ``setting``: with which model, budget or swept value."""

    dataset: str
    split: str
    seed: int
    value: float
    setting: str = ""


@dataclass(frozen=True)
class Evidence:
    """Paired differences, one value per unit of evidence.

    A unit is a dataset where there are at least five, else a split of a dataset. All that was measured on one unit
    (seeds, budgets, swept values, models) is averaged first: it repeats the same evidence. Where all runs lie on one
    or two splits, the unit is the seed, and the interval is widened for the splits that were not seen; so it is for the
    datasets that were not seen where there are two to four.

    Attributes:
        values: Mean difference of each unit, (units,).
        kind: What a unit is.
        groups: Splits or datasets that the widening is spread over; 0: no widening.
        datasets: How many there are.
        splits: How many there are.
        pairs: Pairs of runs behind the units.
        pair_spread: Standard deviation of the differences of single pairs within a setting.
        step: Resolution of the values that were compared; 0 if they are continuous.
    """

    values: Array
    kind: Kind
    groups: int = 0
    datasets: int = 1
    splits: int = 1
    pairs: int = 0
    pair_spread: float = 0.0
    step: float = 0.0

    @classmethod
    def of(cls, differences: Iterable[Difference], step: float = 0.0) -> Evidence:
        """The units behind these differences, of values with this resolution.

        >>> found = [Difference("yeast", str(fold), seed, fold + seed) for fold in range(3) for seed in (0, 2)]
        >>> Evidence.of(found).values.tolist(), Evidence.of(found * 3).values.tolist()
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
        """
        found = list(differences)
        by_split = _means((one.dataset, one.split, one.value) for one in found)
        by_data = _means((data, "", value) for (data, _), value in by_split.items())
        datasets, splits = len(by_data), len(by_split)
        if datasets >= MIN_DATASETS:
            values, kind, groups = list(by_data.values()), "datasets", 0
        elif splits >= MIN_UNITS:
            groups = datasets if 1 < datasets < splits else 0
            values, kind = list(by_split.values()), "datasets" if datasets == splits else "splits"
        else:
            by_seed = _means((one.dataset, f"{one.split} {one.seed}", one.value) for one in found)
            values, kind, groups = list(by_seed.values()), "seeds", splits
        array = np.array(values, dtype=float)
        spread = _pair_spread(found, array.size)
        return cls(array, kind, groups, datasets, splits, len(found), spread, step)  # type: ignore[arg-type]

    @property
    def units(self) -> int:
        """How many there are."""
        return int(self.values.size)

    @property
    def noun(self) -> str:
        """What they are called where they are counted: runs, if each is one."""
        return "runs" if self.kind != "datasets" and self.units == self.pairs else self.kind

    @property
    def counted(self) -> str:
        """How many there are, in words."""
        return f"{self.units} {self.noun}"

    @property
    def mean(self) -> float:
        """Mean difference of the units; NaN without any."""
        return float(self.values.mean()) if self.units else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation of the units, at least that of rounding to the metric's steps; NaN from fewer than two.

        A value rounded to steps of r has an error of variance r²/12, the difference of two twice that.
        """
        if self.units < 2:
            return math.nan
        return max(float(self.values.std(ddof=1)), self.step / math.sqrt(6))

    def error(self, overlap: float = 0.0) -> float:
        """Standard error of the mean, with the widening; ``overlap``: test samples over training samples.

        The widening counts from the spread of single pairs: averaging several runs of a unit brings it no closer to a
        split or dataset that was not seen.
        """
        if self.units < 2:
            return math.nan
        if not self.groups:
            return self.spread * math.sqrt(1 / self.units + overlap)
        unseen = max(self.spread, self.pair_spread) ** 2 * UNSEEN / self.groups
        return math.sqrt(self.spread**2 / self.units + unseen)

    def interval(self, confidence: float = 0.95, overlap: float = 0.0) -> Interval:
        """Student-t interval of the mean; with ``overlap`` the corrected resampled t of Nadeau and Bengio."""
        if self.units < 2:
            return Interval(self.mean, math.nan, math.nan, self.units)
        half = t_quantile(0.5 + confidence / 2, self.units - 1) * self.error(overlap)
        return Interval(self.mean, self.mean - half, self.mean + half, self.units)

    def p(self, above: float = 0.0) -> float:
        """Two-sided p-value of the mean against ``above``; 1 from fewer than three units."""
        if self.units < MIN_UNITS:
            return 1.0
        distance, error = self.mean - above, self.error()
        if error == 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * optional_import("scipy.stats").t.sf(abs(distance) / error, self.units - 1))

    def p_above(self, bound: float) -> float:
        """One-sided p-value, doubled as in a two-sided test, that the mean lies above ``bound``."""
        return self.p(bound) if self.mean > bound else 1.0

    def missed(self, confidence: float = 0.95) -> float:
        """The difference below which fewer than half of such comparisons would show it; NaN if unknown."""
        return t_quantile(0.5 + confidence / 2, self.units - 1) * self.error() if self.units > 1 else math.nan

    def needed(self, difference: float, confidence: float = 0.95) -> int | None:
        """Units of which four in five comparisons would show this difference; None if no number of them would.

        Where all runs lie on one or two splits, these are units with a split of their own. Splits of the same two to
        four datasets bring a comparison no closer to other datasets, so there is a difference that they never show.

        >>> Evidence(np.array([0.0, 1.0, 2.0, 3.0]), "splits").needed(1.0)
        16
        """
        if self.units < 2 or difference == 0 or not self.spread > 0:
            return None
        unseen = UNSEEN * max(self.spread, self.pair_spread) ** 2
        each = self.spread**2 + (unseen if self.kind == "seeds" else 0.0)
        floor = unseen / self.groups if self.groups and self.kind != "seeds" else 0.0
        count, level = 10 * MIN_UNITS, 0.5 + confidence / 2
        for _ in range(20):  # the quantiles depend on the count, which settles at once
            factor = t_quantile(level, count - 1) + t_quantile(POWER, count - 1)
            left = (difference / factor) ** 2 - floor
            if left * _MOST_NEEDED < each:
                return None
            new = max(MIN_UNITS, math.ceil(each / left))
            if new == count:
                break
            count = new
        return count


def holm_divisors(pvalues: Sequence[float], alpha: float = 0.05) -> list[int]:
    """By how much each test's alpha is divided in Holm's procedure, so that intervals agree with its decisions.

    The procedure goes from the smallest p-value to the largest and stops at the first that is too large; that one and
    all after it keep the divisor at which it stopped.

    >>> holm_divisors([0.2, 0.001, 0.03])
    [2, 3, 2]
    """
    order = sorted(range(len(pvalues)), key=lambda index: pvalues[index])
    found, stopped = [1] * len(pvalues), 0
    for position, index in enumerate(order):
        divisor = stopped or len(pvalues) - position
        if pvalues[index] >= alpha / divisor:
            stopped = divisor
        found[index] = divisor
    return found


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t."""
    return float(optional_import("scipy.stats").t.ppf(probability, freedom))


def _pair_spread(found: Sequence[Difference], units: int) -> float:
    """Standard deviation of single pairs within a setting, corrected for as many as there are units.

    So copies of runs change nothing, and neither does a setting that helps all units alike.
    """
    if units < 2:
        return 0.0
    means = _means((one.setting, "", one.value) for one in found)
    squares = [(one.value - means[one.setting, ""]) ** 2 for one in found]
    return math.sqrt(float(np.mean(squares)) * units / (units - 1))


def _means(found: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = {}
    for data, part, value in found:
        values.setdefault((data, part), []).append(value)
    return {key: float(np.mean(one)) for key, one in values.items()}
