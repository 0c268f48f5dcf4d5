"""InfoBatch: leave out some of the easy samples, and let the others count for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_choice
from lightning_ubs.functional import binary_entropy, pruned_probabilities, sample_cross_entropy
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.strategies.base import EpochRequest
from lightning_ubs.strategies.latest import LatestScoreStrategy

_MOST_PRUNED = 0.9


@dataclass(kw_only=True, eq=False, repr=False)
class InfoBatch(LatestScoreStrategy):
    """Fewer samples per epoch without a bias (Qin et al., ICLR 2024).

    **What it does.** Samples whose score is below the mean are easy. An epoch leaves out a share ``prune`` of them, and
    those that come count 1/(1 - ``prune``) times as much as the hard ones, so that the expected gradient is that of all
    samples. The last eighth of the epochs (or those from ``end_epoch`` of the callback on) are plain shuffled passes of
    the same length. A sample that was not visited yet is hard.

    Here this is a P of two levels, drawn systematically, with gradients that count 1/(nP), in epochs of
    1 - ``prune``/2 of the samples, whatever the number of easy ones is: all epochs have the same number of steps.
    ``BatchSelection`` chooses all of it by itself, unless you say otherwise.

    **How it differs from the original.** There, hard samples count 1 and easy ones 1/(1 - r), so that an epoch with
    fewer steps has as much gradient in sum; here all weights are smaller by one factor, so that a step has as much
    gradient as a step of plain training. ``original=True`` does what the authors' package does: all hard samples and
    a share 1 - r of the easy ones, none of them twice, so that the number of steps follows the losses; hard samples
    count 1, easy ones 1/(1 - r); the epochs before and after are whole. With ``BatchSelection(warmup_epochs=0)`` it
    begins where they do, in the second epoch. ``trainer.estimated_stepping_batches`` is then that of whole epochs, an
    upper bound.

    **When to use it.** Plenty of samples, more than the model needs; it saves time, not more. With
    ``BatchSelection(epoch_size=...)`` it saves another share.

    **What it costs.** One number per sample.

    Args:
        prune: Share of the easy samples that is left out, r, in (0, 1).
        score: ``"loss"``, the latest binary cross-entropy, or ``"uncertainty"``, the entropy of the latest prediction,
            which needs no labels; the mean over the labels.
        original: Do exactly what the authors' package does.

    >>> InfoBatch(prune=0.5).default_epoch_size
    0.75
    """

    default_replacement: ClassVar[Replacement | None] = "systematic"
    default_unbiased: ClassVar[bool] = True

    prune: float = 0.5
    score: Literal["loss", "uncertainty"] = "loss"
    original: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.prune, int | float) and 0 < self.prune < 1):
            raise ValueError(f"prune={self.prune!r} is out of range; it must be a share between 0 and 1, such as 0.5.")
        check_choice("score", self.score, ("loss", "uncertainty"))
        if self.original and self.prune > _MOST_PRUNED:
            raise ValueError(
                f"prune={self.prune!r} is out of range with original=True: the authors' package leaves out at most "
                f"{_MOST_PRUNED}; use less, or original=False."
            )
        self.prune, self.original = float(self.prune), bool(self.original)
        if self.score == "loss":
            self.needs = frozenset({"predictions", "targets"})

    @property
    def decays(self) -> bool:
        """Whether the end must be known: it must, because the last epochs are plain."""
        return True

    @property
    def default_epoch_size(self) -> float | None:
        """1 - prune/2: what is left where half of the samples are easy; the original begins with all."""
        return None if self.original else 1 - self.prune / 2

    @property
    def decides_size(self) -> bool:
        """Whether epochs are as long as there are samples left, as the original's are."""
        return self.original

    def default_end(self, start: int, num_epochs: int) -> int:
        """The first of the plain epochs that end the training; at least one epoch is selected."""
        return max(start + 1, num_epochs * 7 // 8)

    def plain_from(self, end: int, chosen: bool) -> int | None:
        """First of the plain epochs at the end, whoever chose where they begin."""
        return end

    @property
    def score_column(self) -> str:
        """What the score is called in :meth:`BatchSelection.to_frame`."""
        return "latest_loss" if self.score == "loss" else "mean_uncertainty"

    def scores_of(self, probs: Tensor, targets: Tensor | None) -> Tensor:
        """The loss or the entropy of each sample."""
        if self.score == "uncertainty":
            return binary_entropy(probs).mean(1)
        assert targets is not None
        return sample_cross_entropy(probs, targets)

    def probabilities(self, pressure: float) -> Tensor:
        """P of two levels; uniform while nothing was predicted yet."""
        return self.uniform() if self.measured.weights is None else pruned_probabilities(self.latest, self.prune)

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """As every strategy; of the original, all hard samples and a share of the easy ones, in random order."""
        if not self.original:
            return super().plan_epoch(probabilities, request)
        generator = request.generator()
        is_easy = probabilities < probabilities.max()
        easy, hard = is_easy.nonzero().flatten(), (~is_easy).nonzero().flatten()
        kept = easy[torch.randperm(len(easy), generator=generator)[: self._kept(len(easy))]]
        ids = torch.cat([hard, kept])
        return ids[torch.randperm(len(ids), generator=generator)]

    def sample_importance(self, probabilities: Tensor) -> Tensor:
        """1/(nP); of the original, 1 for hard samples and 1/(1 - r) for easy ones."""
        if not self.original:
            return super().sample_importance(probabilities)
        return probabilities.max() / probabilities

    def expected_distinct(self, probabilities: Tensor, request: EpochRequest) -> float:
        """As every strategy; of the original, the samples that are left."""
        if not self.original:
            return super().expected_distinct(probabilities, request)
        easy = int((probabilities < probabilities.max()).sum())
        return float(len(probabilities) - easy + self._kept(easy))

    def _kept(self, easy: int) -> int:
        return int((1 - self.prune) * easy)
