"""Per-sample tensors with one spare row."""

from __future__ import annotations

import torch
from torch import Tensor


def host_copy(rows: Tensor) -> Tensor:
    """The rows but for the spare one, copied to the CPU: a checkpoint may be written while training goes on."""
    return rows[:-1].detach().to("cpu", copy=True)


def spare_row_zeros(
    num_samples: int, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    """Zeros with ``num_samples + 1`` rows of the given shape.

    What must not be remembered (a repeated sample, a prediction that is not a number) is written to the last row,
    which nobody reads. That needs no mask, so the device is never waited for.

    >>> spare_row_zeros(3, 2).shape
    torch.Size([4, 2])
    """
    return torch.zeros(num_samples + 1, *shape, dtype=dtype, device=device)
