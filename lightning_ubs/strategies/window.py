"""What strategies share that look at the last T predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_range
from lightning_ubs.functional import sample_cross_entropy, window_fluctuation
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.functional.weights import Quantizer
from lightning_ubs.state import PredictionHistory
from lightning_ubs.strategies.base import LabelRows
from lightning_ubs.strategies.uncertainty import Correlation, UncertaintyStrategy


class WindowStrategy(UncertaintyStrategy):
    """An uncertainty strategy that remembers the last ``window`` predictions of each sample.

    Args:
        window: how many predictions are remembered (T).
        s0: selection pressure in the first selected epoch.
        correlation: ``"mutual_information"`` or None.
        bins: bins of U for the mutual information (τ).
        log_base: base of its logarithm.
        quantizer: ``"floor"`` or ``"ceil"``.
        correlation_every: epochs for which a correlation is used.
    """

    def __init__(
        self,
        *,
        window: int,
        s0: float,
        correlation: Correlation | None,
        bins: int,
        log_base: float,
        quantizer: Quantizer,
        correlation_every: int,
    ) -> None:
        super().__init__(
            s0=s0,
            correlation=correlation,
            bins=bins,
            log_base=log_base,
            quantizer=quantizer,
            correlation_every=correlation_every,
        )
        check_range("window", window, 2, whole=True)
        self.window = int(window)

    @property
    def bytes_per_label(self) -> int:
        """T predictions."""
        return self.window * self.history_dtype.itemsize

    def new_state(self, num_labels: int, device: torch.device) -> PredictionHistory:
        """The last T predictions."""
        return PredictionHistory(
            self.num_samples, num_labels, self.window, self.history_dtype, device, shard=self.shard
        )

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """Mean U, how much the remembered predictions move, and the loss of the latest one."""
        columns = super().sample_columns(labels)
        if not isinstance(self._memory, PredictionHistory):
            return columns
        memory, rows = self._memory, block_rows(self._memory.num_labels * self.window)
        moves, losses = [], []
        for first, last, own in self.shard.blocks(rows):
            ids = torch.arange(first, last)[own]
            window, counts = memory.rows_of(ids.to(memory.visits.device))
            unseen = counts == 0
            moves.append(window_fluctuation(window, counts).mean(1).masked_fill(unseen, torch.nan))
            if labels is not None:
                loss = sample_cross_entropy(window[:, -1], labels(ids).to(window))
                losses.append(loss.masked_fill(unseen, torch.nan))
        columns["fluctuation"] = self.shard.spread(torch.cat(moves))
        return columns | ({"latest_loss": self.shard.spread(torch.cat(losses))} if losses else {})
