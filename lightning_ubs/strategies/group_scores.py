"""GroupScores: weights per group of samples, which a function of the user's updates at the start of each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.strategies.base import Measurement, Strategy, TrainingSet

Scores = Callable[[Tensor, float], Any]


@dataclass(kw_only=True, eq=False, repr=False)
class GroupScores(Strategy):
    """Draws by weights of the groups that samples are in, such as sources or label sets; your function changes them.

    **What it does.** At the start of every epoch, ``scores(weights, progress)`` is asked for new weights, one per
    group, from those of the epoch before (ones at first) and from how far the training is, from 0 to 1. A sample is as
    likely as the weight of its group; for shares of an epoch instead, divide them by the sizes of the groups. The
    weights are in checkpoints, so a resume in mid-epoch does not ask again.

    **When to use it.** Where a sample is seen about once, as in one pass over data that do not fit: what was predicted
    of the sample before says nothing then, but how its source does now may. It reads no predictions, so it works with
    any module.

    **What it costs.** Eight bytes per sample, beside P.

    Args:
        groups: The group of each training sample, whole numbers from 0.
        scores: Gives one number of at least 0 per group.

    >>> GroupScores([0, 0, 1], scores=lambda weights, progress: [1.0, 2.0])
    GroupScores(groups=<Tensor of shape (3,)>, scores=<lambda>)
    """

    needs = frozenset()
    keeps_shard: ClassVar[bool] = True

    groups: Any = field(kw_only=False)
    scores: Scores

    def __post_init__(self) -> None:
        try:
            groups = torch.as_tensor(self.groups, device="cpu").detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"groups of type {type(self.groups).__name__} are no numbers; number the groups from 0, by "
                "numpy.unique(groups, return_inverse=True)[1]."
            ) from error
        if groups.ndim != 1 or len(groups) == 0 or groups.is_floating_point() or int(groups.min()) < 0:
            raise ValueError(
                f"groups of shape {list(groups.shape)} and type {groups.dtype} are not one whole number of at least 0 "
                "per sample; number the groups from 0, by numpy.unique(groups, return_inverse=True)[1]."
            )
        if not callable(self.scores):
            raise ValueError(f"scores={self.scores!r} is no function; pass one of (weights, progress).")
        self.groups = groups.long()
        self._sizes = self.groups.bincount()
        self._weights = torch.ones(len(self._sizes), dtype=torch.float64)

    def default_start(self, warmup_epochs: int) -> int:
        """The first epoch: there is nothing to warm up."""
        return 0

    def reset(self, data: TrainingSet) -> None:
        """Begin with equal weights."""
        super().reset(data)
        if len(self.groups) != data.num_samples:
            raise SelectionError(
                f"there are groups of {len(self.groups)} samples for {data.num_samples} training samples; pass one "
                "number per training sample."
            )
        self._weights = torch.ones(len(self._sizes), dtype=torch.float64)

    def measure(self) -> Measurement:
        """Ask the user's function for the weights of this epoch."""
        self._weights = self._checked(self.scores(self._weights.clone(), self.progress))
        self.measured = Measurement(weights=self._relative()[self.groups])
        return self.measured

    def probabilities(self, pressure: float) -> Tensor:
        """P in proportion to the weights of the groups."""
        weights = self._relative()
        probabilities: Tensor = (weights / (weights * self._sizes).sum())[self.groups]
        return probabilities

    def with_weights(self, weights: Tensor) -> Self:
        """A copy with these weights, each sample a group of its own."""
        other = super().with_weights(weights)
        other.groups, other._weights = torch.arange(len(weights)), weights
        other._sizes = torch.ones_like(other.groups)
        return other

    def state_dict(self) -> dict[str, Any]:
        """The weights of the groups."""
        return {"group_weights": self._weights.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the weights, if there are as many groups."""
        weights = state["group_weights"]
        if len(weights) != len(self._sizes):
            raise SelectionError(
                f"the checkpoint has weights of {len(weights)} groups, but there are {len(self._sizes)}; pass the same "
                "groups, or train from scratch."
            )
        self._weights = weights.clone()

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """The groups and P in memory; P and the weights in a checkpoint."""
        held, saved = super().footprint(num_labels, compact)
        return held + 8 * self.num_samples, saved + 8 * len(self._sizes)

    def _checked(self, given: Any) -> Tensor:
        """One weight per group, if an epoch can be drawn by them."""
        count = len(self._sizes)
        try:
            weights = torch.as_tensor(given, dtype=torch.float64, device="cpu").detach().clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise SelectionError(
                f"scores returned {type(given).__name__}, which are no numbers; return {count}, one per group."
            ) from error
        if weights.shape != (count,) or not bool((weights.isfinite() & (weights >= 0)).all()):
            raise SelectionError(
                f"scores returned {given!r}; return {count} finite numbers of at least 0, one per group."
            )
        if not bool((weights * self._sizes > 0).any()):
            raise SelectionError(
                "scores returned 0 for every group that has samples, so none could be drawn; let one be positive."
            )
        return weights

    def _relative(self) -> Tensor:
        """The weights, the largest of a group that has samples being 1; those of others are 0."""
        weights = torch.where(self._sizes > 0, self._weights, 0.0)
        return weights / weights.max()
