"""The measures of the methods compared with."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_ubs.functional import (
    hardness_probabilities,
    imbalance_weights,
    prediction_spread,
    proportional_probabilities,
    recency_entropy,
)

WAVERING = [0.2, 0.8, 0.3, 0.7, 0.6]
TREND = [0.2, 0.3, 0.7, 0.8, 0.6]


def test_golden_windows_that_variance_and_entropy_cannot_tell_apart() -> None:
    for values in (WAVERING, TREND):
        window = torch.tensor(values, dtype=torch.float64).reshape(1, 5, 1)
        assert recency_entropy(window, torch.tensor([5])).item() == pytest.approx(0.970951, abs=1e-6)
        spread = prediction_spread(window.var(1), torch.tensor([5]))
        assert spread.item() == pytest.approx(0.261002, abs=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_spread_equals_the_reference_and_is_zero_below_two_predictions(ddof: int) -> None:
    rng = np.random.default_rng(0)
    windows = [rng.random(count) for count in (2, 3, 10)]
    variance = torch.tensor([[np.var(w, ddof=ddof)] for w in windows])
    got = prediction_spread(variance, torch.tensor([len(w) for w in windows])).flatten().tolist()
    assert got == pytest.approx([reference.spread(w, ddof) for w in windows])
    assert prediction_spread(torch.tensor([[0.5], [0.5]]), torch.tensor([0, 1])).tolist() == [[0.0], [0.0]]


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3)).flatmap(
        lambda shape: st.tuples(
            hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32)),
            hnp.arrays(np.int64, shape[:1], elements=st.integers(0, shape[1])),
        )
    )
)
def test_recency_entropy_equals_the_reference(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    history, counts = drawn
    got = recency_entropy(torch.from_numpy(history), torch.from_numpy(counts)).numpy()
    for i, (rows, count) in enumerate(zip(history, counts, strict=True)):
        for j in range(history.shape[2]):
            expected = reference.recency_entropy(rows[len(rows) - count :, j].tolist())
            assert got[i, j] == pytest.approx(expected, abs=1e-6)


def test_one_half_counts_as_a_no() -> None:
    window = torch.tensor([0.5, 0.6]).reshape(1, 2, 1)
    assert recency_entropy(window, torch.tensor([2])).item() == 1.0


@pytest.mark.parametrize("smoothing", [None, 0.0, 0.3])
def test_proportional_probabilities_equal_the_reference(smoothing: float | None) -> None:
    values = np.random.default_rng(2).random(11)
    got = proportional_probabilities(torch.from_numpy(values), smoothing)
    np.testing.assert_allclose(got.numpy(), reference.proportional(values, smoothing), rtol=1e-12)


def test_no_spread_at_all_is_drawn_uniformly() -> None:
    assert proportional_probabilities(torch.zeros(4)).tolist() == [0.25] * 4


def test_golden_hardness() -> None:
    got = hardness_probabilities(torch.tensor([0.1, 0.2, 0.4, 0.8]), 8.0)
    assert got.tolist() == pytest.approx([0.118503, 0.118503, 0.199297, 0.563697], abs=1e-6)


@pytest.mark.parametrize("pressure", [1.0, 2.0, 64.0])
def test_hardness_probabilities_equal_the_reference(pressure: float) -> None:
    values = np.random.default_rng(3).exponential(size=29)
    values[4] = 0
    got = hardness_probabilities(torch.from_numpy(values), pressure)
    np.testing.assert_allclose(got.numpy(), reference.hardness_probabilities(values, pressure), rtol=1e-12)


def test_no_hardness_at_all_is_drawn_uniformly() -> None:
    assert hardness_probabilities(torch.zeros(5), 8.0).tolist() == pytest.approx([0.2] * 5)


def imbalanced(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.random((n, 6)).astype(np.float32)
    blurred = features[:, :5] + 0.1 * rng.standard_normal((n, 5))
    labels = (blurred > np.array([0.4, 0.5, 0.9, 0.8, 0.95])).astype(np.float32)
    return labels, features


@pytest.mark.parametrize("neighbours", [2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_imbalance_weights_equal_a_search_by_scikit_learn(neighbours: int, seed: int) -> None:
    labels, features = imbalanced(120, seed)
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features), neighbours)
    expected = reference.imbalance_weights(labels, features, neighbours)
    assert (expected > 1).any()
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_neighbours_of_features_far_from_the_origin_are_found_as_well() -> None:
    labels, features = imbalanced(300, 5)
    steps = np.round(features * 1024) / 1024  # exact in single precision, there as well as here
    expected = reference.imbalance_weights(labels, steps.astype(np.float64), 5)
    far = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(steps + 1024).float())
    assert (expected > 1).any()
    np.testing.assert_allclose(far.numpy(), expected, atol=1e-4)


def test_neighbours_are_searched_in_more_than_one_block_of_rows() -> None:
    n = 4200  # more distances than one block holds
    labels, features = imbalanced(n, 3)
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features))
    np.testing.assert_allclose(got.numpy(), reference.imbalance_weights(labels, features, 5), atol=1e-4)


def test_a_set_too_small_for_neighbours_weighs_all_alike() -> None:
    assert imbalance_weights(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 3)).tolist() == [1.0]
    two = imbalance_weights(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0], [1.0]]), neighbours=5)
    assert two.tolist() == [1.0, 1.0]  # the only neighbour lacks the rare label: an outlier


def test_balanced_labels_have_no_minority() -> None:
    labels = torch.eye(4).repeat(5, 1)
    assert imbalance_weights(labels, torch.rand(20, 3)).tolist() == [1.0] * 20


def test_a_label_without_positives_does_not_divide_by_zero() -> None:
    labels, features = imbalanced(40, 4)
    labels[:, 2] = 0
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features))
    assert torch.isfinite(got).all()
