"""Whether the samples of a batch are the planned ones: ids are verified, not believed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values
from lightning_ubs.reading.dataset import Column, DatasetLabels
from lightning_ubs.reading.targets import batch_targets
from lightning_ubs.selection.plan import EpochPlan

log = logging.getLogger(__name__)

Ids = str | Callable[[Any], Any] | Literal[False] | None

# Epochs of a fit whose first batch is verified; the first selected epoch is verified besides.
FIRST_EPOCHS = 3

_CAUSES = (
    "Likely causes: a collate function that sorts or drops samples, a dataset of which each process holds a "
    "different shard, or a dataset that returns other samples than it was asked for. Let batch k hold the samples it "
    "was asked for, in that order; or, if only the labels are changed on purpose, pass ids= (a key of the batch, or a "
    "function (batch) -> ids), or ids=False to train without this check."
)
_MIXED = (
    "an augmentation mixes samples (mixup, cutmix), so that the predictions are of no single sample, or targets are "
    "soft for another reason. Let training_step return clean predictions besides ({'loss': loss, 'logits': clean}) and "
    "pass ids=False; ids=False alone is enough if each prediction still belongs to one sample."
)


class IdVerification:
    """Compares the first batch of the first epochs, and of the first selected one, with the plan.

    Args:
        ids: a key of the batch or a function ``(batch) -> ids``; None compares the targets of the loss with the labels
            that the dataset shows; False compares nothing.
    """

    def __init__(self, ids: Ids = None) -> None:
        if not (ids is None or ids is False or isinstance(ids, str) or callable(ids)):
            raise ValueError(f"ids={ids!r} names no ids; use a batch key, a function (batch) -> ids, None or False.")
        self._ids = ids
        self.begin(None)

    def begin(self, labels: DatasetLabels | None) -> None:
        """A fit begins, on a dataset with these labels."""
        self._labels = labels
        self._epochs: set[int] = set()
        self._selected = False
        self.drop_step()

    def drop_step(self) -> None:
        """Keep nothing of the step."""
        self._planned: Tensor | None = None
        self._batch: Any = None
        self._where = ""

    def start_step(self, plan: EpochPlan, k: int, selected: bool, batch: Any) -> None:
        """A training step on batch ``k`` of the plan begins; ``selected`` if the epoch is no warm-up."""
        self.drop_step()
        if len(self._epochs) >= FIRST_EPOCHS and self._selected:
            self._labels = None  # Nothing is compared any more, so no dataset is kept alive.
            return
        early = len(self._epochs) < FIRST_EPOCHS or selected
        if self._ids is False or not early or plan.epoch in self._epochs:
            return
        self._epochs.add(plan.epoch)
        self._selected |= selected
        self._planned, self._batch, self._where = plan[k], batch, f"epoch {plan.epoch}, batch {k}"
        if self._ids is not None:
            self._compare_ids(plan[k], self._read_ids(batch))

    @property
    def is_due(self) -> bool:
        """Whether the targets of this step are to be compared."""
        return self._planned is not None

    def check_targets(self, targets: tuple[Tensor, ...]) -> None:
        """Compare what the loss of this step was given, before the optimiser steps; waits for the device.

        Where that cannot be compared, a later backward pass of the same step may be.

        Args:
            targets: those of the loss, (b, q) or class indices (b,); empty looks for them in the batch.
        """
        if self._planned is None:
            return
        if not targets:
            found = batch_targets(self._batch)
            targets = () if found is None else (found,)
        fitting = [target.detach().cpu() for target in targets if len(target) == len(self._planned)]
        if any(are_rows_permuted(fitting[0], other) for other in fitting[1:]):
            raise SelectionError(f"{self._where}: predictions are compared with the labels of two samples: {_MIXED}")
        if fitting and self._compare_labels(self._planned, fitting[0]) is not Verdict.INCOMPARABLE:
            self.drop_step()

    def _compare_labels(self, planned: Tensor, targets: Tensor) -> Verdict:
        column = None if self._labels is None else self._labels.column
        verdict = Verdict.INCOMPARABLE if column is None else compare(targets, column.rows(planned))
        if verdict is Verdict.DIFFERENT and self._ids is None and not self._is_another_column(planned, targets):
            raise SelectionError(
                f"{self._where}: the targets of the loss are not the labels of the planned samples (as the dataset's "
                f"{column.name if column else ''} shows them), so predictions would be credited to other "
                f"samples. {_CAUSES}"
            )
        if verdict is Verdict.MIXED or (verdict is Verdict.INCOMPARABLE and has_mixed_values(targets)):
            raise SelectionError(f"{self._where}: the targets of the loss are soft: {_MIXED}")
        if verdict is Verdict.INCOMPARABLE:
            log.debug("%s: the dataset shows no labels to compare with; ids are not verified.", self._where)
        return verdict

    def _is_another_column(self, planned: Tensor, targets: Tensor) -> bool:
        """Whether another column of the dataset holds these targets, so that the wrong one was taken for labels."""
        assert self._labels is not None
        others = [column for column in self._labels.others if _same(column, planned, targets)]
        if others and self._labels.is_used:
            raise SelectionError(
                f"the labels were read from the dataset's {self._labels.column}, but the loss's targets are those of "
                f"its {others[0]}; pass BatchSelection(..., labels=) with the right ones."
            )
        return bool(others)

    def _read_ids(self, batch: Any) -> Tensor:
        assert self._ids
        if callable(self._ids):
            found = self._ids(batch)
        elif isinstance(batch, Mapping) and self._ids in batch:
            found = batch[self._ids]
        else:
            keys = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise SelectionError(
                f"ids={self._ids!r} is not a key of the batch ({keys}); pass ids= a key or a function."
            )
        try:
            return torch.as_tensor(found).detach().cpu().flatten()
        except (TypeError, ValueError, RuntimeError) as error:
            raise SelectionError(
                f"ids= returned {type(found).__name__}, which are not sample ids; return whole numbers from 0 to n - 1."
            ) from error

    def _compare_ids(self, planned: Tensor, found: Tensor) -> None:
        if found.shape == planned.shape and bool((found == planned).all()):
            return
        raise SelectionError(
            f"{self._where}: the batch holds the samples {_some(found)}, but {_some(planned)} were planned. {_CAUSES}"
        )


def _same(column: Column, planned: Tensor, targets: Tensor) -> bool:
    same_shape = column.shape == tuple(targets.shape[1:])
    return same_shape and compare(targets, column.rows(planned)) is Verdict.SAME


def _some(ids: Tensor) -> str:
    return f"{ids[:5].tolist()}{' …' if len(ids) > 5 else ''}"
