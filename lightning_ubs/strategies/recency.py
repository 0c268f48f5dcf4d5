"""Recency Bias, for many labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lightning_ubs.functional import recency_entropy
from lightning_ubs.strategies.uncertainty import WindowStrategy


@dataclass(kw_only=True, eq=False, repr=False)
class RecencyBias(WindowStrategy):
    """Preference for samples whose recent yes/no predictions disagree (Song et al., 2020), summed over labels.

    **What it does.** The entropy of the last T thresholded predictions of each label, summed, quantized and drawn with
    falling pressure exactly as UBS does, so that only the measure of uncertainty differs.

    **When to use it.** As the closest rival of UBS. It cannot tell a trend from a wavering.

    **What it costs.** T numbers per sample and label.

    Besides ``window`` it takes the arguments of :class:`UncertaintyStrategy`; ``correlation="mutual_information"`` is
    the paper's ``Recent_LC``.

    Args:
        window: How many predictions are kept (T).
    """

    window: int = 5

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """Entropy of the thresholded predictions."""
        return recency_entropy(*self.memory.rows(first, last))
