"""Fine-tuning in two stages with Lightning's own callback: a frozen backbone first, then everything.

The backbone here is small and trained on another task; ``resnet18(weights="DEFAULT")`` of torchvision takes its place.
Run it with ``python examples/frozen_features.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAveragePrecision

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule, make_digits

FAST = "--fast" in sys.argv
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def pretrained() -> nn.Module:
    """Features of an autoencoder, learned without labels from other images of this kind."""
    images = torch.from_numpy(make_digits(500 if FAST else 4000, seed=9).X)
    backbone, decoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU()), nn.Linear(128, 64)
    optimizer = torch.optim.Adam([*backbone.parameters(), *decoder.parameters()], lr=1e-3)
    for batch in torch.cat([images] * 10).split(100):
        optimizer.zero_grad()
        nn.functional.mse_loss(decoder(backbone(batch)), batch).backward()
        optimizer.step()
    return backbone


class FineTuned(L.LightningModule):
    """`BackboneFinetuning` wants the backbone under this name."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = pretrained()
        self.head = nn.Linear(128, 10)
        self.precision_ = MultilabelAveragePrecision(num_labels=10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.head(self.backbone(batch[0])), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.precision_(self.head(self.backbone(batch[0])), batch[1].int())
        self.log("val_map", self.precision_)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=3e-3)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
            print(
                f"epoch {self.current_epoch:2d}: {trained:5d} parameters trained, mAP {self.precision_.compute():.3f}"
            )


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    epochs, thaw = (4, 2) if FAST else (16, 8)
    selection = BatchSelection(UBS(), warmup_epochs=1)  # predictions mean something early: a short warm-up will do
    stages = BackboneFinetuning(unfreeze_backbone_at_epoch=thaw, backbone_initial_lr=1e-3)
    trainer = L.Trainer(max_epochs=epochs, callbacks=[stages, selection], accelerator="cpu", **QUIET)
    trainer.fit(FineTuned(), datamodule=MultiLabelDataModule("digits", batch_size=64))
