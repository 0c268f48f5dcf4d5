"""Two processes share each batch, and select exactly what one process with twice the batch size would.

Run it with ``python examples/two_processes.py [--fast]``; Lightning starts the second process by itself. It needs
``pip install -e ".[experiments]"`` and no GPU.
"""

from __future__ import annotations

import sys

import lightning as L
import torch

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MLP


class SameEverywhere(L.Callback):
    """After every epoch, compares what the two processes hold."""

    def __init__(self, selection: BatchSelection) -> None:
        self.selection = selection

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        held = trainer.strategy.all_gather(self.selection.probabilities)
        assert torch.equal(held[0], held[1]), "the processes disagree"
        if trainer.is_global_zero:
            own = self.selection.plan[0].numel()
            print(
                f"epoch {trainer.current_epoch}: equal P, s = {self.selection.pressure:.1f}, batch of {own} per process"
            )


if __name__ == "__main__":
    fast = "--fast" in sys.argv
    L.seed_everything(0, verbose=False)
    selection = BatchSelection(UBS(), warmup_epochs=1)
    trainer = L.Trainer(
        max_epochs=3 if fast else 10,
        devices=2,
        strategy="ddp",
        accelerator="cpu",
        callbacks=[selection, SameEverywhere(selection)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(MLP(num_features=64, num_labels=10), datamodule=MultiLabelDataModule("digits", batch_size=64))
