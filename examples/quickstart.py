"""An ordinary LightningModule that returns only its loss, trained with and without batch selection.

Each image is one to three handwritten digits laid over each other; the ten labels say which digits are present.
Run it with ``python examples/quickstart.py``; it needs ``pip install -e ".[experiments]"`` and no download.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean

import lightning as L
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAUROC

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule

QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class Digits(L.LightningModule):
    """Nothing in it knows of batch selection."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.auc = MultilabelAUROC(num_labels=10)
        self.curve: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.auc.update(self.net(batch[0]).sigmoid(), batch[1].int())

    def on_validation_epoch_end(self) -> None:
        self.curve.append(self.auc.compute().item())
        self.auc.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train(selection: BatchSelection | None, epochs: int, seed: int) -> list[float]:
    """The validation Macro-AUC after every epoch of one training."""
    L.seed_everything(seed, verbose=False)
    module, callbacks = Digits(), [selection] if selection else []  # all that selection needs
    trainer = L.Trainer(max_epochs=epochs, callbacks=callbacks, num_sanity_val_steps=0, **QUIET)
    trainer.fit(module, datamodule=MultiLabelDataModule("digits", batch_size=32))
    return module.curve


parser = argparse.ArgumentParser(description="Train on overlaid digits with and without batch selection.")
parser.add_argument("--epochs", type=int, default=20, help="epochs of each training, at least 2 (default: %(default)s)")
parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: %(default)s)")
parser.add_argument("--output", type=Path, default=Path("quickstart.png"), help="figure (default: %(default)s)")
options = parser.parse_args()
if options.epochs < 2 or options.seeds < 1:
    parser.error("--epochs must be at least 2 and --seeds at least 1")
warmup, seeds = min(5, options.epochs // 2), range(options.seeds)
shuffled = [train(None, options.epochs, seed) for seed in seeds]
selected = [train(BatchSelection(UBS(), warmup_epochs=warmup, seed=s), options.epochs, s) for s in seeds]

axes = Figure(layout="constrained").add_subplot(xlabel="epoch", ylabel="validation Macro-AUC")
print(f"Validation Macro-AUC after {options.epochs} epochs, mean of {options.seeds} trainings (best epoch):")
for name, runs in (("shuffled batches", shuffled), ("UBS", selected)):
    print(f"  {name:<17} {mean(run[-1] for run in runs):.4f} ({mean(max(run) for run in runs):.4f})")
    axes.plot(range(1, options.epochs + 1), [mean(values) for values in zip(*runs, strict=True)], label=name)
gains = [after[-1] - before[-1] for before, after in zip(shuffled, selected, strict=True)]
print(f"UBS minus shuffled: {mean(gains):+.4f}; UBS is ahead in {sum(g > 0 for g in gains)} of {len(gains)} trainings.")
axes.legend()
options.output.parent.mkdir(parents=True, exist_ok=True)
axes.figure.savefig(options.output, dpi=150)
