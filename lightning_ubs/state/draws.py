"""How often, and when last, every sample was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

# Ids that wait to be counted: many at once are counted faster, but their memory should not grow with the epoch.
_MOST_WAITING = 2**20


class DrawCounts:
    """Number of draws of every sample, on the CPU: ids are planned there, so that no device is waited for.

    Args:
        num_samples: Number of samples n.

    >>> draws = DrawCounts(3)
    >>> draws.add(torch.tensor([0, 2, 0]), epoch=4)
    >>> draws.times.tolist(), draws.last_epoch.tolist()
    ([2, 0, 1], [4, -1, 4])
    """

    def __init__(self, num_samples: int) -> None:
        self._times = torch.zeros(num_samples, dtype=torch.int32)
        self._last_epoch = torch.full((num_samples,), -1, dtype=torch.int32)
        self._waiting: list[Tensor] = []
        self._rows_waiting = 0
        self._epoch = -1

    def __len__(self) -> int:
        return len(self._times)

    @property
    def times(self) -> Tensor:
        """How often each sample was drawn, (n,) int32."""
        self._settle()
        return self._times

    @property
    def last_epoch(self) -> Tensor:
        """The last epoch that drew each sample, (n,) int32; -1 for none."""
        self._settle()
        return self._last_epoch

    def add(self, ids: Tensor, epoch: int) -> None:
        """Note the samples ``ids`` (b,), with repeats, trained on in ``epoch``; they are counted on request."""
        if epoch != self._epoch:
            self._settle()
            self._epoch = epoch
        self._waiting.append(ids)
        self._rows_waiting += len(ids)
        if self._rows_waiting > _MOST_WAITING:
            self._settle()

    def share_drawn_in(self, epoch: int) -> float:
        """Which share of the samples ``epoch`` is the last one to have drawn."""
        drawn = sum(int(torch.eq(part, epoch).count_nonzero()) for part in torch.split(self.last_epoch, _MOST_WAITING))
        return drawn / max(1, len(self))

    def state_dict(self) -> dict[str, Tensor]:
        """A copy: a checkpoint may be written while training continues."""
        return {"times_drawn": self.times.clone(), "last_epoch_drawn": self.last_epoch.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy what :meth:`state_dict` gave."""
        self._waiting, self._rows_waiting = [], 0
        self._times.copy_(state["times_drawn"])
        self._last_epoch.copy_(state["last_epoch_drawn"])

    def _settle(self) -> None:
        if self._waiting:
            ids = torch.cat(self._waiting)
            self._waiting, self._rows_waiting = [], 0
            self._times.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
            self._last_epoch[ids] = self._epoch
