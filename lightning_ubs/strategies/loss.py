"""Loss bias: samples with a high loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.functional import (
    proportional_probabilities,
    sample_cross_entropy,
    selection_pressure,
    selection_probabilities,
    unknown_as_largest,
)
from lightning_ubs.strategies.latest import LatestScoreStrategy


@dataclass(kw_only=True, eq=False, repr=False)
class LossBias(LatestScoreStrategy):
    """Preference for samples with a high loss.

    **What it does.** The latest binary cross-entropy of a sample, the mean over its labels, takes the place of UBS's
    weight: scaled to [0, 1] over the training set, quantized, and drawn with falling pressure (``"quantized"``), or
    drawn in proportion to it (``"proportional"``). A sample that was not visited yet counts as the hardest, so that it
    soon is.

    **When to use it.** Many rare labels and too few epochs to learn them. It
    dwells on mislabeled samples, and it costs accuracy where training has converged.

    **What it costs.** One number per sample.

    Args:
        s0: Selection pressure in the first selected epoch, for ``"quantized"``; it falls to 1.
        mode: How the loss becomes a probability.
        floor: Added to every loss in ``"proportional"``, in mean losses, so that easy samples still come.

    >>> LossBias(mode="proportional").floor
    0.5
    """

    needs = frozenset({"predictions", "targets"})

    s0: float = 100.0
    mode: Literal["quantized", "proportional"] = "quantized"
    floor: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("s0", self.s0, 1)
        check_choice("mode", self.mode, ("quantized", "proportional"))
        check_range("floor", self.floor, 0)
        self.s0 = float(self.s0)
        self.floor = float(self.floor)

    @property
    def decays(self) -> bool:
        """Only the quantized form has a pressure."""
        return self.mode == "quantized"

    def scores_of(self, probs: Tensor, targets: Tensor | None) -> Tensor:
        """The loss of each sample."""
        assert targets is not None
        return sample_cross_entropy(probs, targets)

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Pressure s_t for ``"quantized"``, else none."""
        return selection_pressure(epoch, start, end, self.s0) if self.decays else 1.0

    def probabilities(self, pressure: float) -> Tensor:
        """P from the latest losses; uniform while nothing was predicted yet."""
        weights = self.measured.weights
        if weights is None:
            return self.uniform()
        if self.mode == "quantized":
            return selection_probabilities(weights, pressure)
        loss = unknown_as_largest(self.latest)
        return proportional_probabilities(loss, self.floor * loss.mean())
