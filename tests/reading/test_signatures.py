"""Samples are recognized by their labels, eight bytes each."""

from __future__ import annotations

import pytest
import torch

from lightning_ubs.reading.signatures import LabelMemory, bits, distance, signatures


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
