"""Drawing all batches of an epoch at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_ubs.functional import draw_plan, drawing, repeats_in_rows, shuffled_pass, weighted_order

# Seeds are fixed, so a right implementation never fails; a wrong one is off by far more than this.
IMPLAUSIBLE = 1e-4
SKEWED = [0.1, 0.15, 0.2, 0.25, 0.3]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_distributed_as(outcomes: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> None:
    counts = Counter(outcomes)
    assert set(counts) <= set(expected)
    keys = list(expected)
    observed = np.array([counts[key] for key in keys])
    shares = np.array([expected[key] for key in keys]) * len(outcomes)
    assert shares.min() > 5, "too few draws for the test"
    assert stats.chisquare(observed, shares).pvalue > IMPLAUSIBLE


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each exponential race completed."""
    calls: list[int] = []
    race: Callable[..., torch.Tensor] = drawing._complete_by_race

    def counted(batches: torch.Tensor, *rest: object) -> torch.Tensor:
        calls.append(len(batches))
        return race(batches, *rest)

    monkeypatch.setattr(drawing, "_complete_by_race", counted)
    return calls


@pytest.mark.parametrize("path", ["rejection", "race"])
def test_batches_are_distributed_as_sequential_draws_without_replacement(
    path: str, races: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "race":
        monkeypatch.setattr(drawing, "_ROUNDS", 0)
    drawn = draw_plan(torch.tensor(SKEWED), 2, 30_000, seeded(), "batch")
    assert sum(races) == (30_000 if path == "race" else 0)
    assert_distributed_as([tuple(row) for row in drawn.tolist()], reference.ordered_draws(SKEWED, 2))


@pytest.mark.parametrize("path", ["rejection", "race"])
def test_triples_are_distributed_as_sequential_draws_without_replacement(path: str, races: list[int]) -> None:
    # Batches that hold much of the mass are raced at once, those that hold little are drawn and thinned.
    probs = [0.11, 0.13, 0.14, 0.15, 0.15, 0.16, 0.16] if path == "rejection" else [0.2, 0.05, 0.25, 0.1, 0.4]
    drawn = draw_plan(torch.tensor(probs), 3, 60_000, seeded(3), "batch")
    assert sum(races) == (60_000 if path == "race" else 0)
    assert_distributed_as([tuple(row) for row in drawn.tolist()], reference.ordered_draws(probs, 3))


def test_a_race_continues_batches_that_are_partly_filled_as_sequential_draws_would() -> None:
    started = torch.tensor([[2, -1, -1]]).repeat(20_000, 1)
    drawn = drawing._complete_by_race(started, torch.tensor(SKEWED, dtype=torch.float64), seeded(1))
    rest = [p if i != 2 else 0.0 for i, p in enumerate(SKEWED)]
    expected = {(2, *ids): p for ids, p in reference.ordered_draws(rest, 2).items() if p > 0}
    assert_distributed_as([tuple(row) for row in drawn.tolist()], expected)


@pytest.mark.parametrize("path", ["rejection", "race"])
def test_batches_are_independent_of_each_other(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "race":
        monkeypatch.setattr(drawing, "_ROUNDS", 0)
    drawn = draw_plan(torch.tensor(SKEWED), 2, 40_000, seeded(5), "batch").sort(1).values
    sets = {pair: k for k, pair in enumerate(itertools.combinations(range(5), 2))}
    kinds = np.array([sets[tuple(row)] for row in drawn.tolist()])
    table = np.zeros((10, 10))
    np.add.at(table, (kinds[0::2], kinds[1::2]), 1)
    assert stats.chi2_contingency(table).pvalue > IMPLAUSIBLE


def test_draws_with_full_replacement_follow_the_probabilities_and_are_independent() -> None:
    drawn = draw_plan(torch.tensor(SKEWED), 2, 30_000, seeded(2), "full")
    pairs = {(a, b): SKEWED[a] * SKEWED[b] for a in range(5) for b in range(5)}
    assert_distributed_as([tuple(row) for row in drawn.tolist()], pairs)


def test_a_pass_without_repeats_is_distributed_as_one_long_sequential_draw() -> None:
    probs, generator = torch.tensor([0.1, 0.2, 0.3, 0.4]), seeded(4)
    outcomes = [tuple(draw_plan(probs, 2, 2, generator, "none").flatten().tolist()) for _ in range(8_000)]
    assert_distributed_as(outcomes, reference.ordered_draws([0.1, 0.2, 0.3, 0.4], 4))


@pytest.mark.parametrize("count", [0, 5, 12])
def test_a_shuffled_pass_is_the_start_of_a_random_order_of_all_samples(count: int) -> None:
    whole = shuffled_pass(12, 12, seeded(3))
    assert sorted(whole.tolist()) == list(range(12))
    assert torch.equal(shuffled_pass(12, count, seeded(3)), whole[:count])
    assert not torch.equal(shuffled_pass(12, 12, seeded(4)), whole)


def test_a_weighted_order_holds_every_id_once_and_impossible_ones_last() -> None:
    order = weighted_order(torch.tensor([0.5, 0.0, 0.5, 0.0], dtype=torch.float64), seeded()).tolist()
    assert sorted(order) == [0, 1, 2, 3]
    assert set(order[:2]) == {0, 2}


sizes = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 6)).filter(lambda s: s[1] <= s[0])


