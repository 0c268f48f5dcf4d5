"""From predictions to the plan of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_ubs._arguments import constructor_arguments
from lightning_ubs.epochs import EpochDraws
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.sampling import BatchLayout, EpochPlan
from lightning_ubs.strategies import Strategy

STATE_VERSION = 1

Share = Callable[[Tensor], Tensor]


class Predictions(Protocol):
    """What a step showed of a global batch, in the order of its planned ids."""

    @property
    def probs(self) -> Tensor:
        """(b, q) probabilities."""

    @property
    def usable(self) -> Tensor:
        """(b,) whether a row holds numbers."""

    @property
    def targets(self) -> Tensor | None:
        """(b, q) true labels, if the strategy reads them."""


@dataclass(frozen=True)
class Schedule:
    """The first selected epoch, and the epoch from which the pressure is 1; both counted as the Trainer counts."""

    start: int
    end: int


class Selector:
    """Makes each epoch's plan, and gives the strategy what the model predicted for it.

    It has no clock: epoch and batch are always the Trainer's. A plan follows from (strategy state, P, seed, epoch,
    layout), so asking twice gives the same one, whichever hook asks first.

    Args:
        strategy: what decides the probabilities.
        seed: of every draw.
        replacement: how samples are drawn.
        fill_last: fill a short last batch of selected epochs.
        compact: save only what keeps a resume valid, not what makes it exact.
    """

    def __init__(
        self,
        strategy: Strategy,
        seed: int,
        replacement: Replacement,
        *,
        fill_last: bool = False,
        compact: bool = False,
    ) -> None:
        self.strategy = strategy
        self.compact = compact
        self._epochs = EpochDraws(seed, replacement, fill_last)
        self.forget()

    @property
    def seed(self) -> int:
        """Of every draw; a checkpoint's wins."""
        return self._epochs.seed

    def forget(self) -> None:
        """Start anew, as if nothing had been trained."""
        self.layout: BatchLayout | None = None
        self.schedule = Schedule(0, 0)
        self.joined_epoch = 0
        self.pressure = 1.0
        self.plan: EpochPlan | None = None
        self.probabilities: Tensor | None = None
        self.drift: Tensor | None = None
        self.skipped_batches = 0
        self._probabilities_epoch = -1
        self._batches_done = 0
        self._batch_ids = torch.empty(0, dtype=torch.int64)
        self._usable = torch.empty(0, dtype=torch.bool)
        self._trained = torch.empty(0, dtype=torch.bool)

    def lay_out(self, layout: BatchLayout) -> None:
        """Cut epochs as ``layout`` says."""
        self.layout = layout

    def drop_plan(self) -> None:
        """Make the plan of the current epoch anew when it is next asked for."""
        self.plan = None

    def prepare(self, epoch: int, share: Share) -> EpochPlan:
        """Make the plan of ``epoch``, unless it is there; ``share`` lets all processes agree on P."""
        layout = self._layout
        if self.plan is not None and (self.plan.epoch, self.plan.layout) == (epoch, layout):
            return self.plan
        if not self.is_measured(epoch):
            self._measure(epoch, share)
        if self.selects(epoch):
            assert self.probabilities is not None
            ids = self._epochs.selected(epoch, layout, self.strategy, self.probabilities)
        else:
            ids = self._epochs.shuffled(epoch, layout)
        self.plan = EpochPlan(epoch, ids, layout)
        self._batch_ids = self._epochs.visits(self.plan)
        self._usable = torch.ones(len(ids), dtype=torch.bool)
        self._trained = torch.zeros(len(self.plan), dtype=torch.bool)
        self._batches_done = self.skipped_batches = 0
        return self.plan

    def shuffled_plan(self, epoch: int) -> EpochPlan:
        """A plain pass that depends on nothing that was learnt, for readers beside the training."""
        return EpochPlan(epoch, self._epochs.shuffled(epoch, self._layout), self._layout)

    def selects(self, epoch: int) -> bool:
        """Whether an epoch is selected rather than a shuffled pass."""
        if self.strategy.ends_plain and epoch >= self.schedule.end:
            return False
        return epoch >= self.schedule.start or not self.strategy.warms_up

    def learn(self, batch: int, seen: Predictions) -> None:
        """Give the predictions of global batch ``batch`` to the strategy; does not wait for the device."""
        plan, probs = self._planned, seen.probs
        self.check_labels(probs)
        if self._batch_ids.device != probs.device:
            self._batch_ids, self._usable = self._batch_ids.to(probs.device), self._usable.to(probs.device)
        first = batch * plan.layout.global_batch_size
        rows = slice(first, first + len(probs))
        self._usable[rows] = seen.usable
        ids = torch.where(seen.usable, self._batch_ids[rows], plan.layout.num_samples)
        self.strategy.update(ids, probs, seen.targets)

    def is_measured(self, epoch: int) -> bool:
        """Whether the probabilities of ``epoch`` are known."""
        return self._probabilities_epoch == epoch

    def resume_at(self, batch: int) -> None:
        """The batches of the current plan before ``batch`` were trained by the run that is being resumed."""
        self._trained[:batch] = True

    def finish_batch(self, batch: int) -> None:
        """Batch ``batch`` of the plan was trained on."""
        self._trained[batch] = True
        self._batches_done = batch + 1

    def skip_batch(self, batch: int) -> None:
        """Batch ``batch`` of the plan came and went without a prediction."""
        self.skipped_batches += 1
        self._batches_done = batch + 1

    def trained_ids(self) -> Tensor:
        """Ids of all samples trained on in this epoch so far, with repeats, over all processes."""
        if self.plan is None:
            return torch.empty(0, dtype=torch.int64)
        return self.plan.ids_of(self._trained)

    def first_fault(self) -> tuple[int, int] | None:
        """(batch, sample id) of the first prediction of this epoch that could not be used; waits for the device."""
        if self.plan is None or bool(self._usable.all()):
            return None
        place = int(self._usable.int().argmin())
        return place // self.plan.layout.global_batch_size, int(self.plan.ids[place])

    def metrics(self, seconds: float) -> dict[str, float]:
        """What was trained in this epoch, for loggers."""
        probabilities, mean = self.probabilities, self.strategy.measured.mean_uncertainty
        values = {
            "pressure": self.pressure,
            "effective_sample_size": None if probabilities is None else 1 / float(probabilities.square().sum()),
            "distinct_share": len(torch.unique(self.trained_ids())) / max(1, self._layout.num_samples),
            "mean_uncertainty": None if mean is None else float(mean),
            "correlation_drift": None if self.drift is None else float(self.drift),
            "steps_without_predictions": float(self.skipped_batches) or None,
            "seconds": seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and scalars from which selection goes on exactly (or, if compact, validly)."""
        strategy = self.strategy.compact_state_dict() if self.compact else self.strategy.state_dict()
        state = {
            "version": STATE_VERSION,
            "strategy": type(self.strategy).__name__,
            "arguments": _plain_arguments(self.strategy),
            "seed": self.seed,
            "joined_epoch": self.joined_epoch,
            "epoch": -1 if self.plan is None else self.plan.epoch,
            "batch": self._batches_done,
            "num_samples": self.strategy.num_samples,
            "global_batch_size": self.layout.global_batch_size if self.layout else 0,
            "pressure": self.pressure,
            "probabilities_epoch": self._probabilities_epoch,
            "strategy_state": strategy,
        }
        return state if self.probabilities is None else state | {"probabilities": self.probabilities.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; the strategy has been reset for the dataset of this run."""
        _check_state(state, self.strategy)
        self._epochs.seed = state["seed"]
        self.joined_epoch = state.get("joined_epoch", 0)
        self.pressure = state["pressure"]
        self.probabilities = state.get("probabilities")
        self._probabilities_epoch = state["probabilities_epoch"]
        self.plan = None
        self.strategy.load_state_dict(state["strategy_state"])

    def changed_arguments(self, state: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Strategy arguments that differ from those of a checkpoint: name → (there, here)."""
        here, there = _plain_arguments(self.strategy), state.get("arguments", {})
        return {name: (there[name], here[name]) for name in here if name in there and there[name] != here[name]}

    @property
    def _layout(self) -> BatchLayout:
        if self.layout is None:
            raise SelectionError("there is no train loader yet; selection begins in Trainer.fit.")
        return self.layout

    @property
    def _planned(self) -> EpochPlan:
        if self.plan is None:
            raise SelectionError("no epoch is planned yet; selection begins in Trainer.fit.")
        return self.plan

    def check_labels(self, probs: Tensor) -> None:
        """Refuse predictions for another number of labels than is remembered."""
        labels, known = probs.shape[1], self.strategy.num_labels
        if known not in (None, labels):
            raise SelectionError(
                f"predictions have {labels} labels, but {known} were remembered so far (from a checkpoint, or earlier "
                "in this run); keep the number of labels, or train anew."
            )

    def _measure(self, epoch: int, share: Share) -> None:
        """U → C → w → P from all predictions up to the end of the epoch before."""
        before = self.strategy.measured.correlation
        self.strategy.measure()
        after = self.strategy.measured.correlation
        self.drift = None
        if before is not None and after is not None and before is not after:
            self.drift = (after - before.to(after)).abs().mean()
        if self.selects(epoch):
            self.pressure = self.strategy.pressure_at(epoch, self.schedule.start, self.schedule.end)
            self.probabilities = self._checked(share(self.strategy.probabilities(self.pressure)))
        else:
            self.pressure, self.probabilities = 1.0, self.strategy.uniform()
        self._probabilities_epoch = epoch

    def _checked(self, probabilities: Tensor) -> Tensor:
        probabilities = probabilities.detach().to("cpu", torch.float64)
        valid = probabilities.shape == (self._layout.num_samples,) and bool(
            probabilities.isfinite().all() and (probabilities >= 0).all() and probabilities.sum() > 0
        )
        if not valid:
            raise SelectionError(
                f"{type(self.strategy).__name__} gave probabilities that are not {self._layout.num_samples} finite "
                "numbers of at least 0 with a positive sum; check what its update was given."
            )
        return probabilities


def _plain_arguments(strategy: Strategy) -> dict[str, str]:
    """The strategy's arguments as text, for a checkpoint."""
    arguments = constructor_arguments(strategy).items()
    return {name: repr(value) for name, value in arguments if value is None or isinstance(value, int | float | str)}


def _check_state(state: dict[str, Any], strategy: Strategy) -> None:
    if state.get("version") != STATE_VERSION:
        raise SelectionError(
            f"the checkpoint's selection state has version {state.get('version')}, this release reads {STATE_VERSION}; "
            "resume with the release that wrote it, or train anew."
        )
    name = type(strategy).__name__
    if state["strategy"] != name:
        raise SelectionError(
            f"the checkpoint was written with the strategy {state['strategy']}, but this run uses {name}; resume with "
            "the same strategy, or train anew."
        )
    if state["num_samples"] not in (0, strategy.num_samples):
        raise SelectionError(
            f"the checkpoint was written for {state['num_samples']} training samples, but this run has "
            f"{strategy.num_samples}; resume on the same dataset, or train anew."
        )
