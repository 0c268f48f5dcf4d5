"""Images with a small CNN, augmentation and loader workers; the images that are drawn most are shown at the end.

Run it with ``python examples/images.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys

import lightning as L
import torch
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
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(max_epochs=3 if fast else 12, callbacks=[selection], accelerator="cpu", **quiet)
    trainer.fit(CNN(), loader)
    print(f"Training loss in the last epoch: {trainer.callback_metrics['loss']:.3f}")

    order = selection.weights.argsort()
    for name, ids in {"drawn most, the largest weights": order[-5:], "drawn least": order[:5]}.items():
        print(
            f"\n{name}: digits",
            ", ".join("+".join(map(str, row.nonzero()[:, 0].tolist())) for row in dataset.labels[ids]),
        )
        for line in (dataset.images[ids, 0] * 4).round().long().transpose(0, 1):  # line by line, image by image
            print("   ".join("".join(" .:*#"[shade] * 2 for shade in row) for row in line.tolist()))
