"""MPVAE against hand values, naive loops, and its own Monte-Carlo limit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_ubs.models import MPVAE
from lightning_ubs.models.mpvae import (
    gaussian_kl,
    normal_cdf,
    pairwise_ranking,
    probit_mean,
    probit_nll,
    probit_probabilities,
)


def naive_ranking(probs: Tensor, y: Tensor) -> float:
    samples, rows, labels = probs.shape
    total = 0.0
    for s in range(samples):
        for b in range(rows):
            relevant = [i for i in range(labels) if y[b, i] == 1]
            rest = [k for k in range(labels) if y[b, k] == 0]
            pairs = [math.exp(-5 * float(probs[s, b, i] - probs[s, b, k])) for i in relevant for k in rest]
            total += sum(pairs) / (5 * len(pairs)) if pairs else 0.0
    return total / (samples * rows)


def naive_nll(probs: Tensor, y: Tensor) -> float:
    likelihood = (probs.double() ** y * (1 - probs.double()) ** (1 - y)).prod(-1)
    return float(-likelihood.mean(0).log().mean())


def test_hand_values_of_both_losses() -> None:
    probs = probit_probabilities(torch.zeros(1, 1, 2), torch.tensor([[1.0, -1.0]]))
    y = torch.tensor([[1.0, 0.0]])
    assert probs[0, 0].tolist() == pytest.approx([0.841344, 0.158656], abs=2e-6)
    assert float(probit_nll(probs, y)) == pytest.approx(0.345508, abs=2e-6)
    assert float(pairwise_ranking(probs, y)) == pytest.approx(0.006586, abs=1e-6)


def test_hand_values_of_the_divergence() -> None:
    zero = torch.zeros(1, 1)
    assert float(gaussian_kl(zero + 1, zero, zero, zero)) == pytest.approx(0.5, abs=1e-6)
    assert float(gaussian_kl(zero, zero + math.log(4), zero, zero)) == pytest.approx(0.806853, abs=1e-6)


def test_divergence_is_torchs_own() -> None:
    torch.manual_seed(0)
    mean_e, logvar_e, mean_x, logvar_x = torch.randn(4, 6, 3)
    left = torch.distributions.Normal(mean_e, (logvar_e / 2).exp())
    right = torch.distributions.Normal(mean_x, (logvar_x / 2).exp())
    expected = torch.distributions.kl_divergence(left, right).sum(-1).mean()
    assert torch.allclose(gaussian_kl(mean_e, logvar_e, mean_x, logvar_x), expected, rtol=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_factorized_losses_equal_the_naive_ones(seed: int, samples: int, rows: int, labels: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    probs = torch.rand(samples, rows, labels, generator=generator)
    y = (torch.rand(rows, labels, generator=generator) < 0.5).float()
    assert float(pairwise_ranking(probs, y)) == pytest.approx(naive_ranking(probs, y), rel=1e-4, abs=1e-7)
    assert float(probit_nll(probs, y)) == pytest.approx(naive_nll(probs, y), rel=1e-4, abs=1e-5)


def test_saturated_probits_and_empty_label_sets_keep_gradients_finite() -> None:
    mean = torch.tensor([[40.0, -40.0, 40.0], [-40.0, 40.0, 0.0]], requires_grad=True)
    for y in (torch.zeros(2, 3), torch.ones(2, 3), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])):
        probs = probit_probabilities(torch.zeros(5, 2, 3), mean)
        loss = probit_nll(probs, y) + pairwise_ranking(probs, y)
        (gradient,) = torch.autograd.grad(loss, mean)
        assert loss.isfinite()
        assert gradient.isfinite().all()


def test_closed_form_is_the_limit_of_the_draws() -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 4)
    model = MPVAE(4, 3, eval_prob="mc", eval_samples=40_000).eval()
    nn.init.normal_(model.covariance_factor)
    with torch.no_grad():
        drawn = model(x)
        model.eval_prob = "closed_form"
        exact = model(x)
    assert (drawn - exact).abs().max() < 0.01
    assert not torch.equal(drawn, exact)


def test_unlikely_labels_keep_their_order() -> None:
    probit = torch.linspace(-12, 4, 200)
    assert (normal_cdf(probit).diff() > 0).all()
    assert torch.allclose(normal_cdf(probit).double(), torch.special.log_ndtr(probit.double()).exp(), rtol=2e-5, atol=0)


def test_closed_form_is_the_probability_of_a_positive_latent() -> None:
    factor, mean = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.3]])
    expected = torch.distributions.Normal(0.0, math.sqrt(26)).cdf(mean)
    assert torch.allclose(probit_mean(mean, factor), expected)


def test_evaluation_latent_is_a_seeded_draw_or_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 4)
    model = MPVAE(4, 3).eval()
    with torch.no_grad():
        state = torch.get_rng_state()
        drawn = model(x)
        assert torch.equal(state, torch.get_rng_state())
        model.eval_seed = 1
        assert not torch.equal(drawn, model(x))
        model.eval_latent = "mean"
        expected = model.feature_head(model.decoder(torch.cat([x, model.feature_encoder(x)[0]], -1)))
        assert torch.allclose(model(x), probit_mean(expected, model.covariance_factor))


def test_training_loss_is_the_weighted_sum_of_its_parts() -> None:
    x, y = torch.rand(5, 4), torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 1]])
    torch.manual_seed(0)
    model = MPVAE(4, 3, nll_weight=0.7, ranking_weight=3.0, dropout=0.0)
    torch.manual_seed(1)
    loss, probs = model.loss_and_probs(x, y)
    torch.manual_seed(1)
    mean_e, logvar_e = model.label_encoder(torch.cat([x, y], -1))
    mean_x, logvar_x = model.feature_encoder(x)
    epsilon, noise = torch.randn(5, 50), torch.randn(100, 5, 3) @ model.covariance_factor.T
    branch = {}
    for key, mean, logvar, head in (
        ("e", mean_e, logvar_e, model.label_head),
        ("x", mean_x, logvar_x, model.feature_head),
    ):
        latent = mean + (logvar / 2).exp() * epsilon
        branch[key] = torch.special.ndtr(noise + head(model.decoder(torch.cat([x, latent], -1))))
    expected = 0.7 * (naive_nll(branch["e"], y) + naive_nll(branch["x"], y))
    expected += 3.0 * (naive_ranking(branch["e"], y) + naive_ranking(branch["x"], y))
    expected += 1.1 * float(gaussian_kl(mean_e, logvar_e, mean_x, logvar_x))
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    expected += 1e-5 * sum(float(weight.square().sum()) for weight in weights) / 2
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(probs, branch["x"].mean(0), atol=1e-5)


def test_layers_and_initial_values_are_the_originals() -> None:
    torch.manual_seed(0)
    model = MPVAE(30, 8)
    shapes = {key: tuple(value.shape) for key, value in model.named_parameters() if key.endswith("weight")}
    assert list(shapes.values()) == [
        (512, 38), (256, 512), (50, 256), (50, 256),
        (256, 30), (512, 256), (256, 512), (50, 256), (50, 256),
        (256, 80), (512, 256), (8, 512), (8, 512),
    ]  # fmt: skip
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert (module.bias == 0).all()
    bound = math.sqrt(6 / 16)
    assert 0.8 * bound < model.covariance_factor.abs().max() <= bound
    assert model.covariance_factor.shape == (8, 8)
    assert MPVAE(30, 8, rank=2).covariance_factor.shape == (8, 2)


def test_no_tensor_of_labels_by_labels_per_draw_is_made() -> None:
    model = MPVAE(4, 60, samples=20)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model.loss_and_probs(torch.rand(8, 4), (torch.rand(8, 60) < 0.5).float())[0].backward()
    assert max(sizes) <= max(20 * 8 * 60, max(p.numel() for p in model.parameters()))


def test_unknown_evaluation_modes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"eval_prob.*'exact'"):
        MPVAE(4, 3, eval_prob="exact")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"eval_latent.*'mode'"):
        MPVAE(4, 3, eval_latent="mode")  # type: ignore[arg-type]
