"""Shuffled: the probabilities of another strategy, dealt to random samples. The control that emphasizes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.strategies.base import EpochRequest, Measurement, Need, Strategy, TrainingSet
from lightning_ubs.strategies.ubs import UBS

# Another generator than those of draws and shuffled passes, which have the seeds of users.
_DEALING = 7919


@dataclass(kw_only=True, eq=False, repr=False)
class Shuffled(Strategy):
    """The probabilities of a strategy, dealt to random samples anew in each epoch.

    **What it does.** The strategy learns and computes P as always; then P is permuted, by epoch. So as many samples
    come twice and as many are left out as in the strategy's own epochs, epochs are as long, and gradients are weighed
    alike, but which samples those are is chance.

    **When to use it.** As the control of a gain: what this gains as well is not due to which samples are emphasized.
    ``compare(controls=True)`` adds it for every strategy that has probabilities.

    **What it costs.** What the strategy costs, and one permutation per epoch.

    Args:
        strategy: Whose probabilities are dealt.
        of: Name of the method that this is the control of, for results.

    >>> from lightning_ubs import LossBias
    >>> Shuffled(strategy=LossBias()).needs == LossBias().needs
    True
    """

    strategy: Strategy = field(default_factory=UBS)
    of: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise ValueError(f"strategy={self.strategy!r} must be a strategy, such as UBS(); pass one.")
        self._epoch = 0
        for name in ("needs", "warms_up", "takes_class_ids", "default_replacement", "default_unbiased"):
            setattr(self, name, getattr(self.strategy, name))

    @property
    def num_labels(self) -> int | None:
        """Those of the strategy."""
        return self.strategy.num_labels

    @property
    def decays(self) -> bool:
        """Whether the strategy's schedule depends on the last epoch."""
        return self.strategy.decays

    @property
    def default_epoch_size(self) -> float | None:
        """That of the strategy."""
        return self.strategy.default_epoch_size

    @property
    def uses(self) -> frozenset[Need]:
        """What the strategy reads where there is any."""
        return self.strategy.uses

    @property
    def decides_size(self) -> bool:
        """Whether the strategy's epochs may be shorter than asked for."""
        return self.strategy.decides_size

    def sample_importance(self, probabilities: Tensor) -> Tensor:
        """As the strategy counts samples of these probabilities."""
        return self.strategy.sample_importance(probabilities)

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """As the strategy draws from these probabilities."""
        return self.strategy.plan_epoch(probabilities, request)

    def default_start(self, warmup_epochs: int) -> int:
        """That of the strategy."""
        return self.strategy.default_start(warmup_epochs)

    def default_end(self, start: int, num_epochs: int) -> int:
        """That of the strategy."""
        return self.strategy.default_end(start, num_epochs)

    def plain_from(self, end: int, chosen: bool) -> int | None:
        """That of the strategy."""
        return self.strategy.plain_from(end, chosen)

    def reset(self, data: TrainingSet) -> None:
        """Prepare the strategy for the samples of ``data``."""
        super().reset(data)
        self.strategy.reset(data)
        self.shard = self.strategy.shard

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Update the strategy."""
        self.strategy.update(ids, probs, targets)

    def refresh(self, ids: Tensor, samples: Tensor, targets: Tensor | None = None) -> None:
        """Update the strategy with an evaluation pass."""
        self.strategy.refresh(ids, samples, targets)

    def prediction_history(self) -> tuple[Tensor, Tensor] | None:
        """That of the strategy."""
        return self.strategy.prediction_history()

    def measure(self) -> Measurement:
        """Let the strategy measure; its uncertainty is shown as it is."""
        self.strategy.progress = self.progress
        self.measured = self.strategy.measure()
        return self.measured

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """The strategy's pressure; the epoch decides how P is dealt."""
        self._epoch = epoch
        return self.strategy.pressure_at(epoch, start, end)

    def probabilities(self, pressure: float) -> Tensor:
        """The strategy's P, permuted."""
        found = self.strategy.probabilities(pressure)
        order = torch.randperm(len(found), generator=epoch_generator(_DEALING, self._epoch))
        return found[order.to(found.device)]

    def state_dict(self) -> dict[str, Any]:
        """That of the strategy."""
        return self.strategy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the strategy, and what it had measured."""
        self.strategy.load_state_dict(state)
        self.measured = self.strategy.measured

    def compact_state_dict(self) -> dict[str, Any]:
        """That of the strategy."""
        return self.strategy.compact_state_dict()

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """That of the strategy."""
        return self.strategy.footprint(num_labels, compact)
