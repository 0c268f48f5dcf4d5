"""The loss first, then selection: rare labels with a weighted loss, and with a weighted loss and a selection beside it.

Rare labels are made here by leaving out most images that show the digits 7, 8 and 9. Run it with
``python examples/weighted_loss.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.functional.classification import multilabel_average_precision

from lightning_ubs import BatchSelection, ClassAware, Random
from lightning_ubs.data import make_digits

FAST = "--fast" in sys.argv
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def rare_digits(count: int, seed: int) -> TensorDataset:
    """Overlaid digits of which one in ten that shows a 7, 8 or 9 is kept."""
    digits = make_digits(count, seed)
    kept = (digits.Y[:, 7:].sum(1) == 0) | (np.random.default_rng(seed).random(count) < 0.1)
    return TensorDataset(torch.from_numpy(digits.X[kept]), torch.from_numpy(digits.Y[kept]).float())


class Net(L.LightningModule):
    """``pos_weight`` is all that a weighted loss takes."""

    def __init__(self, pos_weight: Tensor | None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = nn.BCEWithLogitsLoss(pos_weight=pos_weight)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    train, test = rare_digits(600 if FAST else 4000, 0), rare_digits(2000, 1)
    share = train.tensors[1].mean(0)
    print(f"{len(train)} samples; the three rare labels are on in {', '.join(f'{s:.1%}' for s in share[7:])} of them")
    for loss, pos_weight in {"plain": None, "weighted": ((1 - share) / share).sqrt()}.items():
        for name, strategy in {"Random": Random(), "ClassAware": ClassAware()}.items():
            L.seed_everything(0, verbose=False)
            # ClassAware reads no predictions; it emphasizes rare labels in the first half of the epochs.
            trainer = L.Trainer(
                max_epochs=2 if FAST else 15, callbacks=[BatchSelection(strategy)], accelerator="cpu", **QUIET
            )
            module = Net(pos_weight)
            trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
            with torch.no_grad():
                scores = module.net(test.tensors[0]).sigmoid()
            precision = multilabel_average_precision(scores, test.tensors[1].int(), num_labels=10, average=None)
            rare, every = precision[7:].mean(), precision.mean()
            print(f"{loss:<8} loss, {name:<10}  average precision: rare {rare:.3f}, all {every:.3f}")
