"""Active Bias: the spread of predictions and P from it."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch

from lightning_ubs.functional import prediction_spread, proportional_probabilities

WAVERING = [0.2, 0.8, 0.3, 0.7, 0.6]
TREND = [0.2, 0.3, 0.7, 0.8, 0.6]


def test_golden_windows_that_variance_cannot_tell_apart() -> None:
    for values in (WAVERING, TREND):
        window = torch.tensor(values, dtype=torch.float64).reshape(1, 5, 1)
        assert prediction_spread(window.var(1), torch.tensor([5])).item() == pytest.approx(0.261002, abs=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
def test_spread_equals_the_reference_and_is_zero_below_two_predictions(ddof: int) -> None:
    rng = np.random.default_rng(0)
    windows = [rng.random(count) for count in (2, 3, 10)]
    variance = torch.tensor([[np.var(w, ddof=ddof)] for w in windows])
    got = prediction_spread(variance, torch.tensor([len(w) for w in windows])).flatten().tolist()
    assert got == pytest.approx([reference.spread(w, ddof) for w in windows])
    assert prediction_spread(torch.tensor([[0.5], [0.5]]), torch.tensor([0, 1])).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("scale", [1.0, 0.01])
@pytest.mark.parametrize("smoothing", [None, 0.0, 0.3])
def test_proportional_probabilities_equal_the_reference(smoothing: float | None, scale: float) -> None:
    values = scale * np.random.default_rng(2).random(11)
    got = proportional_probabilities(torch.from_numpy(values), smoothing)
    np.testing.assert_allclose(got.numpy(), reference.proportional(values, smoothing), rtol=1e-12)


def test_no_spread_at_all_is_drawn_uniformly() -> None:
    assert proportional_probabilities(torch.zeros(4)).tolist() == [0.25] * 4