@given(sizes, st.integers(0, 1000), st.floats(1, 1e6))
def test_no_sample_comes_twice_in_a_batch(size: tuple[int, int, int], seed: int, pressure: float) -> None:
    n, batch_size, num_batches = size
    probs = torch.softmax(torch.rand(n, generator=seeded(seed)) * np.log(pressure), 0)
    drawn = draw_plan(probs, batch_size, num_batches, seeded(seed))
    assert drawn.shape == (num_batches, batch_size)
    assert drawn.dtype == torch.int64
    for row in drawn.tolist():
        assert len(set(row)) == batch_size
        assert min(row) >= 0
        assert max(row) < n


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_no_sample_comes_twice_in_an_epoch_without_replacement(batch_size: int, num_batches: int, seed: int) -> None:
    n = batch_size * num_batches
    drawn = draw_plan(torch.rand(n, generator=seeded(seed)) + 0.01, batch_size, num_batches, seeded(seed), "none")
    assert sorted(drawn.flatten().tolist()) == list(range(n))


@pytest.mark.parametrize("replacement", ["batch", "none", "full"])
def test_depends_on_nothing_but_probabilities_and_generator(replacement: str) -> None:
    probs = torch.rand(50, generator=seeded(1))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = draw_plan(probs, 5, 8, seeded(7), replacement)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    np.random.seed(99)
    assert torch.equal(draw_plan(probs, 5, 8, seeded(7), replacement), first)
    assert not torch.equal(draw_plan(probs, 5, 8, seeded(8), replacement), first)
    assert not torch.equal(draw_plan(probs.flip(0), 5, 8, seeded(7), replacement), first)


@pytest.mark.parametrize("replacement", ["batch", "none", "full"])
def test_probabilities_need_not_be_normalised(replacement: str) -> None:
    probs = torch.rand(30, generator=seeded(1), dtype=torch.float64)
    one, other = (draw_plan(p, 3, 5, seeded(2), replacement) for p in (probs, probs * 2**-10))
    assert torch.equal(one, other)


@pytest.mark.parametrize("replacement", ["batch", "none", "full"])
def test_samples_of_zero_probability_are_never_drawn(replacement: str) -> None:
    probs = torch.ones(400)
    probs[::2] = 0
    probs[-50:] = 0
    probs[:50] = 0
    drawn = draw_plan(probs, 5, 30, seeded(), replacement)
    assert (probs[drawn] > 0).all()


@pytest.mark.parametrize(("uniform", "drawn"), [(0.0, 2), (1.0, 5)])
def test_a_draw_at_either_end_falls_on_a_possible_sample(
    uniform: float, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda count, **_: torch.full((count,), uniform, dtype=torch.float64))
    probs = torch.tensor([0, 0, 0.1, 0.3, 0, 0.6, 0, 0])
    assert draw_plan(probs, 1, 1, seeded(), "full").item() == drawn


@pytest.mark.parametrize("replacement", ["batch", "full"])
def test_one_sample_with_nearly_all_the_mass(replacement: str) -> None:
    probs = torch.full((1000,), 0.001 / 999, dtype=torch.float64)
    probs[123] = 0.999
    drawn = draw_plan(probs, 8, 500, seeded(), replacement)
    having = (drawn == 123).any(1).double().mean().item()
    assert having > 0.99
    if replacement == "batch":
        assert all(len(set(row)) == 8 for row in drawn.tolist())
        assert len(drawn.unique()) > 900


def test_more_samples_than_single_precision_can_count() -> None:
    n, tail = 2**24 + 1000, 1000
    probs = torch.full((n,), 0.5 / (n - tail), dtype=torch.float64)
    probs[-tail:] = 0.5 / tail
    drawn = draw_plan(probs, 64, 20, seeded(), "batch")
    above = drawn >= 2**24
    assert 0.4 < above.double().mean() < 0.6
    assert all(len(set(row)) == 64 for row in drawn.tolist())
    odd = drawn[above] % 2 == 1
    assert odd.any(), "odd ids above 2^24 do not exist in single precision"


@given(st.lists(st.lists(st.integers(-1, 5), min_size=4, max_size=4), min_size=1, max_size=4))
def test_repeats_are_all_but_the_first_of_equal_ids_in_a_row(rows: list[list[int]]) -> None:
    expected = [[value in row[:place] for place, value in enumerate(row)] for row in rows]
    assert repeats_in_rows(torch.tensor(rows)).tolist() == expected


def test_a_batch_may_hold_the_whole_set() -> None:
    drawn = draw_plan(torch.tensor(SKEWED), 5, 3, seeded(), "batch")
    assert [sorted(row) for row in drawn.tolist()] == [[0, 1, 2, 3, 4]] * 3


def test_an_epoch_of_no_batches_is_empty() -> None:
    assert draw_plan(torch.tensor(SKEWED), 2, 0, seeded()).shape == (0, 2)


def test_unknown_replacement_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"replacement='some' is unknown.*'batch'.*'none'.*'full'"):
        draw_plan(torch.tensor(SKEWED), 2, 1, seeded(), "some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replacement", "batch_size", "num_batches", "needed"), [("batch", 3, 1, 3), ("none", 2, 2, 4), ("full", 1, 1, 1)]
)
def test_too_few_possible_samples_is_an_error_that_counts_them(
    replacement: str, batch_size: int, num_batches: int, needed: int
) -> None:
    probs = torch.tensor([0.5, 0.5, 0.0, 0.0]) if replacement != "full" else torch.zeros(4)
    available = int((probs > 0).sum())
    with pytest.raises(ValueError, match=rf"needs {needed} distinct samples, but only {available} have"):
        draw_plan(probs, batch_size, num_batches, seeded(), replacement)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_probabilities_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        draw_plan(torch.tensor([0.5, bad, 0.5]), 1, 1, seeded())


@pytest.mark.parametrize(("batch_size", "num_batches"), [(0, 1), (2, -1)])
def test_impossible_sizes_are_refused(batch_size: int, num_batches: int) -> None:
    with pytest.raises(ValueError, match="batch_size ≥ 1 and num_batches ≥ 0"):
        draw_plan(torch.tensor(SKEWED), batch_size, num_batches, seeded())
