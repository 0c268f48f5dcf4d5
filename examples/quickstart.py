"""Train a small model on overlaid digits, with and without batch selection, and compare the two.

Each image is one to three handwritten digits laid over each other; the ten labels say which digits are present.
Run it with ``python examples/quickstart.py``; it needs ``pip install 'lightning-ubs[experiments]'`` and no download.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from statistics import mean

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAUROC

from lightning_ubs import UBS, BatchSelection
from lightning_ubs.data import MultiLabelDataModule


class Digits(L.LightningModule):
    """An ordinary module: nothing in it knows of batch selection."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.auc = MultilabelAUROC(num_labels=10)
        self.curve: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, 10)."""
        logits: Tensor = self.net(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Binary cross-entropy over the ten labels."""
        x, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Collect the ranking of the validation images."""
        x, y = batch
        self.auc.update(self(x).sigmoid(), y.int())

    def on_validation_epoch_end(self) -> None:
        """Macro-AUC: mean area under the ROC curve over labels."""
        self.curve.append(self.auc.compute().item())
        self.auc.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def train(selection: BatchSelection | None, epochs: int, seed: int) -> list[float]:
    """The validation Macro-AUC after every epoch of one training."""
    L.seed_everything(seed, verbose=False)
    module = Digits()
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[selection] if selection else None,  # the only line that selection needs
        accelerator="cpu",
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=MultiLabelDataModule("digits", batch_size=32))
    return module.curve


def draw(curves: dict[str, list[list[float]]], path: Path) -> None:
    """Above the mean curves, below what selection gains over shuffling: a thin line per training, a thick mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(6, 5), height_ratios=(2, 1), layout="constrained")
    shuffled, selected = curves.values()
    epochs = range(1, len(shuffled[0]) + 1)
    for (name, runs), style in zip(curves.items(), ("--", "-"), strict=True):
        above.plot(epochs, [mean(values) for values in zip(*runs, strict=True)], style, label=name)
    gains = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(shuffled, selected, strict=True)]
    for gain in gains:
        below.plot(epochs, gain, color="C1", alpha=0.4, linewidth=0.8)
    below.plot(epochs, [mean(values) for values in zip(*gains, strict=True)], color="C1")
    below.axhline(0, color="black", linewidth=0.5)
    above.set(ylabel="validation Macro-AUC", title=f"Overlaid digits, mean of {len(shuffled)} trainings")
    above.legend()
    below.set(xlabel="epoch", ylabel="UBS − shuffled")
    below.xaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train both ways, print the result of each, save the figure."""
    parser = argparse.ArgumentParser(description="Train on overlaid digits with and without batch selection.")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each training (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("quickstart.png"), help="figure (default: %(default)s)")
    options = parser.parse_args()
    if options.epochs < 2 or options.seeds < 1:
        parser.error("--epochs must be at least 2 and --seeds at least 1")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    warmup = min(5, options.epochs // 2)
    curves: dict[str, list[list[float]]] = {"shuffled batches": [], "UBS": []}
    for seed in range(options.seeds):
        curves["shuffled batches"].append(train(None, options.epochs, seed))
        selection = BatchSelection(UBS(), warmup_epochs=warmup, seed=seed)
        curves["UBS"].append(train(selection, options.epochs, seed))

    print(f"Validation Macro-AUC after {options.epochs} epochs, mean of {options.seeds} trainings (best epoch):")
    for name, runs in curves.items():
        print(f"  {name:<17} {mean(run[-1] for run in runs):.4f} ({mean(max(run) for run in runs):.4f})")
    gains = [with_ubs[-1] - without[-1] for without, with_ubs in zip(*curves.values(), strict=True)]
    better = sum(gain > 0 for gain in gains)
    print(f"UBS minus shuffled: {mean(gains):+.4f}; UBS is ahead in {better} of {len(gains)} trainings.")
    draw(curves, options.output)
    print(f"Curves: {options.output}")


if __name__ == "__main__":
    main()
