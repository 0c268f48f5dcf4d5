"""Active Bias, for many labels."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Generator, Tensor

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import prediction_spread, proportional_probabilities
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.functional.weights import Quantizer
from lightning_ubs.state import RunningMoments
from lightning_ubs.strategies.uncertainty import Correlation, UncertaintyStrategy


class ActiveBias(UncertaintyStrategy):
    """Prefers samples whose predictions varied most over the whole training (Chang et al., 2017), summed over labels.

    **What it does.** The spread of all predictions of each label, summed, turned into probabilities either in
    proportion (``"proportional"``, the original's sampling variant) or quantised with falling pressure
    (``"quantized"``, as in the released code of the UBS paper).

    **When to use it.** As a baseline. Old predictions never leave, so it reacts slowly late in training.

    **What it costs.** Two numbers per sample and label, whatever the number of epochs.

    Args:
        mode: how the spread becomes a probability.
        smoothing: ε added to every spread in ``"proportional"``; None takes the mean spread.
        s0: selection pressure in the first selected epoch, for ``"quantized"``.
        ddof: 1 for the sample variance, 0 for the population's.
        correlation: ``"mutual_information"`` adds UBS's label correlation (the paper's ``Active_LC``).
        bins: bins for it.
        log_base: base of its logarithm.
        quantizer: ``"floor"`` or ``"ceil"``, for ``"quantized"``.
        correlation_every: epochs for which label correlation is used before it is computed anew.
    """

    def __init__(
        self,
        mode: Literal["proportional", "quantized"] = "proportional",
        smoothing: float | None = None,
        s0: float = 100.0,
        ddof: int = 1,
        correlation: Correlation | None = None,
        bins: int = 5,
        log_base: float = math.e,
        quantizer: Quantizer = "floor",
        correlation_every: int = 1,
    ) -> None:
        super().__init__(
            s0=s0,
            correlation=correlation,
            bins=bins,
            log_base=log_base,
            quantizer=quantizer,
            correlation_every=correlation_every,
        )
        check_choice("mode", mode, ("proportional", "quantized"))
        if smoothing is not None:
            check_range("smoothing", smoothing, 0)
        check_range("ddof", ddof, 0, 1, whole=True)
        self.mode = mode
        self.smoothing = smoothing
        self.ddof = int(ddof)

    @property
    def decays(self) -> bool:
        """Only the quantised form has a pressure."""
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
        """s_t for ``"quantized"``, else none."""
        return super().pressure_at(epoch, start, end) if self.mode == "quantized" else 1.0

    def probabilities(self, pressure: float) -> Tensor:
        """P from the summed spread."""
        if self.mode == "quantized" or self._raw is None:
            return super().probabilities(pressure)
        return proportional_probabilities(self._raw, self.smoothing)

    def draw(
        self, probabilities: Tensor, batch_size: int, num_draws: int, generator: Generator, replacement: Replacement
    ) -> Tensor:
        """As every strategy; without smoothing, too few samples may have a chance to be drawn."""
        try:
            return super().draw(probabilities, batch_size, num_draws, generator, replacement)
        except ValueError as error:
            if self.smoothing is None or self.smoothing > 0:
                raise
            raise SelectionError(
                f"with smoothing=0 only {int((probabilities > 0).sum())} samples whose predictions varied can be "
                "drawn, too few for a batch; pass ActiveBias(smoothing=None) or a positive smoothing."
            ) from error
