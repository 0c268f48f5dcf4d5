"""What all multi-label models here share: loss logging, metrics, optimizer, and the batch's probabilities."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, get_args

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from typing_extensions import override

from lightning_ubs._utils.checks import check_choice
from lightning_ubs.metrics import MacroAUC, MacroAveragePrecision, frequency_thirds, multilabel_metrics
from lightning_ubs.models.losses import WEIGHTED, LossName, label_loss, positive_weights

_MANY_TIES = 0.05
_LABEL_ROWS = 256
_MKL_AND_ONEDNN = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class MultiLabelModule(L.LightningModule, ABC):
    """A multi-label classifier on batches ``(x, y)``: x (b, d), y (b, q), both float.

    A subclass says how to train (`loss_and_probs`) and how to predict (`predict_probs`). ``training_step``
    returns ``{"loss": ..., "probs": ...}``: probabilities (b, q) of the training forward pass, detached,
    float32 and independent of y. Validation and testing log one value per metric, such as ``val_macro_auc``
    and ``test_ranking_loss``; as ``val_skipped_labels`` how many labels Macro-AUC had to leave out; as
    ``val_macro_auc_half`` Macro-AUC with ties counting half, which a model of constant output cannot deceive; and as
    ``val_map_rare``, ``val_map_medium`` and ``val_map_frequent`` average precision by thirds of the labels, from rare
    to frequent in training, where the training data show their label matrix.

    Args:
        num_features: Number of features, d.
        num_labels: Number of labels, q.
        lr: Learning rate of Adam.
        weight_decay: L2 penalty inside Adam's gradient (not decoupled as in AdamW).
        lr_warmup_epochs: The learning rate rises linearly over these first epochs; 0 switches this off.
        loss: ``"bce"``; ``"weighted"`` or ``"balanced"``, where a positive counts √((1 − f)/f) or (1 − f)/f times, with
            the label's share f of the training samples; ``"focal"`` (γ 2); ``"asymmetric"`` (γ⁻ 4, γ⁺ 1, margin 0.05).
    """

    positive_weights: Tensor

    def __init__(
        self,
        num_features: int,
        num_labels: int,
        *,
        lr: float = 1e-3,
        weight_decay: float = 1e-4,
        lr_warmup_epochs: int = 0,
        loss: LossName = "bce",
    ) -> None:
        super().__init__()
        check_choice("loss", loss, get_args(LossName))
        for name, size in (("num_features", num_features), ("num_labels", num_labels)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}; pass the width of the data.")
        for name, value in (
            ("lr", lr),
            ("weight_decay", weight_decay),
            ("lr_warmup_epochs", lr_warmup_epochs),
        ):
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}; pass 0 to switch it off.")
        self.num_features = num_features
        self.num_labels = num_labels
        self.lr = lr
        self.weight_decay = weight_decay
        self.lr_warmup_epochs = lr_warmup_epochs
        self.loss: LossName = loss
        self._needs_frequencies, self._frequencies_were_given = True, False
        if loss in WEIGHTED:
            self.register_buffer("positive_weights", torch.full((num_labels,), torch.nan))
            self.register_load_state_dict_post_hook(_note_loaded_frequencies)  # type: ignore[no-untyped-call]
        self._thirds: dict[str, Tensor] = {}
        self.val_metrics = multilabel_metrics(prefix="val_")
        self.test_metrics = multilabel_metrics(prefix="test_")

    @abstractmethod
    def loss_and_probs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the training loss and the probabilities (b, q) of the same pass, computed without y."""

    @abstractmethod
    def predict_probs(self, x: Tensor) -> Tensor:
        """Return the predicted probabilities (b, q) in float32."""

    def label_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the chosen ``loss`` of logits (b, q), a mean over (b, q)."""
        if self.loss not in WEIGHTED:
            return label_loss(self.loss, logits, y)
        if self._needs_frequencies:
            raise self._no_frequencies()
        return label_loss(self.loss, logits, y, self.positive_weights)

    def set_label_frequencies(self, labels: Any) -> None:
        """Take the label frequencies of a weighted loss from labels (n, q), and keep them when fitting starts."""
        labels = torch.as_tensor(labels)
        if labels.ndim != 2 or labels.shape[1] != self.num_labels:
            raise ValueError(
                f"labels must have shape (n, {self.num_labels}), got {tuple(labels.shape)}; "
                "pass the label matrix of the training set."
            )
        self.positive_weights.copy_(positive_weights(labels, self.loss))
        self._needs_frequencies, self._frequencies_were_given = False, True

    @override
    def on_fit_start(self) -> None:
        """Read the label frequencies of a weighted loss from the training set, unless they were given."""
        if self.loss not in WEIGHTED or self._frequencies_were_given:
            return
        labels = training_labels(self.trainer)
        if labels is None:
            raise self._no_frequencies()
        self.set_label_frequencies(labels)
        self._frequencies_were_given = False

    @override
    def on_train_start(self) -> None:
        """Read which labels are rare and which are frequent, where the training data show it."""
        labels = None
        with suppress(TypeError, ValueError, RuntimeError):  # what a user keeps under that name may be no matrix
            labels = shown_labels(self.trainer)
        fits = labels is not None and labels.ndim == 2 and labels.shape[1] == self.num_labels
        self._thirds = frequency_thirds(labels) if labels is not None and fits else {}

    def _no_frequencies(self) -> RuntimeError:
        return RuntimeError(
            f"loss={self.loss!r} has no label frequencies: call model.set_label_frequencies(Y) with the training "
            "labels (n, q), or fit on a datamodule with `train_labels` or on a dataset of known length with (x, y)."
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the predicted probabilities (b, q), those of `predict_probs`."""
        return self.predict_probs(x)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss and, for batch selection, the probabilities of this batch before the step."""
        x, y = batch[0], batch[1]
        loss, probs = self.loss_and_probs(x, y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(x), sync_dist=True)
        return {"loss": loss, "probs": probs.detach().float()}

    @override
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the validation metrics."""
        self.val_metrics.update(self(batch[0]), batch[1])

    @override
    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Add a batch to the test metrics."""
        self.test_metrics.update(self(batch[0]), batch[1])

    @override
    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the probabilities (b, q) of a batch ``(x, ...)`` or of features x alone."""
        probs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return probs

    @override
    def on_validation_epoch_end(self) -> None:
        self._log_metrics(self.val_metrics, "val")

    @override
    def on_test_epoch_end(self) -> None:
        self._log_metrics(self.test_metrics, "test")

    def _log_metrics(self, metrics: MetricCollection, stage: str) -> None:
        values = metrics.compute()
        macro_auc = metrics["macro_auc"]
        if isinstance(macro_auc, MacroAUC):
            values[f"{stage}_skipped_labels"] = torch.tensor(float(macro_auc.skipped), device=self.device)
            values[f"{stage}_macro_auc_half"] = values[f"{stage}_macro_auc"] - macro_auc.tied / 2
            if macro_auc.tied > _MANY_TIES and not self.trainer.sanity_checking:
                rank_zero_warn(
                    f"More than {_MANY_TIES:.0%} of the pairs that {stage}_macro_auc compares are tied. Ties count as "
                    f"correct, so it flatters this model: look at {stage}_macro_auc_half, or lower the learning rate."
                )
        precision = metrics["map"]
        if isinstance(precision, MacroAveragePrecision):
            for third, labels in self._thirds.items():
                values[f"{stage}_map_{third}"] = precision.by_label[labels.to(self.device)].nanmean()
        self.log_dict(values, sync_dist=True)
        metrics.reset()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return Adam's parameter groups; a subclass may give some parameters their own learning rate."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return Adam with coupled L2, and the linear warm-up of the learning rate if there is one."""
        optimizer = torch.optim.Adam(
            self.parameter_groups(), lr=self.lr, betas=(0.9, 0.999), weight_decay=self.weight_decay
        )
        if self.lr_warmup_epochs == 0:
            return optimizer
        self.trainer.fit_loop.setup_data()
        batches = self.trainer.num_training_batches
        if not math.isfinite(batches):
            raise ValueError(
                f"lr_warmup_epochs={self.lr_warmup_epochs} needs a training set of known length; "
                "set lr_warmup_epochs=0 for an iterable dataset."
            )
        steps = max(1, self.lr_warmup_epochs * math.ceil(batches / self.trainer.accumulate_grad_batches))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def _note_loaded_frequencies(module: MultiLabelModule, incompatible_keys: Any) -> None:
    module._needs_frequencies = bool(module.positive_weights.isnan().any())


