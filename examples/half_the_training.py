"""Half of the training with InfoBatch: fewer samples per epoch, and gradients that stay those of all samples.

Run it with ``python examples/half_the_training.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L

from lightning_ubs import BatchSelection, InfoBatch, Random
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MLP

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def train(selection: BatchSelection, epochs: int) -> str:
    """What a training cost and what it reached."""
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(max_epochs=epochs, callbacks=[selection], accelerator="cpu", **QUIET)
    trainer.fit(MLP(num_features=64, num_labels=10), datamodule=MultiLabelDataModule("digits", batch_size=32))
    return f"{trainer.global_step:5d} steps, Macro-AUC {trainer.callback_metrics['val_macro_auc']:.4f}"


if __name__ == "__main__":
    epochs = 3 if "--fast" in sys.argv else 40
    warmup = 1 if "--fast" in sys.argv else 3
    # Every training stops after as many epochs; what differs is how many samples an epoch has. The first line is the
    # plain training, the second the control: as short as the third, but shuffled.
    for name, selection in {
        "plain": BatchSelection(Random()),
        "Random, half": BatchSelection(Random(), epoch_size=0.5),
        "InfoBatch, half": BatchSelection(InfoBatch(prune=0.5), epoch_size=0.5, warmup_epochs=warmup),
    }.items():
        print(f"{name:<16} {train(selection, epochs)}")
