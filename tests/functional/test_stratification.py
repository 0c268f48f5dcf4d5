"""Batches with the label proportions of the whole set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lightning_ubs.functional import stratified_order


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
