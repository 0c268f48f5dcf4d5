"""Train each base model on plainly shuffled batches of real data, and compare with the paper's "Random".

    python benchmarks/base_models.py --data-dir DATA --datasets yeast scene emotions --lr 1e-4 original

Prints the test metrics at the epoch with the best validation Macro-AUC, beside those of the paper (which
averages five folds; one fold is run here unless --folds says more) and the Macro-AUC of the last epoch.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from typing_extensions import override

from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.models import MultiLabelModule, build_model, original_lr

PAPER = {  # (model, dataset): Macro-AUC, ranking loss, Hamming loss with "Random"
    ("mpvae", "scene"): (0.9303, 0.0968, 0.0920),
    ("clif", "scene"): (0.9418, 0.0891, 0.0722),
    ("dela", "scene"): (0.9405, 0.0898, 0.0725),
    ("mpvae", "yeast"): (0.7065, 0.2011, 0.1719),
    ("clif", "yeast"): (0.7107, 0.1995, 0.1677),
    ("dela", "yeast"): (0.7006, 0.1975, 0.1679),
}
METRICS = ("test_macro_auc", "test_ranking_loss", "test_hamming_loss")


class Progress(Callback):
    """Rewrites one line on the terminal after every validation, or writes every tenth epoch to a file."""

    def __init__(self, title: str) -> None:
        self.title = title

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        done, total = trainer.current_epoch + 1, trainer.max_epochs
        if trainer.sanity_checking or not (sys.stderr.isatty() or done % 10 == 0):
            return
        value = float(trainer.callback_metrics["val_macro_auc"])
        end = "\r" if sys.stderr.isatty() else "\n"
        print(
            f"  {self.title} epoch {done}/{total} val_macro_auc {value:.4f}",
            end=end,
            file=sys.stderr,
            flush=True,
        )


def train(
    model: MultiLabelModule, data: L.LightningDataModule, epochs: int, title: str
) -> tuple[list[float], float, int]:
    """Return the best validation epoch's test metrics, the last epoch's Macro-AUC, and the best epoch."""
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val_macro_auc", mode="max", filename="{epoch}")
        trainer = L.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=epochs,
            callbacks=[best, Progress(title)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, datamodule=data)
        last = trainer.test(model, datamodule=data, verbose=False)[0]["test_macro_auc"]
        result = trainer.test(model, datamodule=data, ckpt_path="best", verbose=False)[0]
        epoch = int(Path(best.best_model_path).stem.split("=")[1].split("-")[0])
    return [result[name] for name in METRICS], last, epoch + 1


def main() -> None:
    """Run the grid that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=None, help="where the datasets are or are downloaded to")
    parser.add_argument("--datasets", nargs="+", default=["yeast", "scene", "emotions"])
    parser.add_argument("--models", nargs="+", default=["mlp", "mpvae", "clif", "dela"])
    parser.add_argument("--lr", nargs="+", default=["1e-4", "original"], help="numbers, or 'original'")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--folds", nargs="+", type=int, default=[0], help="which of the five folds")
    parser.add_argument("--seed", type=int, default=0, help="of the model's initial weights and noise")
    args = parser.parse_args()

    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    columns = "dataset model lr fold Macro-AUC paper ranking paper Hamming paper best-epoch last-AUC seconds"
    print("| " + columns.replace(" ", " | ") + " |\n" + "|---" * 13 + "|")
    for dataset in args.datasets:
        for fold in args.folds:
            data = MultiLabelDataModule(dataset, data_dir=args.data_dir, fold=fold, batch_size=128)
            data.prepare_data()
            data.setup()
            for name in args.models:
                for choice in args.lr:
                    lr = original_lr(name, dataset) if choice == "original" else float(choice)
                    L.seed_everything(args.seed, verbose=False)
                    model = build_model(name, data.num_features, data.num_labels, dataset=dataset, lr=lr)
                    start = time.perf_counter()
                    values, last, epoch = train(model, data, args.epochs, f"{dataset} {name} lr {lr:g}")
                    seconds = time.perf_counter() - start
                    paper = PAPER.get((name, dataset), (float("nan"),) * 3)
                    cells = " | ".join(f"{v:.4f} | {p:.4f}" for v, p in zip(values, paper, strict=True))
                    run = f"| {dataset} | {name} | {lr:g} | {fold} |"
                    print(f"{run} {cells} | {epoch} | {last:.4f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
