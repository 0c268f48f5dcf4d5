"""Does it pay on my model? Your module and your data, with several selections, over paired seeds, in one call.

Run it with ``python examples/compare_own_model.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys
import tempfile

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics.classification import MultilabelAUROC

from lightning_ubs import UBS, BatchSelection, InfoBatch, compare


class Net(L.LightningModule):
    """Your module: it logs the value that decides, here ``val_auc``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 6))
        self.auc = MultilabelAUROC(num_labels=6)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.auc(self.net(batch[0]), batch[1].int())
        self.log("val_auc", self.auc)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def data(seed: int) -> tuple[DataLoader, DataLoader]:
    """Your data: loaders or a LightningDataModule. Each seed may split them anew."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=generator)
    noise = torch.randn(600, 6, generator=generator)
    y = (x[:, :6] + x[:, 1:7] + noise > torch.linspace(0, 2, 6)).float()
    train, val = random_split(TensorDataset(x, y), [400, 200], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=200)


def main(fast: bool) -> None:
    """Compare, and say what was found."""
    warmup = 1 if fast else 3
    folder = tempfile.TemporaryDirectory()  # give a folder of your own: runs that it holds are not done again
    result = compare(
        module=Net,
        data=data,
        selections={
            "UBS": BatchSelection(UBS(), warmup_epochs=warmup),
            "InfoBatch": BatchSelection(InfoBatch(), warmup_epochs=warmup),
        },
        seeds=2 if fast else 10,
        trainer={"max_epochs": 3 if fast else 30, "accelerator": "cpu"},
        monitor="val_auc",
        results=folder.name,
        engine="sequential" if fast else "loky",  # loky: one process per processor
    )
    print(result)
    print(result.frame()[["selection", "seed", "val_auc", "best_epoch", "samples_trained"]])
    folder.cleanup()  # result.report(), before, writes an HTML page into the folder and returns its path


if __name__ == "__main__":
    main(fast="--fast" in sys.argv)
