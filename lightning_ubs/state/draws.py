"""How often, and when last, every sample was trained on."""

from __future__ import annotations

import torch
from torch import Tensor


class DrawCounts:
    """Counts the draws of every sample, on the CPU: ids are planned there, so that no device is waited for.

    Args:
        num_samples: n.

    >>> draws = DrawCounts(3)
    >>> draws.add(torch.tensor([0, 2, 0]), epoch=4)
    >>> draws.times.tolist(), draws.last_epoch.tolist()
    ([2, 0, 1], [4, -1, 4])
    """

    def __init__(self, num_samples: int) -> None:
        self.times = torch.zeros(num_samples, dtype=torch.int32)
        self.last_epoch = torch.full((num_samples,), -1, dtype=torch.int32)

    def __len__(self) -> int:
        return len(self.times)

    def add(self, ids: Tensor, epoch: int) -> None:
        """The samples ``ids`` (b,), with repeats, were trained on in ``epoch``."""
        self.times.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        self.last_epoch[ids] = epoch

    def state_dict(self) -> dict[str, Tensor]:
        """A copy: a checkpoint may be written while training goes on."""
        return {"times_drawn": self.times.clone(), "last_epoch_drawn": self.last_epoch.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave."""
        self.times.copy_(state["times_drawn"])
        self.last_epoch.copy_(state["last_epoch_drawn"])
