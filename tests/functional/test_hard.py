"""Hard-Imbalance: P by hardness, and the weight of rare labels."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch

from lightning_ubs.functional import hardness_probabilities, imbalance_weights


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


def test_neighbors_of_features_far_from_the_origin_are_found_as_well() -> None:
    labels, features = imbalanced(300, 5)
    steps = np.round(features * 1024) / 1024  # exact in single precision, there as well as here
    expected = reference.imbalance_weights(labels, steps.astype(np.float64), 5)
    far = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(steps + 1024).float())
    assert (expected > 1).any()
    np.testing.assert_allclose(far.numpy(), expected, atol=1e-4)


def test_neighbors_are_searched_in_more_than_one_block_of_rows() -> None:
    n = 4200  # more distances than one block holds
    labels, features = imbalanced(n, 3)
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features))
    np.testing.assert_allclose(got.numpy(), reference.imbalance_weights(labels, features, 5), atol=1e-4)


def test_a_set_too_small_for_neighbors_weighs_all_alike() -> None:
    assert imbalance_weights(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 3)).tolist() == [1.0]
    two = imbalance_weights(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0], [1.0]]), neighbours=5)
    assert two.tolist() == [1.0, 1.0]  # the only neighbor lacks the rare label: an outlier


def test_balanced_labels_have_no_minority() -> None:
    labels = torch.eye(4).repeat(5, 1)
    assert imbalance_weights(labels, torch.rand(20, 3)).tolist() == [1.0] * 20


def test_a_label_without_positives_does_not_divide_by_zero() -> None:
    labels, features = imbalanced(40, 4)
    labels[:, 2] = 0
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features))
    assert torch.isfinite(got).all()


def test_a_set_smaller_than_the_neighborhood_takes_all_others_as_neighbors() -> None:
    features = np.random.default_rng(0).random((8, 3)).astype(np.float32)
    labels = np.ones((8, 2), dtype=np.float32)
    labels[2:, 1] = 0
    got = imbalance_weights(torch.from_numpy(labels), torch.from_numpy(features), 20)
    expected = reference.imbalance_weights(labels, features, 7)
    assert (expected > 1).any()
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
