"""From predictions to the plan of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import effective_sample_size
from lightning_ubs.functional.drawing import Replacement, distinct_share
from lightning_ubs.selection.buffer import LearningQueue, Predictions, Reading
from lightning_ubs.selection.epochs import EpochDraws, drawable
from lightning_ubs.selection.plan import BatchLayout, EpochPlan
from lightning_ubs.selection.saved_state import STATE_VERSION, check_state, plain_arguments
from lightning_ubs.state import DrawCounts
from lightning_ubs.strategies import Strategy

Share = Callable[[Tensor], Tensor]


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
        self._queue = LearningQueue(self.learn)
        self.forget()

    @property
    def seed(self) -> int:
        """Of every draw; a checkpoint's wins."""
        return self._epochs.seed

    def forget(self) -> None:
        """Start from scratch, as if nothing had been trained."""
        self.layout: BatchLayout | None = None
        self.schedule = Schedule(0, 0)
        self.joined_epoch = 0
        self.pressure = 1.0
        self.plan: EpochPlan | None = None
        self.probabilities: Tensor | None = None
        self.drift: Tensor | None = None
        self.skipped_batches = 0
        self.draws: DrawCounts | None = None
        self._counts_draws = True
        self._probabilities_epoch = -1
        self._batches_done = 0
        self._batch_ids = torch.empty(0, dtype=torch.int64)
        self._usable = torch.empty(0, dtype=torch.bool)
        self._trained: list[bool] = []
        self._queue.clear()

    def lay_out(self, layout: BatchLayout) -> None:
        """Cut epochs as ``layout`` says."""
        self.layout = layout
        if self._counts_draws and (self.draws is None or len(self.draws) != layout.num_samples):
            self.draws = DrawCounts(layout.num_samples)

    def drop_plan(self) -> None:
        """Make the plan of the current epoch anew when it is next asked for."""
        self.settle()
        self.plan = None

    def prepare(self, epoch: int, share: Share) -> EpochPlan:
        """Make the plan of ``epoch``, unless it is there; ``share`` lets all processes agree on P."""
        layout = self._layout
        if self.plan is not None and (self.plan.epoch, self.plan.layout) == (epoch, layout):
            return self.plan
        self.settle()
        if not self.is_measured(epoch):
            self._measure(epoch, share)
        if self.selects(epoch):
            assert self.probabilities is not None
            ids = self._epochs.selected(epoch, layout, self.strategy, self.probabilities)
        else:
            ids = self._epochs.plain(epoch, layout, self.strategy)
        self.plan = EpochPlan(epoch, ids, layout)
        self._batch_ids = self._epochs.visits(self.plan)
        self._usable = torch.ones(len(ids), dtype=torch.bool)
        self._trained = [False] * len(self.plan)
        self._batches_done = self.skipped_batches = 0
        return self.plan

    def shuffled_plan(self, epoch: int) -> EpochPlan:
        """A plain pass that depends on nothing that was learnt, for readers beside the training."""
        return EpochPlan(epoch, self._epochs.plain(epoch, self._layout, self.strategy), self._layout)

    def selects(self, epoch: int) -> bool:
        """Whether an epoch is selected rather than a shuffled pass."""
        if self.strategy.ends_plain and epoch >= self.schedule.end:
            return False
        return epoch >= self.schedule.start or not self.strategy.warms_up

    def learn_later(self, batch: int, reading: Reading) -> None:
        """Let the strategy learn batch ``batch`` with some others."""
        self.check_labels(reading.raw)
        self._queue.add(batch, reading)

    def settle(self) -> None:
        """Learn what waits; whoever reads what the strategy remembers asks for this first."""
        self._queue.settle()

    def learn(self, batch: int, seen: Predictions) -> None:
        """Give the predictions of global batch ``batch``, and of those that follow it, to the strategy, one by one.

        Does not wait for the device.
        """
        plan, probs = self._planned, seen.probs
        self.check_labels(probs)
        if self._batch_ids.device != probs.device:
            self._batch_ids, self._usable = self._batch_ids.to(probs.device), self._usable.to(probs.device)
        size = plan.layout.global_batch_size
        rows = slice(batch * size, batch * size + len(probs))
        self._usable[rows] = seen.usable
        ids = torch.where(seen.usable, self._batch_ids[rows], plan.layout.num_samples)
        targets = repeat(None) if seen.targets is None else torch.split(seen.targets, size)
        for of_batch in zip(torch.split(ids, size), torch.split(probs, size), targets, strict=False):
            self.strategy.update(*of_batch)

    def is_measured(self, epoch: int) -> bool:
        """Whether the probabilities of ``epoch`` are known."""
        return self._probabilities_epoch == epoch

    def resume_at(self, batch: int) -> None:
        """The batches of the current plan before ``batch`` were trained by the run that is being resumed."""
        self._trained[:batch] = [True] * batch

    def finish_batch(self, batch: int) -> None:
        """Batch ``batch`` of the plan was trained on."""
        if self.draws is not None:
            self.draws.add(self._planned.global_batch(batch), self._planned.epoch)
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
        if all(self._trained):
            return self.plan.ids
        return self.plan.ids_of(torch.tensor(self._trained, dtype=torch.bool))

    def first_fault(self) -> tuple[int, int] | None:
        """(batch, sample id) of the first prediction of this epoch that could not be used; waits for the device."""
        self.settle()
        if self.plan is None or bool(self._usable.all()):
            return None
        place = int(self._usable.int().argmin())
        return place // self.plan.layout.global_batch_size, int(self.plan.ids[place])

    def metrics(self, seconds: float) -> dict[str, float]:
        """What was trained in this epoch, for loggers."""
        probabilities, mean = self.probabilities, self.strategy.measured.mean_uncertainty
        values = {
            "pressure": self.pressure,
            "effective_sample_size": None if probabilities is None else effective_sample_size(probabilities),
            "distinct_share": distinct_share(self.trained_ids(), self._layout.num_samples),
            "mean_uncertainty": None if mean is None else float(mean),
            "correlation_drift": None if self.drift is None else float(self.drift),
            "steps_without_predictions": float(self.skipped_batches) or None,
            "seconds": seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and scalars from which selection resumes exactly (or, if compact, validly)."""
        self.settle()
        strategy = self.strategy.compact_state_dict() if self.compact else self.strategy.state_dict()
        state = {
            "version": STATE_VERSION,
            "strategy": type(self.strategy).__name__,
            "arguments": plain_arguments(self.strategy),
            "seed": self.seed,
            "joined_epoch": self.joined_epoch,
            "epoch": -1 if self.plan is None else self.plan.epoch,
            "batch": self._batches_done,
            "num_samples": self.strategy.num_samples,
            "global_batch_size": self.layout.global_batch_size if self.layout else 0,
            "pressure": self.pressure,
            "probabilities_epoch": self._probabilities_epoch,
            "counts_draws": self._counts_draws,
            "strategy_state": strategy,
        }
        if self.draws is not None:
            state |= self.draws.state_dict()
        return state if self.probabilities is None else state | {"probabilities": self.probabilities.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; the strategy has been reset for the dataset of this run."""
        check_state(state, self.strategy)
        self._queue.clear()
        self._epochs.seed = state["seed"]
        self.joined_epoch = state.get("joined_epoch", 0)
        self.pressure = state["pressure"]
        self.probabilities = state.get("probabilities")
        self._probabilities_epoch = state["probabilities_epoch"]
        self.plan = self.draws = None
        # A checkpoint of the first release does not say what was drawn before it: better no number than a wrong one.
        self._counts_draws = state.get("counts_draws", False)
        if "times_drawn" in state:
            self.draws = DrawCounts(self.strategy.num_samples)
            self.draws.load_state_dict(state)
        self.strategy.load_state_dict(state["strategy_state"])

    def load_to_look_at(self, state: dict[str, Any]) -> None:
        """Show what a checkpoint holds, outside of a training; the next one starts anew."""
        needed = [what for what in ("labels", "features") if getattr(self.strategy, f"needs_{what}")]
        if needed:
            raise SelectionError(
                f"{type(self.strategy).__name__} needs the {' and '.join(needed)} of the training data besides its "
                "state; give the checkpoint to Trainer.fit(..., ckpt_path=) instead."
            )
        self.forget()
        self.strategy.reset(state["num_samples"])
        self.load_state_dict(state)

    def changed_arguments(self, state: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Strategy arguments that differ from those of a checkpoint: name → (there, here)."""
        here, there = plain_arguments(self.strategy), state.get("arguments", {})
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
                "in this run); keep the number of labels, or train from scratch."
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
            shared = share(self.strategy.probabilities(self.pressure))
            self.probabilities = drawable(shared, self._layout.num_samples, self.strategy)
        else:
            self.pressure, self.probabilities = 1.0, self.strategy.uniform()
        self._probabilities_epoch = epoch
