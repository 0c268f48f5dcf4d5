"""Recency Bias: the entropy of recent yes/no predictions."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_ubs.functional import recency_entropy

WAVERING = [0.2, 0.8, 0.3, 0.7, 0.6]
TREND = [0.2, 0.3, 0.7, 0.8, 0.6]


def test_golden_windows_that_recency_entropy_cannot_tell_apart() -> None:
    for values in (WAVERING, TREND):
        window = torch.tensor(values, dtype=torch.float64).reshape(1, 5, 1)
        assert recency_entropy(window, torch.tensor([5])).item() == pytest.approx(0.970951, abs=1e-6)


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


@pytest.mark.parametrize("count", range(1, 12))
def test_as_many_yes_as_no_turned_round_is_exactly_as_uncertain(count: int) -> None:
    for yes in range(count + 1):
        window = (torch.arange(count) < yes).float().reshape(1, count, 1)
        assert torch.equal(*(recency_entropy(one, torch.tensor([count])) for one in (window, 1 - window)))
