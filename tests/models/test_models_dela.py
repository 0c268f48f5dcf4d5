"""DELA against hand values and the naive form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lightning_ubs.models import DELA
from lightning_ubs.models.dela import binary_concrete, noise_scale, perturbation_kl


def test_hand_values_of_the_divergence() -> None:
    zero = torch.zeros(1, 1)
    assert float(perturbation_kl(zero, zero, zero + 1)) == pytest.approx(0, abs=2e-6)
    assert float(perturbation_kl(zero, zero, zero + 0.5)) == pytest.approx(0.318145, abs=3e-6)


def test_divergence_equals_the_naive_mean_over_samples_and_labels() -> None:
    torch.manual_seed(0)
    mean, logvar, scale = torch.randn(5, 3), torch.randn(5, 3), torch.rand(4, 3) + 0.1
    total = 0.0
    for i in range(5):
        for j in range(4):
            noisy = torch.distributions.Normal(mean[i], scale[j] * (logvar[i] / 2).exp())
            total += float(torch.distributions.kl_divergence(noisy, torch.distributions.Normal(0.0, 1.0)).sum())
    assert float(perturbation_kl(mean, logvar, scale)) == pytest.approx(total / 20, rel=1e-4)


def test_gates_are_hard_and_their_gradient_is_the_soft_one() -> None:
    logits = torch.randn(40, 7, requires_grad=True)
    torch.manual_seed(4)
    gates = binary_concrete(logits)
    torch.manual_seed(4)
    uniform = torch.rand(40, 7)
    soft = torch.sigmoid((uniform.log() - (1 - uniform).log() + logits) / (2 / 3))
    assert torch.allclose(gates, (soft > 0.5).float())
    (hard_gradient,) = torch.autograd.grad(gates.sum(), logits)
    (soft_gradient,) = torch.autograd.grad(soft.sum(), logits)
    assert torch.allclose(hard_gradient, soft_gradient, rtol=1e-3, atol=1e-6)


def test_open_gates_are_as_frequent_as_their_logits_say() -> None:
    torch.manual_seed(0)
    share = binary_concrete(torch.full((20_000,), 2.0)).mean()
    assert float(share) == pytest.approx(1 / (1 + math.exp(-2)), abs=0.01)


def test_noise_floor_is_one_half_and_lets_gradients_through() -> None:
    gates = torch.tensor([0.0, 1.0], requires_grad=True)
    scale = noise_scale(gates)
    assert scale.tolist() == [0.5, 1.0]
    assert torch.autograd.grad(scale.sum(), gates)[0].tolist() == [1.0, 1.0]


def test_training_pass_equals_the_naive_form() -> None:
    torch.manual_seed(0)
    model = DELA(6, 4, latent_dim=5, beta=0.3)
    x, y = torch.rand(3, 6), (torch.rand(3, 4) < 0.5).float()
    torch.manual_seed(1)
    loss, probs = model.loss_and_probs(x, y)
    torch.manual_seed(1)
    scale = binary_concrete(model.gate_layer(model.gate_embeddings)).clamp(min=0.5)
    hidden = model.encoder(x)
    mean, logvar = model.mean(hidden), model.logvar(hidden)
    noise = torch.randn(3, 5)
    logits = torch.empty(3, 4)
    for i in range(3):
        for j in range(4):
            latent = mean[i] + scale[j] * (logvar[i] / 2).exp() * noise[i]
            first = model.decoder_in(torch.cat([x[i], latent])).relu()
            second = model.decoder_out(first).relu()
            logits[i, j] = second @ model.heads.weight[j] + model.heads.bias[j]
    assert torch.allclose(probs, torch.sigmoid(logits), atol=1e-5)
    expected = 4 * binary_cross_entropy_with_logits(logits, y) + 0.3 * perturbation_kl(mean, logvar, scale)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_prediction_uses_neither_gates_nor_noise() -> None:
    torch.manual_seed(0)
    model = DELA(6, 4, latent_dim=5).eval()
    x = torch.rand(3, 6)
    latent = model.mean(model.encoder(x))
    features = model.decoder_out(model.decoder_in(torch.cat([x, latent], -1)).relu()).relu()
    expected = torch.sigmoid(features @ model.heads.weight.T + model.heads.bias)
    with torch.no_grad():
        assert torch.allclose(model(x), expected, atol=1e-5)
        model.gate_embeddings.zero_()
        assert torch.allclose(model(x), expected, atol=1e-5)


def test_layers_and_initial_values_are_the_originals() -> None:
    torch.manual_seed(0)
    model = DELA(30, 8, dropout=0.7)
    assert [tuple(m.weight.shape) for m in model.encoder if isinstance(m, nn.Linear)] == [
        (256, 30),
        (512, 256),
        (256, 512),
    ]
    assert [m.p for m in model.encoder if isinstance(m, nn.Dropout)] == [0.7] * 3
    assert model.decoder_in.weight.shape == (256, 80)
    assert model.decoder_out.weight.shape == (512, 256)
    linear = [m for m in model.encoder if isinstance(m, nn.Linear)] + [model.decoder_in, model.decoder_out]
    for layer in linear:
        bound = math.sqrt(6 / layer.in_features)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.min() >= 0
        assert 0.08 < layer.bias.max() <= 0.1
    assert 9 < model.gate_embeddings.abs().max() <= 10
    assert model.gate_embeddings.min() < -9
    assert (model.gate_layer.bias == 2).all()
    for layer, fan_in in ((model.mean, 256), (model.logvar, 256), (model.gate_layer, 50), (model.heads, 512)):
        assert 0.9 / math.sqrt(fan_in) < layer.weight.abs().max() <= 1 / math.sqrt(fan_in)


def test_gates_learn_at_their_own_rate() -> None:
    model = DELA(6, 4, lr=0.01, lr_ratio=0.1)
    optimizer = model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Adam)
    rest, gates = optimizer.param_groups
    assert (rest["lr"], gates["lr"]) == (0.01, 0.001)
    expected = {id(model.gate_embeddings), id(model.gate_layer.weight), id(model.gate_layer.bias)}
    assert {id(parameter) for parameter in gates["params"]} == expected
    assert len(rest["params"]) + len(gates["params"]) == len(list(model.parameters()))
