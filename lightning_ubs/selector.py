"""Where selection stands: the epoch, the batch, P, and the plan made from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import check_replacement, repeats_in_rows
from lightning_ubs.functional.plan import Replacement
from lightning_ubs.sampling import BatchLayout, EpochPlan, epoch_generator
from lightning_ubs.strategies import Strategy

STATE_VERSION = 1


@dataclass
class Position:
    """The next batch to train on, and how many the epoch has (fewer than planned where it is limited)."""

    epoch: int = 0
    batch: int = 0
    epoch_batches: int = 0

    @property
    def epoch_is_over(self) -> bool:
        """Whether all batches of the epoch are done."""
        return 0 < self.epoch_batches <= self.batch


class Selector:
    """Makes each epoch's plan, and takes in what the model predicted for it.

    Everything follows from (strategy state, P, seed, epoch, layout): asking twice gives the same plan, whichever hook
    asks first.

    Args:
        strategy: what decides the probabilities.
        seed: of every draw.
        replacement: how samples are drawn.
        compact: save only what keeps a resume valid, not what makes it exact.
    """

    def __init__(self, strategy: Strategy, seed: int, replacement: Replacement, compact: bool = False) -> None:
        check_replacement(replacement)
        self.strategy = strategy
        self.seed = seed
        self.replacement = replacement
        self.compact = compact
        self.forget()

    def forget(self) -> None:
        """Start anew, as if nothing had been trained."""
        self.position = Position()
        self.layout: BatchLayout | None = None
        self.start, self.end = 0, 0
        self.pressure = 1.0
        self.plan: EpochPlan | None = None
        self.probabilities: Tensor | None = None
        self.drift: float | None = None
        self._probabilities_epoch = -1
        self._batch_ids = torch.empty(0, dtype=torch.int64)
        self._usable = torch.empty(0, dtype=torch.bool)

    def lay_out(self, layout: BatchLayout, start: int, end: int) -> None:
        """Cut epochs as ``layout`` says, and select from epoch ``start`` on, with pressure down to ``end``."""
        self.layout, self.start, self.end = layout, start, end

    def next_plan(self, share: Callable[[Tensor], Tensor]) -> tuple[EpochPlan, int]:
        """The plan to follow now, and the first batch of it that is still to come."""
        if self.position.epoch_is_over:
            self.finish_epoch()
        return self.prepare(share), self.position.batch

    def prepare(self, share: Callable[[Tensor], Tensor]) -> EpochPlan:
        """Make the plan of the current epoch, unless it is there; ``share`` lets all processes agree on P."""
        epoch, layout = self.position.epoch, self._layout
        if self.plan is not None and (self.plan.epoch, self.plan.layout) == (epoch, layout):
            return self.plan
        if self._probabilities_epoch != epoch:
            self._measure(epoch, share)
        generator = epoch_generator(self.seed, epoch)
        if self.selects(epoch):
            assert self.probabilities is not None
            size, batches = layout.global_batch_size, layout.num_batches
            ids = self.strategy.draw(self.probabilities, size, batches, generator, self.replacement)
        else:
            ids = shuffled_pass(layout, generator)
        self.plan = EpochPlan(epoch, ids, layout)
        self._batch_ids = self._without_repeats(self.plan)
        self._usable = torch.ones(len(ids), dtype=torch.bool)
        return self.plan

    def selects(self, epoch: int) -> bool:
        """Whether an epoch is selected rather than a shuffled warm-up pass."""
        return epoch >= self.start or not self.strategy.warms_up

    @property
    def current(self) -> tuple[EpochPlan, int]:
        """The plan and the batch of it that is being trained on."""
        if self.plan is None or self.position.batch >= len(self.plan):
            raise SelectionError("more batches were trained than planned; use a single, finite train loader.")
        return self.plan, self.position.batch

    def learn(self, probs: Tensor, usable: Tensor, targets: Tensor | None) -> None:
        """Give the predictions of the current global batch to the strategy; does not wait for the device."""
        plan, batch = self.current
        self._check_labels(probs)
        if self._batch_ids.device != probs.device:
            self._batch_ids, self._usable = self._batch_ids.to(probs.device), self._usable.to(probs.device)
        first = batch * plan.layout.global_batch_size
        rows = slice(first, first + len(probs))
        self._usable[rows] = usable
        self.strategy.update(torch.where(usable, self._batch_ids[rows], plan.layout.num_samples), probs, targets)

    def first_fault(self) -> tuple[int, int] | None:
        """(batch, sample id) of the first prediction of this epoch that could not be used; waits for the device."""
        if self.plan is None or bool(self._usable.all()):
            return None
        place = int(self._usable.int().argmin())
        return place // self.plan.layout.global_batch_size, int(self.plan.ids[place])

    def metrics(self, seconds: float) -> dict[str, float]:
        """What this epoch's selection looks like, for loggers."""
        probabilities, mean = self.probabilities, self.strategy.mean_uncertainty
        values = {
            "pressure": self.pressure,
            "effective_sample_size": None if probabilities is None else 1 / float(probabilities.square().sum()),
            "distinct_share": None if self.plan is None else self.plan.distinct_share,
            "mean_uncertainty": None if mean is None else float(mean),
            "correlation_drift": self.drift,
            "seconds": seconds,
        }
        return {f"selection/{name}": value for name, value in values.items() if value is not None}

    def finish_step(self, epoch_batches: int) -> None:
        """The current batch is done."""
        self.position.batch += 1
        self.position.epoch_batches = epoch_batches

    def finish_epoch(self) -> None:
        """The current epoch is done."""
        self.position = Position(self.position.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and scalars from which selection goes on exactly (or, if compact, validly)."""
        strategy = self.strategy.compact_state_dict() if self.compact else self.strategy.state_dict()
        state = {
            "version": STATE_VERSION,
            "strategy": type(self.strategy).__name__,
            "seed": self.seed,
            "epoch": self.position.epoch,
            "batch": self.position.batch,
            "epoch_batches": self.position.epoch_batches,
            "num_samples": self.strategy.num_samples,
            "global_batch_size": self.layout.global_batch_size if self.layout else 0,
            "pressure": self.pressure,
            "probabilities_epoch": self._probabilities_epoch,
            "strategy_state": strategy,
        }
        return state if self.probabilities is None else state | {"probabilities": self.probabilities.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave; the strategy has been reset for the data at hand."""
        _check_state(state, self.strategy)
        self.seed = state["seed"]
        self.position = Position(state["epoch"], state["batch"], state["epoch_batches"])
        self.pressure = state["pressure"]
        self.probabilities = state.get("probabilities")
        self._probabilities_epoch = state["probabilities_epoch"]
        self.plan = None
        self.strategy.load_state_dict(state["strategy_state"])

    @property
    def _layout(self) -> BatchLayout:
        if self.layout is None:
            raise SelectionError("there is no train loader yet; selection begins in Trainer.fit.")
        return self.layout

    def _check_labels(self, probs: Tensor) -> None:
        labels, known = probs.shape[1], self.strategy.num_labels
        if known not in (None, labels):
            raise SelectionError(
                f"predictions have {labels} labels, but {known} were remembered so far (from a checkpoint, or earlier "
                "in this run); keep the number of labels, or train anew."
            )

    def _measure(self, epoch: int, share: Callable[[Tensor], Tensor]) -> None:
        """U → C → w → P from all predictions up to the end of the epoch before."""
        before = self.strategy.correlation
        self.strategy.measure()
        after = self.strategy.correlation
        self.drift = None
        if before is not None and after is not None and before is not after:
            self.drift = float((after - before.to(after)).abs().mean())
        if self.selects(epoch):
            self.pressure = self.strategy.pressure(epoch, self.start, self.end)
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

    def _without_repeats(self, plan: EpochPlan) -> Tensor:
        """The plan's ids, where a sample that comes twice in a batch counts once: repeats become the spare id n."""
        if self.replacement != "full" or not self.selects(plan.epoch):
            return plan.ids
        ids = plan.ids.view(-1, plan.layout.global_batch_size)
        return torch.where(repeats_in_rows(ids), plan.layout.num_samples, ids).flatten()


def shuffled_pass(layout: BatchLayout, generator: torch.Generator) -> Tensor:
    """Every sample once, in random order."""
    order = torch.randperm(layout.num_samples, generator=generator)
    return order[: layout.num_batches * layout.global_batch_size]


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
