"""A loader that follows a guide: its training iterator is where the guide says, others disturb nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import EpochPlan, SelectionSampler
from lightning_ubs.selection import loader as planned_loader
from lightning_ubs.selection.loader import follow, unfollow
from lightning_ubs.selection.plan import BatchLayout

N, SIZE = 20, 4
LAYOUT = BatchLayout(N, SIZE)


def plan(seed: int) -> EpochPlan:
    return EpochPlan(seed, torch.randperm(N, generator=torch.Generator().manual_seed(seed)), LAYOUT)


class Place:
    """A guide that stands where it is put, for the one iterator that it calls the training's own."""

    worker_root: int | None = None
    resumes = False

    def __init__(self) -> None:
        self.plan, self.batch, self.other = plan(0), 0, plan(9)
        self.own: Any = None

    def training_batch(self, iterator: Any) -> tuple[EpochPlan, int] | None:
        return (self.plan, self.batch) if iterator is self.own else None

    def plan_to_read(self) -> EpochPlan:
        return self.other


@pytest.fixture(params=[(0, False), (2, False), (2, True)], ids=["no workers", "workers", "persistent"])
def followed(request: pytest.FixtureRequest) -> Any:
    workers, persistent = request.param
    data = TensorDataset(torch.arange(N))
    loader = DataLoader(data, SIZE, sampler=SelectionSampler(data), num_workers=workers, persistent_workers=persistent)
    place = Place()
    loader.sampler.bind(lambda: (place.other, 0), LAYOUT)
    follow(loader, place)
    place.own = iter(loader)
    return loader, place


def test_the_training_iterator_is_where_the_guide_stands_at_each_batch(followed: Any) -> None:
    _, place = followed
    for current, batch in [(plan(0), 0), (plan(0), 1), (plan(0), 3), (plan(1), 2), (plan(1), 3), (plan(1), 0)]:
        if current.epoch != place.plan.epoch:
            place.plan = current
        place.batch = batch
        (ids,) = next(place.own)
        assert ids.tolist() == place.plan[batch].tolist()


def test_another_reader_gets_its_own_pass_and_leaves_the_training_iterator_alone(followed: Any) -> None:
    loader, place = followed
    generator = torch.get_rng_state()
    for batch in range(5):
        place.batch = batch
        (ids,) = next(place.own)
        assert ids.tolist() == place.plan[batch].tolist()
        if batch == 0:
            generator = torch.get_rng_state()
        reader = iter(loader)
        assert next(reader)[0].tolist() == place.other[0].tolist()
        assert next(reader)[0].tolist() == place.other[1].tolist()
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("processes", [1, 2])
def test_among_processes_workers_are_not_forked_the_moment_a_collective_ends(
    followed: Any, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, place = followed
    rests: list[float] = []
    monkeypatch.setattr(planned_loader, "time", SimpleNamespace(sleep=rests.append))
    monkeypatch.setattr(planned_loader, "_FORK_MAY_HANG", True)
    monkeypatch.setattr(planned_loader, "world_size", lambda: processes)
    next(place.own)
    assert len(rests) == (processes > 1 and loader.num_workers > 0)


def test_let_go_the_loader_is_of_its_own_class_again(followed: Any) -> None:
    loader, place = followed
    assert type(loader) is not DataLoader
    assert (type(loader).__name__, type(loader).__module__) == ("DataLoader", DataLoader.__module__)
    assert isinstance(loader, DataLoader)
    unfollow(loader)
    assert type(loader) is DataLoader
    assert "plan_guide" not in vars(loader)
    assert [ids.tolist() for (ids,) in loader] == [batch.tolist() for batch in place.other]


class Random(torch.utils.data.Dataset[Any]):
    """Items are random numbers of torch, NumPy and Python."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64)


def read(workers: int, first: int, root: int | None = 5) -> list[Any]:
    loader = DataLoader(Random(), SIZE, sampler=SelectionSampler(range(N)), num_workers=workers)
    place = Place()
    loader.sampler.bind(lambda: (place.plan, 0), LAYOUT)
    follow(loader, place)
    place.worker_root, place.batch, place.own = root, first, iter(loader)
    batches = []
    for place.batch in range(first, 5):
        batches.append(next(place.own))
    return batches


@pytest.mark.slow
def test_random_numbers_of_workers_follow_from_the_batch_whoever_makes_it() -> None:
    whole = read(2, 0)
    assert len({float(value) for batch in whole for value in batch.flatten()}) == 3 * N
    for workers, first in ((2, 1), (2, 3), (1, 2)):
        for one, other in zip(read(workers, first), whole[first:], strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(read(2, 0, root=6)[0], whole[0])


def test_without_a_root_the_workers_generators_are_left_alone() -> None:
    torch.manual_seed(1)
    first = read(1, 0, root=None)
    torch.manual_seed(2)
    assert not torch.equal(read(1, 0, root=None)[0], first[0])


def test_a_reading_that_begins_in_mid_epoch_draws_no_seed() -> None:
    for first, draws in ((0, True), (2, False)):
        before = torch.get_rng_state()
        read(1, first)
        assert torch.equal(before, torch.get_rng_state()) is not draws
