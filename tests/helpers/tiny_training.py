"""Small modules and datasets for tests that run a real Trainer."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_ubs import BatchSelection

N, D, Q = 42, 6, 3


def data(n: int = N, q: int = Q, seed: int = 0) -> TensorDataset:
    """Feature 0 is the sample's own index, so that training_step knows the true ids."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, D, generator=generator)
    labels = ((features[:, 1 : q + 1] + 0.7 * torch.randn(n, q, generator=generator)) > 0.3).float()
    features[:, 0] = torch.arange(n)
    return TensorDataset(features, labels)


def loader(dataset: Dataset[Any] | None = None, **options: Any) -> DataLoader[Any]:
    return DataLoader(data() if dataset is None else dataset, **{"batch_size": 8, "shuffle": True} | options)


class Tiny(L.LightningModule):
    """One linear layer; records the true ids and the probabilities of every training step."""

    def __init__(self, q: int = Q, lr: float = 0.3) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Linear(D - 1, q)
        self.seen: dict[int, list[tuple[list[int], Tensor]]] = defaultdict(list)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x[:, 1:])
        return logits

    def record(self, x: Tensor, logits: Tensor) -> None:
        ids = [round(i) for i in x[:, 0].tolist()]
        self.seen[self.current_epoch].append((ids, logits.detach().float().sigmoid().cpu()))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        logits = self(x)
        self.record(x, logits)
        return self.loss(logits, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def ids(self) -> dict[int, list[list[int]]]:
        """True ids of every batch, by epoch."""
        return {epoch: [ids for ids, _ in steps] for epoch, steps in self.seen.items()}

    def histories(self, epochs: int, n: int = N) -> list[list[list[float]]]:
        """All predictions of each sample in the first ``epochs`` epochs, oldest first."""
        known: list[list[list[float]]] = [[] for _ in range(n)]
        for epoch in range(epochs):
            for ids, probs in self.seen[epoch]:
                for i, row in zip(ids, probs.tolist(), strict=True):
                    known[i].append(row)
        return known


class Watch(L.Callback):
    """Copies what the selection shows at the start of every epoch, and its plan at the end."""

    def __init__(self, selection: BatchSelection) -> None:
        self.selection = selection
        self.shown: dict[int, dict[str, Any]] = {}
        self.plans: dict[int, list[list[int]]] = {}

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        names = ("uncertainty", "correlation", "weights", "probabilities", "pressure")
        values = {name: getattr(self.selection, name) for name in names}
        self.shown[trainer.current_epoch] = {
            name: value.clone() if isinstance(value, Tensor) else value for name, value in values.items()
        }

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.selection.plan is not None
        self.plans[trainer.current_epoch] = [batch.tolist() for batch in self.selection.plan]


def trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    """A Trainer that writes and says nothing."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 4,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(callbacks=list(callbacks), **quiet | options)


class Fitted(NamedTuple):
    """A module that was trained, what was shown meanwhile, and the trainer."""

    module: Any
    watch: Watch
    trainer: L.Trainer


def fit(
    selection: BatchSelection,
    module: L.LightningModule | None = None,
    train: Any = None,
    val: Any = None,
    **options: Any,
) -> Fitted:
    """Train a module with a selection."""
    watch = Watch(selection)
    made = trainer(selection, watch, **options)
    module = Tiny() if module is None else module
    made.fit(module, loader() if train is None else train, val)
    return Fitted(module, watch, made)
