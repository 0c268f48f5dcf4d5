"""Balance: every batch has the label proportions of the whole set."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor

from lightning_ubs.functional import stratified_order
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.strategies.base import Strategy


class Balance(Strategy):
    """Partitions the samples anew each epoch so that each batch has the label proportions of the whole set.

    **What it does.** Iterative stratification of all samples into the batches of an epoch; no sample is repeated or
    left out, there is no warm-up and nothing is learnt from the model.

    **When to use it.** As a baseline, or with rare labels and batches so small that many miss them.

    **What it costs.** O(nq) on the CPU per epoch.
    """

    warms_up: ClassVar[bool] = False
    keeps_shard: ClassVar[bool] = True
    needs_labels: ClassVar[bool] = True
    needs_predictions: ClassVar[bool] = False
    draws_each_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self._labels = torch.empty(0)

    def reset(
        self,
        num_samples: int,
        labels: Tensor | None = None,
        features: Tensor | None = None,
        history_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Keep the label matrix."""
        super().reset(num_samples)
        if labels is None:
            raise ValueError("Balance needs the label matrix; pass labels=.")
        self._labels = labels.cpu()

    def probabilities(self, pressure: float) -> Tensor:
        """Every sample once."""
        return self.uniform()

    def draw(
        self, probabilities: Tensor, batch_size: int, num_draws: int, generator: Generator, replacement: Replacement
    ) -> Tensor:
        """The stratified batches, one after the other."""
        return stratified_order(self._labels, batch_size, generator)[:num_draws]
