"""Mutual information between the columns of U (Eq. 6)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import mutual_info_score

from lightning_ubs.functional import correlation, correlation_of_chunks, uncertainty_correlation

GOLDEN = torch.tensor([[0.05, 0.15], [0.55, 0.65], [0.45, 0.85], [0.95, 0.95]])

matrices = st.tuples(st.integers(1, 40), st.integers(1, 5)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32))
)


def test_golden_matrix_is_ln_2_or_one_bit() -> None:
    assert uncertainty_correlation(GOLDEN)[0, 1].item() == pytest.approx(0.693147, abs=1e-6)
    assert uncertainty_correlation(GOLDEN, log_base=2)[1, 0].item() == pytest.approx(1.0)
    binned = [[reference.bin_of(value, 5) for value in row] for row in GOLDEN.tolist()]
    assert binned == [[0, 0], [2, 3], [2, 4], [4, 4]]


def test_three_identical_uniform_columns_are_not_positive_definite() -> None:
    column = (torch.arange(50) % 5).double() / 5 + 0.1
    matrix = uncertainty_correlation(column.unsqueeze(1).expand(-1, 3))
    assert torch.linalg.eigvalsh(matrix).tolist() == pytest.approx([-0.609438, -0.609438, 4.218876], abs=1e-5)


@pytest.mark.parametrize("bins", [2, 3, 5, 10])
@pytest.mark.parametrize("base", [math.e, 2.0, 5.0])
def test_equals_the_reference(bins: int, base: float) -> None:
    rng = np.random.default_rng(bins)
    shared = rng.random((60, 1))
    uncertainty = (0.6 * shared + 0.4 * rng.random((60, 4))).astype(np.float32)
    got = uncertainty_correlation(torch.from_numpy(uncertainty), bins, base).numpy()
    np.testing.assert_allclose(got, reference.correlation(uncertainty, bins, base), atol=1e-9)


@pytest.mark.parametrize("bins", [2, 5, 8])
def test_equals_scikit_learn(bins: int) -> None:
    rng = np.random.default_rng(7)
    uncertainty = rng.beta(0.5, 0.5, (500, 4)).astype(np.float32)
    uncertainty[:, 3] = np.clip(uncertainty[:, 0] + 0.1 * rng.random(500), 0, 1)
    binned = np.minimum((uncertainty * bins).astype(int), bins - 1)
    got = uncertainty_correlation(torch.from_numpy(uncertainty), bins)
    for a in range(4):
        for b in range(4):
            expected = 1.0 if a == b else mutual_info_score(binned[:, a], binned[:, b])
            assert got[a, b].item() == pytest.approx(expected, abs=1e-9)


def test_zero_and_one_fall_into_the_first_and_the_closed_last_bin() -> None:
    ends = torch.tensor([[0.0, 0.1], [1.0, 0.9]])
    assert uncertainty_correlation(ends)[0, 1].item() == pytest.approx(math.log(2))


def test_one_sample_or_one_label_gives_a_unit_diagonal_and_no_correlation() -> None:
    assert uncertainty_correlation(torch.rand(1, 3)).tolist() == torch.eye(3).tolist()
    assert uncertainty_correlation(torch.rand(9, 1)).tolist() == [[1.0]]


def test_constant_columns_share_nothing() -> None:
    assert uncertainty_correlation(torch.full((30, 2), 0.3)).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_no_samples_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        correlation_of_chunks([])


@given(matrices, st.integers(2, 7))
def test_is_symmetric_with_unit_diagonal_and_never_negative(uncertainty: np.ndarray, bins: int) -> None:
    matrix = uncertainty_correlation(torch.from_numpy(uncertainty), bins)
    assert torch.equal(matrix, matrix.T)
    assert (matrix.diagonal() == 1).all()
    assert (matrix >= 0).all()
    assert torch.isfinite(matrix).all()


@given(matrices, st.integers(0, 2**31))
def test_permuting_samples_changes_nothing_and_permuting_labels_permutes(uncertainty: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, q = uncertainty.shape
    samples, labels = rng.permutation(n), rng.permutation(q)
    whole = uncertainty_correlation(torch.from_numpy(uncertainty))
    assert torch.allclose(uncertainty_correlation(torch.from_numpy(uncertainty[samples])), whole)
    permuted = uncertainty_correlation(torch.from_numpy(uncertainty[:, labels]))
    assert torch.allclose(permuted, whole[labels][:, labels])


@given(matrices, st.integers(1, 50))
def test_chunking_does_not_change_a_bit(uncertainty: np.ndarray, rows: int) -> None:
    whole = torch.from_numpy(uncertainty)
    chunked = correlation_of_chunks(torch.split(whole, rows))
    assert torch.equal(chunked, correlation_of_chunks([whole]))


@pytest.mark.parametrize("carried", [2**24, 7, 5])
def test_a_set_that_does_not_fill_its_last_block_is_counted_whole(
    carried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncertainty = torch.rand(23, 3, generator=torch.Generator().manual_seed(0))
    whole = uncertainty_correlation(uncertainty)
    monkeypatch.setattr(correlation, "_BLOCK_ROWS", 1)
    monkeypatch.setattr(correlation, "_BLOCK_CELLS", 3 * 4 * 5)  # five rows at a time
    monkeypatch.setattr(correlation, "_EXACT_COUNT", carried)
    assert torch.equal(uncertainty_correlation(uncertainty), whole)


def test_counts_stay_exact_where_half_precision_or_sloppy_sums_would_not() -> None:
    n = 100_003
    uncertainty = torch.zeros(n, 2)
    uncertainty[: n // 3, 0] = 1
    uncertainty[: n // 2, 1] = 1
    binned = uncertainty.numpy().astype(int)
    got = uncertainty_correlation(uncertainty)[0, 1].item()
    assert got == pytest.approx(mutual_info_score(binned[:, 0], binned[:, 1]), rel=1e-10)
