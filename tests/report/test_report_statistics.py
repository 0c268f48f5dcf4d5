"""Ranks and tests, against the paper's own printed numbers and slow independent references."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_ubs.report import PAPER_TABLES
from lightning_ubs.report.evidence import (
    Difference,
    Evidence,
    competition_ranks,
    critical_difference,
    exact_wilcoxon,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    paired_interval,
)
from lightning_ubs.report.paper import paper_comparisons, read_paper
from lightning_ubs.report.significance import run_tests, table_units

# The row "Avg" of the paper's three tables: Random, Balance, Active, Recent, Hard, Ours.
PRINTED_RANKS = {
    ("Macro-AUC", "MPVAE"): "4.62 4.15 4.85 3.08 3.08 1.23",
    ("Macro-AUC", "CLIF"): "5.00 4.38 4.15 3.08 2.92 1.46",
    ("Macro-AUC", "DELA"): "4.46 5.38 4.00 2.54 3.08 1.38",
    ("Ranking loss", "MPVAE"): "4.69 4.54 4.00 2.77 3.62 1.23",
    ("Ranking loss", "CLIF"): "4.85 4.69 4.00 2.85 3.31 1.23",
    ("Ranking loss", "DELA"): "4.31 4.85 3.92 3.46 3.00 1.23",
    ("Hamming loss", "MPVAE"): "3.92 4.69 4.77 2.85 3.38 1.31",
    ("Hamming loss", "CLIF"): "4.15 5.31 4.31 2.92 3.08 1.23",
    ("Hamming loss", "DELA"): "4.77 4.77 3.54 2.77 3.23 1.77",
}
# The paper's table of Wilcoxon p-values: Random, Balance, Active, Recent, Hard.
PRINTED_P = {
    ("Macro-AUC", "MPVAE"): "0.0002 0.0002 0.0002 0.0002 0.0007",
    ("Macro-AUC", "CLIF"): "0.0002 0.0002 0.0007 0.0134 0.0007",
    ("Macro-AUC", "DELA"): "0.0005 0.0002 0.0002 0.0942 0.0017",
    ("Ranking loss", "MPVAE"): "0.0002 0.0005 0.0002 0.0171 0.0002",
    ("Ranking loss", "CLIF"): "0.0002 0.0002 0.0005 0.0081 0.0002",
    ("Ranking loss", "DELA"): "0.0012 0.0002 0.0002 0.0002 0.0005",
    ("Hamming loss", "MPVAE"): "0.0002 0.0002 0.0002 0.0061 0.0061",
    ("Hamming loss", "CLIF"): "0.0002 0.0005 0.0002 0.0017 0.0002",
    ("Hamming loss", "DELA"): "0.0002 0.0002 0.0005 0.0061 0.0061",
}


def test_all_54_average_ranks_of_the_paper_come_out() -> None:
    found = {
        (table.metric.title, block.model): " ".join(f"{rank:.2f}" for rank in block.average_ranks or ())
        for table in read_paper(PAPER_TABLES)
        for block in table.blocks
    }
    assert found == PRINTED_RANKS


def paper_p_values() -> dict[tuple[str, str], list[str]]:
    return {
        (table.metric.title, block.model): [
            f"{pair.p:.4f}"
            for pair in run_tests(table_units(table, block), paper_comparisons(table.methods), block.ranked).pairs
        ]
        for table in read_paper(PAPER_TABLES)
        for block in table.blocks
    }


def test_the_14_safe_wilcoxon_p_values_of_the_paper_come_out() -> None:
    found = paper_p_values()
    checked = 0
    for model in ("MPVAE", "CLIF", "DELA"):
        printed = PRINTED_P["Ranking loss", model].split()
        for competitor, ours, theirs in zip(
            ("Random", "Balance", "Active", "Recent", "Hard"), found["Ranking loss", model], printed, strict=True
        ):
            if (model, competitor) != ("CLIF", "Recent"):
                assert ours == theirs, (model, competitor)
                checked += 1
    assert checked == 14
    assert found["Ranking loss", "CLIF"][3] == "0.0061"  # the paper prints 0.0081


def test_32_of_all_45_wilcoxon_p_values_of_the_paper_come_out() -> None:
    found = paper_p_values()
    matches = [
        ours == theirs for key in PRINTED_P for ours, theirs in zip(found[key], PRINTED_P[key].split(), strict=True)
    ]
    assert (sum(matches), len(matches)) == (32, 45)


def test_ties_share_the_smallest_rank_and_not_the_mean_rank() -> None:
    table = next(table for table in read_paper(PAPER_TABLES) if table.metric.title == "Macro-AUC")
    block = next(block for block in table.blocks if block.model == "DELA")
    hard = list(table.methods).index("Hard")
    assert f"{(block.average_ranks or [])[hard]:.2f}" == "3.08"
    assert f"{mean_ranks(block.values, True)[hard]:.2f}" == "3.15"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.booleans())
def test_a_rank_is_one_more_than_the_number_of_better_printed_values(values: list[float], higher: bool) -> None:
    shown = [f"{value:.4f}" for value in values]
    expected = [1 + sum(other > one if higher else other < one for other in shown) for one in shown]
    assert competition_ranks(values, higher) == expected


def slow_wilcoxon(differences: list[float]) -> float:
    """All sign patterns counted one by one."""
    differences = [value for value in differences if value]
    ranks = [1 + sum(abs(other) < abs(value) for other in differences) for value in differences]
    total = sum(ranks)
    seen = sum(rank for rank, value in zip(ranks, differences, strict=True) if value > 0)
    far = max(seen, total - seen)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    return min(1.0, 2 * sum(value >= far for value in sums) / len(sums))


@pytest.mark.parametrize("size", [3, 6, 9])
def test_wilcoxon_equals_counting_all_sign_patterns(size: int) -> None:
    random = np.random.default_rng(size)
    ours, theirs = random.random(size), random.random(size) * 0.8
    assert exact_wilcoxon(ours, theirs) == pytest.approx(slow_wilcoxon(list(ours - theirs)))
    assert exact_wilcoxon(ours, theirs) == exact_wilcoxon(theirs, ours)


def test_equal_pairs_are_left_out_of_wilcoxon() -> None:
    assert exact_wilcoxon([1, 2, 3, 9, 9], [0, 0, 0, 9, 9]) == exact_wilcoxon([1, 2, 3], [0, 0, 0]) == 0.25


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_equals_its_definition(pvalues: list[float]) -> None:
    order = sorted(pvalues)
    for value, adjusted in zip(pvalues, holm(pvalues), strict=True):
        place = max(index for index, other in enumerate(order) if other == value)
        expected = max(min(1.0, (len(order) - index) * order[index]) for index in range(place + 1))
        assert adjusted == pytest.approx(expected)


def test_friedman_equals_its_formula() -> None:
    table = np.random.default_rng(0).random((9, 4))
    ranks = table.argsort(axis=1).argsort(axis=1) + 1
    n, k = table.shape
    chi2 = 12 / (n * k * (k + 1)) * (ranks.sum(axis=0) ** 2).sum() - 3 * n * (k + 1)
    assert friedman(table)[0] == pytest.approx(chi2)
    assert friedman(np.ones((4, 3))) == (0.0, 1.0)


def test_the_critical_difference_is_where_nemenyi_reaches_alpha() -> None:
    # Demšar's table: q_0.05 for six methods is 2.850.
    assert critical_difference(6, 13) == pytest.approx(2.850 * math.sqrt(6 * 7 / (6 * 13)), abs=1e-3)
    table = np.random.default_rng(1).random((12, 4)) + np.array([0, 0.2, 0.4, 0.9])
    ranks, pairwise = mean_ranks(table, True), nemenyi(table)
    limit = critical_difference(4, 12)
    for one, other in itertools.combinations(range(4), 2):
        assert (pairwise[one, other] < 0.05) == (abs(ranks[one] - ranks[other]) > limit)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        interval = paired_interval(random.normal(0.3, 1.0, 6))
        hits += interval.low <= 0.3 <= interval.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_pair_gives_no_interval_and_no_evidence() -> None:
    interval = paired_interval([0.5])
    assert math.isnan(interval.low)
    assert not interval.excludes_zero


def test_two_pairs_give_an_interval_which_is_widened_for_the_splits_that_were_not_seen() -> None:
    interval = paired_interval([0.01, 0.03])
    half = 12.7062 * np.std([0.01, 0.03], ddof=1) / math.sqrt(2)
    assert (interval.low, interval.high) == pytest.approx((0.02 - half, 0.02 + half), rel=1e-4)
    seeds = Evidence.of([Difference("yeast", "one", seed, value) for seed, value in enumerate((0.01, 0.03))])
    spread = np.std([0.01, 0.03], ddof=1)
    assert seeds.pair_spread == pytest.approx(spread)
    assert seeds.error() == pytest.approx(math.sqrt(spread**2 / 2 + spread**2 / 3))
