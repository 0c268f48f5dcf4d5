"""Batches with the label proportions of the whole set."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_ubs.functional import stratified_order
from lightning_ubs.functional.stratification import _neediest


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rare_labels(n: int = 403, q: int = 6) -> torch.Tensor:
    chances = torch.tensor([0.5, 0.3, 0.1, 0.05, 0.05, 0.02])[:q]
    return (torch.rand(n, q, generator=seeded(0)) < chances).float()


def unevenness(order: torch.Tensor, labels: torch.Tensor, batch_size: int) -> float:
    """Mean distance of the batches' label proportions from those of the whole set."""
    batches = torch.split(labels[order], batch_size)[:-1]
    return torch.stack([(batch.mean(0) - labels.mean(0)).abs().mean() for batch in batches]).mean().item()


@pytest.mark.parametrize(("n", "batch_size"), [(403, 32), (64, 32), (10, 32), (33, 1), (1, 4)])
def test_every_sample_comes_exactly_once(n: int, batch_size: int) -> None:
    order = stratified_order(rare_labels(n), batch_size, seeded(1))
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(n))


def test_label_proportions_are_much_closer_than_at_random() -> None:
    labels = rare_labels()
    stratified = np.mean([unevenness(stratified_order(labels, 32, seeded(s)), labels, 32) for s in range(5)])
    shuffled = np.mean([unevenness(torch.randperm(403, generator=seeded(s)), labels, 32) for s in range(5)])
    assert stratified < shuffled / 3


def test_a_label_with_one_positive_per_batch_is_in_every_batch() -> None:
    labels = torch.zeros(40, 2)
    labels[:4, 0] = 1
    labels[:20, 1] = 1
    batches = torch.split(labels[stratified_order(labels, 10, seeded(2))], 10)
    assert [batch[:, 0].sum().item() for batch in batches] == [1, 1, 1, 1]
    assert [batch[:, 1].sum().item() for batch in batches] == [5, 5, 5, 5]


def test_the_short_batch_is_last_and_has_its_share() -> None:
    labels = torch.zeros(45, 1)
    labels[::3] = 1  # 15 of 45
    batches = torch.split(labels[stratified_order(labels, 10, seeded(3))], 10)
    assert [len(batch) for batch in batches] == [10, 10, 10, 10, 5]
    assert all(batch.sum().item() in (3, 4) for batch in batches[:-1])
    assert batches[-1].sum().item() in (1, 2)


def test_samples_without_labels_fill_up() -> None:
    order = stratified_order(torch.zeros(17, 3), 5, seeded(4))
    assert sorted(order.tolist()) == list(range(17))


def test_depends_on_the_generator_alone() -> None:
    labels = rare_labels()
    before = torch.get_rng_state()
    first = stratified_order(labels, 32, seeded(5))
    assert torch.equal(torch.get_rng_state(), before)
    np.random.seed(1)
    torch.manual_seed(1)
    assert torch.equal(stratified_order(labels, 32, seeded(5)), first)
    assert not torch.equal(stratified_order(labels, 32, seeded(6)), first)


def positives(labels: torch.Tensor, batch_size: int, seed: int) -> list[list[float]]:
    """Positives of each label in each batch."""
    order = stratified_order(labels, batch_size, seeded(seed))
    return [batch.sum(0).tolist() for batch in torch.split(labels[order], batch_size)]


def test_a_sample_that_several_batches_need_alike_goes_to_any_of_them() -> None:
    labels = torch.zeros(4, 1)
    labels[0] = 1
    assert {positives(labels, 2, seed)[-1][0] for seed in range(40)} == {0.0, 1.0}


def test_a_single_positive_goes_to_a_batch_with_the_largest_quota_even_if_it_is_the_last_to_assign() -> None:
    labels = torch.zeros(5, 1)
    labels[0] = 1
    assert {positives(labels, 2, seed)[-1][0] for seed in range(40)} == {0.0}


def test_the_last_place_of_a_batch_is_given_by_quota_too() -> None:
    labels = torch.zeros(5, 1)
    labels[:3] = 1
    assert all(positives(labels, 2, seed) == [[1.0], [1.0], [1.0]] for seed in range(20))


