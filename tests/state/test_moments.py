"""Mean and variance of all predictions of every sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from no_host_wait import forbid_host_wait

from lightning_ubs.state import RunningMoments


@pytest.mark.parametrize("ddof", [0, 1])
def test_variances_equal_those_of_the_whole_history(ddof: int) -> None:
    rng = np.random.default_rng(0)
    n, q = 9, 3
    moments = RunningMoments(n, q, ddof)
    seen: list[list[np.ndarray]] = [[] for _ in range(n)]
    for _ in range(60):
        ids = rng.choice(n - 1, size=4, replace=False)
        probs = (0.9 + 0.1 * rng.random((4, q))).astype(np.float32)
        moments.push(torch.from_numpy(ids), torch.from_numpy(probs))
        for i, row in zip(ids, probs, strict=True):
            seen[i].append(row)
    variance, counts = moments.rows(0, n)
    assert counts.tolist() == [len(rows) for rows in seen]
    for i in range(n - 1):
        expected = np.var(np.array(seen[i], dtype=np.float64), axis=0, ddof=ddof)
        np.testing.assert_allclose(variance[i].numpy(), expected, rtol=1e-4)
    assert variance[n - 1].tolist() == [0.0] * q


def test_memory_does_not_grow_with_visits() -> None:
    moments = RunningMoments(3, 2)
    before = {name: value.shape for name, value in moments.state_dict().items()}
    for _ in range(50):
        moments.push(torch.arange(3), torch.rand(3, 2))
    assert {name: value.shape for name, value in moments.state_dict().items()} == before


def test_the_spare_row_is_never_seen() -> None:
    moments = RunningMoments(2, 1)
    moments.push(torch.tensor([2, 2, 0]), torch.tensor([[0.1], [0.9], [0.5]]))
    variance, counts = moments.rows(0, 2)
    assert counts.tolist() == [1, 0]
    assert variance.tolist() == [[0.0], [0.0]]


def test_loading_goes_on_as_before() -> None:
    moments, other = RunningMoments(3, 2), RunningMoments(3, 2)
    moments.push(torch.arange(3), torch.rand(3, 2))
    other.load_state_dict(moments.state_dict())
    probs = torch.rand(3, 2)
    for one in (moments, other):
        one.push(torch.arange(3), probs)
    assert all(torch.equal(a, b) for a, b in zip(moments.rows(0, 3), other.rows(0, 3), strict=True))


def test_pushing_does_not_wait_for_the_device() -> None:
    moments = RunningMoments(4, 2)
    ids, probs = torch.tensor([1, 3]), torch.rand(2, 2)
    with forbid_host_wait():
        moments.push(ids, probs)
    moments.to(torch.device("meta"))
    moments.push(ids.to("meta"), probs.to("meta"))
    assert moments.mean.device.type == "meta"


def test_everything_is_kept_on_the_device_that_is_asked_for() -> None:
    moments = RunningMoments(3, 2, device="meta")
    kept = (moments.visits, moments.mean, moments.squares)
    assert {tensor.device.type for tensor in kept} == {"meta"}
    assert moments.visits.dtype == torch.int64


def test_the_sample_variance_is_taken_unless_asked_otherwise() -> None:
    moments = RunningMoments(1, 1)
    for p in (0.0, 1.0):
        moments.push(torch.tensor([0]), torch.tensor([[p]]))
    variance, _ = moments.rows(0, 1)
    assert variance.tolist() == [[0.5]]
