"""Importance weights by hand: for a loss that is no cross-entropy, where ``unbiased=True`` cannot weigh it for you.

``selection.importance_weights`` says how much each sample of the batch must count, 1/(nP), so that the mean gradient is
that of plain shuffling. Run it with ``python examples/importance_weights.py [--fast]``; it needs
``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
from torch import Tensor, nn

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule


class FocalNet(L.LightningModule):
    """A focal loss per sample, weighted before its mean is taken."""

    def __init__(self, selection: BatchSelection) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.selection = selection

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self.net(batch[0])
        right = torch.where(batch[1] > 0.5, logits, -logits).sigmoid()
        focal = (-((1 - right) ** 2) * right.log()).mean(1)  # one number per sample, (b,)
        weights = self.selection.importance_weights
        self.log("weight", weights.mean(), on_step=False, on_epoch=True)
        return {"loss": (weights * focal).mean(), "logits": logits}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    fast = "--fast" in sys.argv
    L.seed_everything(0, verbose=False)
    # Drawn systematically, the default, each sample comes in proportion to P, as the weights suppose.
    selection = BatchSelection(UBS(s0=10), warmup_epochs=1)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=3 if fast else 15, callbacks=[selection], accelerator="cpu", **quiet)
    trainer.fit(FocalNet(selection), datamodule=MultiLabelDataModule("digits", batch_size=32))
    print(f"Mean weight in the last epoch: {trainer.callback_metrics['weight']:.3f} (1 is unbiased)")