def shown_labels(trainer: L.Trainer) -> Tensor | None:
    """The labels (n, q) that the training data of a trainer show without reading a sample; None if they show none.

    They are ``train_labels`` of the datamodule, or ``labels`` of the dataset.
    """
    datamodule = getattr(trainer, "datamodule", None)
    labels = getattr(datamodule, "train_labels", None)
    if labels is not None:
        return torch.as_tensor(labels)
    dataset = getattr(datamodule, "train_dataset", None)
    dataset = getattr(trainer.train_dataloader, "dataset", None) if dataset is None else dataset
    shown = getattr(dataset, "labels", None)
    return shown if isinstance(shown, Tensor) and shown.ndim == 2 else None


def training_labels(trainer: L.Trainer) -> Tensor | None:
    """The labels (n, q) of the training set of a trainer that is about to fit; None for a stream.

    They are those that the data show, or else read once from the samples (x, y).
    """
    shown = shown_labels(trainer)
    if shown is not None:
        return shown
    dataset = getattr(getattr(trainer, "datamodule", None), "train_dataset", None)
    if dataset is None:
        trainer.fit_loop.setup_data()
        shown = shown_labels(trainer)
        if shown is not None:
            return shown
        dataset = getattr(trainer.train_dataloader, "dataset", None)
    if dataset is None or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return None
    collate = getattr(trainer.train_dataloader, "collate_fn", None)
    # A generator of its own: a loader draws a seed for its workers, and the global stream must not move.
    loader = DataLoader(dataset, _LABEL_ROWS, collate_fn=collate, generator=torch.Generator())
    labels = torch.cat([batch[1] for batch in loader])
    return labels if labels.ndim == 2 else None


