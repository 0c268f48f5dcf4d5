"""Resume: a training that stops in the middle of an epoch continues with exactly the samples it would have drawn.

Run it with ``python examples/resume.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MLP

FAST = "--fast" in sys.argv
EPOCHS, STOP_AFTER = (3, 38) if FAST else (10, 190)  # steps; an epoch has 26


def train(folder: Path, max_steps: int = -1, ckpt_path: str | None = None) -> torch.Tensor:
    """Train from the beginning or from a checkpoint; all weights as one vector."""
    L.seed_everything(0, verbose=False)
    model = MLP(num_features=64, num_labels=10)
    # The last epoch is said, because with max_steps the Trainer does not know it.
    selection = BatchSelection(UBS(), warmup_epochs=1, end_epoch=EPOCHS - 1)
    trainer = L.Trainer(
        max_epochs=EPOCHS,
        max_steps=max_steps,
        callbacks=[selection, ModelCheckpoint(folder, filename="last", every_n_train_steps=STOP_AFTER)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=MultiLabelDataModule("digits", batch_size=64), ckpt_path=ckpt_path)
    return torch.cat([one.detach().flatten() for one in model.parameters()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        whole = train(Path(folder) / "whole")
        train(Path(folder) / "stopped", max_steps=STOP_AFTER)
        resumed = train(Path(folder) / "resumed", ckpt_path=str(Path(folder) / "stopped" / "last.ckpt"))
    print(f"Stopped after step {STOP_AFTER} and resumed; weights equal bit by bit: {torch.equal(whole, resumed)}")
