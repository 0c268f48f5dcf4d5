"""What all processes together predicted in a training step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs.collectives import gather_rows
from lightning_ubs.observe.kinds import Kind, check_kind, kind_by_values, to_probabilities
from lightning_ubs.observe.source import Outputs, PredictionSource
from lightning_ubs.observe.targets import Targets, batch_targets, in_shape, named_targets
from lightning_ubs.sampling import EpochPlan
from lightning_ubs.strategies import Strategy


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
        kind: what the predictions hold; None to find it out.
        device: where they are wanted; None leaves them on the module's device.
        needs_targets: whether the true labels are wanted at all.
    """

    def __init__(
        self,
        outputs: Outputs,
        targets: Targets,
        kind: str | None,
        device: str | torch.device | None,
        needs_targets: bool,
    ) -> None:
        self._source = PredictionSource(outputs, check_kind(kind))
        self._targets = targets
        self._device = None if device is None else torch.device(device)
        self._needs_targets = needs_targets

    def attach(self, module: LightningModule) -> None:
        """A fit begins: look for the predictions anew."""
        self._source.attach(module)

    def detach(self) -> None:
        """A fit is over: leave everything as it was found."""
        self._source.detach()

    def expect(self, num_labels: int | None) -> None:
        """The dataset or a checkpoint tells the number of labels; None if neither does."""
        self._source.loss.num_labels = num_labels

    @property
    def kind(self) -> str:
        """What the predictions hold, or nothing while it is undecided."""
        return str(self._source.kind or "")

    @kind.setter
    def kind(self, value: str) -> None:
        self._source.kind = self._source.given or (Kind(value) if value else None)

    def start_step(self) -> None:
        """A training step begins."""
        self._source.start_step()

    def before_backward(self, module: LightningModule, loss: Tensor, rows: int, verifying: bool = False) -> None:
        """Read the loss while its graph exists.

        Args:
            module: the user's module.
            loss: the loss of this backward pass.
            rows: number of samples of this process.
            verifying: read all of its targets, for :class:`IdVerification`.
        """
        for_targets = verifying or (self._needs_targets and self._targets is None)
        self._source.before_backward(loss, rows, for_targets, anew=verifying)

    @property
    def loss_targets(self) -> tuple[Tensor, ...]:
        """What the loss of this step compared its predictions with; empty if the graph does not show it."""
        term = self._source.loss.term
        return () if term is None else term.targets

    def drop_step(self) -> None:
        """The step showed nothing that is wanted: keep nothing of it."""
        self._source.forget_step()

    def observe(self, plan: EpochPlan, k: int, module: LightningModule, outputs: Any, batch: Any) -> Observation:
        """Read batch ``k`` of the plan; waits for the device only where values must tell what they hold, and once."""
        sizes = plan.rank_sizes(k)
        rows = sizes[plan.layout.rank]
        raw = self._source.read(module, outputs, batch, rows, lambda: self._label_count(module, outputs, batch))
        targets = in_shape(self._find_targets(module, outputs, batch, raw), raw) if self._needs_targets else None
        self.drop_step()
        if len(sizes) > 1:
            # A short last batch may repeat samples so that no process goes without; the repeats come last.
            size = len(plan.global_batch(k))
            raw = gather_rows(raw, sizes)[:size]
            targets = None if targets is None else gather_rows(targets, sizes)[:size]
        if self._source.kind is None:
            self._source.kind = kind_by_values(raw, str(self._source.place))
        # Probabilities are float64, which MPS does not have.
        device = self._device or (torch.device("cpu") if raw.device.type == "mps" else raw.device)
        probs, usable = to_probabilities(raw.to(device), self._source.kind)
        return Observation(probs, usable, None if targets is None else targets.to(device))

    def announcement(self, strategy: Strategy, observation: Observation, compact: bool = False) -> str:
        """One sentence for the user: what is read, from where, as what, and the memory that it takes."""
        labels, device = observation.probs.shape[1], observation.probs.device
        place, kind = self._source.place, self._source.kind
        noun = "class" if kind is Kind.SOFTMAX else "label"
        plural = ("es" if noun == "class" else "s") if labels > 1 else ""
        memory, saved = strategy.footprint(labels, compact)
        aside = " (its loss has no cross-entropy to read them from)" if place and place.source == "module" else ""
        return (
            f"BatchSelection reads predictions of {labels} {noun}{plural} from {place}{aside}, as {kind}; "
            f"{type(strategy).__name__} keeps {memory / 1e6:.1f} MB for {strategy.num_samples} samples x {labels} "
            f"{noun}{plural} on {device}; each checkpoint grows by about {saved / 1e6:.1f} MB."
        )

    def _find_targets(self, module: LightningModule, outputs: Any, batch: Any, raw: Tensor) -> Tensor | None:
        """True labels: where the user said, in the loss, or where batches usually have them."""
        if self._targets is not None:
            return named_targets(self._targets, module, outputs, batch)
        for found in self.loss_targets:
            if found.shape in (raw.shape, raw.shape[:1]):
                return found
        shape = tuple(raw.shape)
        fitting = batch_targets(batch, shape)
        return fitting if fitting is not None else batch_targets(batch)

    def _label_count(self, module: LightningModule, outputs: Any, batch: Any) -> int | None:
        """The number of labels, where the batch shows its true labels in a known place."""
        if self._targets is not None:
            found = named_targets(self._targets, module, outputs, batch)
        else:
            found = batch_targets(batch)
        if found is None or found.ndim > 2:
            return None
        if found.ndim == 2:
            return found.shape[1]
        return 1 if found.is_floating_point() else None
