"""Recency Bias, for many labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_ubs.functional import recency_entropy
from lightning_ubs.functional.selection import Quantizer
from lightning_ubs.state import PredictionHistory
from lightning_ubs.strategies.base import check_range
from lightning_ubs.strategies.uncertainty import Correlation, UncertaintyStrategy


class RecencyBias(UncertaintyStrategy):
    """Prefers samples whose recent yes/no predictions disagree (Song et al., 2020), summed over labels.

    **What it does.** The entropy of the last T thresholded predictions of each label, summed, quantised and drawn with
    falling pressure exactly as UBS does, so that only the measure of uncertainty differs.

    **When to use it.** As the closest rival of UBS. It cannot tell a trend from a wavering.

    **What it costs.** T numbers per sample and label.

    Args:
        window: how many predictions are remembered (T).
        s0: selection pressure in the first selected epoch.
        correlation: ``"mutual_information"`` adds UBS's label correlation (the paper's ``Recent_LC``).
        bins: bins for it.
        log_base: base of its logarithm.
        quantizer: ``"floor"`` or ``"ceil"``.
    """

    def __init__(
        self,
        window: int = 5,
        s0: float = 100.0,
        correlation: Correlation | None = None,
        bins: int = 5,
        log_base: float = math.e,
        quantizer: Quantizer = "floor",
    ) -> None:
        super().__init__(s0, correlation, bins, log_base, quantizer)
        check_range("window", window, 2, whole=True)
        self.window = int(window)

    @property
    def bytes_per_label(self) -> int:
        """T predictions."""
        return self.window * self.history_dtype.itemsize

    def new_state(self, num_labels: int, device: torch.device) -> PredictionHistory:
        """The last T predictions."""
        return PredictionHistory(self.num_samples, num_labels, self.window, self.history_dtype, device)

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """Entropy of the thresholded predictions."""
        return recency_entropy(*self.memory.rows(first, last))
