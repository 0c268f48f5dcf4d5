"""Systematic draws: copies rounded up or down, spread over the batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from chance import assert_distributed_as, counted_work, rows_of, seeded
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_ubs.functional import draw_epoch, systematic
from lightning_ubs.selection.plan import BatchLayout, EpochPlan

SKEWED = [0.1, 0.15, 0.2, 0.25, 0.3]


def epoch(probs: torch.Tensor, batch_size: int, num_draws: int, seed: int = 0) -> torch.Tensor:
    return draw_epoch(probs, batch_size, num_draws, seeded(seed), "systematic")


epochs = st.tuples(st.integers(1, 25), st.integers(1, 9), st.integers(0, 40), st.integers(0, 999), st.floats(0, 12))


@given(epochs)
def test_every_sample_comes_as_often_as_its_share_says_rounded_up_or_down(
    drawn: tuple[int, int, int, int, float],
) -> None:
    n, batch_size, num_draws, seed, skew = drawn
    probs = torch.softmax(torch.rand(n, generator=seeded(seed), dtype=torch.float64) * skew, 0)
    ids = epoch(probs, batch_size, num_draws, seed)
    assert ids.shape == (num_draws,)
    expected = (probs * num_draws).numpy()
    counts = np.bincount(ids.numpy(), minlength=n)
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


@given(epochs)
def test_copies_share_a_batch_no_more_often_than_a_maximum_flow_must(drawn: tuple[int, int, int, int, float]) -> None:
    """Except samples that need every batch, where the last one is short: they may be left out of that one."""
    n, batch_size, num_draws, seed, skew = drawn
    probs = torch.softmax(torch.rand(n, generator=seeded(seed), dtype=torch.float64) * skew, 0)
    ids = epoch(probs, batch_size, num_draws, seed)
    batches = [batch.tolist() for batch in ids.split(batch_size)] if num_draws else []
    counts = np.bincount(ids.numpy(), minlength=n)
    shared = sum(len(batch) - len(set(batch)) for batch in batches)
    fewest = reference.fewest_repeats(counts, [len(b) for b in batches])
    in_every = int((counts >= len(batches)).sum()) if num_draws % batch_size and len(batches) > 1 else 0
    assert fewest <= shared <= fewest + in_every
    for i in np.flatnonzero(counts < len(batches)):
        assert max(batch.count(i) for batch in batches) <= 1


def test_copies_never_share_a_batch_where_there_are_batches_enough() -> None:
    probs = torch.rand(1000, generator=seeded(3), dtype=torch.float64) ** 3 + 0.01
    for seed in range(5):
        ids = epoch(probs, 64, 990, seed)
        assert all(len(batch.unique()) == len(batch) for batch in ids.split(64))
        assert len(ids.unique()) < 990, "some samples come twice"


def test_a_sample_with_more_copies_than_batches_is_spread_evenly() -> None:
    ids = epoch(torch.tensor([0.7, 0.1, 0.1, 0.1]), 5, 20)
    assert (ids == 0).sum() == 14
    assert min((batch == 0).sum().item() for batch in ids.split(5)) >= 3


@pytest.mark.parametrize(("num_draws", "batch_size"), [(5, 2), (3, 3), (8, 3), (12, 5)])
def test_the_mean_number_of_copies_is_exact(num_draws: int, batch_size: int) -> None:
    generator, runs = seeded(1), 700
    probs = torch.tensor(SKEWED, dtype=torch.float64)
    total = sum(
        draw_epoch(probs, batch_size, num_draws, generator, "systematic").bincount(minlength=5) for _ in range(runs)
    )
    expected = num_draws * probs
    fraction = expected - expected.floor()
    error = (total / runs - expected).abs()
    assert (error <= 4.5 * (fraction * (1 - fraction) / runs).sqrt() + 1e-9).all()


def test_counts_are_distributed_as_in_the_slow_reference() -> None:
    probs, num_draws, generator = [0.35, 0.05, 0.25, 0.35], 3, seeded(4)
    drawn = torch.stack(
        [
            draw_epoch(torch.tensor(probs, dtype=torch.float64), 2, num_draws, generator, "systematic").bincount(
                minlength=4
            )
            for _ in range(1500)
        ]
    )
    assert_distributed_as(rows_of(drawn), reference.systematic_counts(probs, num_draws))


def test_uniform_probabilities_make_a_shuffled_pass() -> None:
    generator = seeded(2)
    passes = torch.stack([draw_epoch(torch.ones(4), 3, 4, generator, "systematic") for _ in range(2000)])
    assert_distributed_as(rows_of(passes), dict.fromkeys(itertools.permutations(range(4)), 1 / 24))


@pytest.mark.parametrize("n", [3, 7, 49, 1000, 100_003])
def test_a_pass_over_uniform_probabilities_holds_every_sample_once_whatever_the_rounding(n: int) -> None:
    for probs in (torch.full((n,), 1 / n, dtype=torch.float64), torch.softmax(torch.full((n,), 0.1), 0)):
        assert torch.equal(epoch(probs, 128, n).sort().values, torch.arange(n))
        assert (epoch(probs, 128, 3 * n).bincount() == 3).all()


def test_every_place_of_the_epoch_is_equally_likely_for_a_copy() -> None:
    generator = seeded(5)
    probs = torch.tensor([0.4, 0.2, 0.2, 0.2], dtype=torch.float64)
    places = np.zeros(10)
    for _ in range(1200):
        ids = draw_epoch(probs, 5, 10, generator, "systematic")
        places[(ids == 1).nonzero().flatten().numpy()] += 1
    # The two copies stand in different batches, so places are not independent; within a batch they are alternatives.
    for half in (places[:5], places[5:]):
        assert half.sum() == 1200
        assert stats.chisquare(half).pvalue > 1e-4


SHAPES = {
    "one in every batch": [6.0] + [1.0] * 9,
    "three in every batch, as many as the short one holds": [3.0] * 3 + [0.2] * 8,
    "more in every batch than the short one has room for": [3.0] * 5 + [0.2] * 6,
    "twice in some batches": [12.0, 2.0] + [1.0] * 9,
    "at times in every batch": [2.6, 2.6] + [1.0] * 9,
    "nearly all batches": [2.0] + [1.0] * 4,
    "geometric": [0.6**i for i in range(12)],
    "uniform": [1.0] * 11,
    "two levels": [1.0] * 6 + [2.0] * 5,
}


@pytest.mark.parametrize("layout", ["plain", "drop_last", "half an epoch", "two processes", "filled"])
@pytest.mark.parametrize("name", SHAPES)
def test_each_sample_counts_on_average_as_in_plain_shuffling(name: str, layout: str) -> None:
    """What a sample counts: 1/(nP), divided by the size of its batch on its process, in the mean over an epoch."""
    probs = torch.tensor(SHAPES[name], dtype=torch.float64)
    n, world = len(probs), 1 + (layout == "two processes")
    cut = BatchLayout(
        n,
        (2 if n == 5 or layout == "half an epoch" else 4) // world,
        drop_last=layout == "drop_last",
        world_size=world,
        epoch_samples=n // 2 if layout == "half an epoch" else None,
    )
    draws = cut.full_draws if layout == "filled" else cut.num_draws
    plan = EpochPlan(0, torch.arange(draws), cut)
    shares = torch.zeros(draws, dtype=torch.float64)
    for k, rank in itertools.product(range(len(plan)), range(world)):
        places = plan.rank_batch(k, rank)
        shares.index_add_(
            0, places, torch.full((len(places),), 1 / (len(places) * world * len(plan)), dtype=torch.float64)
        )
    generator, runs = seeded(8), 1200
    weights = probs.sum() / probs
    counted = torch.stack(
        [
            torch.zeros(n).double().index_add_(0, ids, weights[ids] * shares)
            for ids in (draw_epoch(probs, cut.global_batch_size, draws, generator, "systematic") for _ in range(runs))
        ]
    )
    error = counted.std(0) / runs**0.5
    assert ((counted.mean(0) - 1).abs() <= 4.5 * error + 1e-9).all()


@pytest.mark.parametrize(("n", "seed"), [(391, 3), (1000, 4), (512, 5)])
def test_where_places_are_all_but_equally_likely_an_epoch_is_the_one_of_earlier_releases(n: int, seed: int) -> None:
    probs = torch.rand(n, generator=seeded(seed), dtype=torch.float64) ** 2 + 0.01
    batch_size, draws, generator = 32, n, seeded(seed)
    order = torch.randperm(n, generator=generator)
    counts = systematic._counts(probs[order], draws, generator)
    assert 1 < counts.max() < n // batch_size
    expected = systematic._dealt(order.repeat_interleave(counts), batch_size, generator)
    assert torch.equal(epoch(probs, batch_size, draws, seed), expected)


def test_half_an_epoch_draws_no_sample_twice_and_each_with_its_chance() -> None:
    generator, runs = seeded(6), 1000
    seen = sum(draw_epoch(torch.ones(8), 2, 4, generator, "systematic").bincount(minlength=8) for _ in range(runs))
    assert seen.sum() == 4 * runs
    assert (seen / runs - 0.5).abs().max() < 4.5 * 0.5 / runs**0.5


def test_neighbors_in_the_dataset_may_come_together() -> None:
    generator = seeded(7)
    together = [set(draw_epoch(torch.ones(4), 2, 2, generator, "systematic").tolist()) == {0, 1} for _ in range(600)]
    assert 0.1 < np.mean(together) < 0.24, "one of six pairs"


def test_points_that_rounding_puts_into_one_cell_choose_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systematic, "search_ascending", lambda table, ascending: torch.full((len(ascending),), 2))
    counts = systematic._counts(torch.full((5,), 0.2, dtype=torch.float64), 3, seeded())
    assert counts.sum() == 3
    assert counts.max() == 1


def test_samples_of_tiny_probability_are_not_rounded_away() -> None:
    probs = torch.tensor([1.0, 1e-3, 1e-3], dtype=torch.float64)
    seen = torch.zeros(3)
    for seed in range(1500):
        seen += epoch(probs, 1, 1, seed).bincount(minlength=3)
    assert seen[1:].sum() > 0


def test_work_grows_with_samples_and_draws_alone() -> None:
    def cells(n: int) -> int:
        probs = torch.arange(1, n + 1).double() ** -1.2
        with counted_work() as work:
            epoch(probs, 64, n)
        return work.cells

    assert cells(64_000) / cells(4_000) < 16.5
