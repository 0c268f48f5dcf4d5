"""Entropy, fluctuation and their sum (Eqs. 1, 4 and 5)."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_ubs.functional import binary_entropy, label_uncertainty, window_fluctuation

WAVERING = [0.2, 0.8, 0.3, 0.7, 0.6]
TREND = [0.2, 0.3, 0.7, 0.8, 0.6]
STEADY = [0.6] * 5
EXTREME = [0.9, 0.1, 0.9, 0.1, 0.9]


def history_of(values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1), torch.tensor([len(values)])


@pytest.mark.parametrize(
    ("values", "d", "e", "u"),
    [
        (WAVERING, 0.4, 0.970951, 0.685475),
        (TREND, 0.2, 0.970951, 0.585475),
        (STEADY, 0.0, 0.970951, 0.485475),
        (EXTREME, 0.8, 0.468996, 0.634498),
    ],
)
def test_golden_windows(values: list[float], d: float, e: float, u: float) -> None:
    history, counts = history_of(values)
    assert window_fluctuation(history, counts).item() == pytest.approx(d, abs=1e-6)
    assert binary_entropy(history[:, -1]).item() == pytest.approx(e, abs=1e-6)
    assert label_uncertainty(history, counts, 0.5).item() == pytest.approx(u, abs=1e-6)


def test_entropy_is_exactly_zero_for_certain_predictions_and_one_at_a_half() -> None:
    assert binary_entropy(torch.tensor([0.0, 1.0, 0.5])).tolist() == [0.0, 0.0, 1.0]


def test_entropy_next_to_certainty_is_finite_and_positive() -> None:
    tiny = torch.finfo(torch.float32).tiny
    values = binary_entropy(torch.tensor([tiny, 1 - 2**-24]))
    assert torch.isfinite(values).all()
    assert (values > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_equals_the_reference(dtype: torch.dtype) -> None:
    probs = torch.linspace(0, 1, 101, dtype=dtype)
    expected = [reference.entropy(p) for p in probs.tolist()]
    np.testing.assert_allclose(binary_entropy(probs).numpy(), expected, atol=2e-7)


def padded(windows: list[np.ndarray], depth: int, q: int, rubbish: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of unlike lengths as (n, T, q); what is not valid holds rubbish."""
    history = np.full((len(windows), depth, q), rubbish, dtype=np.float32)
    for i, window in enumerate(windows):
        if len(window):
            history[i, depth - len(window) :] = window
    return torch.from_numpy(history), torch.tensor([len(window) for window in windows])


@pytest.mark.parametrize("rubbish", [0.25, float("nan"), float("inf")])
@pytest.mark.parametrize("lambda1", [0.0, 0.3, 1.0])
def test_short_and_empty_windows_equal_the_reference_whatever_the_invalid_rows_hold(
    rubbish: float, lambda1: float
) -> None:
    rng = np.random.default_rng(0)
    windows = [rng.random((count, 3)).astype(np.float32) for count in (0, 1, 2, 3, 4, 5)]
    history, counts = padded(windows, depth=5, q=3, rubbish=rubbish)
    got = label_uncertainty(history, counts, lambda1).numpy()
    np.testing.assert_allclose(got, reference.label_uncertainty(windows, 3, lambda1), atol=1e-6)


def test_a_sample_without_predictions_is_as_uncertain_as_one_half_and_has_not_fluctuated() -> None:
    history, counts = torch.zeros(1, 4, 2), torch.tensor([0])
    assert window_fluctuation(history, counts).tolist() == [[0.0, 0.0]]
    assert label_uncertainty(history, counts, 0.25).tolist() == [[0.75, 0.75]]


def test_a_single_prediction_has_not_fluctuated() -> None:
    history = torch.tensor([[[0.9], [0.1], [0.7]]])
    assert window_fluctuation(history, torch.tensor([1])).item() == 0.0


def test_saturated_windows_stay_finite() -> None:
    history = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]).reshape(1, 5, 1)
    assert label_uncertainty(history, torch.tensor([5]), 0.5).item() == pytest.approx(0.5 * 3 / 4)


def test_counts_beyond_the_window_mean_a_full_window() -> None:
    history, _ = history_of(WAVERING)
    assert window_fluctuation(history, torch.tensor([17])).item() == pytest.approx(0.4)


histories = st.tuples(st.integers(1, 5), st.integers(2, 6), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32)),
        hnp.arrays(np.int64, shape[:1], elements=st.integers(0, shape[1])),
    )
)


@given(histories, st.floats(0, 1))
def test_uncertainty_lies_in_the_unit_interval_and_equals_the_reference(
    drawn: tuple[np.ndarray, np.ndarray], lambda1: float
) -> None:
    history, counts = drawn
    got = label_uncertainty(torch.from_numpy(history), torch.from_numpy(counts), lambda1)
    assert ((got >= 0) & (got <= 1)).all()
    windows = [rows[len(rows) - count :] for rows, count in zip(history, counts, strict=True)]
    np.testing.assert_allclose(got.numpy(), reference.label_uncertainty(windows, history.shape[2], lambda1), atol=1e-6)


@given(histories, st.integers(0, 2**31))
def test_permuting_samples_or_labels_permutes_uncertainty(drawn: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    history, counts = (torch.from_numpy(part) for part in drawn)
    rng = np.random.default_rng(seed)
    samples, labels = rng.permutation(history.shape[0]), rng.permutation(history.shape[2])
    whole = label_uncertainty(history, counts, 0.5)
    assert torch.equal(label_uncertainty(history[samples], counts[samples], 0.5), whole[samples])
    assert torch.equal(label_uncertainty(history[:, :, labels], counts, 0.5), whole[:, labels])
