"""CLIF: label semantics and label-specific features learned together (Hang and Zhang, TPAMI 2022)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu
from typing_extensions import override

from lightning_ubs.models.base import LabelHeads, LabelLinear, MultiLabelModule, kaiming_linear, training_labels
from lightning_ubs.models.losses import LossName

_SLOPE = 0.1


def label_graph(labels: Tensor) -> Tensor:
    """Return the adjacency A_ij = ½ (N_ij / N_i + N_ij / N_j), A_ii = 0, of labels (n, q) → (q, q).

    N_ij counts the samples that carry both labels, N_i those that carry i.

    >>> label_graph(torch.tensor([[1, 1], [1, 0], [0, 1], [0, 1]]))
    tensor([[0.0000, 0.4167],
            [0.4167, 0.0000]])
    """
    labels = labels.double()
    together = labels.T @ labels
    share = together / together.diagonal().clamp(min=1e-6)
    return ((share + share.T) / 2).fill_diagonal_(0).float()


def link_loss(embeddings: Tensor, adjacency: Tensor) -> Tensor:
    """Return (1/q²) Σ_ij ((A + I)_ij − cos(G_i, G_j))² of embeddings G (q, c) and adjacency A (q, q)."""
    unit = embeddings / (embeddings.norm(dim=-1, keepdim=True) + 1e-6)
    target = adjacency + torch.eye(len(adjacency), device=adjacency.device)
    loss: Tensor = (target - unit @ unit.T).square().mean()
    return loss


class _GINLayer(nn.Module):
    """H' = MLP((1 + ε) H + A H), plus H where the sizes agree; batch normalization runs over the labels."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        middle = math.ceil(fan_out / 2)
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.residual = fan_in == fan_out
        self.mlp = nn.Sequential(
            kaiming_linear(fan_in, middle, _SLOPE),
            nn.BatchNorm1d(middle),
            nn.LeakyReLU(_SLOPE),
            kaiming_linear(middle, fan_out, _SLOPE),
            nn.BatchNorm1d(fan_out),
            nn.LeakyReLU(_SLOPE),
        )

    @override
    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        out: Tensor = self.mlp((1 + self.epsilon) * nodes + adjacency @ nodes)
        return out + nodes if self.residual else out


