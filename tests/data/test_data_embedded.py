from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits

from lightning_ubs.data import entry, latent_correlation, load, make_digits, make_synthetic, make_tags


def test_digits_are_reproducible_and_scaled():
    first, second = make_digits(), make_digits()
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.Y, second.Y)
    assert first.X.dtype == np.float32
    assert first.Y.dtype == np.uint8
    assert first.X.shape == (2000, 64)
    assert (first.X.min(), first.X.max()) == (0.0, 1.0)
    assert set(first.Y.sum(1)) == {1, 2, 3}
    assert (make_digits(seed=1).Y != first.Y).any()


def test_a_sample_of_one_digit_is_a_digit_of_scikit_learn_and_none_is_darker_than_its_parts():
    data = make_digits(300)
    images, classes = load_digits(return_X_y=True)
    for x, y in zip(data.X, data.Y, strict=True):
        present = np.isin(classes, np.flatnonzero(y))
        below = (images[present] / 16 <= x + 1e-6).all(1)
        assert set(np.flatnonzero(y)) <= set(classes[present][below])
        if y.sum() == 1:
            assert (images[present] / 16 == x).all(1).any()


def test_every_digit_is_there_and_about_equally_often():
    share = make_digits().Y.mean(0)
    assert ((share > 0.15) & (share < 0.25)).all()


@pytest.mark.parametrize("correlation", [0.0, 0.5, -0.6, 0.9])
def test_synthetic_labels_have_the_latent_correlation_that_was_asked_for(correlation):
    labels, n = 4, 60_000
    data = make_synthetic(n=n, features=5, labels=labels, correlation=correlation, seed=3)
    latent = latent_correlation(labels, correlation)
    thresholds = np.linspace(0, 1, labels)
    for j in range(labels):
        assert data.Y[:, j].mean() == pytest.approx(0.5 * math.erfc(thresholds[j] / math.sqrt(2)), abs=0.01)
        for k in range(j):
            both = multivariate_normal([0, 0], [[1, latent[j, k]], [latent[j, k], 1]]).cdf(
                [-thresholds[j], -thresholds[k]]
            )
            assert (data.Y[:, j] & data.Y[:, k]).mean() == pytest.approx(both, abs=0.01)


def test_synthetic_features_carry_the_labels():
    data = make_synthetic()
    assert data.X.shape == (1000, 20)
    assert data.Y.shape == (1000, 8)
    design = np.hstack([data.X, np.ones((1000, 1))])
    weights = np.linalg.lstsq(design[:500], data.Y[:500] - 0.5, rcond=None)[0]
    accuracy = ((design[500:] @ weights > 0) == data.Y[500:]).mean()
    assert accuracy > 0.85
    np.testing.assert_array_equal(data.X, make_synthetic().X)
    assert (make_synthetic(seed=1).X != data.X).any()


@pytest.mark.parametrize(
    "options", [{"correlation": 1.0}, {"correlation": -1.5}, {"n": 0}, {"labels": 0}, {"features": 0}]
)
def test_impossible_generator_arguments_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        make_synthetic(**options)


def test_a_text_has_words_of_its_tags_and_most_tags_are_rare():
    data = make_tags()
    np.testing.assert_array_equal(data.X, make_tags().X)
    assert (data.X.shape, data.Y.shape) == ((3000, 300), (3000, 80))
    assert set(data.X.sum(1)) == {30}
    assert set(data.Y.sum(1)) == {1, 2, 3, 4}
    share = data.Y.mean(0)
    assert (share < 0.02).mean() > 0.6
    assert share[0] > 0.4
    often = data.X[data.Y[:, 1] == 1].mean(0)
    assert np.sort(often - data.X[data.Y[:, 1] == 0].mean(0))[-12:].min() > 0.3, "a tag has twelve words of its own"


@pytest.mark.parametrize("name", ["digits", "tags", "synthetic"])
def test_catalog_tells_the_truth_about_embedded_data(name):
    data, known = load(name), entry(name)
    assert (*data.X.shape, data.Y.shape[1]) == (known.n, known.d, known.q)
    assert data.Y.sum() / known.n == pytest.approx(known.cardinality, abs=5e-4)
    assert (len(data.feature_names), len(data.label_names)) == (known.d, known.q)
