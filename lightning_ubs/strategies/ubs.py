"""UBS: uncertainty now and lately, shared by related labels. The paper's method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_range
from lightning_ubs.functional import label_uncertainty, window_fluctuation
from lightning_ubs.state import spare_row_zeros
from lightning_ubs.strategies.base import TrainingSet
from lightning_ubs.strategies.uncertainty import Correlation, WindowStrategy


@dataclass(kw_only=True, eq=False, repr=False)
class UBS(WindowStrategy):
    """Uncertainty-based batch selection with dynamic label correlations (AAAI 2025).

    **What it does.** A label is uncertain if its latest prediction is near 1/2 and if its last predictions wavered. A
    sample weighs the sum of its labels' uncertainties, each counted the more it is shared by other labels over the
    training set. Heavier samples are drawn more often, at first up to ``s0`` times, at the end not at all.

    **When to use it.** Many labels, some of them hard or rare, and enough epochs after the warm-up. It cannot help
    where every sample is learned easily, and it prefers mislabeled samples as long as they waver.

    **What it costs.** T numbers per sample and label, a few small kernels per step, one pass over them per epoch.

    **Ablations.** B: ``lambda1=0``; C: ``lambda1=1``; D: ``correlation=None``.

    Besides its own arguments it takes those of :class:`UncertaintyStrategy`: ``s0``, ``bins``, ``log_base``,
    ``quantizer`` and ``correlation_every``.

    Args:
        lambda1: Weight of the fluctuation against the entropy of the latest prediction (λ1). The paper finds 0.5–0.6
            best.
        window: How many predictions are kept (T).
        correlation: None switches label correlation off.
        temperature: Temperature t of the latest prediction before its entropy is taken, sigmoid(logit(p)/t), for models
            that are surer than they are right; None, as in the paper, leaves it as it is.

    >>> UBS(lambda1=0.6, window=7).window
    7
    """

    lambda1: float = 0.5
    window: int = 5
    correlation: Correlation | None = "mutual_information"
    temperature: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("lambda1", self.lambda1, 0, 1)
        self.lambda1 = float(self.lambda1)
        temperature = self.temperature
        if temperature is not None and not (isinstance(temperature, int | float) and 0 < temperature < math.inf):
            raise ValueError(f"temperature={temperature!r} is out of range; it must be a number above 0, or None.")
        self._spread: Tensor | None = None

    def reset(self, data: TrainingSet) -> None:
        """Forget all predictions."""
        super().reset(data)
        self._spread = None

    def refresh(self, ids: Tensor, samples: Tensor, targets: Tensor | None = None) -> None:
        """Keep the mean prediction and, of several, how much they change from one to the next."""
        super().refresh(ids, samples, targets)
        if len(samples) > 1:
            if self._spread is None:
                self._spread = spare_row_zeros(len(self.shard), samples.shape[2], device=samples.device)
            counts = torch.full_like(ids, len(samples))
            self._spread = self._spread.to(samples.device)
            self._spread[self.shard.rows(ids)] = window_fluctuation(samples.transpose(0, 1), counts)

    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """U = λ1·d + (1-λ1)·e, d between visits or, after an evaluation pass of several predictions, between these."""
        rows = self.memory.rows(first, last)
        if self._spread is None:
            return label_uncertainty(*rows, self.lambda1, self.temperature)
        entropy = label_uncertainty(*rows, 0.0, self.temperature)
        spread = self._spread[self.shard.span(first, last, self._spread.device)]
        return entropy.mul_(1 - self.lambda1).add_(spread, alpha=self.lambda1)

    def state_dict(self) -> dict[str, Any]:
        """All predictions that are kept, and what was measured at the start of the epoch."""
        state = super().state_dict()
        return state if self._spread is None else state | {"spread": self.shard.collect(self._spread)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` or :meth:`compact_state_dict` gave."""
        super().load_state_dict(state)
        if "spread" in state:
            own = self.shard.own(state["spread"])
            self._spread = spare_row_zeros(*own.shape)
            self._spread[:-1] = own