def test_a_label_that_includes_a_rarer_one_is_spread_as_evenly() -> None:
    labels = torch.zeros(16, 2)
    labels[:4, 0] = 1
    labels[:8, 1] = 1
    assert all(positives(labels, 4, seed) == [[1.0, 2.0]] * 4 for seed in range(20))


def one_at_a_time(quota: list[Fraction], room: list[int], count: int) -> list[tuple[Fraction, int]]:
    """Quota and room of the batch that each sample of a label goes to, by the rule as it is written."""
    quota, room, picked = list(quota), list(room), []
    for _ in range(count):
        best = max((k for k in range(len(room)) if room[k]), key=lambda k: (quota[k], room[k]))
        picked.append((quota[best], room[best]))
        quota[best] -= 1
        room[best] -= 1
    return picked


@settings(max_examples=200, deadline=None)
@given(data=st.data(), batches=st.integers(1, 12), unit=st.integers(1, 9))
def test_a_label_that_is_dealt_at_once_goes_where_sample_after_sample_goes(data, batches: int, unit: int) -> None:
    numbers = st.lists(st.integers(-9 * unit, 9 * unit), min_size=batches, max_size=batches)
    rooms = st.lists(st.integers(0, 9), min_size=batches, max_size=batches)
    quota, room = np.array(data.draw(numbers)), np.array(data.draw(rooms))
    count = data.draw(st.integers(0, int(room.sum())))
    batch_of = _neediest(quota, room, unit, count, np.random.default_rng(data.draw(st.integers(0, 99))))
    left, places, picked = quota.copy(), room.copy(), []
    for batch in batch_of:
        picked.append((Fraction(int(left[batch]), unit), int(places[batch])))
        left[batch] -= unit
        places[batch] -= 1
    assert picked == one_at_a_time([Fraction(int(one), unit) for one in quota], room.tolist(), count)


def in_words(labels: torch.Tensor, batch_size: int, random: np.random.Generator) -> list[tuple[float, ...]]:
    """Positives of each label in each batch, by the rule as it is written: one sample after the other, in fractions."""
    present, n = labels.numpy() > 0, len(labels)
    room = [batch_size] * (n // batch_size) + [n % batch_size] * (n % batch_size > 0)
    quota = [[Fraction(int(column.sum()) * size, n) for size in room] for column in present.T]
    members: list[list[int]] = [[] for _ in room]
    left = set(range(n))
    while any(present[sample].any() for sample in left):
        counts = [sum(present[sample, label] for sample in left) for label in range(present.shape[1])]
        label = min((label for label in range(len(counts)) if counts[label]), key=lambda label: counts[label])
        for sample in random.permutation([sample for sample in sorted(left) if present[sample, label]]).tolist():
            free = [k for k in range(len(room)) if room[k]]
            most = max((quota[label][k], room[k]) for k in free)
            batch = int(random.choice([k for k in free if (quota[label][k], room[k]) == most]))
            members[batch].append(sample)
            left.discard(sample)
            room[batch] -= 1
            for other in np.flatnonzero(present[sample]):
                quota[other][batch] -= 1
    for sample in random.permutation(sorted(left)).tolist():
        batch = next(k for k in range(len(room)) if room[k])
        members[batch].append(sample)
        room[batch] -= 1
    return sorted(tuple(labels[batch].sum(0).tolist()) for batch in members)


def test_batches_are_as_often_of_each_kind_as_by_the_rule_as_it_is_written() -> None:
    labels = (torch.rand(11, 5, generator=seeded(2)) < torch.linspace(0.3, 0.6, 5)).float()
    runs, random = 1500, np.random.default_rng(0)
    ours = Counter(str(sorted(map(tuple, positives(labels, 3, seed)))) for seed in range(runs))
    theirs = Counter(str(in_words(labels, 3, random)) for _ in range(runs))
    assert len(theirs) > 5
    assert sum(abs(ours[kind] - theirs[kind]) for kind in ours | theirs) / (2 * runs) < 0.07
