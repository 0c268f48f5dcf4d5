"""Samples are recognized by their labels, eight bytes each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_ubs.reading.signatures import Distance, LabelMemory, Recoding, bits, distance, signatures


def test_one_hot_rows_and_class_indices_have_the_same_signature() -> None:
    classes = torch.tensor([0, 5, 51, 52, 99])
    rows = torch.nn.functional.one_hot(classes, 100)
    assert torch.equal(signatures(rows), signatures(classes, classes=True))
    assert torch.equal(signatures(rows.bool()), signatures(rows.double() * 0.6 + 0.3))
    assert signatures(torch.tensor([-100, 1]), classes=True).tolist() == [0, 2]


@pytest.mark.parametrize("labels", [1, 2, 52, 53, 200])
def test_bits_count_the_labels_that_differ(labels: int) -> None:
    rows = (torch.rand(50, labels, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    flipped = rows.clone()
    flipped[:, labels // 2] = 1 - flipped[:, labels // 2]
    found = signatures(rows)
    assert bool((found >= 0).all()), "a negative one is of no sample"
    assert bits(found ^ signatures(flipped)).tolist() == [1] * 50


def test_labels_that_cannot_be_known_are_no_difference() -> None:
    unknown = torch.tensor([[torch.nan, 1.0], [0.0, torch.nan]])
    assert torch.equal(signatures(unknown), signatures(unknown.nan_to_num(0)))


def test_samples_that_are_too_much_alike_tell_nothing() -> None:
    assert distance(torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64)) is None
    memory = LabelMemory()
    memory.begin(4)
    memory.expect(4, torch.ones(4, 2))
    for _ in range(3):
        memory.add(torch.arange(4), torch.ones(4, 2))
        assert memory.judge() is None


# Shares of the way to other samples, in the second to fourth epoch: the same labels, one flip in fifty, sorted batches.
@pytest.mark.parametrize(("samples", "labels", "positive"), [(200, 5, 0.2), (600, 25, 0.1), (400, 1, 0.5)])
@pytest.mark.parametrize(("visit", "low", "high"), [("right", 0, 0), ("noise", 0.01, 0.5), ("sorted", 0.8, 1)])
def test_the_distance_tells_other_samples_from_noisy_labels(
    visit: str, low: float, high: float, samples: int, labels: int, positive: float
) -> None:
    torch.manual_seed(0)
    rows = (torch.rand(samples, labels) < positive).float()
    memory = LabelMemory()
    memory.begin(samples)
    for epoch in range(4):
        for ids in torch.randperm(samples).split(40):
            seen = rows[ids]
            if visit == "noise":
                seen = torch.where(torch.rand(seen.shape) < 0.02, 1 - seen, seen)
            if visit == "sorted":
                seen = seen[torch.randperm(len(seen))]
            memory.expect(samples, seen)
            memory.add(ids, seen)
        found = memory.judge()
        assert (found is None) == (epoch == 0)
        assert found is None or low <= found.share <= high


VISITS: dict[str, Any] = {
    "one flip in twenty": lambda rows, seen: torch.where(torch.rand(seen.shape) < 0.05, 1 - seen, seen),
    "one flip in five": lambda rows, seen: torch.where(torch.rand(seen.shape) < 0.2, 1 - seen, seen),
    "sorted": lambda rows, seen: seen[torch.randperm(len(seen))],
    "sorted by the number of labels": lambda rows, seen: seen[seen.sum(1).argsort()],
    "other samples": lambda rows, seen: rows[torch.randint(len(rows), (len(seen),))],
    "half of the rows of other samples": lambda rows, seen: torch.where(
        torch.rand(len(seen), 1) < 0.5, seen, rows[torch.randint(len(rows), (len(seen),))]
    ),
}


@pytest.mark.parametrize("visit", VISITS)
@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("positive", [0.05, 0.2])
def test_flips_at_random_are_nearer_than_other_samples(visit: str, correlated: bool, positive: float) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        shared = torch.randn(1000, 2) @ torch.randn(2, 25) if correlated else torch.zeros(1000, 25)
        scores = shared + torch.randn(1000, 25)
        rows = (scores > scores.flatten().quantile(1 - positive)).float()
        memory = LabelMemory()
        memory.begin(1000)
        for _ in range(3):
            for ids in torch.randperm(1000).split(40):
                seen = VISITS[visit](rows, rows[ids])
                memory.expect(1000, seen)
                memory.add(ids, seen)
            found = memory.judge()
        assert found is not None
        assert found.is_noise == visit.startswith("one flip")


def test_too_few_samples_are_never_called_noise() -> None:
    assert distance(torch.tensor([7, 7]), torch.tensor([3, 5]), 1) == Distance(1.0, 2, 2)


def test_a_code_of_labels_tells_the_order_of_rows() -> None:
    classes = torch.arange(32) % 5
    levels = signatures((classes.unsqueeze(1) > torch.arange(4)).float())
    labels = signatures(classes, classes=True)
    code = Recoding(labels, levels)
    assert code.tells
    assert code.fits
    assert not Recoding(labels, levels[torch.randperm(32, generator=torch.Generator().manual_seed(0))]).fits
    unknown = torch.tensor([1 << 40])
    assert code.of(torch.cat([labels, unknown]), torch.full((33,), -5)).tolist() == [*levels.tolist(), -5]
    assert not Recoding(torch.arange(32), torch.arange(32).flip(0)).tells, "any order fits labels that are all unlike"
    assert not Recoding(labels[:4], levels[:4]).tells
