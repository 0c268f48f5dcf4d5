"""From training steps to updates of the strategy: ids verified, predictions read, rows reweighted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading import DatasetLabels, IdVerification, RowScaling, StepReader, decode
from lightning_ubs.selection._lightning import (
    LoaderKey,
    current_batch,
    fetched_batch,
    fetches_in_step,
    skips_backward,
)
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.selection.options import Unbiased
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.selection.requirements import check_untracked_backward
from lightning_ubs.selection.session import FitSession


class TrainingSteps:
    """What the hooks of a training step delegate to.

    Args:
        selector: Learns from the predictions.
        reader: Reads them.
        verification: Compares planned ids with those of a batch.
        unbiased: How far gradients are reweighted against P.
        refresh: Predictions of passes of their own, instead of those of the steps.
    """

    def __init__(
        self,
        selector: Selector,
        reader: StepReader,
        verification: IdVerification,
        unbiased: Unbiased,
        refresh: EvaluationPass | None,
    ) -> None:
        self.reader = reader
        self._selector = selector
        self._strategy = selector.strategy
        self.verification = verification
        self._unbiased = unbiased
        self._refresh = refresh
        self._weights = SampleWeights(unbiased, selector)
        self._scaling = RowScaling(accepts_rest=unbiased == "predictions")
        self._verifies = bool(self._strategy.needs & {"predictions", "labels"})
        self._fit: FitSession | None = None
        self._module: LightningModule | None = None
        self._current: tuple[EpochPlan, int, Tensor] | None = None
        self._batch: Any = None
        self._has_backward = self._is_reading = False
        self._optimizer_steps: int | None = None
        self._is_backward_seen = self._is_any_backward_seen = False
        self._announced = False
        # Epochs and resumed ones: where the proof is checked again, and what holds for a whole epoch is found out.
        self._begins_epoch, self._first_batch, self._is_selected = True, 0, False
        self._is_fetching, self._trains = False, True
        self._key: LoaderKey | None = None

    def begin_fit(self, session: FitSession, module: LightningModule, continues: bool) -> None:
        """Look for the predictions of ``module`` anew."""
        self._fit, self._module = session, module
        self.reader.attach(module)
        self._scaling.begin_fit()
        self._optimizer_steps = None
        self._is_backward_seen = self._is_any_backward_seen = False
        if not continues:
            self.verification.forget()
        self._announced, self._begins_epoch = False, True

    def end_fit(self) -> None:
        """Learn what is left, keep nothing else of the fit, and leave its module as it was found."""
        self._selector.settle()
        self.reader.forget()
        self.verification.begin(None)
        self._scaling.stop()
        self._weights.forget()
        self._current = self._batch = self._fit = self._module = None

    def see_dataset(self, labels: DatasetLabels) -> None:
        """Note the train dataset, with what it shows of its labels."""
        self.verification.begin(labels)
        is_shown = labels.column is not None
        self.reader.expect(self.verification.labels_of, is_shown, self._strategy.num_labels or labels.num_labels)

    def begin_epoch(self, plan: EpochPlan) -> None:
        """Begin an epoch; its weights are computed now, so that no step waits for them."""
        self._begins_epoch = True
        if self._unbiased:
            self._weights.of_plan(plan)
            self._scaling.begin_epoch()

    def begin(self, batch: Any, batch_idx: int) -> None:
        """A step on ``batch`` begins."""
        if self._begins_epoch:
            self._see_epoch(batch_idx)
        # A training_step(self, dataloader_iter) has not fetched its batch yet, and Lightning passes the one before.
        k = current_batch(self.session.trainer) if self._is_fetching else batch_idx
        self._has_backward = False
        self._batch = batch if self._key is None or batch is None else batch[self._key]
        if self._batch is None and not self._is_fetching:
            self._current = None  # the other loaders are longer
            return
        plan = self._selector.plan
        assert plan is not None
        self._current = plan, k, plan[k]
        if self._refresh is not None:
            self._is_reading = self._reads_steps
        if self._is_reading:
            self.reader.start()
        if self._verifies and not self._is_fetching:
            self._verify(plan, k)

    def _see_epoch(self, batch_idx: int) -> None:
        """Before the first step of an epoch, or of a resumed part of one: ask what will not change in it."""
        session = self.session
        trainer = session.trainer
        self._is_fetching, self._trains = fetches_in_step(trainer), not skips_backward(trainer)
        self._begins_epoch = False
        self._first_batch = current_batch(trainer) if self._is_fetching else batch_idx
        session.start_batch(self._first_batch)
        self._key = session.loader_key
        self._is_reading = self._reads_steps
        self._is_selected = self._selector.selects(session.plan.epoch)
        if self._optimizer_steps is None:
            self._optimizer_steps = trainer.global_step

    def before_backward(self, loss: Tensor) -> None:
        """Read the loss while it has its graph, verify its targets, and reweight its rows."""
        if self._current is None:
            return
        plan, k, ids = self._current
        if self._is_fetching:
            batch = fetched_batch(self.session.trainer)
            self._batch = batch if self._key is None or batch is None else batch[self._key]
            if not self._has_backward:
                self.session.check_one_fetch(k)
                if self._verifies:
                    self._verify(plan, k)
        self._has_backward = self._is_backward_seen = self._is_any_backward_seen = True
        self.verification.loss_rows.see(loss)
        verifying = self.verification.is_due
        if self._is_reading or verifying:
            self.reader.see_loss(loss, len(ids), self._batch, ids, check=verifying or k == self._first_batch)
        if self._unbiased:
            self._scaling.start(loss, self._weights.of_batch(plan, k))
        if plan.layout.world_size > 1:
            self.session.even_out(loss, k)

    def after_backward(self) -> None:
        """Compare the targets of the loss when the gradients are there, and the optimizer has not stepped."""
        if self._unbiased:
            self._scaling.stop()
        if self._current is not None and self.verification.is_due:
            self.verification.check_targets(self.reader.loss_targets)

    def finish(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step: buffer its predictions. Lightning skips a step without a batch or a loss, and so do we."""
        session, selector = self.session, self._selector
        if self._unbiased:
            self._check_backward(session.trainer.global_step)
        k = current_batch(session.trainer) if self._is_fetching else batch_idx
        batch = batch if self._key is None or batch is None else batch[self._key]
        if batch is None or not (outputs or self._has_backward):
            if self._is_reading and batch is not None and not self._announced:
                check_untracked_backward(session.trainer, session.first_step)
            if k < len(session.plan):
                selector.skip_batch(k)
        else:
            if self._is_fetching:
                session.check_one_fetch(k)
            if self._is_reading and self._trains:
                self._read(session.plan, k, outputs, batch)
            selector.finish_batch(k, self._trains)
        self._batch = None
        self.reader.end()
        session.random.share(after_step=True)

    def _check_backward(self, optimizer_steps: int) -> None:
        """Refuse backward passes by hand that no hook shows, so that nothing is weighed in them."""
        module = self._module
        if module is None or module.automatic_optimization:
            return
        stepped = optimizer_steps != self._optimizer_steps
        # An optimizer that Lightning does not wrap counts no steps.
        trained = stepped or (not self._is_any_backward_seen and any(p.grad is not None for p in module.parameters()))
        if trained and not self._is_backward_seen:
            raise SelectionError(
                f"a step changed the module without a backward pass that unbiased={self._unbiased!r} could weigh; "
                "call self.manual_backward(loss) in training_step instead of loss.backward()."
            )
        if stepped:
            self._optimizer_steps, self._is_backward_seen = optimizer_steps, False

    def _read(self, plan: EpochPlan, k: int, outputs: Any, batch: Any) -> None:
        """Read what the step predicted; the first one is learned at once, to tell what is read."""
        assert self._module is not None
        reading = self.reader.read(plan, k, self._module, outputs, batch)
        if reading is None:
            return
        if self._announced:
            self._selector.queue.add(k, reading)
            return
        seen = decode([reading])
        if self._refresh is None:
            self._selector.learn(k, seen)
        self._announced = True
        rank_zero_info(self.reader.announcement(self._strategy, seen, self._selector.compact))

    def check_epoch(self) -> None:
        """Stop at the end of an epoch in which a prediction was not a number; the state is not touched by it."""
        plan = self._selector.plan
        if self._strategy.needs & {"predictions", "labels"}:
            self.verification.end_epoch()
        if self._reads_steps:
            self.reader.end_epoch()
        if "predictions" not in self._strategy.needs or plan is None:
            return
        if self._selector.skipped_batches and len(self._selector.trained_ids()) == 0:
            raise SelectionError(
                f"no step of epoch {plan.epoch} had a loss or returned anything, so there were no predictions; return "
                "the loss from training_step, or call self.manual_backward(loss)."
            )
        fault = self._selector.first_fault()
        if fault is not None:
            allowed = "in [0, 1]" if self.reader.kind == "probs" else "finite"
            raise SelectionError(
                f"the predictions of epoch {plan.epoch}, batch {fault[0]}, sample {fault[1]} are not all {allowed}; "
                "training has diverged, or the wrong output was read: lower the learning rate, or say "
                "where the predictions are with outputs=. The state from before is unharmed."
            )

    def evaluate(self, epoch: int, loader: DataLoader[Any]) -> None:
        """Update the strategy with predictions of all samples by the present weights."""
        session = self.session
        assert self._refresh is not None
        assert self._selector.layout is not None
        layout = replace(self._selector.layout, drop_last=False, epoch_samples=None)
        plan = EpochPlan(epoch, torch.arange(layout.num_samples), layout)
        module = session.trainer.lightning_module
        batches = self._refresh.batches(
            session.trainer, loader, plan, self._selector.seed, lambda: self.reader.knows_evaluation
        )
        for k, batch, predicted in batches:
            samples, targets = self.reader.read_evaluation(plan, k, module, predicted, batch)
            self._selector.check_labels(samples[0])
            self._strategy.refresh(plan.global_batch(k).to(samples.device), samples, targets)

    @property
    def importance_weights(self) -> Tensor | None:
        """1/(nP) of the samples of the current batch on this rank, (b,) float32; None where there is none."""
        if self._current is None or self._module is None:
            return None
        plan, k, _ = self._current
        return self._weights.of_batch(plan, k).float().to(self._module.device, non_blocking=True)

    @property
    def session(self) -> FitSession:
        """The fit that steps belong to."""
        if self._fit is None:
            raise SelectionError("BatchSelection works while Trainer.fit runs; attach it to a Trainer and call fit.")
        return self._fit

    @property
    def _reads_steps(self) -> bool:
        """Whether steps show the predictions; beside evaluation passes only until it is known what they hold."""
        return "predictions" in self._strategy.needs and (self._refresh is None or not self.reader.kind)

    def _verify(self, plan: EpochPlan, k: int) -> None:
        """Compare the planned ids of batch ``k`` with its own, where that is due."""
        if self.verification.is_in_doubt:
            labels = self.verification.doubt_guess(plan, k, self._batch)
            if labels is not None:
                session = self.session
                session.callback.see_dataset(labels, session.dataset)
        self.verification.start_step(plan, k, self._is_selected, self._batch)


