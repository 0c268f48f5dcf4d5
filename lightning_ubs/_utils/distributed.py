"""Collectives: what ranks exchange. Every rank must make each of these calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# Bytes that process 0 receives at a time while it collects a checkpoint.
_COLLECTED = 2**26


def gather_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows of all processes one below the other; process r has ``sizes[r]``."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def all_gather(rows: Tensor, most: int, device: torch.device) -> Tensor:
    """Rows of all processes one below the other; each has ``most`` but for the last ones, which are filled up."""
    world = dist.get_world_size()
    padded = torch.zeros(most, *rows.shape[1:], dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows
    gathered = padded.new_empty(world * most, *rows.shape[1:])
    dist.all_gather(list(torch.split(gathered, most)), padded)
    return gathered.to(rows.device)


def sum_over_processes(values: Tensor, device: torch.device) -> Tensor:
    """The sum of what all processes have, the same on each."""
    shared = values.to(device, copy=True).contiguous()
    dist.all_reduce(shared)
    return shared.to(values.device)


def collect_on_rank_zero(rows: Tensor, most: int, count: int, device: torch.device) -> Tensor:
    """The ``count`` rows of all processes as by :func:`all_gather`, on the CPU of process 0, which gets them in parts.

    Other processes get no rows, so that only one must have room for all.
    """
    rank, world, shape = dist.get_rank(), dist.get_world_size(), rows.shape[1:]
    step = max(1, _COLLECTED // (world * rows.itemsize * math.prod(shape)))
    collected = torch.empty(count if rank == 0 else 0, *shape, dtype=rows.dtype)
    for first in range(0, most, step):
        part = torch.zeros(min(step, most - first), *shape, dtype=rows.dtype, device=device)
        own = rows[first : first + step]
        part[: len(own)] = own
        # As bytes, because not every backend sends every type.
        sent = part.view(torch.uint8)
        received = [torch.empty_like(sent) for _ in range(world)] if rank == 0 else []
        dist.gather(sent, received or None, dst=0)
        for process, bytes_ in enumerate(received):
            place = collected[process * most + first :][: len(part)]
            place.copy_(bytes_.view(rows.dtype)[: len(place)])
    return collected


def broadcast_from_rank_zero(tensor: Tensor, device: torch.device) -> Tensor:
    """What process 0 has, on every process, so that rounding on unlike devices cannot make ranks diverge."""
    shared = tensor.to(device).contiguous()
    dist.broadcast(shared, src=0)
    return shared.to(tensor.device)


def gather_objects(value: Any) -> list[Any]:
    """The ``value`` of every process, in the order of their ranks."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
