"""A plain multi-layer perceptron with one logit per label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_ubs.models.base import MultiLabelModule
from lightning_ubs.models.losses import LossName


class MLP(MultiLabelModule):
    """Linear layers with ReLU and dropout, trained with a cross-entropy: the smallest useful baseline.

    Args:
        num_features: Number of features, d.
        num_labels: Number of labels, q.
        hidden: Width of each hidden layer; empty for logistic regression.
        dropout: Probability of dropping a hidden unit.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty inside Adam's gradient.
        lr_warmup_epochs: Epochs of linear learning-rate warm-up.
        loss: ``"bce"``, ``"weighted"``, ``"balanced"``, ``"focal"`` or ``"asymmetric"``, as in `MultiLabelModule`.
    """

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.0,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        lr_warmup_epochs: int = 0,
        loss: LossName = "bce",
    ) -> None:
        super().__init__(
            num_features, num_labels, lr=lr, weight_decay=weight_decay, lr_warmup_epochs=lr_warmup_epochs, loss=loss
        )
        # A configuration library's list type would keep the checkpoint from loading with weights_only.
        hidden = [int(width) for width in hidden]
        self.save_hyperparameters()
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip([num_features, *hidden], hidden, strict=False):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(dropout)]
        self.network = nn.Sequential(*layers, nn.Linear([num_features, *hidden][-1], num_labels))

    @override
    def loss_and_probs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss over (b, q), and the probabilities."""
        logits = self.network(x).float()
        return self.label_loss(logits, y), torch.sigmoid(logits)

    @override
    def predict_probs(self, x: Tensor) -> Tensor:
        """Return the sigmoid of the logits, (b, q)."""
        return torch.sigmoid(self.network(x).float())
