"""Recency Bias, for many labels."""

from __future__ import annotations

import math

from torch import Tensor

from lightning_ubs.functional import recency_entropy
from lightning_ubs.functional.weights import Quantizer
from lightning_ubs.strategies.uncertainty import Correlation
from lightning_ubs.strategies.window import WindowStrategy


class RecencyBias(WindowStrategy):
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
        correlation_every: epochs for which label correlation is used before it is computed anew.
    """

    def __init__(
        self,
        window: int = 5,
        s0: float = 100.0,
        correlation: Correlation | None = None,
        bins: int = 5,
        log_base: float = math.e,
        quantizer: Quantizer = "floor",
        correlation_every: int = 1,
    ) -> None:
        super().__init__(
            window=window,
            s0=s0,
            correlation=correlation,
            bins=bins,
            log_base=log_base,
            quantizer=quantizer,
            correlation_every=correlation_every,
        )

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """Entropy of the thresholded predictions."""
        return recency_entropy(*self.memory.rows(first, last))
