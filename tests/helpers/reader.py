"""What the pages suppose their reader to have: a module, data, and matrices, all of them small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAUROC


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 4)
        self.auc = MultilabelAUROC(num_labels=4)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.auc(self.net(batch[0]), batch[1].int())
        self.log("val_auc", self.auc)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Data(L.LightningDataModule):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(96, 8, generator=generator)
        self.labels = (self.features[:, :4] + torch.randn(96, 4, generator=generator) > 0).float()
        self.dataset = TensorDataset(self.features[:64], self.labels[:64])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_size=16, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(self.features[64:], self.labels[64:]), batch_size=32)


def has() -> dict[str, Any]:
    """The names that are there before the first block of a page."""
    data = Data()
    return {
        "__name__": "__main__",
        "Net": Net,
        "Data": Data,
        "model": Net(),
        "data": data,
        "dataset": data.dataset,
        "features": data.features[:64],
        "labels": data.labels[:64],
    }


def writes(folder: Path) -> None:
    """The files that are there before the first block of a page: code of one's own, its configuration, a table."""
    own = Path(__file__).parents[1] / "experiment" / "own_code.py"
    (folder / "mynet.py").write_text(f"{own.read_text()}\n\nData, MyStrategy = ImageData, Unsure\n")
    configs = {"model/cnn": "CNN", "data/mine": "Data", "selection/my_strategy": "MyStrategy"}
    for name, target in configs.items():
        path = folder / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"_target_: mynet.{target}\n")
    rows = [*has()["features"][:, :3].tolist()]
    lines = [f"{','.join(map(str, row))},{i % 2},{i // 2 % 2}" for i, row in enumerate(rows)]
    (folder / "mine.csv").write_text("\n".join(["a,b,c,topic_x,topic_y", *lines]))
