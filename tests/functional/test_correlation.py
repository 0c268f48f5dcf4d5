"""Mutual information between the columns of U (Eq. 6)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import reference
import torch
from chance import counted_memory
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import mutual_info_score

from lightning_ubs.functional import correlation_of_chunks, pair_counts, uncertainty_correlation

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
        uncertainty_correlation(torch.empty(0, 3))


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
    chunked = correlation_of_chunks(lambda: torch.split(whole, rows), *whole.shape)
    assert torch.equal(chunked, correlation_of_chunks(lambda: [whole], *whole.shape))


def skewed(n: int, q: int, share: float, bin_: int = 3, seed: int = 0) -> torch.Tensor:
    """U that lies in one bin with this probability, and depends on its neighbor elsewhere."""
    rng = np.random.default_rng(seed)
    values = rng.random((n, q))
    values[:, 1:] = 0.5 * values[:, 1:] + 0.5 * values[:, :-1]
    values[rng.random((n, q)) < share] = (bin_ + 0.5) / 5
    return torch.from_numpy(values.astype(np.float32))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which way of counting was used, and with how many blocks of labels in a pass."""
    used: list[tuple[str, int]] = []
    original = pair_counts._Counter.__init__

    def made(self: Any, blocks: list[slice], panel: list[int], numbers: Any, exact: Any, way: Any) -> None:
        original(self, blocks, panel, numbers, exact, way)
        used.append((way, len(panel)))

    monkeypatch.setattr(pair_counts._Counter, "__init__", made)
    return used


WAYS = [(0.0, "product"), (0.0, "bits"), (0.9, "sparse")]


@pytest.mark.parametrize("memory", [2**28, 4 * 40_000, 0])
@pytest.mark.parametrize("labels", [64, 7, 1])
@pytest.mark.parametrize(("share", "way"), WAYS)
def test_every_way_of_counting_equals_the_reference_to_twelve_digits(
    memory: int, labels: int, share: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = counted(monkeypatch)
    monkeypatch.setattr(pair_counts, "_BIT_COLUMNS", 4096 * (way == "bits"))
    monkeypatch.setattr(pair_counts, "_BLOCK_LABELS", labels)
    monkeypatch.setattr(pair_counts, "_WORTH_MEASURING", 0)
    monkeypatch.setattr(pair_counts, "EXACT_HALF", 16)
    uncertainty = skewed(150, 16, share)
    got = correlation_of_chunks(lambda: torch.split(uncertainty, 70), 150, 16, memory=memory)
    np.testing.assert_allclose(got.numpy(), reference.correlation(uncertainty.numpy()), rtol=0, atol=1e-12)
    assert torch.equal(got, got.T)
    assert {one for one, _ in used} == {way}
    assert (len(used) > 1) == (memory == 0)


@pytest.mark.parametrize("bins", [2, 3, 4, 6, 9])
@pytest.mark.parametrize("columns", [0, 512])
def test_counts_do_not_mix_where_they_are_largest(bins: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole columns in one bin, in runs longer than two counts in one number can hold."""
    monkeypatch.setattr(pair_counts, "_BIT_COLUMNS", columns)  # by product, and by bits
    n = 2 * 4096 + 3
    values = torch.arange(2 * bins) % bins
    uncertainty = ((values + 0.5) / bins).expand(n, -1).clone()
    uncertainty[: n // 3] = uncertainty[: n // 3].flip(1)
    got = uncertainty_correlation(uncertainty, bins).numpy()
    binned = (uncertainty * bins).long().numpy()
    for a, b in [(0, 1), (0, 2 * bins - 1), (1, bins), (bins - 1, bins)]:
        assert got[a, b] == pytest.approx(mutual_info_score(binned[:, a], binned[:, b]), abs=1e-12)


@pytest.mark.parametrize("bins", [2, 9])
def test_sparse_counting_leaves_out_another_bin_for_each_label(bins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used = counted(monkeypatch)
    monkeypatch.setattr(pair_counts, "_WORTH_MEASURING", 0)
    uncertainty = torch.cat([skewed(80, 2, 0.9, bin_, bin_) for bin_ in range(5)], dim=1)
    got = uncertainty_correlation(uncertainty, bins)
    np.testing.assert_allclose(got.numpy(), reference.correlation(uncertainty.numpy(), bins), rtol=0, atol=1e-12)
    assert used == [("sparse", 1)]


@pytest.mark.parametrize("carried", [2**24 - 1, 7, 3])
@pytest.mark.parametrize(("share", "way"), WAYS)
def test_carrying_counts_over_changes_nothing(
    carried: int, share: float, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncertainty = skewed(23, 3, share)
    whole = uncertainty_correlation(uncertainty)
    monkeypatch.setattr(pair_counts, "_WORTH_MEASURING", 0)
    monkeypatch.setattr(pair_counts, "_BIT_COLUMNS", 4096 * (way == "bits"))
    # Four rows at a time, and as many before they are carried over.
    few = {
        "EXACT_HALF": 4,
        "_BIT_ROWS": 4,
        "_HOT_ROWS": 4,
        "_HOT_CELLS": 1,
        "EXACT_SINGLE": carried,
        "_SHARE": min(carried + 1, 4096),
    }
    for name, value in few.items():
        monkeypatch.setattr(pair_counts, name, value)
    torch.testing.assert_close(uncertainty_correlation(uncertainty), whole, rtol=0, atol=1e-14)


def test_memory_stays_below_its_bound_whatever_the_number_of_labels() -> None:
    n, q, memory = 200, 300, 2**20
    uncertainty = skewed(n, q, 0.2)
    with counted_memory() as peak:
        bounded = correlation_of_chunks(lambda: torch.split(uncertainty, 100), n, q, memory=memory)
    with counted_memory() as free:
        unbounded = correlation_of_chunks(lambda: torch.split(uncertainty, 100), n, q)
    torch.testing.assert_close(bounded, unbounded, rtol=0, atol=1e-12)
    own = bounded.nbytes
    assert peak.bytes - own < memory
    assert free.bytes - own > 2 * memory


def test_counts_stay_exact_where_half_precision_or_sloppy_sums_would_not() -> None:
    n = 100_003
    uncertainty = torch.zeros(n, 2)
    uncertainty[: n // 3, 0] = 1
    uncertainty[: n // 2, 1] = 1
    binned = uncertainty.numpy().astype(int)
    got = uncertainty_correlation(uncertainty)[0, 1].item()
    assert got == pytest.approx(mutual_info_score(binned[:, 0], binned[:, 1]), rel=1e-10)
