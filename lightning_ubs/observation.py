"""What all processes together predicted in a training step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs.collectives import gather_rows
from lightning_ubs.predictions import Outputs, PredictionSource
from lightning_ubs.sampling import EpochPlan
from lightning_ubs.targets import Targets, read_targets


class Observation(NamedTuple):
    """Predictions of a global batch, in the order of its planned ids."""

    probs: Tensor
    usable: Tensor
    targets: Tensor | None


class StepObserver:
    """Reads the predictions (and true labels) of a step and gathers them from all processes.

    Args:
        outputs: where the predictions are.
        targets: where the true labels are.
        device: where they are wanted; None leaves them on the module's device.
        needs_targets: whether the true labels are wanted at all.
    """

    def __init__(
        self, outputs: Outputs, targets: Targets, device: str | torch.device | None, needs_targets: bool
    ) -> None:
        self._source = PredictionSource(outputs)
        self._targets = targets
        self._device = None if device is None else torch.device(device)
        self._needs_targets = needs_targets
        self.attach = self._source.attach
        self.detach = self._source.detach
        self.start_step = self._source.start_step
        self.stop_step = self._source.stop_step

    @property
    def kind(self) -> str:
        """``"probs"``, ``"logits"``, or nothing while it is undecided; may wait for the device."""
        return self._source.resolve_kind() or ""

    @kind.setter
    def kind(self, value: str) -> None:
        self._source.kind = value or None  # type: ignore[assignment]

    def observe(self, current: tuple[EpochPlan, int], module: LightningModule, outputs: Any, batch: Any) -> Observation:
        """Read a step; ``current`` is the plan and the batch of it. Does not wait for the device."""
        plan, k = current
        sizes = plan.rank_sizes(k)
        raw = self._source.read(module, outputs, batch, rows=sizes[plan.layout.rank])
        targets = None
        if self._needs_targets:
            targets = read_targets(self._targets, module, outputs, batch, list(raw.shape))
        if len(sizes) > 1:
            # A short last batch may repeat samples so that no process goes without; the repeats come last.
            size = len(plan.global_batch(k))
            raw = gather_rows(raw, sizes)[:size]
            targets = None if targets is None else gather_rows(targets, sizes)[:size]
        # Probabilities are float64, which MPS does not have.
        device = self._device or (torch.device("cpu") if raw.device.type == "mps" else raw.device)
        probs, usable = self._source.probabilities(raw.to(device))
        return Observation(probs, usable, None if targets is None else targets.to(device))
