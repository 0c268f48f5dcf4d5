"""MPVAE: a multivariate-probit variational autoencoder (Bai, Kong and Gomes, IJCAI 2020)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_ubs.models.base import MultiLabelModule

_MC_CHUNK = 100


def normal_cdf(x: Tensor) -> Tensor:
    """Normal CDF Φ(x), exact in the lower tail, where `torch.special.ndtr` is 0 below −5.4 and rankings would be lost.

    >>> normal_cdf(torch.tensor([-9.0, -8.0, 0.0]))
    tensor([1.1286e-19, 6.2210e-16, 5.0000e-01])
    """
    return 0.5 * torch.erfc(-x * math.sqrt(0.5))


def probit_probabilities(noise: Tensor, mean: Tensor) -> Tensor:
    """Probabilities Φ(noise + mean) kept within [0.5e-6, 1 − 0.5e-6]: noise (S, b, q), mean (b, q) → (S, b, q)."""
    return normal_cdf(noise + mean) * (1 - 1e-6) + 0.5e-6


def probit_mean(mean: Tensor, factor: Tensor) -> Tensor:
    """The limit of averaged probit draws, Φ(m_j / √(1 + Σ_k R_jk²)): mean m (b, q), factor R (q, r)."""
    return normal_cdf(mean / (1 + factor.square().sum(-1)).sqrt())


def probit_nll(probs: Tensor, y: Tensor) -> Tensor:
    """Mean over the batch of −log (1/S) Σ_s Π_j P(y_j): probs (S, b, q), y (b, q) of 0 and 1 → scalar."""
    log_likelihood = torch.where(y > 0.5, probs, 1 - probs).log().sum(-1)
    return (math.log(len(probs)) - log_likelihood.logsumexp(0)).mean()


def pairwise_ranking(probs: Tensor, y: Tensor) -> Tensor:
    """Mean over s and the batch of Σ_{i∈Y⁺,k∈Y⁻} e^{−5(E_i − E_k)} / (5 |Y⁺||Y⁻|); 0 where a side is empty.

    The sum over pairs is the product of two sums, so nothing of size q × q is made.
    """
    relevant = y > 0.5
    grown = torch.where(relevant, -5 * probs, 5 * probs).exp()
    pair_sum = (grown * relevant).sum(-1) * (grown * ~relevant).sum(-1)
    pairs = relevant.sum(-1) * (~relevant).sum(-1)
    return (pair_sum / (5 * pairs.clamp(min=1))).mean()


def gaussian_kl(mean_e: Tensor, logvar_e: Tensor, mean_x: Tensor, logvar_x: Tensor) -> Tensor:
    """Mean over the batch of KL(N(mean_e, e^logvar_e) ‖ N(mean_x, e^logvar_x)), all (b, L) → scalar."""
    terms = (logvar_x - logvar_e) - 1 + (logvar_e - logvar_x).exp() + (mean_x - mean_e) ** 2 / (logvar_x.exp() + 1e-6)
    return 0.5 * terms.sum(-1).mean()


class _Encoder(nn.Module):
    """Fully connected layers with ReLU and dropout, then a mean and a log-variance."""

    def __init__(self, widths: list[int], latent_dim: int, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(dropout)]
        self.body = nn.Sequential(*layers)
        self.mean = nn.Linear(widths[-1], latent_dim)
        self.logvar = nn.Linear(widths[-1], latent_dim)

    @override
    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(inputs)
        return self.mean(hidden).float(), self.logvar(hidden).float()


class MPVAE(MultiLabelModule):
    """Two encoders, of (x, y) and of x, share a latent space; a probit with one covariance decodes it.

    Training decodes both branches. Prediction, and the probabilities handed to batch selection, use the
    branch of x alone. ``forward`` returns probabilities.

    Args:
        num_features: Number of features, d.
        num_labels: Number of labels, q.
        latent_dim: Size of the latent space, L.
        rank: Columns of the covariance factor R (q, rank); None for q.
        samples: Probit draws per sample in training, S.
        nll_weight: Weight of the reconstruction, λ1.
        ranking_weight: Weight of the ranking loss, λ2.
        kl_weight: Weight of the divergence between the two branches.
        l2: Half this times the squared weight matrices (not biases, not R) is added to the loss.
        dropout: Probability of dropping a hidden unit of the encoders.
        eval_prob: ``"closed_form"``, the exact mean Φ(m_j / √(1 + Σ_k R_jk²)), or ``"mc"``, its estimate.
        eval_latent: ``"sample"``, one seeded draw of the latent per row of the batch as in the original, or
            ``"mean"``, with which a prediction depends on x alone.
        eval_samples: Draws of the ``"mc"`` estimate.
        eval_seed: Seed of the draws in evaluation; every call starts from it, so that predictions repeat.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty inside Adam's gradient.
        lr_warmup_epochs: Epochs of linear learning-rate warm-up.
        loss: Has no choice here: there is no cross-entropy to weigh.
    """

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        latent_dim: int = 50,
        rank: int | None = None,
        samples: int = 100,
        nll_weight: float = 0.1,
        ranking_weight: float = 200.0,
        kl_weight: float = 1.1,
        l2: float = 1e-5,
        dropout: float = 0.5,
        eval_prob: Literal["closed_form", "mc"] = "closed_form",
        eval_latent: Literal["sample", "mean"] = "sample",
        eval_samples: int = 10_000,
        eval_seed: int = 0,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        lr_warmup_epochs: int = 0,
        loss: None = None,
    ) -> None:
        if loss is not None:
            raise ValueError(
                f"loss={loss!r} does not fit MPVAE, whose likelihood is a multivariate probit without a cross-entropy; "
                "leave loss out, or choose mlp, clif or dela."
            )
        super().__init__(num_features, num_labels, lr=lr, weight_decay=weight_decay, lr_warmup_epochs=lr_warmup_epochs)
        for name, value, allowed in (
            ("eval_prob", eval_prob, ("closed_form", "mc")),
            ("eval_latent", eval_latent, ("sample", "mean")),
        ):
            if value not in allowed:
                raise ValueError(f"{name} must be one of {allowed}, got {value!r}; choose one of them.")
        self.save_hyperparameters()
        rank = num_labels if rank is None else rank
        self.samples, self.eval_samples, self.eval_seed = samples, eval_samples, eval_seed
        self.nll_weight, self.ranking_weight, self.kl_weight, self.l2 = (
            nll_weight,
            ranking_weight,
            kl_weight,
            l2,
        )
        self.eval_prob, self.eval_latent = eval_prob, eval_latent

        self.label_encoder = _Encoder([num_features + num_labels, 512, 256], latent_dim, dropout)
        self.feature_encoder = _Encoder([num_features, 256, 512, 256], latent_dim, dropout)
        self.decoder = nn.Sequential(
            nn.Linear(num_features + latent_dim, 256), nn.ReLU(), nn.Linear(256, 512), nn.ReLU()
        )
        self.label_head = nn.Linear(512, num_labels)
        self.feature_head = nn.Linear(512, num_labels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        self.covariance_factor = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_labels, rank)))

    @override
    def loss_and_probs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return λ1 (NLL_e + NLL_x) + λ2 (Rank_e + Rank_x) + 1.1 KL + L2, and branch x's probabilities."""
        mean_e, logvar_e = self.label_encoder(torch.cat([x, y.to(x.dtype)], -1))
        mean_x, logvar_x = self.feature_encoder(x)
        # One draw serves both branches, so that they differ by their encoders alone.
        epsilon = torch.randn_like(mean_x)
        probit_e = self.label_head(self._decode(x, mean_e, logvar_e, epsilon)).float()
        probit_x = self.feature_head(self._decode(x, mean_x, logvar_x, epsilon)).float()
        with torch.autocast(x.device.type, enabled=False):
            noise = self._probit_noise(probit_x.new_empty(self.samples, len(x), self._rank).normal_())
            probs_e = probit_probabilities(noise, probit_e)
            probs_x = probit_probabilities(noise, probit_x)
            loss = (
                self.nll_weight * (probit_nll(probs_e, y) + probit_nll(probs_x, y))
                + self.ranking_weight * (pairwise_ranking(probs_e, y) + pairwise_ranking(probs_x, y))
                + self.kl_weight * gaussian_kl(mean_e, logvar_e, mean_x, logvar_x)
            )
            if self.l2:
                loss = loss + self.l2 * self._half_squared_weights()
        return loss, probs_x.detach().mean(0)

    @override
    def predict_probs(self, x: Tensor) -> Tensor:
        """Return the probabilities (b, q) of the feature branch."""
        generator = torch.Generator(x.device).manual_seed(self.eval_seed)
        mean, logvar = self.feature_encoder(x)
        if self.eval_latent == "sample":
            epsilon = torch.empty_like(mean).normal_(generator=generator)
        else:
            epsilon = torch.zeros_like(mean)
        probit = self.feature_head(self._decode(x, mean, logvar, epsilon)).float()
        with torch.autocast(x.device.type, enabled=False):
            if self.eval_prob == "closed_form":
                return probit_mean(probit, self.covariance_factor.float())
            return self._monte_carlo(probit, generator)

    @property
    def _rank(self) -> int:
        return self.covariance_factor.shape[1]

    def _decode(self, x: Tensor, mean: Tensor, logvar: Tensor, epsilon: Tensor) -> Tensor:
        latent = mean + (logvar / 2).exp() * epsilon
        hidden: Tensor = self.decoder(torch.cat([x, latent.to(x.dtype)], -1))
        return hidden

    def _probit_noise(self, normal: Tensor) -> Tensor:
        return normal @ self.covariance_factor.float().T

    def _monte_carlo(self, probit: Tensor, generator: torch.Generator) -> Tensor:
        total = torch.zeros_like(probit)
        for start in range(0, self.eval_samples, _MC_CHUNK):
            draws = min(_MC_CHUNK, self.eval_samples - start)
            normal = probit.new_empty(draws, len(probit), self._rank).normal_(generator=generator)
            total = total + probit_probabilities(self._probit_noise(normal), probit).sum(0)
        return total / self.eval_samples

    def _half_squared_weights(self) -> Tensor:
        layers = (module for module in self.modules() if isinstance(module, nn.Linear))
        return 0.5 * torch.stack([layer.weight.square().sum() for layer in layers]).sum()