class CLIF(MultiLabelModule):
    """Label embeddings from a graph network over co-occurrence gate the features that each label sees.

    The label graph comes from the training labels: it is read when fitting starts, or given with
    `set_label_graph`, and is saved in checkpoints. ``forward`` returns probabilities.

    Args:
        num_features: Number of features, d.
        num_labels: Number of labels, q; at least 2.
        embedding_dim: Size of a label embedding, c.
        link_weight: Weight of the loss that ties embeddings to the graph, λ.
        in_layers: Layers between the features and the gate.
        hidden: Width of the features, 512 in the original.
        beta: Calibration: predictions are sigmoid(logit − log(β / (1 − β))); 0.5 leaves them as they are.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty inside Adam's gradient.
        lr_warmup_epochs: Epochs of linear learning-rate warm-up.
        loss: ``"bce"``, ``"weighted"``, ``"balanced"``, ``"focal"`` or ``"asymmetric"``, as in `MultiLabelModule`.
    """

    adjacency: Tensor
    node_features: Tensor

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        embedding_dim: int = 256,
        link_weight: float = 1e-3,
        in_layers: int = 1,
        hidden: int = 512,
        beta: float = 0.5,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        lr_warmup_epochs: int = 0,
        loss: LossName = "bce",
    ) -> None:
        super().__init__(
            num_features, num_labels, lr=lr, weight_decay=weight_decay, lr_warmup_epochs=lr_warmup_epochs, loss=loss
        )
        if num_labels < 2:
            raise ValueError(f"num_labels must be at least 2 for CLIF, got {num_labels}; use MLP for one label.")
        if in_layers < 1:
            raise ValueError(f"in_layers must be at least 1, got {in_layers}; pass 1 or more.")
        if not 0 < beta < 1:
            raise ValueError(f"beta must lie between 0 and 1, got {beta}; pass 0.5 for no calibration.")
        self.save_hyperparameters()
        self.link_weight = link_weight
        self.logit_shift = math.log(beta / (1 - beta))

        self.register_buffer("adjacency", torch.full((num_labels, num_labels), torch.nan))
        self.register_buffer("node_features", torch.randn(num_labels, num_labels))
        self._has_graph = self._graph_was_given = False
        self.register_load_state_dict_post_hook(_note_loaded_graph)  # type: ignore[no-untyped-call]

        self.gin = nn.ModuleList([_GINLayer(num_labels, embedding_dim), _GINLayer(embedding_dim, embedding_dim)])
        layers: list[nn.Module] = []
        for fan_in in [num_features, *[hidden] * (in_layers - 1)]:
            layers += [kaiming_linear(fan_in, hidden, _SLOPE), nn.LeakyReLU(_SLOPE)]
        self.feature_layers = nn.Sequential(*layers)
        self.gate = nn.Linear(embedding_dim, hidden)
        nn.init.kaiming_uniform_(self.gate.weight, nonlinearity="sigmoid")
        nn.init.zeros_(self.gate.bias)
        self.label_features = kaiming_linear(hidden, hidden, _SLOPE, LabelLinear)
        self.heads = LabelHeads(num_labels, hidden)

    def set_label_graph(self, labels: Any) -> None:
        """Take the label graph from the training labels (n, q), and keep it when fitting starts."""
        labels = torch.as_tensor(labels)
        if labels.ndim != 2 or labels.shape[1] != self.num_labels:
            raise ValueError(
                f"labels must have shape (n, {self.num_labels}), got {tuple(labels.shape)}; "
                "pass the label matrix of the training set."
            )
        self.adjacency.copy_(label_graph(labels))
        self._has_graph = self._graph_was_given = True

    @override
    def on_fit_start(self) -> None:
        """Read the label graph from the training set, unless `set_label_graph` gave one, and what the loss needs."""
        super().on_fit_start()
        if self._graph_was_given:
            return
        labels = training_labels(self.trainer)
        if labels is not None:
            self.set_label_graph(labels)
            self._graph_was_given = False
        self._require_graph()

    @override
    def loss_and_probs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss over (b, q) plus λ times the link loss, and the probabilities."""
        embeddings = self.label_embeddings()
        logits = self._logits(x, embeddings)
        loss = self.label_loss(logits, y)
        with torch.autocast(x.device.type, enabled=False):
            loss = loss + self.link_weight * link_loss(embeddings.float(), self.adjacency)
        return loss, torch.sigmoid(logits.detach() - self.logit_shift)

    @override
    def predict_probs(self, x: Tensor) -> Tensor:
        """Return sigmoid(logit − log(β / (1 − β))), (b, q)."""
        return torch.sigmoid(self._logits(x, self.label_embeddings()) - self.logit_shift)

    def label_embeddings(self) -> Tensor:
        """Return the label embeddings G, (q, c)."""
        self._require_graph()
        nodes = self.node_features
        for layer in self.gin:
            nodes = layer(nodes, self.adjacency)
        return nodes

    def _logits(self, x: Tensor, embeddings: Tensor) -> Tensor:
        gates = torch.sigmoid(self.gate(embeddings))
        gated = self.feature_layers(x).unsqueeze(1) * gates
        # Not in place: the layer's output is a view, and a view that is changed costs its backward pass two copies.
        features = leaky_relu(self.label_features(gated), _SLOPE)
        logits: Tensor = self.heads(features)
        return logits.float()

    def _require_graph(self) -> None:
        if not self._has_graph:
            raise RuntimeError(
                "CLIF has no label graph: call model.set_label_graph(Y) with the training labels (n, q), or "
                "fit on a datamodule with `train_labels` or on a dataset of known length whose samples are (x, y)."
            )


def _note_loaded_graph(module: CLIF, incompatible_keys: Any) -> None:
    module._has_graph = not bool(module.adjacency.isnan().any())
