from __future__ import annotations

import numpy as np
import pytest
from data_test_files import PUBLISHED, needs_published
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from iterstrat.ml_stratifiers import MultilabelStratifiedKFold

from lightning_ubs.data import DataError, load, make_digits, make_synthetic, stratified_folds
from lightning_ubs.data.folds import split


def label_deviation(labels, fold_of, folds):
    """Mean over labels and folds of |share of positives in the fold - share in all|."""
    overall = labels.mean(0)
    return np.mean([np.abs(labels[fold_of == fold].mean(0) - overall).mean() for fold in range(folds)])


def reference_folds(labels, folds, seed):
    fold_of = np.empty(len(labels), dtype=int)
    splitter = MultilabelStratifiedKFold(folds, shuffle=True, random_state=seed)
    for fold, (_, held_out) in enumerate(splitter.split(np.zeros((len(labels), 1)), labels)):
        fold_of[held_out] = fold
    return fold_of


def as_even_as_the_reference(labels):
    """Compare means over seeds; the deviation of one seed scatters by a third."""
    seeds = range(8)
    ours = np.mean([label_deviation(labels, stratified_folds(labels, 5, seed), 5) for seed in seeds])
    theirs = np.mean([label_deviation(labels, reference_folds(labels, 5, seed), 5) for seed in seeds])
    shuffled = np.random.default_rng(0).integers(0, 5, len(labels))
    return ours <= 1.3 * theirs and ours < 0.8 * label_deviation(labels, shuffled, 5)


@pytest.mark.parametrize("make", [make_digits, make_synthetic])
def test_labels_are_spread_as_evenly_as_by_an_independent_implementation(make):
    assert as_even_as_the_reference(make().Y)


@needs_published
@pytest.mark.parametrize("name", ["yeast", "scene", "emotions", "cal500"])
def test_labels_of_published_data_are_spread_as_evenly_as_by_an_independent_implementation(name):
    assert as_even_as_the_reference(load(name, PUBLISHED).Y)


LABELS = hnp.arrays(np.uint8, st.tuples(st.integers(12, 40), st.integers(1, 6)), elements=st.integers(0, 1))


@given(labels=LABELS, folds=st.integers(2, 6), seed=st.integers(0, 2**32))
def test_folds_partition_the_samples_whatever_the_labels(labels, folds, seed):
    fold_of = stratified_folds(labels, folds, seed)
    assert fold_of.shape == (len(labels),)
    assert set(fold_of) <= set(range(folds))
    np.testing.assert_array_equal(fold_of, stratified_folds(labels, folds, seed))
    positives = np.stack([labels[fold_of == fold].sum(0) for fold in range(folds)])
    rarest = labels.sum(0).astype(int)
    if labels.any():
        first = int(np.where(rarest > 0, rarest, 10**6).argmin())
        assert np.ptp(positives[:, first].astype(int)) <= 1


def test_samples_without_labels_fill_the_folds_evenly():
    fold_of = stratified_folds(np.zeros((100, 3), dtype=np.uint8), 5, 0)
    assert np.bincount(fold_of).tolist() == [20] * 5


def test_another_seed_gives_other_folds():
    labels = make_synthetic().Y
    assert (stratified_folds(labels, 5, 0) != stratified_folds(labels, 5, 1)).any()


def test_label_rarer_than_the_folds_is_spread_over_as_many_folds_as_it_has_positives():
    labels = np.zeros((50, 2), dtype=np.uint8)
    labels[:3, 0] = labels[::2, 1] = 1
    fold_of = stratified_folds(labels, 5, 0)
    assert len(set(fold_of[:3])) == 3


def test_the_parts_of_a_fold_are_80_10_10_and_the_test_parts_with_validation_cover_all():
    labels = make_synthetic(1000).Y
    seen = []
    for fold in range(5):
        train, val, test = split(labels, fold, 5, 42)
        assert sorted(np.concatenate([train, val, test])) == list(range(1000))
        assert abs(len(train) - 800) <= 20
        assert abs(len(val) - len(test)) <= 1
        seen += [*val, *test]
    assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize(("folds", "fold"), [(1, 0), (21, 0), (5, 5), (5, -1), (20, 0)])
def test_impossible_folds_are_refused(folds, fold):
    with pytest.raises(DataError, match="fold"):
        split(np.ones((20, 1), dtype=np.uint8), fold, folds, 0)
