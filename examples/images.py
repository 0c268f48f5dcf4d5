"""Images with a small CNN, augmentation and loader workers; the samples that are drawn most are shown at the end.

Run it with ``python examples/images.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import make_digits


class Images(Dataset):
    """One to three digits laid over each other, shifted at random whenever one is read."""

    def __init__(self, count: int) -> None:
        data = make_digits(count)
        self.images = torch.from_numpy(data.X).view(-1, 1, 8, 8)
        self.labels = torch.from_numpy(data.Y).float()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        right, down = torch.randint(-1, 2, (2,)).tolist()
        return self.images[index].roll((down, right), (1, 2)), self.labels[index]


class CNN(L.LightningModule):
    """Two convolutions; training_step returns only the loss."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        self.net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    fast = "--fast" in sys.argv
    L.seed_everything(0, verbose=False)
    dataset = Images(200 if fast else 2000)
    loader = DataLoader(dataset, batch_size=50, shuffle=True, num_workers=0 if fast else 2)
    selection = BatchSelection(UBS(), warmup_epochs=1 if fast else 3)
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=3 if fast else 12, callbacks=[selection], **quiet)
    trainer.fit(CNN(), loader)
    print(f"Training loss in the last epoch: {trainer.callback_metrics['loss']:.3f}")

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    order = selection.weights.argsort()
    for row, (name, ids) in enumerate({"hardest": order[-6:], "easiest": order[:6]}.items()):
        for column, index in enumerate(ids.tolist()):
            axes = figure.add_subplot(2, 6, 6 * row + column + 1, xticks=[], yticks=[])
            axes.imshow(dataset.images[index, 0], cmap="gray_r")
            digits = " ".join(str(digit) for digit in dataset.labels[index].nonzero().flatten().tolist())
            axes.set_title(f"{name}: {digits}" if column == 0 else digits, fontsize=9)
    figure.savefig("images.png", dpi=120)
    print("The six samples of the largest and the smallest weight: images.png")
