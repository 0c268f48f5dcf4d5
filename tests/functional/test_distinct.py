"""Batches without repeats, drawn as one sample after the other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from chance import IMPLAUSIBLE, assert_distributed_as, counted_work, rows_of, seeded
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_ubs.functional import batches as functions
from lightning_ubs.functional import draw_epoch, draw_plan, repeats_in_rows
from lightning_ubs.functional.batches import DistinctBatches

SKEWED = [0.1, 0.15, 0.2, 0.25, 0.3]
ONE_HEAVY = [0.02, 0.9, 0.02, 0.03, 0.03]
HALVING = [0.5, 0.25, 0.125, 0.0625, 0.0625]
FLAT = [0.2] * 5

# From "every sample is light" over "some are raced" to "as many as allowed are raced".
mixes = pytest.mark.parametrize("collisions", [100.0, 0.8, 0.5, 0.0])


@mixes
@pytest.mark.parametrize("probs", [SKEWED, ONE_HEAVY, HALVING, FLAT])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_are_distributed_as_sequential_draws_without_replacement(
    collisions: float, probs: list[float], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "_COLLISIONS", collisions)
    drawn = draw_plan(torch.tensor(probs, dtype=torch.float64), size, 20_000, seeded(size), "batch")
    assert_distributed_as(rows_of(drawn), reference.ordered_draws(probs, size))


def test_the_mixes_above_race_none_some_and_all_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    raced = set()
    for collisions, probs in itertools.product([100.0, 0.8, 0.5, 0.0], [SKEWED, ONE_HEAVY, HALVING, FLAT]):
        monkeypatch.setattr(functions, "_COLLISIONS", collisions)
        raced.add(DistinctBatches(torch.tensor(probs, dtype=torch.float64), 2).heavy.numel())
    assert {0, 1, 4} <= raced


@mixes
def test_batches_that_need_many_more_arrivals_are_distributed_alike(
    collisions: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "_COLLISIONS", collisions)
    batches = DistinctBatches(torch.tensor(ONE_HEAVY, dtype=torch.float64), 3)
    batches.width = 3
    assert_distributed_as(rows_of(batches(20_000, seeded(8))), reference.ordered_draws(ONE_HEAVY, 3))


@pytest.mark.parametrize("power", [0.0, 0.7, 1.5, 4.0])
def test_first_and_second_of_each_batch_follow_their_exact_chances(power: float) -> None:
    probs = np.arange(1, 401.0) ** -power
    probs /= probs.sum()
    drawn = draw_plan(torch.from_numpy(probs), 16, 20_000, seeded(11), "batch")
    assert_distributed_as(rows_of(drawn[:, :1]), {(i,): p for i, p in enumerate(probs)})
    second = [p * sum(q / (1 - q) for j, q in enumerate(probs) if j != i) for i, p in enumerate(probs)]
    assert_distributed_as(rows_of(drawn[:, 1:2]), {(i,): p for i, p in enumerate(second)})


def test_the_last_of_a_batch_follows_its_exact_chances() -> None:
    probs = [0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05]
    expected: dict[tuple[int, ...], float] = {(i,): 0.0 for i in range(7)}
    for ids, chance in reference.ordered_draws(probs, 6).items():
        expected[(ids[-1],)] += chance
    drawn = draw_plan(torch.tensor(probs, dtype=torch.float64), 6, 20_000, seeded(2), "batch")
    assert_distributed_as(rows_of(drawn[:, -1:]), expected)


@mixes
def test_batches_are_independent_of_each_other(collisions: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_COLLISIONS", collisions)
    drawn = draw_plan(torch.tensor(SKEWED), 2, 40_000, seeded(5), "batch").sort(1).values
    sets = {pair: k for k, pair in enumerate(itertools.combinations(range(5), 2))}
    kinds = np.array([sets[tuple(row)] for row in drawn.tolist()])
    table = np.zeros((10, 10))
    np.add.at(table, (kinds[0::2], kinds[1::2]), 1)
    assert stats.chi2_contingency(table).pvalue > IMPLAUSIBLE


SHAPES = {
    "uniform": lambda n: torch.ones(n),
    "one sample with a tenth": lambda n: torch.ones(n).index_fill(0, torch.tensor([3]), n / 9),
    "one sample with nearly all": lambda n: torch.ones(n).index_fill(0, torch.tensor([3]), n * 1e6),
    "a few heavy ones": lambda n: torch.ones(n).index_fill(0, torch.arange(40), n / 40),
    "power law": lambda n: torch.arange(1, n + 1).double() ** -1.5,
    "halving, then tiny": lambda n: torch.exp2(-torch.arange(n).double()).clamp(min=1e-200),
    "mostly impossible": lambda n: (torch.arange(n) < 70).double(),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_no_faster_than_n_log_n_whatever_the_probabilities(shape: str) -> None:
    def cells(n: int) -> int:
        with counted_work() as work:
            draw_epoch(SHAPES[shape](n), 64, n, seeded(1), "batch")
        return work.cells

    small, large = cells(4_000), cells(64_000)
    assert large / small < 16 * 1.4
    assert small / 4_000 < 150, "numbers written per draw"


@pytest.mark.parametrize("size", [200, 1000, 3000])
def test_work_stays_in_bounds_where_batches_are_large_beside_the_set(size: int) -> None:
    with counted_work() as work:
        draw_epoch(torch.ones(3000), size, 12_000, seeded(1), "batch")
    assert work.cells / 12_000 < 150


def test_memory_of_a_step_does_not_grow_with_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_BLOCK_CELLS", 100)
    batches = DistinctBatches(torch.tensor(ONE_HEAVY, dtype=torch.float64), 2)
    sizes: list[int] = []
    block = batches._block

    def watched(count: int, generator: torch.Generator) -> torch.Tensor:
        sizes.append(count)
        return block(count, generator)

    monkeypatch.setattr(batches, "_block", watched)
    assert batches(95, seeded()).shape == (95, 2)
    assert sum(sizes) == 95
    assert max(sizes) * batches.width <= 100


sizes = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 6)).filter(lambda s: s[1] <= s[0])


@given(sizes, st.integers(0, 1000), st.floats(1, 1e300))
def test_no_sample_comes_twice_in_a_batch(size: tuple[int, int, int], seed: int, pressure: float) -> None:
    n, batch_size, num_batches = size
    probs = torch.softmax(torch.rand(n, generator=seeded(seed), dtype=torch.float64) * np.log(pressure), 0)
    drawn = draw_plan(probs, batch_size, num_batches, seeded(seed))
    assert drawn.shape == (num_batches, batch_size)
    assert drawn.dtype == torch.int64
    for row in drawn.tolist():
        assert len(set(row)) == batch_size
        assert min(row) >= 0
        assert max(row) < n


@pytest.mark.parametrize("tiny", [1e-30, 1e-290, 5e-324])
def test_a_tiny_positive_probability_comes_before_an_impossible_sample(tiny: float) -> None:
    probs = torch.tensor([0.0, 1.0, tiny, 0.0], dtype=torch.float64)
    assert draw_plan(probs, 2, 50, seeded()).tolist() == [[1, 2]] * 50


@given(st.lists(st.lists(st.integers(-1, 5), min_size=4, max_size=4), min_size=1, max_size=4))
def test_repeats_are_all_but_the_first_of_equal_ids_in_a_row(rows: list[list[int]]) -> None:
    expected = [[value in row[:place] for place, value in enumerate(row)] for row in rows]
    assert repeats_in_rows(torch.tensor(rows)).tolist() == expected
