"""What the paper's released notebooks select, beside what the paper says; they do not run as published.

Only for `experiment=notebooks`, which asks how much of the paper's gain comes from these differences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.strategies import UBS, EpochRequest, Random, Strategy


class _FileOrder(Strategy):
    """Plain epochs come in the order of the dataset."""

    def plain_epoch(self, request: EpochRequest) -> Tensor:
        """The next samples of the file."""
        return (request.first + torch.arange(request.count)) % request.num_samples


class NotebookRandom(_FileOrder, Random):
    """The notebooks' baseline: every epoch in the order of the file."""


class NotebookUBS(_FileOrder, UBS):
    """The notebooks' UBS.

    Its label correlation is overwritten with ones, which switches it off; uncertainties are replaced by the centers of
    their bins; ranks are rounded up; the pressure rises from 1 to ``s0`` instead of falling; warm-up epochs come in the
    order of the file.

    Args:
        s0: Selection pressure in the last epoch.
    """

    def __init__(self, s0: float = 8.0) -> None:
        super().__init__(s0=s0, correlation=None, quantizer="ceil")

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """Centers of the bins of U."""
        binned = (super().block_uncertainty(first, last) * self.bins).floor_().clamp_(max=self.bins - 1)
        return binned.add_(0.5).div_(self.bins)

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Rising from 1 to s0."""
        falling: float = super().pressure_at(epoch, start, end)
        return self.s0 / falling
