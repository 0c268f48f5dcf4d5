"""From predictions to the plan of an epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from lightning_ubs._utils.checks import constructor_arguments
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import check_replacement, effective_sample_size, repeats_in_rows
from lightning_ubs.functional.batches import rows_with_repeats
from lightning_ubs.functional.drawing import Replacement, distinct_share
from lightning_ubs.reading import Observation, Reading, decode
from lightning_ubs.selection.options import EpochSize
from lightning_ubs.selection.order import BlockOrder, BlockPlan, Blocks, draws_by_probabilities
from lightning_ubs.selection.plan import BatchLayout, EpochPlan
from lightning_ubs.state import DrawCounts
from lightning_ubs.strategies import EpochRequest, Strategy, TrainingSet

STATE_VERSION = 1
_NO_FAULT = 2**62
# Batches, and cells of predictions, that the strategy is updated with at once.
_BATCHES, _CELLS = 32, 2**20
Share = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Schedule:
    """Which epochs are selected, counted as the Trainer counts.

    Attributes:
        start: The first selected epoch.
        end: The epoch from which the pressure is 1.
        plain_from: The epoch from which epochs are plain again; None for never.
    """

    start: int
    end: int
    plain_from: int | None = None

    @classmethod
    def of(cls, strategy: Strategy, start: int, end: int | float | None, num_epochs: int) -> Schedule:
        """The schedule of a training of ``num_epochs`` epochs that ends in ``end``, an epoch or a share of them.

        >>> from lightning_ubs import UBS, InfoBatch
        >>> Schedule.of(UBS(), 5, None, 20), Schedule.of(InfoBatch(), 5, 0.5, 20)
        (Schedule(start=5, end=19, plain_from=None), Schedule(start=5, end=10, plain_from=10))
        """
        if end is None:
            last = strategy.default_end(start, num_epochs)
        else:
            last = max(start + 1, round(end * num_epochs)) if isinstance(end, float) else end
        return cls(start, last, strategy.plain_from(last, end is not None))

    def progress(self, epoch: int) -> float:
        """How far the training is at the start of an epoch, 1 after the end of the schedule.

        >>> Schedule(1, 4).progress(2)
        0.4
        """
        return min(1.0, epoch / (self.end + 1))

    def selects(self, epoch: int, strategy: Strategy) -> bool:
        """Whether an epoch is selected rather than a shuffled pass."""
        if self.plain_from is not None and epoch >= self.plain_from:
            return False
        return epoch >= self.start or not strategy.warms_up


class LearningQueue:
    """Batches that wait to be learned.

    A training step empties the caches, so that a few small kernels after each step take many times as long as in a row.
    The strategy learns batches one by one in their order, so that it makes no difference when.

    Args:
        learn: Takes the number of the first of some batches that follow each other, and their predictions.
    """

    def __init__(self, learn: Callable[[int, Observation], None]) -> None:
        self._learn = learn
        self._waiting: list[tuple[int, Reading]] = []

    def add(self, batch: int, reading: Reading) -> None:
        """Let a batch wait, until there are enough, or one is left out or has another number of labels."""
        if self._waiting:
            last, before = self._waiting[-1]
            if batch != last + 1 or before.raw.shape[1] != reading.raw.shape[1]:
                self.settle()
        self._waiting.append((batch, reading))
        if len(self._waiting) >= _BATCHES or len(self._waiting) * reading.raw.numel() >= _CELLS:
            self.settle()

    def settle(self) -> None:
        """Learn all that wait."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            batches, readings = zip(*waiting, strict=True)
            self._learn(batches[0], decode(readings))

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting = []


