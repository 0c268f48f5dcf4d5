"""What selection costs: an epoch with UBS against the same epoch with Random, measured side by side in one run.

Both trainings run alternately, epoch for epoch, on data of yahoo-Arts' shape, so that a busy machine slows both. The
released reference code costs 2.18 times a random epoch (from the paper's Appendix E).

    python benchmarks/cost.py --model mlp --rounds 15
"""

from __future__ import annotations

import argparse
import statistics
import time

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset

from lightning_ubs import UBS, ActiveBias, BatchSelection, HardImbalance, Random, RecencyBias, Strategy
from lightning_ubs.models import build_model

SAMPLES, FEATURES, LABELS, BATCH = 5987, 2314, 25, 128
STRATEGIES: dict[str, type[Strategy]] = {
    "ubs": UBS,
    "active": ActiveBias,
    "recent": RecencyBias,
    "hard": HardImbalance,
    "random": Random,
}


class Rows(Dataset):
    """Whole batches by index, so that loading does not hide what selection costs."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = (torch.rand(SAMPLES, FEATURES, generator=generator) < 0.03).float()
        self.labels = (torch.rand(SAMPLES, LABELS, generator=generator) < 0.07).float()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self.labels[index]

    def __getitems__(self, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[ids], self.labels[ids]


class Clock(L.Callback):
    """Seconds of each epoch, refresh and batches together, and how many of them selection says it took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.selection: list[float] = []

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        if "selection/seconds" in trainer.callback_metrics:
            self.selection.append(float(trainer.callback_metrics["selection/seconds"]))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if batch_idx == 0 and not self.seconds:
            self.last = time.perf_counter()
        if batch_idx == trainer.num_training_batches - 1:
            now = time.perf_counter()
            self.seconds.append(now - self.last)
            self.last = now


def epochs(model: str, strategy: Strategy, count: int, data: Rows) -> tuple[float, float]:
    """Median seconds of ``count`` selected epochs, from last batch to last batch, and of selection in them."""
    L.seed_everything(0, verbose=False)
    clock = Clock()
    trainer = L.Trainer(
        max_epochs=count + 2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[BatchSelection(strategy, warmup_epochs=1), clock],
    )
    trainer.fit(
        build_model(model, FEATURES, LABELS), DataLoader(data, BATCH, shuffle=True, collate_fn=lambda batch: batch)
    )
    return statistics.median(clock.seconds[2:]), statistics.median(clock.selection[2:])


def main() -> None:
    """Print the ratio of epoch times and selection's own share, medians over rounds, with their spread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mlp", choices=["mlp", "mpvae", "clif", "dela"], help="base model")
    parser.add_argument("--strategy", default="ubs", choices=sorted(STRATEGIES), help="what to measure")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of trainings")
    parser.add_argument("--epochs", type=int, default=3, help="selected epochs in each training")
    args = parser.parse_args()
    data = Rows()
    ratios, theirs, ours, shares = [], [], [], []
    for number in range(args.rounds):
        pair = [("random", theirs), (args.strategy, ours)]
        for name, seconds in pair if number % 2 else reversed(pair):
            epoch, selection = epochs(args.model, STRATEGIES[name](), args.epochs, data)
            seconds.append(epoch)
            if seconds is ours:
                shares.append(selection / epoch)
        ratios.append(ours[-1] / theirs[-1])
        print(f"round {number + 1}/{args.rounds}: {args.strategy} / random = {ratios[-1]:.3f}", flush=True)
    low, high = min(ratios), max(ratios)
    print(
        f"{args.model}, n {SAMPLES}, d {FEATURES}, q {LABELS}, b {BATCH}: {args.strategy} epoch / random epoch = "
        f"{statistics.median(ratios):.3f} (median of {args.rounds} rounds, {low:.3f} to {high:.3f}); by its own clock "
        f"selection took {statistics.median(shares):.1%} of the epoch ({min(shares):.1%} to {max(shares):.1%})"
    )


if __name__ == "__main__":
    main()
