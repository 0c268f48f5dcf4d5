"""DELA: dual perspective of label-specific feature learning (Hang and Zhang, ICML 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from typing_extensions import override

from lightning_ubs.models.base import LabelHeads, LabelLinear, MultiLabelModule, kaiming_linear
from lightning_ubs.models.losses import LossName

_TEMPERATURE = 2 / 3
_NOISE_FLOOR = 0.5


def binary_concrete(logits: Tensor) -> Tensor:
    """Draw hard gates in {0, 1} with the gradient of σ((logit(u) + logits) / τ), u ~ U(0, 1), τ = 2/3."""
    tiny = torch.finfo(logits.dtype).eps
    uniform = torch.rand_like(logits).clamp(tiny, 1 - tiny)
    soft = torch.sigmoid((uniform.logit() + logits) / _TEMPERATURE)
    return soft + ((soft > 0.5).to(soft.dtype) - soft).detach()


def noise_scale(gates: Tensor) -> Tensor:
    """Return max(s, 0.5) with the gradient of s: even an informative dimension keeps half of the noise."""
    return gates + (gates.clamp(min=_NOISE_FLOOR) - gates).detach()


def perturbation_kl(mean: Tensor, logvar: Tensor, scale: Tensor) -> Tensor:
    """Mean over samples and labels of KL(N(z, (s σ)²) ‖ N(0, I)): z, logvar (b, D), scale s (q, D) → scalar.

    ½ Σ_D [−logvar − 2 log(s + 1e-6) − 1 + e^logvar s² + z²]; each term is a product of one factor per sample
    and one per label, so the two means are taken apart and nothing of size b × q × D is made.
    """
    per_sample = (mean.square() - logvar).mean(0)
    per_label = -2 * (scale + 1e-6).log().mean(0)
    return 0.5 * (per_sample + per_label - 1 + logvar.exp().mean(0) * scale.square().mean(0)).sum()


class DELA(MultiLabelModule):
    """Model that learns which latent dimensions each label can do without, by drowning those in noise while training.

    Prediction uses neither gates nor noise. ``forward`` returns probabilities.

    Args:
        num_features: Number of features, d.
        num_labels: Number of labels, q.
        latent_dim: Size of the latent space, D.
        beta: Weight of the divergence of the perturbed latent, β.
        dropout: Probability of dropping a hidden unit of the encoder.
        lr_ratio: The gates learn with this times the learning rate.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty inside Adam's gradient.
        lr_warmup_epochs: Epochs of linear learning-rate warm-up.
        loss: ``"bce"``, ``"weighted"``, ``"balanced"``, ``"focal"`` or ``"asymmetric"``, as in `MultiLabelModule`.
    """

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        latent_dim: int = 50,
        beta: float = 1e-3,
        dropout: float = 0.0,
        lr_ratio: float = 1.0,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        lr_warmup_epochs: int = 0,
        loss: LossName = "bce",
    ) -> None:
        super().__init__(
            num_features, num_labels, lr=lr, weight_decay=weight_decay, lr_warmup_epochs=lr_warmup_epochs, loss=loss
        )
        self.save_hyperparameters()
        self.beta, self.lr_ratio = beta, lr_ratio
        layers: list[nn.Module] = []
        for fan_in, fan_out in ((num_features, 256), (256, 512), (512, 256)):
            layers += [kaiming_linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(dropout)]
        self.encoder = nn.Sequential(*layers)
        self.mean = nn.Linear(256, latent_dim)
        self.logvar = nn.Linear(256, latent_dim)
        self.gate_embeddings = nn.Parameter(torch.empty(num_labels, latent_dim).uniform_(-10, 10))
        self.gate_layer = nn.Linear(latent_dim, latent_dim)
        nn.init.constant_(self.gate_layer.bias, 2.0)
        self.decoder_in = kaiming_linear(num_features + latent_dim, 256)
        self.decoder_out = kaiming_linear(256, 512, kind=LabelLinear)
        self.heads = LabelHeads(num_labels, 512)

    @override
    def loss_and_probs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return q times the mean loss over (b, q) plus β KL, and the probabilities of the noisy pass."""
        mean, logvar = self._encode(x)
        scale = noise_scale(binary_concrete(self.gate_layer(self.gate_embeddings).float()))
        noise = (logvar / 2).exp() * torch.randn_like(logvar)
        logits = self._decode(x, mean.unsqueeze(1) + scale * noise.unsqueeze(1))
        loss = self.num_labels * self.label_loss(logits, y)
        return loss + self.beta * perturbation_kl(mean, logvar, scale), torch.sigmoid(logits.detach())

    @override
    def predict_probs(self, x: Tensor) -> Tensor:
        """Return σ(head(decoder([x, z]))), (b, q), without gates and noise."""
        return torch.sigmoid(self._decode(x, self._encode(x)[0].unsqueeze(1)))

    @override
    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return two groups: the gates, at ``lr_ratio`` times the learning rate, and the rest."""
        gates = [self.gate_embeddings, *self.gate_layer.parameters()]
        known = {id(parameter) for parameter in gates}
        rest = [parameter for parameter in self.parameters() if id(parameter) not in known]
        return [{"params": rest}, {"params": gates, "lr": self.lr * self.lr_ratio}]

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return self.mean(hidden).float(), self.logvar(hidden).float()

    def _decode(self, x: Tensor, latent: Tensor) -> Tensor:
        """Return logits (b, q) of x (b, d) and latents (b, q, D), or (b, 1, D) if the labels share them."""
        # The first layer sees [x, latent]; its share of x is the same for all labels, so it is computed once.
        weight = self.decoder_in.weight
        weight_x, weight_z = weight[:, : self.num_features], weight[:, self.num_features :]
        shared = linear(x, weight_x, self.decoder_in.bias).unsqueeze(1)
        hidden = (shared + linear(latent.to(x.dtype), weight_z)).relu()
        hidden = self.decoder_out(hidden).relu()
        logits: Tensor = self.heads(hidden)
        return logits.float()
