"""A tiny training whose every batch is recorded, for tests of resuming and of several processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import torch
from all_strategies import all_strategies
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_ubs import UBS, BatchSelection, EpochSize, EvaluationPass, GroupScores, InfoBatch, Strategy, Weighted


def double_the_second(weights: Tensor, progress: float) -> Tensor:
    """Scores of groups that say how often they were asked for."""
    return weights * torch.tensor([1.0, 2.0, 1.0 + progress])


STRATEGIES: dict[str, Callable[..., Strategy]] = all_strategies() | {
    "Weighted": partial(Weighted, weights=[1.0 + i % 5 for i in range(52)]),
    "GroupScores": partial(GroupScores, groups=[i % 3 for i in range(52)], scores=double_the_second),
    "InfoBatch, original": partial(InfoBatch, original=True),
    "UBS, shorter and unbiased": UBS,
    "UBS, evaluated": UBS,
    "UBS, short epochs first": UBS,
}
# 40 samples are five batches of 8, which two processes share evenly.
OPTIONS = {
    "InfoBatch": {"epoch_size": 40},
    "Weighted": {"epoch_size": 40, "end_epoch": 4},
    "RepeatFactor": {"epoch_size": 40, "end_epoch": 5},
    "ClassAware": {"epoch_size": 40, "unbiased": True},
    "UBS, shorter and unbiased": {"epoch_size": 40, "replacement": "systematic", "unbiased": "annealed"},
    "UBS, evaluated": {"refresh": EvaluationPass()},
    "UBS, short epochs first": {"epoch_size": EpochSize(40 / 52, 40 / 52, full_last=2)},
}
FEATURES, LABELS = 6, 4


def make_data(samples: int = 52, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Feature 0 is the sample's own id."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, FEATURES + 1, generator=generator)
    y = (x[:, 1:] @ torch.randn(FEATURES, LABELS, generator=generator) > 0.5).float()
    x[:, 0] = torch.arange(samples)
    return TensorDataset(x.to(dtype), y.to(dtype))


class Recorder(L.LightningModule):
    """Writes down which samples every step saw."""

    def __init__(self, fail_at: tuple[int, int] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, LABELS))
        self.fail_at = fail_at
        self.seen: dict[tuple[int, int], list[int]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, 1:])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.fail_at == (self.current_epoch, batch_idx):
            raise RuntimeError("the power went out")
        x, y = batch
        self.seen[self.current_epoch, batch_idx] = x[:, 0].long().tolist()
        return torch.nn.functional.binary_cross_entropy_with_logits(self(x), y)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", torch.nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Noisy(Recorder):
    """Draws random numbers of its own in every step, and has statistics of batches."""

    def __init__(self, fail_at: tuple[int, int] | None = None) -> None:
        super().__init__(fail_at)
        layers = torch.nn.Linear(FEATURES, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Dropout(0.3)
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(8, LABELS))


class Augmented(Dataset):
    """Changes its samples at random, by the generators of torch, NumPy and Python; it shows the labels."""

    def __init__(self, items: TensorDataset) -> None:
        self.items = items
        self.labels = items.tensors[1]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = self.items[i]
        noise = torch.rand(()).item() + np.random.normal() + random.gauss(0, 1)
        return torch.cat([x[:1], x[1:] + 0.1 * noise]), y


def make_loader(data: TensorDataset, batch_size: int = 8, workers: int = 0, **kwargs: object) -> DataLoader:
    return DataLoader(
        data, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **kwargs
    )


def make_trainer(folder: Path, callbacks: list[L.Callback], **kwargs: object) -> L.Trainer:
    options: dict[str, object] = {
        "max_epochs": 6,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": folder,
    }
    if any(isinstance(callback, L.pytorch.callbacks.Checkpoint) for callback in callbacks):
        options["enable_checkpointing"] = True
    return L.Trainer(callbacks=callbacks, **(options | kwargs))


def make_selection(name: str = "UBS", arguments: dict | None = None, **kwargs: object) -> BatchSelection:
    options = {"warmup_epochs": 2, "seed": 3} | OPTIONS.get(name, {}) | kwargs
    return BatchSelection(STRATEGIES[name](**arguments or {}), **options)


def weights_of(module: L.LightningModule) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


class PlanCheck(L.Callback):
    """Fails at once if a step did not see the samples that were planned for it."""

    def __init__(self, selection: BatchSelection, key: str | None = None) -> None:
        self.selection = selection
        self.key = key
        self.checked = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        assert self.selection.plan.epoch == trainer.current_epoch
        planned = self.selection.plan[trainer.fit_loop.epoch_loop.batch_idx].tolist()
        features = (batch if self.key is None else batch[self.key])[0]
        assert features[:, 0].long().tolist() == planned, (trainer.current_epoch, batch_idx)
        self.checked += 1
