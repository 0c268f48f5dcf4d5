"""What a new user brings: a CNN on images in dict batches, a metric of their own, a datamodule, a strategy."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MultilabelAUROC

from lightning_ubs import Strategy
from lightning_ubs.strategies import TrainingSet


class Images(Dataset[dict[str, Tensor]]):
    """Small images with bright corners; which corners are bright is to be found out."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = (torch.rand(count, 3, generator=generator) < 0.4).float()
        self.images = torch.randn(count, 1, 4, 4, generator=generator)
        for label, (row, column) in enumerate(((0, 0), (0, 3), (3, 0))):
            self.images[:, 0, row, column] += 1.5 * self.labels[:, label]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self.images[index], "labels": self.labels[index]}


class ImageData(L.LightningDataModule):
    num_labels = 3

    def __init__(self, seed: int = 0, count: int = 64) -> None:
        super().__init__()
        self.seed, self.count = seed, count

    def setup(self, stage: str | None = None) -> None:
        self.train, self.val = Images(self.count, self.seed), Images(48, self.seed + 1000)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=16, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, batch_size=48)


class CNN(L.LightningModule):
    def __init__(self, channels: int = 4, num_labels: int = 3) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * channels, num_labels)
        )
        self.val_auc = MultilabelAUROC(num_labels)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        logits = self.net(batch["image"])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"])
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return {"loss": loss, "logits": logits}

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        logits = self.net(batch["image"])
        self.val_auc(logits, batch["labels"].int())
        self.log("val_auc", self.val_auc)
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(logits, batch["labels"]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.02)


class Unsure(Strategy):
    """Prefers samples whose last prediction was near one half."""

    def __init__(self, sharpness: float = 2.0) -> None:
        self.sharpness = sharpness

    def reset(self, data: TrainingSet) -> None:
        super().reset(data)
        self.doubt = torch.ones(data.num_samples + 1)

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        self.doubt[ids] = (1 - (2 * probs - 1).abs()).mean(1)

    def probabilities(self, pressure: float) -> Tensor:
        weights = (0.1 + self.doubt[:-1].double()) ** self.sharpness
        return weights / weights.sum()
