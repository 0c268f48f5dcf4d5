"""Predictions of all samples from an extra pass over the training set, instead of those of the training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader

from lightning_ubs._utils.checks import call_repr, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.selection.plan import EpochPlan

Predict = Callable[[LightningModule, Any], Any]


class EvaluationPass:
    """Predictions of all training samples by one state of the model, at the start of each epoch but the first.

    **What it does.** The training set is read in order with the train loader's collate function, the module is in
    evaluation mode, no gradient is computed, and training mode and random numbers are afterwards what they were before.
    Each rank predicts its share. What training steps predict is then not learned from.

    **When to use it.** Where predictions of the same sample, made by ever other weights and with dropout on, are too
    noisy a measure, or where ``epoch_size`` is so small that most samples would be judged by old predictions.

    **What it costs.** ``mc_samples`` forward passes over the whole training set per epoch: with one, by estimate
    about a third of the training itself. The seconds are part of ``selection/seconds`` in the log.

    **Monte-Carlo dropout.** With ``mc_samples`` = k above 1, dropout is on, and each sample is predicted k times. UBS
    then takes the entropy of the mean prediction, and the mean absolute change between successive ones of the k
    predictions in the place of its fluctuation between visits. Other strategies see the mean prediction.

    Args:
        mc_samples: Predictions per sample; above 1 with dropout on.
        predict: ``(pl_module, batch) -> predictions``; None calls the module with the first element of the batch. The
            predictions are a tensor, or something with ``probs`` or ``logits`` in it.

    >>> EvaluationPass(mc_samples=8)
    EvaluationPass(mc_samples=8)
    """

    def __init__(self, mc_samples: int = 1, predict: Predict | None = None) -> None:
        check_range("mc_samples", mc_samples, 1, whole=True)
        if predict is not None and not callable(predict):
            raise ValueError(f"predict={predict!r} is not a function; pass one that takes (pl_module, batch), or None.")
        self.mc_samples = int(mc_samples)
        self.predict = predict

    def __repr__(self) -> str:
        return call_repr(self)

    def check(self, module: LightningModule) -> None:
        """Refuse a model in which all of the predictions of a sample would be equal."""
        if self.mc_samples > 1 and not _dropouts(module):
            raise SelectionError(
                f"EvaluationPass(mc_samples={self.mc_samples}) needs dropout, but the model has no dropout module with "
                "p above 0; use mc_samples=1, or a model with torch.nn.Dropout."
            )

    def batches(
        self, trainer: Trainer, loader: DataLoader[Any], plan: EpochPlan, seed: int, tells_kind: Callable[[], bool]
    ) -> Iterator[tuple[int, Any, list[Any]]]:
        """(number, batch, its ``mc_samples`` predictions) of every batch of ``plan`` on this rank.

        Args:
            trainer: The trainer whose module predicts.
            loader: The train loader.
            plan: Plan of all samples in order; its epoch and the seed decide all random numbers.
            seed: Seed of the selection.
            tells_kind: Whether it is known what the predictions hold; until then they come with their graph.
        """
        module = trainer.lightning_module
        reader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=[ids.tolist() for ids in plan],
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
        )
        with isolate_rng(), _validating(trainer), _evaluation_mode(module, dropout=self.mc_samples > 1):
            torch.manual_seed(epoch_generator(seed, plan.epoch).initial_seed())
            for number, read in enumerate(reader):
                batch = trainer.strategy.batch_to_device(read)
                with torch.set_grad_enabled(not tells_kind()), trainer.precision_plugin.forward_context():
                    predicted = [self._predicted(module, batch) for _ in range(self.mc_samples)]
                yield number, batch, predicted

    def _predicted(self, module: LightningModule, batch: Any) -> Any:
        if self.predict is not None:
            return self.predict(module, batch)
        if not isinstance(batch, list | tuple) or not batch:
            raise SelectionError(
                f"an evaluation pass cannot tell the model's inputs in a batch that is a {type(batch).__name__}; pass "
                "EvaluationPass(predict=function(pl_module, batch) -> predictions)."
            )
        return module(batch[0])


def _dropouts(module: LightningModule) -> list[_DropoutNd]:
    return [part for part in module.modules() if isinstance(part, _DropoutNd) and part.p > 0]


@contextmanager
def _validating(trainer: Trainer) -> Iterator[None]:
    """Let the trainer say that it validates: modules augment where ``trainer.training`` says they train."""
    stage = trainer.state.stage
    trainer.validating = True
    try:
        yield
    finally:
        trainer.state.stage = stage


@contextmanager
def _evaluation_mode(module: LightningModule, dropout: bool) -> Iterator[None]:
    """The module in evaluation mode, but for its dropout; afterwards every part as it was."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    for one in _dropouts(module) if dropout else []:
        one.train()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
