"""The plan of an epoch and the sampler that follows it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import EpochPlan, SelectionSampler
from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.selection.plan import BatchLayout

layouts = st.builds(
    BatchLayout,
    num_samples=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    world_size=st.integers(1, 4),
)


def pass_over(layout: BatchLayout) -> EpochPlan:
    return EpochPlan(0, torch.arange(layout.num_samples)[: layout.num_batches * layout.global_batch_size], layout)


@given(layouts)
def test_the_shares_of_all_processes_make_up_the_global_batch(layout: BatchLayout) -> None:
    plan = pass_over(layout)
    for k in range(len(plan)):
        whole = plan.global_batch(k).tolist()
        shares = [plan.rank_batch(k, rank).tolist() for rank in range(layout.world_size)]
        joined = [i for share in shares for i in share]
        assert joined[: len(whole)] == whole
        assert set(joined) == set(whole)
        assert [len(share) for share in shares] == plan.rank_sizes(k)
        assert all(1 <= len(share) <= layout.batch_size for share in shares)


@given(layouts)
def test_a_pass_holds_every_sample_unless_the_last_batch_is_dropped(layout: BatchLayout) -> None:
    plan = pass_over(layout)
    seen = [i for k in range(len(plan)) for i in plan.global_batch(k).tolist()]
    step = layout.batch_size * layout.world_size
    expected = layout.num_samples // step * step if layout.drop_last else layout.num_samples
    assert seen == list(range(expected))


@given(layouts)
def test_several_processes_select_what_one_with_the_whole_batch_would(layout: BatchLayout) -> None:
    one = BatchLayout(layout.num_samples, layout.batch_size * layout.world_size, layout.drop_last)
    assert (one.num_batches, one.global_batch_size) == (layout.num_batches, layout.global_batch_size)
    whole, shared = pass_over(one), pass_over(layout)
    assert all(torch.equal(whole[k], shared.global_batch(k)) for k in range(len(whole)))


def test_indexing_counts_from_the_end_and_stops_at_it() -> None:
    plan = pass_over(BatchLayout(10, 4))
    assert plan[-1].tolist() == plan[2].tolist() == [8, 9]
    assert [batch.tolist() for batch in plan] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for outside in (3, -4):
        with pytest.raises(IndexError, match="3 batches"):
            plan[outside]


def test_a_generator_depends_on_seed_and_epoch_alone() -> None:
    def draw(seed: int, epoch: int) -> list[int]:
        return torch.randperm(50, generator=epoch_generator(seed, epoch)).tolist()

    first = draw(1, 2)
    torch.manual_seed(5)
    assert draw(1, 2) == first
    assert len({tuple(draw(seed, epoch)) for seed in range(4) for epoch in range(4)}) == 16
    assert draw(1, 2) != draw(2, 1)


def dataset(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


def served(sampler: SelectionSampler, n: int, batch_size: int, workers: int = 0) -> list[list[int]]:
    loader = DataLoader(dataset(n), batch_size=batch_size, sampler=sampler, num_workers=workers)
    return [batch.tolist() for (batch,) in loader]


def test_without_a_callback_it_shuffles_by_its_own_seed_and_epoch() -> None:
    sampler = SelectionSampler(dataset(20), seed=3)
    before = torch.get_rng_state()
    first = list(sampler)
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(first) == list(range(20)) != first
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert len(sampler) == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_it_serves_the_plan_from_the_first_batch_to_come(workers: int) -> None:
    layout = BatchLayout(10, 3)
    plan = EpochPlan(0, torch.randperm(10), layout)
    sampler = SelectionSampler(dataset(10))
    sampler.bind(lambda: (plan, 0), layout)
    assert served(sampler, 10, 3, workers) == [batch.tolist() for batch in plan]
    sampler.bind(lambda: (plan, 2), layout)
    assert served(sampler, 10, 3, workers) == [plan[2].tolist(), plan[3].tolist()]


@pytest.mark.parametrize(
    ("n", "batch_size", "drop_last"), [(10, 3, False), (10, 3, True), (12, 4, False), (3, 8, False)]
)
def test_a_loader_over_it_has_as_many_batches_as_the_plan(n: int, batch_size: int, drop_last: bool) -> None:
    layout = BatchLayout(n, batch_size, drop_last)
    sampler = SelectionSampler(dataset(n))
    sampler.bind(lambda: (pass_over(layout), 0), layout)
    loader = DataLoader(dataset(n), batch_size=batch_size, sampler=sampler, drop_last=drop_last)
    assert len(loader) == len(list(loader)) == layout.num_batches


def test_released_it_shuffles_again() -> None:
    layout = BatchLayout(6, 2)
    sampler = SelectionSampler(dataset(6))
    unbound = list(sampler)
    sampler.bind(lambda: (pass_over(layout), 0), layout)
    assert sampler.is_bound
    assert list(sampler) == list(range(6))
    sampler.release()
    assert list(sampler) == unbound


def test_generators_do_not_change_between_releases() -> None:
    """A run that is resumed with a later release must draw the same epochs."""
    assert torch.randperm(6, generator=epoch_generator(3, 1)).tolist() == [3, 1, 0, 5, 2, 4]


@given(layouts)
def test_the_size_of_a_share_is_known_without_making_it(layout: BatchLayout) -> None:
    for rank in range(layout.world_size):
        mine = dataclasses.replace(layout, rank=rank)
        plan = pass_over(mine)
        for k in range(len(plan)):
            assert plan.rank_size(k) == len(plan[k]) == len(plan.rank_batch(k, rank))


def test_an_epoch_may_be_shorter_or_longer_than_the_set() -> None:
    shorter = BatchLayout(20, 4, epoch_samples=10)
    assert (shorter.num_batches, shorter.num_draws, shorter.full_draws) == (3, 10, 12)
    dropped = BatchLayout(20, 4, drop_last=True, epoch_samples=10)
    assert (dropped.num_batches, dropped.num_draws, dropped.full_draws) == (2, 8, 8)
    longer = BatchLayout(6, 4, world_size=2, epoch_samples=16)
    assert (longer.global_batch_size, longer.num_batches, longer.num_draws) == (6, 2, 12)


def test_a_layout_is_one_process_with_all_samples_unless_said() -> None:
    assert BatchLayout(10, 4) == BatchLayout(10, 4, drop_last=False, world_size=1, rank=0, epoch_samples=None)


def test_ids_of_some_batches_are_theirs_in_order() -> None:
    plan = EpochPlan(0, torch.tensor([5, 3, 1, 0, 2, 4, 6]), BatchLayout(7, 3))
    assert plan.ids_of(torch.tensor([True, False, True])).tolist() == [5, 3, 1, 6]
    assert plan.ids_of(torch.tensor([False, False, False])).tolist() == []


def test_a_plan_that_is_followed_once_comes_before_the_source_and_is_then_forgotten() -> None:
    layout = BatchLayout(6, 2)
    sampler = SelectionSampler(dataset(6))
    sampler.bind(lambda: (pass_over(layout), 0), layout)
    other = EpochPlan(1, torch.tensor([5, 4, 3, 2, 1, 0]), layout)
    sampler.follow_once(other, 1)
    assert list(sampler) == [3, 2, 1, 0]
    assert list(sampler) == list(range(6))
    sampler.follow_once(other, 0)
    sampler.release()
    assert not sampler.is_bound
    sampler.bind(lambda: (pass_over(layout), 0), layout)
    assert list(sampler) == list(range(6))


@pytest.mark.parametrize(("n", "world"), [(10, 2), (10, 3), (7, 4), (1, 2), (1, 4), (2, 5)])
def test_without_a_callback_each_process_takes_its_share(n: int, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(SelectionSampler(dataset(n), seed=2))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        sampler = SelectionSampler(dataset(n), seed=2)
        shares.append(list(sampler))
        assert len(shares[-1]) == len(sampler) == -(-n // world)
    dealt = [shares[place % world][place // world] for place in range(n)]
    assert dealt == whole
    assert {i for share in shares for i in share} == set(range(n))


def test_one_process_of_one_and_no_process_group_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(SelectionSampler(dataset(9)))
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.setattr(dist, "is_initialized", lambda: 1 / 0)  # must not be asked
    assert list(SelectionSampler(dataset(9))) == whole
    assert SelectionSampler(dataset(9)).seed == 0
