"""What all processes together predicted in a training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs._utils.distributed import gather_rows
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.modules import find
from lightning_ubs.reading.predictions import Kind, check_kind, kind_by_origin, kind_by_values, to_probabilities
from lightning_ubs.reading.shapes import as_rows
from lightning_ubs.reading.source import Outputs, PredictionSource
from lightning_ubs.reading.targets import Targets, batch_targets, in_shape, named_targets
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.strategies import Strategy


class Observation(NamedTuple):
    """Predictions of global batches, in the order of their planned ids."""

    probs: Tensor
    usable: Tensor
    targets: Tensor | None


class Reading(NamedTuple):
    """Raw predictions of a global batch, copied, because a step may use their memory again, and its true labels."""

    raw: Tensor
    targets: Tensor | None
    observe: Callable[[Sequence[Reading]], Observation]


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
        self._evaluated: Kind | None = None

    def attach(self, module: LightningModule) -> None:
        """A fit begins: look for the predictions anew."""
        self._source.attach(module)
        self._evaluated = None

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

    def read(self, plan: EpochPlan, k: int, module: LightningModule, outputs: Any, batch: Any) -> Reading:
        """Read batch ``k`` of the plan on all processes."""
        rows = plan.rank_size(k)
        raw = self._source.read(module, outputs, batch, rows, lambda: self._label_count(module, outputs, batch))
        targets = in_shape(self._find_targets(module, outputs, batch, raw), raw) if self._needs_targets else None
        self.drop_step()
        raw, targets = _gathered(raw.clone(), None if targets is None else targets.clone(), plan, k)
        return Reading(raw, targets, self.observe)

    def observe(self, readings: Sequence[Reading]) -> Observation:
        """Probabilities of batches, one behind the other.

        Waits for the device only where values must tell what they hold, and once.
        """
        return self._completed([one.raw for one in readings], [one.targets for one in readings], self._settled_kind)

    def _settled_kind(self, raw: Tensor) -> Kind:
        if self._source.kind is None:
            self._source.kind = kind_by_values(raw, str(self._source.place))
        return self._source.kind

    @property
    def knows_evaluation(self) -> bool:
        """Whether it is known what the predictions of an evaluation pass hold."""
        return self._evaluated is not None

    def observe_evaluation(
        self, plan: EpochPlan, k: int, module: LightningModule, predicted: list[Any], batch: Any
    ) -> tuple[Tensor, Tensor | None]:
        """All predictions (samples, b, q) of batch ``k`` of an evaluation pass, and its true labels."""
        rows = plan.rank_size(k)
        found = [find(value) for value in predicted]
        raw = [None if one is None else as_rows(one.tensor, rows) for one in found]
        matrices = [one.detach().float() for one in raw if one is not None]
        if len(matrices) < len(predicted):
            raise SelectionError(
                f"the evaluation pass returned no floating-point [{rows}, labels] predictions for a batch of {rows} "
                "samples; pass EvaluationPass(predict=function(pl_module, batch) -> predictions)."
            )
        first = found[0]
        if self._evaluated is None and first is not None:
            self._evaluated = self._source.given or first.kind or kind_by_origin(first.tensor) or self._source.kind
            if self._evaluated is Kind.LOGITS and self._source.kind is Kind.SOFTMAX:
                self._evaluated = Kind.SOFTMAX
        targets = None
        if self._needs_targets:
            targets = in_shape(self._find_targets(module, None, batch, matrices[0]), matrices[0])
        gathered = [_gathered(one, targets, plan, k) for one in matrices]
        seen = [self._completed([one], [labels], self._evaluated_kind) for one, labels in gathered]
        usable = torch.stack([one.usable for one in seen]).all(0)
        if not bool(usable.all()):
            raise SelectionError(
                f"the evaluation pass of epoch {plan.epoch} predicted something that is not a probability for sample "
                f"{int(plan.global_batch(k)[int(usable.int().argmin())])}; training has diverged, or kind= is wrong: "
                "lower the learning rate, or say what the predictions are."
            )
        return torch.stack([one.probs for one in seen]), seen[0].targets

    def _evaluated_kind(self, raw: Tensor) -> Kind:
        if self._evaluated is None:
            self._evaluated = kind_by_values(raw, "an evaluation pass")
        return self._evaluated

    def _completed(
        self, raw: Sequence[Tensor], targets: Sequence[Tensor | None], kind_of: Callable[[Tensor], Kind]
    ) -> Observation:
        """What all processes together predicted in some batches, as probabilities."""
        kind, found_on = kind_of(raw[0]), raw[0].device
        # Probabilities are float64, which MPS does not have.
        device = self._device or (torch.device("cpu") if found_on.type == "mps" else found_on)
        probs, usable = to_probabilities(_joined(raw).to(device), kind, [len(one) for one in raw])
        known = [one for one in targets if one is not None]
        return Observation(probs, usable, _joined(known).to(device) if len(known) == len(targets) else None)

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


def _joined(batches: Sequence[Tensor]) -> Tensor:
    return batches[0] if len(batches) == 1 else torch.cat(list(batches))


def _gathered(raw: Tensor, targets: Tensor | None, plan: EpochPlan, k: int) -> tuple[Tensor, Tensor | None]:
    """Predictions and labels of batch ``k`` from all processes."""
    if plan.layout.world_size == 1:
        return raw, targets
    sizes = plan.rank_sizes(k)
    # A short last batch may repeat samples so that no process goes without; the repeats come last.
    size = len(plan.global_batch(k))
    return gather_rows(raw, sizes)[:size], None if targets is None else gather_rows(targets, sizes)[:size]
