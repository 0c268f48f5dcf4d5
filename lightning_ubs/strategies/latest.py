"""What strategies share that look at one number of each sample's latest visit."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lightning_ubs.functional import min_max_scale, unknown_as_largest
from lightning_ubs.state import host_copy, spare_row_zeros
from lightning_ubs.strategies.base import LabelRows, Measurement, Strategy, TrainingSet

# A score is never negative, so this marks a sample that was not visited yet.
_UNSEEN = -1.0


@dataclass(kw_only=True, eq=False, repr=False)
class LatestScoreStrategy(Strategy):
    """One score per sample, that of its latest visit; a subclass says what it is and what follows from it.

    Samples that were not visited yet weigh as much as the heaviest.
    """

    keeps_shard: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._scores = torch.empty(0)
        self._has_scores = False

    @property
    def score_column(self) -> str:
        """What the score is called in :meth:`BatchSelection.to_frame`."""
        return "latest_loss"

    @abstractmethod
    def scores_of(self, probs: Tensor, targets: Tensor | None) -> Tensor:
        """The (b,) scores, not negative, of predictions (b, q)."""

    @property
    def latest(self) -> Tensor:
        """The (n,) latest scores; NaN where a sample was not visited yet."""
        scores = self._scores[:-1].double()
        return scores.masked_fill(scores == _UNSEEN, torch.nan)

    def reset(self, data: TrainingSet) -> None:
        """Forget all scores."""
        super().reset(data)
        self._scores = spare_row_zeros(data.num_samples).fill_(_UNSEEN)
        self._has_scores = False

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Keep each sample's latest score."""
        if targets is None and "targets" in self.needs:
            raise ValueError(f"{type(self).__name__} needs the batch's true labels; pass targets=.")
        if self._scores.device != probs.device:
            self._scores = self._scores.to(probs.device)
        self._scores[ids] = self.scores_of(probs, targets)
        self._has_scores = True

    def measure(self) -> Measurement:
        """The latest scores, scaled to [0, 1]; nothing before the first."""
        if self._has_scores:
            self.measured = Measurement(weights=min_max_scale(unknown_as_largest(self.latest)))
        return self.measured

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """The latest scores."""
        return {self.score_column: self.latest}

    def with_weights(self, weights: Tensor) -> Self:
        """A copy with these weights w, which are its scores as well."""
        other = super().with_weights(weights)
        other._scores = torch.cat([weights, weights.new_zeros(1)])
        return other

    def state_dict(self) -> dict[str, Any]:
        """The latest scores, and what was measured at the start of the epoch."""
        state = {"scores": host_copy(self._scores)}
        weights = self.measured.weights
        return state if weights is None else state | {"weights": weights.to("cpu", copy=True)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the latest scores."""
        self._scores[:-1] = state["scores"].to(self._scores)
        self._has_scores = bool((state["scores"] != _UNSEEN).any())
        self.measured = Measurement(weights=state.get("weights"))

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """Bytes of the scores; a checkpoint has them, the weights and P."""
        return 4 * self.num_samples, (4 + 8 + 8) * self.num_samples
