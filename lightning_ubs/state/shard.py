"""Tensors with a row per sample: which rows a process keeps, and how processes put them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lightning_ubs._utils.distributed import all_gather, collect_on_rank_zero, sum_over_processes
from lightning_ubs.errors import SelectionError


def host_copy(rows: Tensor) -> Tensor:
    """The rows but for the spare one, copied to the CPU: a checkpoint may be written while training continues."""
    return rows[:-1].detach().to("cpu", copy=True)


def spare_row_zeros(
    num_samples: int, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    """Zeros with ``num_samples + 1`` rows of the given shape.

    What must not enter the history (a repeated sample, a prediction that is not a number) is written to the last row,
    which nobody reads. That needs no mask, so the device is never waited for.

    >>> spare_row_zeros(3, 2).shape
    torch.Size([4, 2])
    """
    return torch.zeros(num_samples + 1, *shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Shard:
    """The consecutive ids whose rows this rank keeps: all of them, or one of ``world_size`` equal blocks.

    Rows owned by other ranks map to the spare row here, which is written without effect and read only to keep the shape
    of a block: what is computed of a row depends on where in a block it lies, so every rank works on the blocks that
    one process alone would, and the results are equal to the last bit.

    Args:
        num_samples: Number of samples n.
        rank: This process.
        world_size: Number of ranks that share the rows.
        device: Where processes talk.

    >>> shard = Shard(num_samples=5, rank=1, world_size=2)
    >>> shard.ids, shard.rows(torch.tensor([0, 3, 4, 5])).tolist()
    (range(3, 5), [2, 0, 1, 2])
    """

    num_samples: int
    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default=torch.device("cpu"), compare=False)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ids(self) -> range:
        """The ids whose rows are kept here."""
        first = min(self.rank * self._most, self.num_samples)
        return range(first, min(first + self._most, self.num_samples))

    @cached_property
    def is_whole(self) -> bool:
        """Whether all rows are kept here."""
        return self.world_size == 1

    def rows(self, ids: Tensor) -> Tensor:
        """Where the rows of the samples ``ids`` are; the spare row, ``len(self)``, for those of other ranks."""
        if self.is_whole:
            return ids
        rows = ids - self.ids.start
        return torch.where((rows >= 0) & (rows < len(self)), rows, len(self))

    def span(self, first: int, last: int, device: torch.device) -> slice | Tensor:
        """Where the rows of samples first .. last-1 are."""
        own = self.ids
        if own.start <= first and last <= own.stop:
            return slice(first - own.start, last - own.start)
        return self.rows(torch.arange(first, last, device=device))

    def own(self, rows: Tensor) -> Tensor:
        """Those of all n rows that are kept here."""
        if len(rows) != self.num_samples:
            raise SelectionError(
                f"a selection state has {len(rows)} rows for {self.num_samples} samples; with memory='sharded' only "
                "the state of process 0 has all rows: load what Trainer.save_checkpoint wrote."
            )
        return rows[self.ids.start : self.ids.stop]

    def blocks(self, size: int) -> Iterator[tuple[int, int, slice]]:
        """(first, last, own) of each block of ``size`` ids that has rows of this rank, ``own`` being their places.

        The first block is always among them, because all ranks decide by it how to count.
        """
        own = self.ids
        for first in sorted({0, *range(own.start // size * size, own.stop, size)}):
            last = min(first + size, self.num_samples)
            begin = min(max(own.start, first), last)
            yield first, last, slice(begin - first, max(begin, min(own.stop, last)) - first)

    def gather(self, rows: Tensor) -> Tensor:
        """All n rows on every rank, from the ``rows`` of each."""
        return rows if self.is_whole else all_gather(rows, self._most, self.device)[: self.num_samples]

    def spread(self, rows: Tensor) -> Tensor:
        """Place the ``rows`` of this rank among all n; those of other ranks are NaN."""
        if self.is_whole:
            return rows
        spread = rows.new_full((self.num_samples, *rows.shape[1:]), torch.nan)
        spread[self.ids.start : self.ids.stop] = rows
        return spread

    def total(self, values: Tensor) -> Tensor:
        """The sum of the ``values`` of all ranks."""
        return values if self.is_whole else sum_over_processes(values, self.device)

    def collect(self, rows: Tensor) -> Tensor:
        """All n rows, without the spare one, on the CPU of process 0, as a checkpoint has them; none elsewhere."""
        if self.is_whole:
            return host_copy(rows)
        return collect_on_rank_zero(rows[:-1], self._most, self.num_samples, self.device)

    @cached_property
    def _most(self) -> int:
        return -(-self.num_samples // self.world_size)
