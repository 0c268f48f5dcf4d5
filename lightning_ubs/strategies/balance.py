"""Balance: every batch has the label proportions of the whole set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_ubs.functional import stratified_order
from lightning_ubs.strategies.base import EpochRequest, Strategy, TrainingSet


@dataclass(kw_only=True, eq=False, repr=False)
class Balance(Strategy):
    """A new partition of the samples in each epoch, so that each batch has the label proportions of the whole set.

    **What it does.** Iterative stratification of all samples into the batches of an epoch; no sample is repeated or
    left out, there is no warm-up and the model's predictions are not read.

    **When to use it.** As a baseline, or with rare labels and batches so small that many miss them.

    **What it costs.** O(nq) on the CPU per epoch.
    """

    needs = frozenset({"labels"})
    warms_up: ClassVar[bool] = False
    takes_class_ids: ClassVar[bool] = True
    keeps_shard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._labels = torch.empty(0)

    def reset(self, data: TrainingSet) -> None:
        """Keep the label matrix."""
        super().reset(data)
        labels = data.label_matrix
        if labels is None:
            raise ValueError("Balance needs the label matrix; pass labels=.")
        self._labels = labels.cpu()

    def probabilities(self, pressure: float) -> Tensor:
        """Every sample once."""
        return self.uniform()

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """The stratified batches, one after the other."""
        return stratified_order(self._labels, request.batch_size, request.generator())[: request.num_draws]

    def expected_distinct(self, probabilities: Tensor, request: EpochRequest) -> float:
        """As many as are drawn: no sample comes twice."""
        return float(min(request.num_draws, request.num_samples))
