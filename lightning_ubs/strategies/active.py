"""Active Bias, for many labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import prediction_spread, proportional_probabilities
from lightning_ubs.state import RunningMoments
from lightning_ubs.strategies.base import EpochRequest
from lightning_ubs.strategies.uncertainty import UncertaintyStrategy


@dataclass(kw_only=True, eq=False, repr=False)
class ActiveBias(UncertaintyStrategy):
    """Preference for samples whose predictions varied most over the training (Chang et al., 2017), summed over labels.

    **What it does.** The spread of all predictions of each label, summed, turned into probabilities either in
    proportion (``"proportional"``, the original's sampling variant) or quantized with falling pressure
    (``"quantized"``, as in the released code of the UBS paper).

    **When to use it.** As a baseline. Old predictions never leave, so it reacts slowly late in training.

    **What it costs.** Two numbers per sample and label, whatever the number of epochs.

    Besides its own arguments it takes those of :class:`UncertaintyStrategy`: ``s0`` and ``quantizer`` for
    ``"quantized"``, and ``correlation="mutual_information"`` for the paper's ``Active_LC``.

    Args:
        mode: How the spread becomes a probability.
        smoothing: Constant ε added to every spread in ``"proportional"``; None takes the mean spread.
        ddof: 1 for the sample variance, 0 for the population's.
    """

    mode: Literal["proportional", "quantized"] = "proportional"
    smoothing: float | None = None
    ddof: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mode", self.mode, ("proportional", "quantized"))
        if self.smoothing is not None:
            check_range("smoothing", self.smoothing, 0)
        check_range("ddof", self.ddof, 0, 1, whole=True)
        self.ddof = int(self.ddof)

    @property
    def decays(self) -> bool:
        """Whether the schedule depends on the last epoch: only the quantized form has a pressure."""
        return self.mode == "quantized"

    @property
    def bytes_per_label(self) -> int:
        """Mean and sum of squares."""
        return 8

    def new_state(self, num_labels: int, device: torch.device) -> RunningMoments:
        """Running mean and variance."""
        return RunningMoments(self.num_samples, num_labels, self.ddof, device, shard=self.shard)

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """Spread of all predictions so far."""
        return prediction_spread(*self.memory.rows(first, last))

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Pressure s_t for ``"quantized"``, else none."""
        return super().pressure_at(epoch, start, end) if self.mode == "quantized" else 1.0

    def probabilities(self, pressure: float) -> Tensor:
        """P from the summed spread."""
        if self.mode == "quantized" or self._raw is None:
            return super().probabilities(pressure)
        return proportional_probabilities(self._raw, self.smoothing)

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """As every strategy; without smoothing, too few samples may have a chance to be drawn."""
        try:
            return super().plan_epoch(probabilities, request)
        except ValueError as error:
            if self.smoothing is None or self.smoothing > 0:
                raise
            raise SelectionError(
                f"with smoothing=0 only {int((probabilities > 0).sum())} samples whose predictions varied can be "
                "drawn, too few for a batch; pass ActiveBias(smoothing=None) or a positive smoothing."
            ) from error
