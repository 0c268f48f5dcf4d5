"""What processes tell each other. Every process must make each of these calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rows of all processes one below the other; process r has ``sizes[r]``."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


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
