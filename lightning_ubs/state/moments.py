"""Mean and variance of all predictions of every sample."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.state.shard import Shard, spare_row_zeros


class RunningMoments:
    """Welford's running mean and sum of squared deviations, per sample and label.

    Memory does not grow with the number of visits. Row ``num_samples`` is a spare that is written and never read.

    Args:
        num_samples: Number of samples n.
        num_labels: Number of labels q.
        ddof: 1 for the sample variance, 0 for the population's.
        device: Where the moments are kept.
        shard: Whose moments are kept here; those of all samples by default.

    >>> moments = RunningMoments(num_samples=1, num_labels=1)
    >>> for p in (0.2, 0.8, 0.5):
    ...     moments.push(torch.tensor([0]), torch.tensor([[p]]))
    >>> variance, counts = moments.rows(0, 1)
    >>> variance, counts
    (tensor([[0.0900]]), tensor([3]))
    """

    depth = 1

    def __init__(
        self,
        num_samples: int,
        num_labels: int,
        ddof: int = 1,
        device: torch.device | str = "cpu",
        shard: Shard | None = None,
    ) -> None:
        self.num_labels = num_labels
        self.ddof = ddof
        self.shard = Shard(num_samples) if shard is None else shard
        self.visits = spare_row_zeros(len(self.shard), dtype=torch.int64, device=device)
        self.mean = spare_row_zeros(len(self.shard), num_labels, device=device)
        self.squares = spare_row_zeros(len(self.shard), num_labels, device=device)

    def push(self, ids: Tensor, probs: Tensor) -> None:
        """Add predictions (b, q) of the samples ``ids`` (b,), which are distinct but for the spare row."""
        rows = self.shard.rows(ids)
        visits = self.visits[rows] + 1
        mean = self.mean[rows]
        deviation = probs - mean
        mean = mean + deviation / visits.unsqueeze(1)
        self.squares[rows] = self.squares[rows] + deviation * (probs - mean)
        self.mean[rows] = mean
        self.visits[rows] = visits

    def rows(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Variances (rows, q) of samples first .. last-1 and their numbers of visits (rows,)."""
        rows = self.shard.span(first, last, self.visits.device)
        visits = self.visits[rows]
        variance = self.squares[rows] / (visits - self.ddof).clamp(min=1).unsqueeze(1)
        return variance, visits

    def means(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Means (rows, q) of samples first .. last-1, 0 where nothing was seen, and their numbers of visits (rows,)."""
        rows = self.shard.span(first, last, self.visits.device)
        return self.mean[rows], self.visits[rows]

    def to(self, device: torch.device) -> None:
        """Move the moments."""
        self.visits, self.mean, self.squares = (t.to(device) for t in (self.visits, self.mean, self.squares))

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of all moments on the CPU, without their spare row."""
        return {
            "visits": self.shard.collect(self.visits),
            "mean": self.shard.collect(self.mean),
            "squares": self.shard.collect(self.squares),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave; sizes must agree."""
        self.visits[:-1] = self.shard.own(state["visits"]).to(self.visits)
        self.mean[:-1] = self.shard.own(state["mean"]).to(self.mean)
        self.squares[:-1] = self.shard.own(state["squares"]).to(self.squares)