class SampleWeights:
    """The weights of the batches of an epoch: 1/(nP) in selected epochs, 1 in plain ones.

    They follow from P, the epoch and the schedule, so a checkpoint needs nothing of them.

    Args:
        unbiased: ``"annealed"`` lets their exponent rise from 0 to 1 over the selected epochs.
        selector: Selector that made the plan.
    """

    def __init__(self, unbiased: Unbiased, selector: Selector) -> None:
        self._is_annealed = unbiased == "annealed"
        self._selector = selector
        self.forget()

    def forget(self) -> None:
        """End the epoch or the fit."""
        self._of_plan: tuple[EpochPlan, Tensor] | None = None

    def of_plan(self, plan: EpochPlan) -> Tensor:
        """Weights of all samples in the epoch of the selector's plan, (n,) float64 on the CPU."""
        if self._of_plan is None or self._of_plan[0] is not plan:
            self._of_plan = plan, self._of_epoch(plan.epoch)
        return self._of_plan[1]

    def of_batch(self, plan: EpochPlan, batch: int) -> Tensor:
        """Weights of the samples of batch ``batch`` on this rank, (b,) float64 on the CPU."""
        return self.of_plan(plan)[plan[batch]]

    def _of_epoch(self, epoch: int) -> Tensor:
        """Weights of all samples, (n,) float64."""
        selector, probabilities = self._selector, self._selector.probabilities
        assert probabilities is not None
        if not selector.selects(epoch):
            return torch.ones_like(probabilities)
        impossible = int((probabilities == 0).sum())
        if impossible:
            raise SelectionError(
                f"{type(selector.strategy).__name__} never draws {impossible} of the samples (their P is 0), so no "
                "weights make its gradients unbiased; use a strategy or a smoothing that leaves each sample a chance."
            )
        weights = selector.strategy.sample_importance(probabilities / probabilities.sum())
        return weights ** annealed_exponent(epoch, selector.schedule) if self._is_annealed else weights


def annealed_exponent(epoch: int, schedule: Schedule) -> float:
    """Exponent of the weights: 0 in the first selected epoch, 1 at the end of the schedule, linear in between.

    >>> [annealed_exponent(epoch, Schedule(2, 6)) for epoch in (2, 3, 6, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    if epoch >= schedule.end:
        return 1.0
    return max(0.0, (epoch - schedule.start) / (schedule.end - schedule.start))
