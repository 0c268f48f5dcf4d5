"""A long tiny training with selection on: does memory grow, do file handles leak?

python benchmarks/load.py --epochs 2000
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import UBS, BatchSelection


class Tiny(L.LightningModule):
    """Six features, four labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Watch(L.Callback):
    """Prints resident memory, live tensors and open files now and then."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every:
            return
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        tensors = sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())
        handles = len(list(Path("/proc/self/fd").iterdir()))
        megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        print(
            f"epoch {trainer.current_epoch + 1}: {megabytes:.1f} MB resident, {tensors} tensors, {handles} open files",
            flush=True,
        )


def main() -> None:
    """Train, and print what is held along the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    data = TensorDataset(torch.randn(64, 6), (torch.rand(64, 4) > 0.5).float())
    loader = DataLoader(
        data, batch_size=32, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[BatchSelection(UBS()), Watch(max(1, args.epochs // 8))],
    ).fit(Tiny(), loader)


if __name__ == "__main__":
    main()
