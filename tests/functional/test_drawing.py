"""Drawing all batches of an epoch at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from chance import assert_distributed_as, rows_of, seeded
from hypothesis import given
from hypothesis import strategies as st

from lightning_ubs.functional import draw_epoch, draw_plan, fill_last_batch, shuffled_pass, weighted_order

SKEWED = [0.1, 0.15, 0.2, 0.25, 0.3]


def test_draws_with_full_replacement_follow_the_probabilities_and_are_independent() -> None:
    drawn = draw_plan(torch.tensor(SKEWED), 2, 30_000, seeded(2), "full")
    pairs = {(a, b): SKEWED[a] * SKEWED[b] for a in range(5) for b in range(5)}
    assert_distributed_as(rows_of(drawn), pairs)


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


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_no_sample_comes_twice_in_an_epoch_without_replacement(batch_size: int, num_batches: int, seed: int) -> None:
    n = batch_size * num_batches
    drawn = draw_plan(torch.rand(n, generator=seeded(seed)) + 0.01, batch_size, num_batches, seeded(seed), "none")
    assert sorted(drawn.flatten().tolist()) == list(range(n))


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
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


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_probabilities_need_not_be_normalized(replacement: str) -> None:
    probs = torch.rand(30, generator=seeded(1), dtype=torch.float64)
    one, other = (draw_plan(p, 3, 5, seeded(2), replacement) for p in (probs, probs * 2**-10))
    assert torch.equal(one, other)


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_samples_of_zero_probability_are_never_drawn(replacement: str) -> None:
    probs = torch.ones(400)
    probs[::2] = 0
    probs[-50:] = 0
    probs[:50] = 0
    drawn = draw_plan(probs, 5, 30, seeded(), replacement)
    assert (probs[drawn] > 0).all()


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


def test_a_batch_may_hold_the_whole_set() -> None:
    drawn = draw_plan(torch.tensor(SKEWED), 5, 3, seeded(), "batch")
    assert [sorted(row) for row in drawn.tolist()] == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
@pytest.mark.parametrize("num_draws", [0, 1, 3, 4, 7, 10])
def test_an_epoch_has_exactly_so_many_draws_with_a_short_last_batch(replacement: str, num_draws: int) -> None:
    ids = draw_epoch(torch.ones(10), 4, num_draws, seeded(2), replacement)
    assert ids.shape == (num_draws,)
    if replacement != "full":  # uniform P: systematic draws have no copies either
        for batch in ids.split(4):
            assert len(batch.unique()) == len(batch)


def test_a_short_last_batch_is_drawn_as_a_batch_of_its_size() -> None:
    generator = seeded(6)
    short = [draw_epoch(torch.tensor(SKEWED), 3, 5, generator)[3:] for _ in range(3_000)]
    assert_distributed_as(rows_of(torch.stack(short)), reference.ordered_draws(SKEWED, 2))


def test_an_epoch_shorter_than_a_batch_needs_only_so_many_possible_samples() -> None:
    ids = draw_epoch(torch.tensor([0.0, 1.0, 1.0]), 128, 2, seeded())
    assert sorted(ids.tolist()) == [1, 2]


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_a_plan_is_an_epoch_of_full_batches(replacement: str) -> None:
    probs = torch.rand(50, generator=seeded(1))
    flat = draw_epoch(probs, 5, 40, seeded(7), replacement)
    assert torch.equal(draw_plan(probs, 5, 8, seeded(7), replacement).flatten(), flat)


def test_an_epoch_of_no_batches_is_empty() -> None:
    assert draw_plan(torch.tensor(SKEWED), 2, 0, seeded()).shape == (0, 2)


def test_unknown_replacement_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"replacement='some' is unknown.*'batch'.*'none'.*'full'.*'systematic'"):
        draw_plan(torch.tensor(SKEWED), 2, 1, seeded(), "some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replacement", "batch_size", "num_batches", "needed"), [("batch", 3, 1, 3), ("none", 2, 2, 4)]
)
def test_too_few_possible_samples_is_an_error_that_counts_them(
    replacement: str, batch_size: int, num_batches: int, needed: int
) -> None:
    probs = torch.tensor([0.5, 0.5, 0.0, 0.0])
    with pytest.raises(
        ValueError, match=rf"replacement='{replacement}' needs {needed} distinct samples, but only 2 have"
    ):
        draw_plan(probs, batch_size, num_batches, seeded(), replacement)


@pytest.mark.parametrize("replacement", ["batch", "none", "full", "systematic"])
def test_an_epoch_from_nothing_is_refused(replacement: str) -> None:
    with pytest.raises(ValueError, match="no sample has a positive probability; check the weights"):
        draw_plan(torch.zeros(4), 2, 1, seeded(), replacement)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf")])
def test_probabilities_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        draw_plan(torch.tensor([0.5, bad, 0.5]), 1, 1, seeded())


@pytest.mark.parametrize(("batch_size", "num_batches"), [(0, 1), (2, -1)])
def test_impossible_sizes_are_refused(batch_size: int, num_batches: int) -> None:
    with pytest.raises(ValueError, match="batch_size ≥ 1 and num_batches ≥ 0"):
        draw_plan(torch.tensor(SKEWED), batch_size, num_batches, seeded())


@pytest.mark.parametrize(("batch_size", "num_draws"), [(0, 1), (2, -1)])
def test_impossible_epochs_are_refused(batch_size: int, num_draws: int) -> None:
    with pytest.raises(ValueError, match="batch_size ≥ 1 and num_draws ≥ 0"):
        draw_epoch(torch.tensor(SKEWED), batch_size, num_draws, seeded())


@pytest.mark.parametrize(("length", "batch_size", "n"), [(10, 4, 12), (9, 4, 9), (3, 2, 3), (5, 8, 8), (8, 4, 8)])
def test_a_last_batch_is_filled_with_other_samples_and_a_full_one_is_left_alone(
    length: int, batch_size: int, n: int
) -> None:
    for seed in range(30):
        ids = torch.randperm(n, generator=seeded(seed))[:length]
        filled = fill_last_batch(ids, batch_size, n, seeded(seed + 100))
        assert torch.equal(filled[:length], ids)
        assert len(filled) == -(-length // batch_size) * batch_size
        last = filled[-batch_size:].tolist()
        assert len(set(last)) == batch_size


def test_a_last_batch_is_filled_with_each_other_sample_alike() -> None:
    """Samples of earlier batches may come again, those of the last may not."""
    ids = torch.tensor([0, 1, 2, 3, 4])
    added = [fill_last_batch(ids, 4, 8, seeded(seed))[5:].tolist() for seed in range(2000)]
    expected = {tuple(trio): 1 / 210 for trio in itertools.permutations((0, 1, 2, 3, 5, 6, 7), 3)}
    assert_distributed_as([tuple(row) for row in added], expected)
