"""Data larger than memory, in a memmap: samples come block by block, so that the disk is read in large pieces.

Run it with ``python examples/streams.py [--fast]``; it needs nothing but ``pip install -e .``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_ubs import UBS, BatchSelection, Blocks

SAMPLES, FEATURES, LABELS = 2_000 if "--fast" in sys.argv else 40_000, 32, 6
BLOCK, WINDOW = 200, 4  # rows that lie together, and how many such blocks are open at a time


class OnDisk(Dataset):
    """Rows of a file; the labels fit into memory, and are what planned ids are verified by."""

    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")
        self.labels = torch.from_numpy((self.rows[:, :LABELS] > 0.5).astype(np.float32))
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index // BLOCK)  # only to show what is read at the end
        return torch.from_numpy(self.rows[index].copy()), self.labels[index]


class Net(L.LightningModule):
    """Any module."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(FEATURES, LABELS)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)).astype(np.float32))
        data = OnDisk(path)
        selection = BatchSelection(UBS(), warmup_epochs=1, order=Blocks(size=BLOCK, window=WINDOW))
        trainer = L.Trainer(max_epochs=3, callbacks=[selection], accelerator="cpu", **quiet)
        trainer.fit(Net(), DataLoader(data, batch_size=100, shuffle=True))
        last = np.array(data.read[-SAMPLES:]).reshape(-1, 100)
        print(f"{SAMPLES} samples in {SAMPLES // BLOCK} blocks, the last epoch drawn with s = {selection.pressure:.0f}")
        touched = np.mean([len(set(batch)) for batch in last])
        shuffled = SAMPLES / BLOCK * (1 - (1 - BLOCK / SAMPLES) ** 100)
        print(
            f"blocks that a batch touched, mean: {touched:.1f}; shuffled over the whole file it would be {shuffled:.1f}"
        )
