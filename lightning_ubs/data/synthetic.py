"""Datasets that need no file: overlaid digits, made-up texts, and labels of known correlation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.types import MultiLabelData


def make_digits(n: int = 2000, seed: int = 0) -> MultiLabelData:
    """Return overlaid digits: one to three of scikit-learn's handwritten digits each; the labels are those present.

    Each sample is the pixelwise maximum of its digits, scaled to [0, 1]. The digits of a sample are distinct.

    Args:
        n: Number of samples.
        seed: The same seed gives the same samples.

    Returns:
        X (n, 64) and Y (n, 10), with 1 to 3 positive labels per row.
    """
    images, classes = optional_import("sklearn.datasets").load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    by_class = [np.flatnonzero(classes == digit) for digit in range(10)]
    features = np.zeros((n, images.shape[1]), dtype=np.float32)
    labels = np.zeros((n, 10), dtype=np.uint8)
    for row in range(n):
        for digit in rng.permutation(10)[: rng.integers(1, 4)]:
            np.maximum(features[row], images[rng.choice(by_class[digit])] / 16.0, out=features[row])
            labels[row, digit] = 1
    pixels = [f"pixel_{line}_{column}" for line in range(8) for column in range(8)]
    return MultiLabelData(features, labels, [str(digit) for digit in range(10)], pixels)


def make_tags(n: int = 3000, words: int = 300, tags: int = 80, length: int = 30, seed: int = 0) -> MultiLabelData:
    """Return made-up texts with one to four tags each, of which a few are frequent and most are rare.

    Tags and words have the frequencies of a natural language: the k-th is drawn in proportion to 1/k. A tag has twelve
    words of its own; of a text's words 60 percent are about its tags, the others about anything.

    Args:
        n: Number of texts.
        words: Number of words d; a feature counts how often the text has that word.
        tags: Number of labels q.
        length: Words per text.
        seed: The same seed gives the same texts.

    Returns:
        X (n, d), counts that sum to ``length``, and Y (n, q).
    """
    rng = np.random.default_rng(seed)
    own_words = np.stack([rng.choice(words, 12, replace=False) for _ in range(tags)])
    features = np.zeros((n, words), dtype=np.float32)
    labels = np.zeros((n, tags), dtype=np.uint8)
    for text, positives in zip(features, labels, strict=True):
        about = rng.choice(tags, rng.integers(1, 5), replace=False, p=_shares(tags))
        positives[about] = 1
        topical = own_words[rng.choice(about, length), rng.integers(0, 12, length)]
        anything = rng.choice(words, length, p=_shares(words))
        np.add.at(text, np.where(rng.random(length) < 0.6, topical, anything), 1)
    return MultiLabelData(features, labels, [f"tag_{j}" for j in range(tags)], [f"word_{j}" for j in range(words)])


def _shares(count: int) -> npt.NDArray[np.float64]:
    """Shares in proportion to 1, 1/2, 1/3, ..."""
    ranks = 1 / np.arange(1, count + 1)
    return np.asarray(ranks / np.sum(ranks))


def latent_correlation(labels: int, correlation: float) -> npt.NDArray[np.float64]:
    """Return the (q, q) correlation of the Gaussians behind :func:`make_synthetic`: ``correlation ** |j - k|``.

    >>> latent_correlation(3, 0.5)
    array([[1.  , 0.5 , 0.25],
           [0.5 , 1.  , 0.5 ],
           [0.25, 0.5 , 1.  ]])
    """
    if not -1.0 < correlation < 1.0:
        raise ValueError(f"correlation={correlation} must lie strictly between -1 and 1; the default is 0.5.")
    steps = np.abs(np.subtract.outer(np.arange(labels), np.arange(labels)))
    return np.asarray(np.float64(correlation) ** steps)


def make_synthetic(
    n: int = 1000, features: int = 20, labels: int = 8, correlation: float = 0.5, seed: int = 0
) -> MultiLabelData:
    """Return labels drawn from a Gaussian of known correlation, and features that carry them.

    Row i has a latent z_i ~ N(0, R) with R from :func:`latent_correlation`; label j is 1 where z_ij exceeds a
    threshold (between 0 and 1, so about 16 to 50 percent of the samples are positive); the features are a random
    linear image of z_i plus noise of standard deviation 0.5.

    Args:
        n: Number of samples.
        features: Number of features d.
        labels: Number of labels q.
        correlation: Latent correlation of neighboring labels, in (-1, 1).
        seed: The same seed gives the same samples.
    """
    for name, value in (("n", n), ("features", features), ("labels", labels)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1; the defaults are 1000, 20 and 8.")
    factor = np.linalg.cholesky(latent_correlation(labels, correlation))
    rng = np.random.default_rng(seed)
    latent = rng.standard_normal((n, labels)) @ factor.T
    mixing = rng.standard_normal((labels, features)) / np.sqrt(labels)
    observed = latent @ mixing + 0.5 * rng.standard_normal((n, features))
    return MultiLabelData(
        observed.astype(np.float32),
        (latent > np.linspace(0.0, 1.0, labels)).astype(np.uint8),
        [f"label_{j}" for j in range(labels)],
        [f"feature_{j}" for j in range(features)],
    )
