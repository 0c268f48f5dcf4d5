"""Iterative stratification: folds in which every label is spread as evenly as it can be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightning_ubs.errors import DataError

Rows = npt.NDArray[np.int64]


def stratified_folds(labels: npt.NDArray[np.uint8], folds: int = 5, seed: int = 42) -> Rows:
    """Return the fold of each sample, by iterative stratification (Sechidis et al., ECML PKDD 2011).

    The label with the fewest unassigned positives comes first; each of its samples goes to the fold that still needs
    most of that label, ties to the fold that still needs most samples, further ties at random. Samples without labels
    fill the folds up. A label with fewer positives than folds is missing from some folds; that is no error.

    Args:
        labels: Y (n, q) of 0 and 1.
        folds: Number of folds, at least 2 and at most n.
        seed: The same seed gives the same folds.

    Returns:
        The fold of each sample (n,), from 0 to ``folds - 1``.

    >>> fold_of = stratified_folds(np.eye(2, dtype=np.uint8).repeat(10, axis=0), folds=5)
    >>> np.bincount(fold_of)
    array([4, 4, 4, 4, 4])
    """
    n = len(labels)
    if not 2 <= folds <= n:
        raise DataError(f"folds={folds} must lie between 2 and the number of samples, {n}; choose another number.")
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    positive = labels[order].astype(bool)
    wanted = np.full(folds, n / folds)
    wanted_labels = np.outer(np.full(folds, 1.0 / folds), positive.sum(0))
    remaining = positive.sum(0)
    fold_of = np.full(n, -1, dtype=np.int64)

    def assign(row: int, preference: npt.NDArray[np.float64]) -> None:
        best = np.flatnonzero(preference == preference.max())
        best = best[wanted[best] == wanted[best].max()]
        fold = int(best[0] if best.size == 1 else rng.choice(best))
        fold_of[row] = fold
        wanted[fold] -= 1
        wanted_labels[fold, positive[row]] -= 1
        remaining[positive[row]] -= 1

    while remaining.any():
        rarest = int(np.where(remaining > 0, remaining, n + 1).argmin())
        for row in np.flatnonzero(positive[:, rarest] & (fold_of < 0)):
            assign(int(row), wanted_labels[:, rarest])
    for row in np.flatnonzero(fold_of < 0):
        assign(int(row), wanted)
    result = np.empty(n, dtype=np.int64)
    result[order] = fold_of
    return result


def split(labels: npt.NDArray[np.uint8], fold: int, folds: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Return the sorted rows of the training, validation and test part of one fold.

    Fold ``fold`` is divided at random: one half validates, the other tests. With five folds this is 80/10/10.
    """
    if not 0 <= fold < folds:
        raise DataError(f"fold={fold} must lie between 0 and folds - 1 = {folds - 1}; choose another fold.")
    fold_of = stratified_folds(labels, folds, seed)
    held_out = np.flatnonzero(fold_of == fold)
    if held_out.size < 2:
        raise DataError(
            f"fold {fold} of {folds} has {held_out.size} sample(s), too few for validation and test; "
            "use fewer folds or more data."
        )
    shuffled = np.random.default_rng([seed, fold]).permutation(held_out)
    half = held_out.size // 2
    return np.flatnonzero(fold_of != fold), np.sort(shuffled[:half]), np.sort(shuffled[half:])
