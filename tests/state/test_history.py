"""The last T predictions of every sample."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from no_host_wait import forbid_host_wait

from lightning_ubs.functional import label_uncertainty
from lightning_ubs.state import PredictionHistory


@given(st.integers(1, 6), st.integers(2, 5), st.integers(1, 3), st.integers(0, 1000))
def test_rows_are_the_last_predictions_of_each_sample_oldest_first(n: int, window: int, q: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = PredictionHistory(n, q, window)
    seen: list[list[np.ndarray]] = [[] for _ in range(n)]
    for _ in range(12):
        ids = rng.choice(n, size=rng.integers(1, n + 1), replace=False)
        probs = rng.random((len(ids), q)).astype(np.float32)
        history.push(torch.from_numpy(ids), torch.from_numpy(probs))
        for i, row in zip(ids, probs, strict=True):
            seen[i].append(row)
    rows, counts = history.rows(0, n)
    for i in range(n):
        expected = seen[i][-window:]
        assert counts[i] == len(expected)
        got = rows[i, window - len(expected) :].numpy()
        np.testing.assert_array_equal(got, np.reshape(expected, (len(expected), q)))


def test_a_block_of_rows_is_a_part_of_the_whole() -> None:
    history = PredictionHistory(7, 2, 3)
    for _ in range(5):
        history.push(torch.randperm(7)[:4], torch.rand(4, 2))
    rows, counts = history.rows(0, 7)
    part, part_counts = history.rows(2, 5)
    assert torch.equal(part, rows[2:5])
    assert torch.equal(part_counts, counts[2:5])


def test_the_spare_row_is_never_seen() -> None:
    history = PredictionHistory(2, 1, 2)
    history.push(torch.tensor([0, 2, 2]), torch.tensor([[0.1], [0.8], [0.9]]))
    rows, counts = history.rows(0, 2)
    assert rows.shape == (2, 2, 1)
    assert counts.tolist() == [1, 0]
    assert rows[0, -1].item() == pytest.approx(0.1)
    assert history.state_dict()["visits"].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_in_half_the_memory_and_read_as_single(dtype: torch.dtype) -> None:
    history = PredictionHistory(3, 2, 4, dtype=dtype)
    history.push(torch.tensor([1]), torch.tensor([[0.3, 0.7]]))
    assert history.values.element_size() == 2
    rows, _ = history.rows(1, 2)
    assert rows.dtype == torch.float32
    assert rows[0, -1].tolist() == pytest.approx([0.3, 0.7], abs=2e-3)


def test_a_byte_keeps_a_prediction_to_half_a_step_and_certainty_exactly() -> None:
    history = PredictionHistory(2, 1001, 3, dtype=torch.uint8)
    probs = torch.linspace(0, 1, 1001)
    history.push(torch.tensor([1]), probs.unsqueeze(0))
    assert history.values.element_size() == 1
    rows, _ = history.rows(1, 2)
    assert rows.dtype == torch.float32
    assert (rows[0, -1] - probs).abs().max() <= 1 / 510 + 1e-7
    assert rows[0, -1, 0] == 0
    assert rows[0, -1, -1] == 1


@pytest.mark.parametrize("lambda1", [0.0, 0.3, 1.0])
def test_bytes_change_uncertainty_no_more_than_is_promised(lambda1: float) -> None:
    generator = torch.Generator().manual_seed(0)
    visits = torch.rand(4, 50, 200, generator=generator) ** 4
    visits[:, :, :20] = 1 / 510 - 1e-5  # the steepest part of the entropy
    exact, bytes_ = PredictionHistory(50, 200, 3), PredictionHistory(50, 200, 3, dtype=torch.uint8)
    for probs in visits:
        for history in (exact, bytes_):
            history.push(torch.arange(50), probs)
    one, other = (label_uncertainty(*history.rows(0, 50), lambda1) for history in (exact, bytes_))
    bound = lambda1 / 255 + (1 - lambda1) * reference.entropy(1 / 510)
    assert reference.entropy(1 / 510) < 0.0205
    assert 0.5 * bound < (one - other).abs().max() <= bound + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.uint8])
def test_a_state_saved_in_one_precision_is_read_in_another(dtype: torch.dtype, other: torch.dtype) -> None:
    history, resumed = PredictionHistory(3, 4, 2, dtype=dtype), PredictionHistory(3, 4, 2, dtype=other)
    for _ in range(3):
        history.push(torch.tensor([2, 0]), torch.rand(2, 4))
    resumed.load_state_dict(history.state_dict())
    (rows, counts), (read, read_counts) = history.rows(0, 3), resumed.rows(0, 3)
    assert torch.equal(counts, read_counts)
    assert (rows - read).abs().max() <= 1 / 510 + 1e-6
    if dtype == other:
        assert torch.equal(rows, read)


def test_windows_of_chosen_samples_are_those_of_the_whole() -> None:
    history = PredictionHistory(6, 2, 3)
    for _ in range(5):
        history.push(torch.randperm(6)[:4], torch.rand(4, 2))
    rows, counts = history.rows(0, 6)
    ids = torch.tensor([4, 0, 5])
    some, some_counts = history.rows_of(ids)
    assert torch.equal(some, rows[ids])
    assert torch.equal(some_counts, counts[ids])


def test_saving_takes_a_copy_and_loading_goes_on_as_before() -> None:
    history, other = PredictionHistory(4, 2, 3), PredictionHistory(4, 2, 3)
    for _ in range(4):
        history.push(torch.randperm(4)[:3], torch.rand(3, 2))
    state = history.state_dict()
    frozen = {name: value.clone() for name, value in state.items()}
    history.push(torch.arange(4), torch.rand(4, 2))
    assert all(torch.equal(state[name], frozen[name]) for name in state)
    other.load_state_dict(state)
    ids, probs = torch.tensor([2, 0]), torch.rand(2, 2)
    history.load_state_dict(state)
    for one in (history, other):
        one.push(ids, probs)
    assert all(torch.equal(a, b) for a, b in zip(history.rows(0, 4), other.rows(0, 4), strict=True))


def test_pushing_does_not_wait_for_the_device() -> None:
    history = PredictionHistory(4, 2, 3)
    ids, probs = torch.tensor([1, 3]), torch.rand(2, 2)
    with forbid_host_wait():
        history.push(ids, probs)
    history.to(torch.device("meta"))
    history.push(ids.to("meta"), probs.to("meta"))
    assert history.values.device.type == history.visits.device.type == "meta"


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize(("saved", "resumed"), [(5, 2), (3, 2), (2, 5), (3, 3)])
def test_a_state_of_another_window_keeps_the_latest_predictions_and_goes_on(
    saved: int, resumed: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(0)
    n, q = 7, 2
    before, after = PredictionHistory(n, q, saved, dtype), PredictionHistory(n, q, resumed)
    seen: list[list[list[float]]] = [[] for _ in range(n)]

    def visit(history: PredictionHistory, times: int) -> None:
        for _ in range(times):
            ids = rng.choice(n - 1, size=3, replace=False)
            probs = torch.from_numpy(rng.integers(0, 256, (3, q)) / 255).float()
            history.push(torch.from_numpy(ids), probs)
            for i, row in zip(ids, probs.tolist(), strict=True):
                seen[i].append(row)

    def assert_follows(known: list[list[list[float]]]) -> None:
        rows, counts = after.rows(0, n)
        assert counts.tolist() == [len(latest) for latest in known]
        for latest, row in zip(known, rows, strict=True):
            np.testing.assert_allclose(
                row[resumed - len(latest) :].reshape(-1, q), np.reshape(latest, (-1, q)), atol=1e-6
            )

    visit(before, 8)
    # Of the last sample nothing is known; others were seen less often than either window is long.
    assert {len(rows) for rows in seen} >= {0, 2, 3}
    after.load_state_dict(before.state_dict())
    kept = [rows[-min(saved, resumed) :] for rows in seen]
    assert_follows(kept)
    counts = [len(rows) for rows in seen]
    visit(after, 4)
    added = [rows[count:] for rows, count in zip(seen, counts, strict=True)]
    assert_follows([(old + new)[-resumed:] for old, new in zip(kept, added, strict=True)])


def test_everything_is_kept_and_read_on_the_device_that_is_asked_for() -> None:
    history = PredictionHistory(3, 2, 2, device="meta")
    assert history.values.device.type == history.visits.device.type == "meta"
    rows, counts = history.rows(0, 3)
    assert rows.device.type == counts.device.type == "meta"
    assert rows.shape == (3, 2, 2)


@pytest.mark.parametrize("window", [2, 3])
def test_a_state_is_loaded_onto_the_device_of_the_buffer(window: int) -> None:
    history, other = PredictionHistory(3, 2, 2), PredictionHistory(3, 2, window, device="meta")
    history.push(torch.arange(3), torch.rand(3, 2))
    other.load_state_dict(history.state_dict())
    assert other.values.device.type == other.visits.device.type == "meta"
