"""Curves and pictures of a selection in Weights & Biases, offline: no account and no network.

``wandb sync FOLDER`` uploads such a run later. Run it with ``python examples/wandb_offline.py [--fast]``; it needs
``pip install -e ".[experiments]" wandb``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lightning as L
from lightning.pytorch.loggers import WandbLogger

from lightning_ubs import UBS, BatchSelection, SelectionImages
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MLP

if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:  # a folder of your own keeps the run
        logger = WandbLogger(project="selection", save_dir=folder, offline=True)
        selection = BatchSelection(UBS(), warmup_epochs=1)
        trainer = L.Trainer(
            max_epochs=3 if "--fast" in sys.argv else 20,
            callbacks=[selection, SelectionImages(selection, every_n_epochs=1)],
            logger=logger,
            accelerator="cpu",
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(MLP(num_features=64, num_labels=10), datamodule=MultiLabelDataModule("digits", batch_size=64))
        shown = dict(logger.experiment.summary)
        logger.experiment.finish()
        pictures = sorted(path.name.partition("_")[0] for path in Path(folder).rglob("*.png"))
    for name in sorted(key for key in shown if key.startswith("selection/")):
        print(f"{name:<35} {shown[name]}" if isinstance(shown[name], int | float) else name)
    print(f"{len(pictures)} pictures")
