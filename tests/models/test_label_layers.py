"""Layers of each label's own features, against the plain form."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from lightning_ubs.models import base
from lightning_ubs.models.base import LabelLinear


@pytest.mark.parametrize("shape", [(6, 4, 10), (6, 1, 10), (1, 4, 10), (1, 1, 10), (0, 4, 10), (6, 10)])
def test_a_layer_of_labels_and_its_gradients_equal_a_linear_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = LabelLinear(10, 7).double()
    features = torch.randn(shape, dtype=torch.double, requires_grad=True)
    inputs = (features, layer.weight, layer.bias)
    out, expected = layer(features), linear(*inputs)
    direction = torch.randn_like(expected)
    assert torch.allclose(out, expected)
    for found, wanted in zip(
        torch.autograd.grad(out, inputs, direction), torch.autograd.grad(expected, inputs, direction), strict=True
    ):
        assert torch.allclose(found, wanted)


def test_single_precision_is_as_exact_as_a_linear_layer() -> None:
    torch.manual_seed(0)
    layer, features = LabelLinear(512, 512), torch.randn(32, 14, 512)
    exact = linear(features.double(), layer.weight.double(), layer.bias.double())
    errors = [(out - exact).abs().max() for out in (layer(features), nn.Linear.forward(layer, features))]
    assert errors[0] < 2 * errors[1]


def test_a_non_contiguous_input_is_read_as_it_is_indexed() -> None:
    layer, features = LabelLinear(10, 7), torch.randn(4, 6, 10).transpose(0, 1)
    assert torch.allclose(layer(features), layer(features.contiguous()), atol=1e-6)


def test_without_its_libraries_it_is_a_linear_layer_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_MKL_AND_ONEDNN", False)
    layer, features = LabelLinear(10, 7), torch.randn(4, 6, 10)
    assert torch.equal(layer(features), linear(features, layer.weight, layer.bias))


def test_a_state_of_a_linear_layer_fits() -> None:
    layer, plain = LabelLinear(10, 7), nn.Linear(10, 7)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weight, plain.weight)