class Selector:
    """Maker of each epoch's plan, which gives the strategy what the model predicted for it.

    At the start of an epoch (:meth:`prepare`): measure, probabilities, draw, :class:`EpochPlan`. It has no clock: epoch
    and batch are always the Trainer's. A plan follows from (strategy state, P, seed, epoch, layout), so asking twice
    gives the same one, whichever hook asks first.

    Args:
        strategy: What decides the probabilities.
        seed: Seed for all sampling; a checkpoint's wins.
        replacement: How samples are drawn.
        fill_last: Fill a short last batch of selected epochs.
        compact: Save only what keeps a resume valid, not what makes it exact.
        blocks: The blocks in which samples come; None for samples in any order.
    """

    def __init__(
        self,
        strategy: Strategy,
        seed: int,
        replacement: Replacement,
        *,
        fill_last: bool = False,
        compact: bool = False,
        blocks: Blocks | None = None,
    ) -> None:
        check_replacement(replacement)
        self.strategy = strategy
        self.seed = seed
        self.replacement = replacement
        self.fill_last = fill_last
        self.compact = compact
        self.blocks = blocks
        #: Predictions that wait to be learned.
        self.queue = LearningQueue(self.learn)
        self.forget()

    def forget(self) -> None:
        """Start from scratch, as if nothing had been trained."""
        self.layout: BatchLayout | None = None
        self.order: BlockOrder | None = None
        self.schedule = Schedule(0, 0)
        self.size: EpochSize | None = None
        self.num_epochs = 1
        self.max_epochs: int | None = None
        self._planned_for: BatchLayout | None = None
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
        self._fault = torch.tensor(_NO_FAULT)
        self._trained: list[bool] = []
        self.queue.clear()

    def lay_out(self, layout: BatchLayout, size: EpochSize | None = None, num_epochs: int = 1) -> None:
        """Cut epochs as ``layout`` says, each as long as ``size`` says in a training of ``num_epochs`` epochs."""
        self.layout, self.size, self.num_epochs = layout, size, num_epochs
        if self._counts_draws and (self.draws is None or len(self.draws) != layout.num_samples):
            self.draws = DrawCounts(layout.num_samples)

    def layout_of(self, epoch: int) -> BatchLayout:
        """How ``epoch`` is cut."""
        if self.size is None:
            return self._layout
        samples = self.size.samples(epoch, self.num_epochs, self._layout.num_samples)
        return replace(self._layout, epoch_samples=samples)

    def _first_of(self, epoch: int) -> int:
        """Where ``epoch`` begins in the sequence of all shuffled passes; a whole epoch is a pass of its own."""
        if self.size is None:
            layout = self._layout
            return epoch * (layout.num_samples if layout.epoch_samples is None else layout.num_draws)
        n, place = self._layout.num_samples, 0
        for one in range(epoch + 1):
            layout = self.layout_of(one)
            is_whole = layout.epoch_samples == n
            if is_whole:
                place = -(-place // n) * n
            if one < epoch:
                place += n if is_whole else layout.num_draws
        return place

    def see_dataset(self, dataset: Any) -> None:
        """Find the blocks of the train dataset."""
        self.order = None if self.blocks is None else BlockOrder(self.blocks, dataset)

    def drop_plan(self) -> None:
        """Make the plan of the current epoch anew when it is next asked for."""
        self.settle()
        self.plan = None

    def prepare(self, epoch: int, share: Share) -> EpochPlan:
        """Make the plan of ``epoch``, unless it is there; ``share`` lets all ranks agree on P."""
        layout = self.layout_of(epoch)
        if self.plan is not None and (self.plan.epoch, self._planned_for) == (epoch, layout):
            return self.plan
        self.settle()
        if not self.is_measured(epoch):
            self._measure(epoch, share)
        self._planned_for = layout
        self.plan = self._selected_plan(epoch) if self.selects(epoch) else self.shuffled_plan(epoch)
        if not isinstance(self.plan, BlockPlan):
            self._batch_ids = self._visits(self.plan, self.plan.ids)
        self._fault = torch.tensor(_NO_FAULT)
        self._trained = [False] * len(self.plan)
        self._batches_done = self.skipped_batches = 0
        return self.plan

    def _measure(self, epoch: int, share: Share) -> None:
        """U → C → w → P from all predictions up to the end of the epoch before."""
        self.strategy.progress = self.schedule.progress(epoch)
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

    def request(self, epoch: int) -> EpochRequest:
        """What is asked of the strategy for ``epoch``: as many samples as a plain epoch has, unless batches fill up."""
        layout = self.layout_of(epoch)
        return EpochRequest(
            epoch=epoch,
            seed=self.seed,
            num_samples=layout.num_samples,
            batch_size=layout.global_batch_size,
            count=layout.num_draws,
            full_count=layout.full_draws,
            first=self._first_of(epoch),
            replacement=self.replacement,
            fills_last=self.fill_last,
        )

    def _selected_plan(self, epoch: int) -> EpochPlan:
        assert self.probabilities is not None
        request = self.request(epoch)
        if self.order is None:
            ids, layout = self.strategy.plan_epoch(self.probabilities, request), self.layout_of(epoch)
            if self.strategy.decides_size and len(ids) < request.count:
                layout = replace(layout, epoch_samples=len(ids))
                ids = ids[: layout.num_draws]
            if len(ids) == 0:
                raise SelectionError(
                    f"epoch {epoch} would have no whole batch, and drop_last=True drops the rest; use smaller batches, "
                    "or drop_last=False."
                )
            return EpochPlan(epoch, ids, layout)
        fill = request.fills_last or getattr(self.strategy, "fill_last", False)
        drawn = self.probabilities if fill or draws_by_probabilities(self.strategy) else None
        return self.order.plan(epoch, self.seed, self.layout_of(epoch), drawn, fill)

    def shuffled_plan(self, epoch: int) -> EpochPlan:
        """A plain pass that depends on no prediction; also for readers beside the training."""
        request, layout = self.request(epoch), self.layout_of(epoch)
        if self.order is not None:
            return self.order.plan(epoch, self.seed, layout, None, False, request.first)
        return EpochPlan(epoch, self.strategy.plain_epoch(request), layout)

    def _visits(self, plan: EpochPlan, ids: Tensor) -> Tensor:
        """Ids of whole batches, where a sample that comes twice in one counts once: repeats become the spare id n."""
        if self.replacement in ("batch", "none") and plan.layout.epoch_samples is None:
            return ids
        size, spare = plan.layout.global_batch_size, plan.layout.num_samples
        # What fills the last row is no repeat.
        rows = torch.cat([ids, spare + torch.arange(-len(ids) % size)]).view(-1, size)
        if len(rows_with_repeats(rows)) == 0:
            return ids
        return torch.where(repeats_in_rows(rows), spare, rows).flatten()[: len(ids)]

    def _ids_to_learn(self, batch: int, count: int, device: torch.device) -> Tensor:
        """The ids of the ``count`` samples from global batch ``batch`` on, without repeats in a batch."""
        plan = self._planned
        if isinstance(plan, BlockPlan):
            return self._visits(plan, plan.rows(batch, count)).to(device, non_blocking=True)
        if self._batch_ids.device != device:
            self._batch_ids = self._batch_ids.to(device)
        first = batch * plan.layout.global_batch_size
        return self._batch_ids[first : first + count]

    def selects(self, epoch: int) -> bool:
        """Whether an epoch is selected rather than a shuffled pass."""
        return self.schedule.selects(epoch, self.strategy)

    def settle(self) -> None:
        """Flush pending batches. Call before reading strategy state."""
        self.queue.settle()

    def learn(self, batch: int, seen: Observation) -> None:
        """Give the predictions of global batch ``batch``, and of those that follow it, to the strategy, one by one.

        Does not wait for the device.
        """
        plan, probs = self._planned, seen.probs
        self.check_labels(probs)
        size = plan.layout.global_batch_size
        if len(probs):
            places = torch.arange(batch * size, batch * size + len(probs), device=probs.device)
            fault = torch.where(seen.usable, _NO_FAULT, places).amin()
            self._fault = torch.minimum(self._fault.to(probs.device, non_blocking=True), fault)
        planned = self._ids_to_learn(batch, len(probs), probs.device)
        ids = torch.where(seen.usable, planned, plan.layout.num_samples)
        targets = repeat(None) if seen.targets is None else torch.split(seen.targets, size)
        for of_batch in zip(torch.split(ids, size), torch.split(probs, size), targets, strict=False):
            self.strategy.update(*of_batch)

    def is_measured(self, epoch: int) -> bool:
        """Whether the probabilities of ``epoch`` are known."""
        return self._probabilities_epoch == epoch

    def resume_at(self, batch: int) -> None:
        """Note that the run that is being resumed trained the batches of the current plan before ``batch``."""
        self._trained[:batch] = [True] * min(batch, len(self._trained))

    def finish_batch(self, batch: int, is_trained: bool = True) -> None:
        """Batch ``batch`` of the plan was trained on, or else only predicted."""
        if self.draws is not None and self.plan is not None and is_trained:
            self.draws.add(self.plan.global_batch(batch), self.plan.epoch)
        self._trained[batch] = True
        self._batches_done = batch + 1

    def skip_batch(self, batch: int) -> None:
        """Batch ``batch`` of the plan came and went without a prediction."""
        self.skipped_batches += 1
        self._batches_done = batch + 1

    def trained_ids(self) -> Tensor:
        """Ids of all samples trained on in this epoch so far, with repeats, over all ranks."""
        if self.plan is None:
            return torch.empty(0, dtype=torch.int64)
        if all(self._trained):
            return self.plan.ids
        return self.plan.ids_of(torch.tensor(self._trained, dtype=torch.bool))

    def first_fault(self) -> tuple[int, int] | None:
        """(batch, sample id) of the first prediction of this epoch that could not be used; waits for the device."""
        self.settle()
        if self.plan is None or (place := int(self._fault)) == _NO_FAULT:
            return None
        batch, row = divmod(place, self.plan.layout.global_batch_size)
        return batch, int(self.plan.global_batch(batch)[row])

    def metrics(self, seconds: float) -> dict[str, float]:
        """What was trained in this epoch, for loggers."""
        probabilities, mean = self.probabilities, self.strategy.measured.mean_uncertainty
        values = {
            "pressure": self.pressure,
            "effective_sample_size": None if probabilities is None else effective_sample_size(probabilities),
            "distinct_share": self._distinct_share(),
            "mean_uncertainty": None if mean is None else float(mean),
            "correlation_drift": None if self.drift is None else float(self.drift),
            "steps_without_predictions": float(self.skipped_batches) or None,
            "seconds": seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _distinct_share(self) -> float:
        """Which share of the samples was trained on in this epoch so far."""
        if isinstance(self.plan, BlockPlan) and self.draws is not None:
            return self.draws.share_drawn_in(self.plan.epoch)
        return distinct_share(self.trained_ids(), self._layout.num_samples)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and scalars from which selection resumes exactly (or, if compact, validly)."""
        self.settle()
        strategy = self.strategy.compact_state_dict() if self.compact else self.strategy.state_dict()
        state = {
            "version": STATE_VERSION,
            "strategy": type(self.strategy).__name__,
            "arguments": plain_arguments(self.strategy),
            "order": str(self.order),
            "drawing": self._drawing,
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
        """Resume from what :meth:`state_dict` gave; the strategy has been reset for the dataset of this run."""
        check_state(state, self.strategy)
        self.queue.clear()
        self.seed = state["seed"]
        self.joined_epoch = state.get("joined_epoch", 0)
        self.pressure = state["pressure"]
        self.probabilities = state.get("probabilities")
        self._probabilities_epoch = state["probabilities_epoch"]
        self.plan = self.draws = None
        # A checkpoint of the first release does not say what was drawn before it: better no number than a wrong one.
        self._counts_draws = state.get("counts_draws", False)
        if self._counts_draws:
            self.draws = DrawCounts(self.strategy.num_samples)
        if self.draws is not None and "times_drawn" in state:
            self.draws.load_state_dict(state)
        self.strategy.load_state_dict(state["strategy_state"])

    def load_to_look_at(self, state: dict[str, Any]) -> None:
        """Show what a checkpoint holds, outside of a training; the next one starts anew."""
        needed = sorted(self.strategy.needs & {"labels", "features"}, reverse=True)
        if needed:
            raise SelectionError(
                f"{type(self.strategy).__name__} needs the {' and '.join(needed)} of the training data besides its "
                "state; give the checkpoint to Trainer.fit(..., ckpt_path=) instead."
            )
        self.forget()
        self.strategy.reset(TrainingSet(state["num_samples"]))
        self.load_state_dict(state)

    def changed_arguments(self, state: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Arguments that differ from those of a checkpoint, the strategy's first: name → (there, here)."""
        here = plain_arguments(self.strategy) | self._drawing
        there = state.get("arguments", {}) | state.get("drawing", {})
        if "order" in state:
            here["order"], there["order"] = str(self.order), state["order"]
        return {name: (there[name], here[name]) for name in here if name in there and there[name] != here[name]}

    @property
    def _drawing(self) -> dict[str, str]:
        """How epochs are drawn, as text for a checkpoint; empty before a training."""
        if self.layout is None or self.max_epochs is None:
            return {}
        size = self.size or self.layout.epoch_samples
        return {
            "start_epoch": str(self.schedule.start),
            "end_epoch": str(self.schedule.end),
            "replacement": repr(self.replacement),
            "epoch_size": str(size),
            "fill_last": str(self.fill_last),
        }

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
        """Refuse predictions for another number of labels than the history has."""
        labels, known = probs.shape[1], self.strategy.num_labels
        if known not in (None, labels):
            raise SelectionError(
                f"predictions have {labels} labels, but {known} were remembered so far (from a checkpoint, or earlier "
                "in this run); keep the number of labels, or train from scratch."
            )


def drawable(probabilities: Tensor, num_samples: int, strategy: Strategy) -> Tensor:
    """P as (n,) float64 on the CPU, if an epoch can be drawn from it."""
    probabilities = probabilities.detach().to("cpu", torch.float64)
    valid = probabilities.shape == (num_samples,) and num_samples > 0
    if valid:  # without a copy of P, which may be most of what a process holds
        smallest, largest = (float(end) for end in probabilities.aminmax())
        valid = 0 <= smallest <= largest < math.inf and 0 < float(probabilities.sum()) < math.inf
    if not valid:
        raise SelectionError(
            f"{type(strategy).__name__} returned probabilities that are not {num_samples} finite numbers of at least 0 "
            "with a positive sum; check what its update was given."
        )
    return probabilities


def digest(values: Tensor) -> str:
    """A short text that tells one tensor from another."""
    return hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def plain_arguments(strategy: Strategy) -> dict[str, str]:
    """The strategy's arguments as text, for a checkpoint."""
    arguments = constructor_arguments(strategy).items()
    plain = {name: repr(value) for name, value in arguments if value is None or isinstance(value, int | float | str)}
    return plain | {name: digest(value) for name, value in arguments if isinstance(value, Tensor)}


def check_state(state: dict[str, Any], strategy: Strategy) -> None:
    """Refuse a state of another release, another strategy or another dataset."""
    if state.get("version") != STATE_VERSION:
        raise SelectionError(
            f"the checkpoint's selection state has version {state.get('version')}, this release reads {STATE_VERSION}; "
            "resume with the release that wrote it, or train from scratch."
        )
    name = type(strategy).__name__
    if state["strategy"] != name:
        raise SelectionError(
            f"the checkpoint was written with the strategy {state['strategy']}, but this run uses {name}; resume with "
            "the same strategy, or train from scratch."
        )
    if state["num_samples"] not in (0, strategy.num_samples):
        raise SelectionError(
            f"the checkpoint was written for {state['num_samples']} training samples, but this run has "
            f"{strategy.num_samples}; resume on the same dataset, or train from scratch."
        )
