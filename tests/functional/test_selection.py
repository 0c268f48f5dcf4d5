"""Weights, pressure and probabilities (Eqs. 7 to 11)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_ubs.functional import (
    importance_weights,
    min_max_scale,
    raw_weights,
    sample_weights,
    selection_pressure,
    selection_probabilities,
    uncertainty_correlation,
)

GOLDEN = torch.tensor([[0.05, 0.15], [0.55, 0.65], [0.45, 0.85], [0.95, 0.95]], dtype=torch.float64)

weight_vectors = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1))
uncertainties = st.tuples(st.integers(1, 20), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32))
)


def quantizer_index(probabilities: torch.Tensor, pressure: float) -> list[int]:
    """Q read back from P, taken relative to the most likely sample."""
    n = len(probabilities)
    steps = (probabilities.max() / probabilities).log() * n / math.log(pressure)
    return steps.round().int().tolist()


def test_golden_example_from_uncertainty_to_probabilities() -> None:
    matrix = uncertainty_correlation(GOLDEN)
    assert raw_weights(GOLDEN, matrix).tolist() == pytest.approx([0.338629, 2.031777, 2.201091, 3.216980], abs=1e-6)
    weights = sample_weights(GOLDEN, matrix)
    assert weights.tolist() == pytest.approx([0, 0.588235, 0.647059, 1], abs=1e-6)
    probabilities = selection_probabilities(weights, 100.0)
    assert quantizer_index(probabilities, 100.0) == [4, 1, 1, 0]
    assert probabilities.tolist() == pytest.approx([0.006088, 0.192534, 0.192534, 0.608844], abs=1e-6)
    assert selection_probabilities(weights, 1.0).tolist() == pytest.approx([0.25] * 4)
    assert probabilities.dtype == torch.float64


@pytest.mark.parametrize(
    ("correlations", "expected"),
    [((0.85, 0.13, 0.06), (3.89, 3.10)), ((0.01, 0.08, 0.90), (3.00, 3.89))],
)
def test_equal_sums_are_told_apart_by_the_correlation(
    correlations: tuple[float, float, float], expected: tuple[float, float]
) -> None:
    c12, c13, c23 = correlations
    matrix = torch.tensor([[1, c12, c13], [c12, 1, c23], [c13, c23, 1]], dtype=torch.float64)
    uncertainty = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    assert raw_weights(uncertainty).tolist() == [2.0, 2.0]
    assert raw_weights(uncertainty, matrix).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("epoch", "expected"), [(6, 100), (53, 10), (100, 1), (101, 1), (5000, 1), (0, 100)])
def test_golden_pressure(epoch: int, expected: float) -> None:
    assert selection_pressure(epoch, 6, 100, 100.0) == pytest.approx(expected)


@pytest.mark.parametrize("epoch", range(3, 22, 3))
def test_pressure_equals_the_reference(epoch: int) -> None:
    assert selection_pressure(epoch, 3, 20, 64.0) == pytest.approx(reference.pressure(epoch, 3, 20, 64.0))


def test_pressure_of_a_single_selected_epoch_is_s0() -> None:
    assert selection_pressure(7, 7, 7, 100.0) == 100.0


@pytest.mark.parametrize(("quantizer", "expected"), [("floor", [0, 1, 2, 3, 5]), ("ceil", [0, 2, 3, 4, 5])])
def test_golden_quantizer_rounds_down_or_up(quantizer: str, expected: list[int]) -> None:
    weights = torch.tensor([1, 0.75, 0.5, 0.25, 0])
    assert quantizer_index(selection_probabilities(weights, 100.0, quantizer), 100.0) == expected
    assert [reference.quantize(w, 5, quantizer) for w in weights.tolist()] == expected


@pytest.mark.parametrize("quantizer", ["floor", "ceil"])
def test_a_step_that_binary_fractions_miss_is_not_lost(quantizer: str) -> None:
    weights = torch.tensor([k / 10 for k in range(10, 0, -1)], dtype=torch.float64)
    assert math.floor((1 - 0.9) * 10) == 0  # the naive value
    assert quantizer_index(selection_probabilities(weights, 100.0, quantizer), 100.0) == list(range(10))


@pytest.mark.parametrize("pressure", [1.0, 2.0, 100.0, 1e6])
@pytest.mark.parametrize("quantizer", ["floor", "ceil"])
def test_probabilities_equal_the_reference(pressure: float, quantizer: str) -> None:
    weights = np.random.default_rng(0).random(37)
    got = selection_probabilities(torch.from_numpy(weights), pressure, quantizer)
    np.testing.assert_allclose(got.numpy(), reference.probabilities(weights, pressure, quantizer), rtol=1e-12)


def test_weights_equal_the_reference_with_and_without_correlation() -> None:
    rng = np.random.default_rng(1)
    uncertainty, matrix = rng.random((19, 4)), rng.random((4, 4))
    matrix = (matrix + matrix.T) / 2
    for correlation in (None, matrix):
        expected = reference.raw_weights(uncertainty, correlation)
        given_matrix = None if correlation is None else torch.from_numpy(correlation)
        got = raw_weights(torch.from_numpy(uncertainty), given_matrix)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)
        scaled = sample_weights(torch.from_numpy(uncertainty), given_matrix)
        np.testing.assert_allclose(scaled.numpy(), reference.scale(expected), atol=1e-12)


def test_equal_weights_become_zeros_and_draw_uniformly() -> None:
    uncertainty = torch.full((7, 3), 0.3)
    weights = sample_weights(uncertainty, uncertainty_correlation(uncertainty))
    assert weights.tolist() == [0.0] * 7
    assert selection_probabilities(weights, 100.0).tolist() == pytest.approx([1 / 7] * 7)


@pytest.mark.parametrize("scale", [1.0, 2.0**40, 2.0**-40])
def test_sums_that_differ_in_their_last_bits_only_count_as_equal(scale: float) -> None:
    values = scale * torch.tensor([0.1 + 0.2, 0.3, 0.3], dtype=torch.float64)
    assert values[0] != values[1]
    assert min_max_scale(values).tolist() == [0.0, 0.0, 0.0]
    assert min_max_scale(scale * torch.tensor([3.0, 1.0, 2.0])).tolist() == [1.0, 0.0, 0.5]


def test_all_zero_uncertainty_is_drawn_uniformly() -> None:
    assert sample_weights(torch.zeros(4, 2)).tolist() == [0.0] * 4


def test_a_single_sample_is_drawn_for_sure() -> None:
    weights = sample_weights(torch.tensor([[0.4, 0.9]]))
    assert weights.tolist() == [0.0]
    assert selection_probabilities(weights, 100.0).tolist() == [1.0]


@given(weight_vectors, st.floats(1, 1e4))
def test_probabilities_are_positive_and_sum_to_one(weights: np.ndarray, pressure: float) -> None:
    probabilities = selection_probabilities(torch.from_numpy(weights), pressure)
    assert (probabilities > 0).all()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)


@given(weight_vectors, st.floats(1, 1e4), st.sampled_from(["floor", "ceil"]))
def test_largest_over_smallest_probability_is_the_pressure(
    weights: np.ndarray, pressure: float, quantizer: str
) -> None:
    assume(len(weights) > 1)
    weights[0], weights[-1] = 0, 1
    probabilities = selection_probabilities(torch.from_numpy(weights), pressure, quantizer)
    assert (probabilities.max() / probabilities.min()).item() == pytest.approx(pressure, rel=1e-9)


@given(weight_vectors, st.floats(1, 1e4))
def test_a_heavier_sample_is_never_less_likely(weights: np.ndarray, pressure: float) -> None:
    order = np.argsort(weights, kind="stable")
    probabilities = selection_probabilities(torch.from_numpy(weights), pressure).numpy()[order]
    assert (np.diff(probabilities) >= -1e-15).all()


@given(uncertainties, st.integers(0, 2**31))
def test_permuting_samples_permutes_weights_and_probabilities(uncertainty: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(uncertainty))
    whole = sample_weights(torch.from_numpy(uncertainty))
    permuted = sample_weights(torch.from_numpy(uncertainty[order]))
    assert torch.equal(permuted, whole[order])
    permuted_p, whole_p = (selection_probabilities(w, 100.0) for w in (permuted, whole))
    assert torch.allclose(permuted_p, whole_p[order])


@given(uncertainties, st.integers(0, 2**31))
def test_permuting_labels_does_not_change_weights(uncertainty: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(uncertainty.shape[1])
    one, other = torch.from_numpy(uncertainty), torch.from_numpy(uncertainty[:, order])
    expected = raw_weights(one, uncertainty_correlation(one))
    assert torch.allclose(raw_weights(other, uncertainty_correlation(other)), expected, rtol=1e-10)


@given(uncertainties)
def test_weights_lie_in_the_unit_interval_and_reach_both_ends(uncertainty: np.ndarray) -> None:
    weights = sample_weights(torch.from_numpy(uncertainty))
    assert ((weights >= 0) & (weights <= 1)).all()
    assert weights.min() == 0
    assert weights.max() in (0, 1)


def test_importance_weights_undo_the_selection_on_average() -> None:
    values = torch.tensor([3.0, -1.0, 4.0, 10.0], dtype=torch.float64)
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    assert (probs * importance_weights(probs) * values).sum().item() == pytest.approx(values.mean().item())
    assert importance_weights(probs.float()).dtype == torch.float64
    assert importance_weights(torch.full((5,), 0.2, dtype=torch.float64)).tolist() == pytest.approx([1.0] * 5)
