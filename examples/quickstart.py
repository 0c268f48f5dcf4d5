"""An ordinary LightningModule that returns only its loss, trained with and without batch selection.

Each image is one to three handwritten digits laid over each other; the ten labels say which digits are present.
Run it with ``python examples/quickstart.py [--fast]``; it takes some ten seconds and no download, writes nothing, and
needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAUROC

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule

SEEDS, EPOCHS, WARMUP = (1, 3, 1) if "--fast" in sys.argv else (3, 15, 3)
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


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


def train(selection: BatchSelection | None, data: MultiLabelDataModule, seed: int) -> Tensor:
    """The validation Macro-AUC after every epoch of one training."""
    L.seed_everything(seed, verbose=False)
    module, callbacks = Digits(), [selection] if selection else []  # all that selection needs
    trainer = L.Trainer(max_epochs=EPOCHS, callbacks=callbacks, num_sanity_val_steps=0, accelerator="cpu", **QUIET)
    trainer.fit(module, datamodule=data)
    return torch.tensor(module.curve)


if __name__ == "__main__":
    plain, selected = [], []
    for seed in range(SEEDS):
        data = MultiLabelDataModule("digits", batch_size=32)
        plain.append(train(None, data, seed))
        selection = BatchSelection(UBS(), warmup_epochs=WARMUP, seed=seed)
        selected.append(train(selection, data, seed))

    print(f"\nValidation Macro-AUC by epoch, mean of {SEEDS} training{'s' if SEEDS > 1 else ''} of each kind:")
    for name, runs in {"epoch": [torch.arange(EPOCHS) + 1], "shuffled": plain, "with UBS": selected}.items():
        curve = torch.stack(runs).float().mean(0)[:: max(1, EPOCHS // 5)].tolist()
        print(f"  {name:<9}", "  ".join(f"{value:6.0f}" if name == "epoch" else f"{value:.4f}" for value in curve))
    gains = [after[-1] - before[-1] for before, after in zip(plain, selected, strict=True)]
    print("  UBS minus shuffled at the end, one by one:", ", ".join(f"{gain:+.4f}" for gain in gains))
    print("\nHow often UBS drew an image per epoch, by the number of digits laid over each other:")
    digits = data.train_dataset.labels.sum(1)
    for number in (1, 2, 3):
        mean = selection.times_drawn[digits == number].double().mean().item() / EPOCHS
        print(f"  {number}  {mean:.2f}  {'#' * round(30 * mean)}")
