"""Two things that PyTorch can do on a CPU and NumPy does several times as fast; the results are the same."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def search_ascending(table: Tensor, ascending: Tensor) -> Tensor:
    """For each number, how many entries of ``table`` are not above it; both ascend.

    >>> search_ascending(torch.tensor([0.1, 0.5, 1.0]), torch.tensor([0.0, 0.5, 0.7])).tolist()
    [0, 2, 2]
    """
    if table.device.type != "cpu" or torch.get_num_threads() > 1:  # PyTorch shares the numbers among threads
        return torch.searchsorted(table, ascending, right=True)
    return torch.from_numpy(np.searchsorted(table.numpy(), ascending.numpy(), side="right"))


def rows_with_repeats(ids: Tensor) -> Tensor:
    """The rows in which an id stands more than once.

    >>> rows_with_repeats(torch.tensor([[4, 7, 4], [1, 2, 3]])).tolist()
    [0]
    """
    if ids.device.type != "cpu":
        ordered = ids.sort(dim=1).values
        return (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero().squeeze(1)
    numbers = np.sort(ids.numpy(), axis=1)
    return torch.from_numpy(np.flatnonzero((numbers[:, 1:] == numbers[:, :-1]).any(1)))