class LabelHeads(nn.Module):
    """One linear output per label on features that may be the label's own: (b, q, h) → logits (b, q).

    Weights and biases start as those of ``nn.Linear(h, 1)``: uniform within ±1/√h.
    """

    def __init__(self, num_labels: int, hidden: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.weight = nn.Parameter(torch.empty(num_labels, hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_labels).uniform_(-bound, bound))

    @override
    def forward(self, features: Tensor) -> Tensor:
        """Return logits: ``features[..., j, :] @ weight[j] + bias[j]``."""
        # Not as an einsum, which becomes q small matrix products: forward and backward take up to ten times as long.
        logits: Tensor = (features * self.weight).sum(-1) + self.bias
        return logits


class LabelLinear(nn.Linear):
    """A linear layer that every label's own features pass: (b, q, h) → (b, q, k).

    On a CPU, PyTorch gives products to MKL, which uses half of an AMD processor's vector units, and convolutions to
    oneDNN, which uses them all. So it is a 1 × 1 convolution there, forward and backward in half of the time. Where it
    has neither library, as on ARM, it is a product.
    """

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias``."""
        if input.ndim != 3 or input.device.type != "cpu" or not _MKL_AND_ONEDNN:
            return super().forward(input)
        pixels = input.transpose(1, 2).unsqueeze(2)
        return conv2d(pixels, self.weight[:, :, None, None], self.bias).squeeze(2).transpose(1, 2)


def kaiming_linear(fan_in: int, fan_out: int, slope: float = 0.0, kind: type[nn.Linear] = nn.Linear) -> nn.Linear:
    """Return a linear layer, weights Kaiming-uniform for a ReLU of that slope, biases from U(0, 0.1)."""
    layer = kind(fan_in, fan_out)
    nn.init.kaiming_uniform_(layer.weight, a=slope, nonlinearity="leaky_relu")
    nn.init.uniform_(layer.bias, 0.0, 0.1)
    return layer
