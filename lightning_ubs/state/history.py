"""The last T predictions of every sample."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.state.shard import Shard, spare_row_zeros


class PredictionHistory:
    """A ring buffer of the last ``window`` predictions of each sample, one row of it per visit.

    Pushes are two indexed writes on the buffer's device, without a loop and without waiting. Row ``num_samples`` is
    a spare that is written and never read.

    With ``torch.uint8`` a prediction is kept in 255 steps, one byte each, and is off by at most δ = 1/510. A
    difference of two is then off by at most 2δ and an entropy by at most that of δ itself, so that U = λ1·d + (1-λ1)·e
    is off by at most λ1/255 + (1-λ1)·0.0205: 0.0122 at λ1 = 0.5. Certain predictions stay exactly certain.

    Args:
        num_samples: Number of samples n.
        num_labels: Number of labels q.
        window: T.
        dtype: How predictions are kept; half precision halves the memory, ``torch.uint8`` quarters it.
        device: Where they are kept.
        shard: Whose predictions are kept here; those of all samples by default.

    >>> history = PredictionHistory(num_samples=2, num_labels=1, window=2)
    >>> for p in (0.1, 0.2, 0.3):
    ...     history.push(torch.tensor([0]), torch.tensor([[p]]))
    >>> window, counts = history.rows(0, 2)
    >>> window[0].flatten(), counts
    (tensor([0.2000, 0.3000]), tensor([2, 0]))
    """

    def __init__(
        self,
        num_samples: int,
        num_labels: int,
        window: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shard: Shard | None = None,
    ) -> None:
        self.num_labels = num_labels
        self.depth = self.window = window
        self.shard = Shard(num_samples) if shard is None else shard
        self.values = spare_row_zeros(len(self.shard), window, num_labels, dtype=dtype, device=device)
        self.visits = spare_row_zeros(len(self.shard), dtype=torch.int64, device=device)

    def push(self, ids: Tensor, probs: Tensor) -> None:
        """Store predictions (b, q) of the samples ``ids`` (b,), which are distinct but for the spare row."""
        rows = self.shard.rows(ids)
        visits = self.visits.index_select(0, rows)
        slots = (visits % self.window).add_(rows, alpha=self.window)
        self.values.view(-1, self.num_labels).index_copy_(0, slots, _encoded(probs, self.values.dtype))
        self.visits.index_copy_(0, rows, visits.add_(1))

    def rows(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Windows of samples first .. last-1 as (rows, T, q) float32, oldest first, and how many are valid."""
        return self.rows_of(torch.arange(first, last, device=self.visits.device))

    def rows_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Windows of the samples ``ids`` as (b, T, q) float32, oldest first, and how many are valid."""
        rows = self.shard.rows(ids)
        visits = self.visits[rows]
        steps = torch.arange(self.window, device=visits.device)
        # By where the oldest one stands; looked up, because a remainder takes long.
        orders = (steps.unsqueeze(1) + steps) % self.window
        slots = orders.index_select(0, visits % self.window) + self.window * rows.unsqueeze(1)
        window = _decoded(self.values.view(-1, self.num_labels).index_select(0, slots.flatten()))
        return window.view(-1, self.window, self.num_labels), visits.clamp(max=self.window)

    def latest(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The latest predictions of the samples ``ids`` as (b, q) float32, and whether there are any."""
        rows = self.shard.rows(ids)
        visits = self.visits[rows]
        slots = (visits - 1) % self.window + self.window * rows
        return _decoded(self.values.view(-1, self.num_labels).index_select(0, slots)), visits > 0

    def means(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Mean (rows, q) of the windows of samples first .. last-1, 0 where there are none, and how many are valid."""
        window, counts = self.rows(first, last)
        valid = torch.arange(self.window, device=counts.device) >= self.window - counts.unsqueeze(1)
        return (window * valid.unsqueeze(2)).sum(1) / counts.clamp(min=1).unsqueeze(1), counts

    def to(self, device: torch.device) -> None:
        """Move the buffer."""
        self.values, self.visits = self.values.to(device), self.visits.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the whole buffer on the CPU, without its spare row."""
        return {"history": self.shard.collect(self.values), "visits": self.shard.collect(self.visits)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave, also from another window: the latest predictions that fit are kept."""
        history = self.shard.own(state["history"]).to(self.values.device)
        visits = self.shard.own(state["visits"]).to(self.visits)
        window = history.shape[1]
        if window != self.window:
            kept, rows = min(window, self.window), torch.arange(len(visits), device=visits.device).unsqueeze(1)
            slots = torch.arange(kept, device=visits.device)
            latest = history[rows, (visits.unsqueeze(1) - kept + slots) % window]
            # As if only these had been seen: the count continues from the number that is kept.
            visits = visits.clamp(max=kept)
            history = latest.new_zeros(len(visits), self.window, self.num_labels)
            history[rows, (slots + visits.unsqueeze(1)) % kept] = latest
        same = history.dtype == self.values.dtype
        self.values[:-1] = history if same else _encoded(_decoded(history), self.values.dtype)
        self.visits[:-1] = visits


def _encoded(probs: Tensor, dtype: torch.dtype) -> Tensor:
    return (probs * 255).round_().to(dtype) if dtype == torch.uint8 else probs.to(dtype)


def _decoded(values: Tensor) -> Tensor:
    return values.float().div_(255) if values.dtype == torch.uint8 else values.float()
