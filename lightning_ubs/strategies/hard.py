"""Hard-Imbalance: hard samples of rare labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_range
from lightning_ubs.functional import hardness_probabilities, imbalance_weights, sample_cross_entropy
from lightning_ubs.state import host_copy, spare_row_zeros
from lightning_ubs.strategies.base import LabelRows, Measurement, Strategy, TrainingSet


@dataclass(kw_only=True, eq=False, repr=False)
class HardImbalance(Strategy):
    """Preference for samples with a high loss, more so those of rare labels amid neighbors without them.

    **What it does.** Before training, each sample gets a weight from its minority labels and its nearest neighbors.
    In training, that weight times its latest binary cross-entropy, quantized, decides how often it is drawn; the
    pressure stays constant.

    **When to use it.** As a baseline, or where rare labels matter more than noise: it dwells on mislabeled samples.

    **What it costs.** One nearest-neighbor search at the start, O(n²d), then one number per sample.

    Args:
        pressure: Constant pressure s_e; the paper searches {2, 8, 16, 64}.
        neighbours: Number of nearest neighbors (k).
    """

    needs = frozenset({"predictions", "targets", "labels", "features"})
    takes_class_ids: ClassVar[bool] = True
    keeps_shard: ClassVar[bool] = True

    pressure: float = 8.0
    neighbours: int = 5

    def __post_init__(self) -> None:
        check_range("pressure", self.pressure, 1)
        check_range("neighbours", self.neighbours, 1, whole=True)
        self.pressure = float(self.pressure)
        self.neighbours = int(self.neighbours)
        self._importance = torch.empty(0)
        self._loss = torch.empty(0)

    def reset(self, data: TrainingSet) -> None:
        """Weigh the samples by their neighborhood, and forget all losses."""
        super().reset(data)
        labels = data.label_matrix
        if labels is None or data.features is None:
            raise ValueError("HardImbalance needs the label and the feature matrix; pass labels= and features=.")
        self._importance = imbalance_weights(labels, data.features, self.neighbours)
        self._loss = spare_row_zeros(data.num_samples)

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Keep each sample's latest loss."""
        if targets is None:
            raise ValueError("HardImbalance needs the batch's true labels; pass targets=.")
        if self._loss.device != probs.device:
            self._loss = self._loss.to(probs.device)
        self._loss[ids] = sample_cross_entropy(probs, targets)

    def measure(self) -> Measurement:
        """Hardness, scaled so that the hardest sample has 1."""
        self._importance = self._importance.to(self._loss.device)
        hardness = (self._importance * self._loss[:-1]).double()
        largest = hardness.max()
        self.measured = Measurement(weights=hardness / torch.where(largest > 0, largest, 1.0))
        return self.measured

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """The constant s_e."""
        return self.pressure

    def probabilities(self, pressure: float) -> Tensor:
        """P from the hardness."""
        weights = self.measured.weights
        return self.uniform() if weights is None else hardness_probabilities(weights, pressure)

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """The latest losses."""
        return {"latest_loss": self._loss[:-1]}

    def state_dict(self) -> dict[str, Any]:
        """The latest losses."""
        state = {"loss": host_copy(self._loss)}
        weights = self.measured.weights
        return state if weights is None else state | {"weights": weights.to("cpu", copy=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the latest losses."""
        self._loss[:-1] = state["loss"].to(self._loss)
        self.measured = Measurement(weights=state.get("weights"))
