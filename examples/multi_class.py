"""One class per sample: cross-entropy on class ids, with rare classes; nothing else has to be said.

Run it with ``python examples/multi_class.py [--fast]``; it needs ``pip install -e ".[experiments]"`` for the images.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_ubs import UBS, BatchSelection, ClassAware, Random

FAST = "--fast" in sys.argv
RARE = (7, 8, 9)
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class Classifier(L.LightningModule):
    """A softmax over ten classes; batches hold class ids."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def digits() -> tuple[TensorDataset, tuple[Tensor, Tensor]]:
    """Training samples with eight images of each rare class, and test samples as they are."""
    images, classes = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(classes)
    kept = torch.ones(1000, dtype=torch.bool)
    for rare in RARE:
        kept[(y[:1000] == rare).nonzero()[8:]] = False
    return TensorDataset(x[:1000][kept], y[:1000][kept]), (x[1000:], y[1000:])


if __name__ == "__main__":
    train, (x, y) = digits()
    rare = torch.isin(y, torch.tensor(RARE))
    epochs = 3 if FAST else 20
    for selection in (
        BatchSelection(Random()),
        BatchSelection(UBS(), warmup_epochs=1 if FAST else 3),  # the softmax is recognized in the loss
        BatchSelection(ClassAware(), labels=train.tensors[1]),  # by class ids alone, without predictions
    ):
        L.seed_everything(0, verbose=False)
        module = Classifier()
        trainer = L.Trainer(max_epochs=epochs, callbacks=[selection], accelerator="cpu", **QUIET)
        trainer.fit(module, DataLoader(train, batch_size=32, shuffle=True))
        with torch.no_grad():
            right = module.net(x).argmax(1) == y
        accuracy = [right[part].float().mean() for part in (rare, ~rare)]
        name = type(selection.strategy).__name__
        print(f"{name:<11} accuracy: rare classes {accuracy[0]:.3f}, others {accuracy[1]:.3f}")
