"""Drawing by blocks: counts, randomness, parts, copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_ubs.functional.blocks import BlockedEpoch


def bounds_of(n: int, size: int) -> np.ndarray:
    return np.append(np.arange(0, n, size), n)


def probabilities(n: int, power: float = 4.0, seed: int = 0) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** power


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 300),
    size=st.integers(1, 80),
    window=st.integers(1, 9),
    draws=st.integers(1, 700),
    batch=st.integers(1, 60),
    power=st.sampled_from([0.0, 1.0, 6.0, 60.0]),
    zeros=st.booleans(),
    key=st.integers(0, 2**62),
)
def test_every_sample_comes_as_often_as_its_share_says_rounded(n, size, window, draws, batch, power, zeros, key):
    p = probabilities(n, power, key % 97)
    if zeros and n > 1:
        p[key % n] = 0.0
    ids = BlockedEpoch(p, bounds_of(n, size), window, draws, batch, key).ids(0, draws)
    expected = (draws * p / p.sum()).numpy()
    counts = np.bincount(ids.numpy(), minlength=n)
    assert len(ids) == draws == counts.sum()
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


def test_the_mean_of_the_counts_is_exactly_the_share():
    n, draws, runs = 60, 100, 2000
    p = probabilities(n, 2.0)
    expected = draws * p / p.sum()
    counts = torch.zeros(n, dtype=torch.float64)
    for key in range(runs):
        ids = BlockedEpoch(p, bounds_of(n, 13), 3, draws, 20, key).ids(0, draws)
        counts += ids.bincount(minlength=n)
    part = expected - expected.floor()
    deviation = (counts / runs - expected) / (part * (1 - part) / runs).clamp(min=1e-12).sqrt()
    assert deviation.abs().max() < 5
    assert 0.8 < deviation.std() < 1.2


def test_samples_of_a_block_are_not_chosen_in_fixed_company():
    # Equal shares of a half: in the order of the file, every other sample would come, and neighbors never together.
    together = torch.zeros(8, 8)
    p = torch.full((8,), 1 / 8, dtype=torch.float64)
    for key in range(1000):
        ids = BlockedEpoch(p, bounds_of(8, 4), 1, 4, 4, key).ids(0, 4)
        together[ids[:, None], ids[None, :]] += 1
    inside = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).bool() & ~torch.eye(8).bool()
    assert together[inside].min() > 100
    assert together[~inside].min() > 100


@pytest.mark.parametrize("p", [None, "uniform"])
def test_uniform_shares_make_a_shuffled_pass(p):
    n = 1003
    shares = None if p is None else torch.full((n,), 1 / n, dtype=torch.float64)
    orders = [BlockedEpoch(shares, bounds_of(n, 40), 5, n, 32, key).ids(0, n) for key in (1, 2)]
    for ids in orders:
        assert torch.equal(ids.sort().values, torch.arange(n))
    assert not torch.equal(*orders)


def test_only_the_blocks_of_a_window_are_open():
    n, size, window = 1000, 30, 4
    epoch = BlockedEpoch(probabilities(n), bounds_of(n, size), window, n, 32, 5)
    ids, seen, place = epoch.ids(0, n), [], 0
    for number in range(epoch.num_windows):
        blocks = epoch.blocks_of(number)
        assert len(blocks) <= window
        while place < n and int(ids[place]) // size in blocks:
            place += 1
        seen += blocks.tolist()
    assert place == n
    assert sorted(seen) == list(range(-(-n // size)))
    assert seen != sorted(seen)


def test_blocks_come_in_another_order_in_every_epoch_and_samples_are_mixed_in_the_window():
    n = 4096
    first = BlockedEpoch(None, bounds_of(n, 64), 8, n, 32, 1)
    ids = first.ids(0, 512)
    places = torch.arange(512, dtype=torch.float64)
    for block in first.blocks_of(0):
        mean = places[ids // 64 == block].mean()
        assert abs(mean - 255.5) < 5 * 148 / 8
    assert first.blocks_of(0).tolist() != BlockedEpoch(None, bounds_of(n, 64), 8, n, 32, 2).blocks_of(0).tolist()


@settings(max_examples=30, deadline=None)
@given(step=st.integers(1, 400), backwards=st.booleans(), kept=st.integers(1, 3))
def test_any_part_can_be_asked_for_in_any_order(step, backwards, kept):
    n, draws = 700, 1100
    make = lambda: BlockedEpoch(probabilities(n), bounds_of(n, 33), 3, draws, 32, 9, kept)  # noqa: E731
    whole, epoch = make().ids(0, draws), make()
    firsts = list(range(0, draws, step))
    parts = {first: epoch.ids(first, first + step) for first in (firsts[::-1] if backwards else firsts)}
    assert torch.equal(torch.cat([parts[first] for first in firsts]), whole)


def test_a_later_part_makes_no_window_before_it():
    n = 2**16
    epoch = BlockedEpoch(probabilities(n), bounds_of(n, 64), 4, n, 32, 9)
    made = []
    inner = epoch._drawn
    epoch._drawn = lambda place: made.append(place) or inner(place)
    epoch.ids(n - 10, n)
    assert min(made) >= 1024 - 2 * 4


@settings(max_examples=40, deadline=None)
@given(draws=st.integers(300, 900), batch=st.integers(4, 50), key=st.integers(0, 2**40))
def test_copies_of_a_sample_stand_in_different_batches_of_its_window(draws, batch, key):
    n, size, window = 200, 20, 4
    p = probabilities(n, 2.0)
    epoch = BlockedEpoch(p, bounds_of(n, size), window, draws, batch, key)
    ids = epoch.ids(0, draws)
    batches = torch.arange(draws) // batch
    starts = epoch._windows
    for number in range(epoch.num_windows):
        first, last = int(starts[number]), int(starts[number + 1])
        full = max(0, last // batch - -(-first // batch))
        for sample in ids[first:last].unique():
            mine = batches[first:last][ids[first:last] == sample]
            if len(mine) <= full:
                assert len(mine.unique()) == len(mine)


def test_one_sample_may_take_the_whole_epoch():
    p = torch.zeros(50, dtype=torch.float64)
    p[17] = 3.0
    ids = BlockedEpoch(p, bounds_of(50, 8), 2, 40, 16, 0).ids(0, 40)
    assert ids.tolist() == [17] * 40


def test_blocks_may_be_of_any_length():
    n, bounds = 500, np.array([0, 1, 2, 300, 301, 499, 500])
    p = probabilities(n)
    for key in range(20):
        ids = BlockedEpoch(p, bounds, 2, 640, 32, key).ids(0, 640)
        expected = 640 * p / p.sum()
        counts = ids.bincount(minlength=n)
        assert ((counts == expected.floor()) | (counts == expected.ceil())).all()
