"""A strategy of one's own in twenty lines: draw the samples with the highest recent loss more often.

Run it with ``python examples/custom_strategy.py [--fast]``; it needs ``pip install -e ".[experiments]"``.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from lightning_ubs import BatchSelection, Strategy, TrainingSet
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.functional import proportional_probabilities
from lightning_ubs.models import MLP
from lightning_ubs.state import host_copy, spare_row_zeros

QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


class LossBias(Strategy):
    """Draws a sample in proportion to the running mean of its loss (plus the mean over all, so that none is lost)."""

    needs = frozenset({"predictions", "targets"})

    def reset(self, data: TrainingSet) -> None:
        """Start without any loss; one spare row takes what must not be kept."""
        super().reset(data)
        self.loss = spare_row_zeros(data.num_samples)

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Runs after every step with what the model predicted; must not wait for the device."""
        assert targets is not None  # because needs has them
        self.loss = self.loss.to(ids.device)
        loss = binary_cross_entropy(probs, targets, reduction="none").mean(1)
        self.loss[ids] = 0.5 * self.loss[ids] + 0.5 * loss

    def probabilities(self, pressure: float) -> Tensor:
        """P of the next epoch."""
        return proportional_probabilities(self.loss[:-1])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, so that a resumed run continues exactly."""
        return {"loss": host_copy(self.loss)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.loss[:-1] = state["loss"]


if __name__ == "__main__":
    epochs = 4 if "--fast" in sys.argv else 15
    L.seed_everything(0, verbose=False)
    data = MultiLabelDataModule("digits", batch_size=32)
    selection = BatchSelection(LossBias(), warmup_epochs=1)
    data.setup()
    visits = torch.zeros(len(data.train_dataset))
    count = LambdaCallback(
        on_train_epoch_end=lambda *_: visits.add_(torch.bincount(selection.trained_ids, minlength=len(visits)))
    )
    trainer = L.Trainer(max_epochs=epochs, callbacks=[selection, count], accelerator="cpu", **QUIET)
    trainer.fit(MLP(num_features=64, num_labels=10), datamodule=data)

    print(f"Validation Macro-AUC after {epochs} epochs: {trainer.callback_metrics['val_macro_auc']:.4f}")
    digits = data.train_dataset.labels.sum(1)
    for number in (1, 2, 3):
        mean = visits[digits == number].mean().item() / epochs
        print(f"  images of {number} digit{'s' if number > 1 else ' '}: trained on {mean:.2f} times per epoch")
