"""Whether the samples of a batch are the planned ones: ids are verified, not believed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_ubs._utils.distributed import gather_objects
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values
from lightning_ubs.reading.dataset import Column, DatasetLabels
from lightning_ubs.reading.loss_rows import Differences, LossRows
from lightning_ubs.reading.samples import Path, compare_with_items, labels_in_items, leaves, part_at
from lightning_ubs.reading.signatures import (
    MOVED,
    NOISE,
    OTHER,
    Distance,
    LabelMemory,
    Recoding,
    counted,
    hold_classes,
    judged,
    signatures,
)
from lightning_ubs.reading.targets import batch_targets
from lightning_ubs.selection.plan import EpochPlan, world_size

log = logging.getLogger(__name__)

Ids = str | Callable[[Any], Any] | Literal[False] | None

# Steps of the first epoch of a fit that are verified; of each later epoch it is the first one.
FIRST_STEPS = 4
# Samples that must differ before it is sure that labels are changed at each visit.
_CHANGED_ROWS = 8
# Epochs in which a difference stops the fit at once, as it does in the first selected one; later it is warned of first.
FIRST_EPOCHS = 3

_CHANGED = (
    "Let batch k hold the samples it was asked for, in that order; or, if only the labels are changed on purpose, pass "
    "ids= (a key of the batch, or a function (batch) -> ids), or ids=False to train without this check."
)
_KEEP_ORDER = (
    "Keep the order of the batch in training_step; or let it return the predictions in that order ({'loss': loss, "
    "'logits': logits}) and pass ids=False."
)
_CAUSES = (
    "Likely causes: a collate function that sorts or drops samples, a dataset of which each process holds a "
    f"different shard, or a dataset that returns other samples than it was asked for. {_CHANGED}"
)
_OTHER_LABELS = " If these are not its labels, pass labels= with the right ones."
_MIXED = (
    "an augmentation mixes samples (mixup, cutmix), so that the predictions are of no single sample, or targets are "
    "soft for another reason. Let training_step return clean predictions besides ({'loss': loss, 'logits': clean}) and "
    "pass ids=False; ids=False alone is enough if each prediction still belongs to one sample."
)


class IdVerification:
    """Comparison of what batches hold with the plan, before anything is learned from them.

    * In the first steps of a fit, and the first of each later epoch: the ids that the user names, or the targets of the
      loss with the labels that the dataset shows; and the targets of the loss with the labels of the batch.
    * Where the dataset shows no labels, once per fit: the labels of the batch with those of a few items that are asked
      of the dataset itself.
    * In every step: that no row is missing, and at the end of each epoch that the rows of the loss were those of the
      batch, and that samples kept their labels since their first visit, be it in the run before a resume.

    Args:
        ids: A key of the batch or a function ``(batch) -> ids``; None compares labels; False compares nothing.
    """

    def __init__(self, ids: Ids = None) -> None:
        if not (ids is None or ids is False or isinstance(ids, str) or callable(ids)):
            raise ValueError(f"ids={ids!r} names no ids; use a batch key, a function (batch) -> ids, None or False.")
        self._ids = ids
        self._memory = LabelMemory()
        #: What sees each loss before its backward pass.
        self.loss_rows = LossRows()
        self._labels: DatasetLabels | None = None
        self.begin(None)

    def begin(self, labels: DatasetLabels | None) -> None:
        """Begin a fit on a dataset with these labels, or with a loader that was made anew; with None, end the fit."""
        before = self._labels
        if before is not None and labels is not None and before.dataset is not labels.dataset:
            self._reload(before, labels)
            return
        self._labels = labels
        self._dataset = None if labels is None or self._ids is not None else labels.dataset
        self._epochs: set[int] = set()
        self._steps = 0
        self._selected = self._warns_first = False
        # How many epochs had begun when a doubt was said, which the next epoch may confirm.
        self._doubted_in: int | None = None
        self._place: Path | None = None
        self._has_warned = self._has_told_changes = False
        self.loss_rows.begin()
        # Labels that may be changed at each visit: how they differ so far, and whether that is sure.
        self._doubtful: Tensor | None = None
        self._are_changed = False
        self.is_in_doubt = labels is not None and labels.is_guess
        self.drop_step()
        self._is_resumed = False
        if labels is None or self._ids is False:
            return
        self._memory.begin(labels.num_samples)
        self._is_resumed = not self._memory.is_empty
        if labels.column is not None:
            with suppress(TypeError, ValueError, RuntimeError, IndexError):
                self._check_same_dataset(self._memory.show(labels.column))

    def _reload(self, before: DatasetLabels, labels: DatasetLabels) -> None:
        """Take a loader that is made anew: labels may be corrected there, but ids must mean the same samples."""
        self._labels = labels
        labels.is_used = before.is_used
        self._dataset = None if self._dataset is None else labels.dataset
        self.is_in_doubt = labels.is_guess
        found = None
        if labels.column is not None and self._ids is not False:
            with suppress(TypeError, ValueError, RuntimeError, IndexError):
                found = self._memory.show(labels.column)
        if found is None or not found.changed:
            return
        seen = f"{found.changed} of {found.compared} samples have other labels in the reloaded train dataset"
        if found.share >= OTHER and not found.is_noise and self._ids is None:
            raise SelectionError(
                f"{seen} than before, so this is another dataset, another split, or another order of samples, and what "
                "is remembered belongs to other samples. Reload the same samples in the same order; or, if only the "
                "labels are new, pass ids= (a key of the batch, or a function (batch) -> ids), or ids=False to train "
                "without this check."
            )
        self._memory.expect_anew()
        rank_zero_warn(
            f"{seen} than before; selection continues with what is remembered of them. If labels were corrected, all "
            "is well.",
            category=UserWarning,
        )

    def forget(self) -> None:
        """Expect no sample to be one of an earlier fit."""
        self._memory.forget()

    def drop_step(self) -> None:
        """Keep nothing of the step."""
        self._planned: Tensor | None = None
        self._is_told = False
        self._batch: Any = None
        self._where = ""

    def doubt_guess(self, plan: EpochPlan, k: int, batch: Any) -> DatasetLabels | None:
        """Before the first step: give up a column that was only guessed to be the labels, where it turns out not to be.

        It is unlike what the batch shows as its labels, and either stands beside them in the batch, or is no part of
        the dataset's items at all. All ranks decide alike.

        Returns:
            The dataset's labels as they are known then, if they are others than before.
        """
        labels = self._labels
        if not self.is_in_doubt or labels is None or batch is None:
            return None
        self.is_in_doubt = False
        is_mistaken = self._is_mistaken(labels, plan[k], batch)
        if world_size() > 1:
            is_mistaken = any(gather_objects(is_mistaken))
        if not is_mistaken:
            return None
        labels.give_up()
        return labels

    def _is_mistaken(self, labels: DatasetLabels, planned: Tensor, batch: Any) -> bool:
        shown = None if labels.column is None else _rows_of(labels.column, planned)
        if shown is None:
            return False
        parts = [part.cpu() for _, part in leaves(batch) if isinstance(part, Tensor) and len(part.shape) in (1, 2)]
        is_beside = any(part.shape == shown.shape and compare(part, shown) is Verdict.SAME for part in parts)
        usual = batch_targets(batch)
        if usual is None:
            others = [part for part in parts if len(part) == len(shown) and compare(part, shown) is not Verdict.SAME]
        elif len(usual) != len(shown) or usual.ndim > 2:
            return False
        else:
            others = [usual.cpu()]
        others = [part for part in others if _may_be_others(part, shown)]
        if others and (is_beside or any(part.shape != shown.shape and shown.ndim == 2 for part in others)):
            return True
        if is_beside or (usual is not None and not others):
            return False
        asked = compare_with_items(labels.dataset, planned, shown, None)
        return bool(asked.asked) and asked.same is None

    def start_step(self, plan: EpochPlan, k: int, selected: bool, batch: Any) -> None:
        """Begin a training step on batch ``k`` of the plan; ``selected`` if the epoch is no warm-up."""
        if self._planned is not None:
            self.drop_step()
        self.loss_rows.start_step()
        if batch is not None:
            self._see_rows(plan, k, batch)
        is_new = plan.epoch not in self._epochs
        is_first = len(self._epochs) == 1 and self._steps < FIRST_STEPS
        if self._ids is False or not (is_new or is_first or self._is_unsure):
            return
        self._steps += 1
        if is_new:
            self._warns_first = len(self._epochs) >= FIRST_EPOCHS and (self._selected or not selected)
            self._epochs.add(plan.epoch)
            self._selected |= selected
        self._planned, self._batch, self._where = plan[k], batch, f"epoch {plan.epoch}, batch {k}"
        self.loss_rows.verified = len(self._planned)
        with self._together():
            if self._ids is not None:
                self._compare_ids(plan[k], self._read_ids(batch))

    def labels_of(self, ids: Tensor) -> Tensor | None:
        """The labels (b, q) or class indices (b,) of samples: what the dataset shows, else what its items hold.

        None where neither tells. Items are asked of the dataset anew at each call, in a process of its own.
        """
        if self._labels is None or self._are_changed:
            return None
        column = self._labels.column
        return labels_in_items(self._labels.dataset, ids) if column is None else _rows_of(column, ids)

    @property
    def is_due(self) -> bool:
        """Whether the targets of this step are to be compared."""
        return self._planned is not None

    def check_targets(self, targets: tuple[Tensor, ...]) -> None:
        """Compare what the loss of this step was given, before the optimizer steps; waits for the device.

        Where that cannot be compared, a later backward pass of the same step may be.

        Args:
            targets: Targets of the loss, (b, q) or class indices (b,); empty looks for them in the batch.
        """
        if self._planned is None:
            return
        if self._is_told:
            self._check_targets(self._planned, targets)
            return
        self._is_told = True
        with self._together(self._warns_first):
            self._check_targets(self._planned, targets)

    def _check_targets(self, planned: Tensor, targets: tuple[Tensor, ...]) -> None:
        if not targets:
            found = batch_targets(self._batch)
            targets = () if found is None else (found,)
        fitting = [target.detach().cpu() for target in targets if len(target) == len(planned)]
        if any(are_rows_permuted(fitting[0], other) for other in fitting[1:]):
            raise SelectionError(f"{self._where}: predictions are compared with the labels of two samples: {_MIXED}")
        if not fitting:
            return
        rows = self._batch_labels(fitting[0])
        is_seen, moved = (False, ()) if rows is None else self.loss_rows.learn(rows, is_first=len(self._epochs) == 1)
        if rows is not None and (_are_moved(fitting[0], rows) or (moved and not is_seen)):
            raise SelectionError(
                f"{self._where}: the loss's rows are those of the batch in another order, so predictions would be "
                f"credited to other samples. {_KEEP_ORDER}"
            )
        verdict = self._compare_labels(planned, fitting[0], rows)
        if rows is not None and verdict is Verdict.INCOMPARABLE and self._ids is None:
            self._compare_with_batch(fitting[0], rows)
        self._remember(planned, rows)
        if verdict is not Verdict.SAME and self._dataset is not None:
            self._compare_with_items(planned, fitting[0] if rows is None else rows)
        if verdict is not Verdict.INCOMPARABLE or rows is not None:
            self.drop_step()

    def end_epoch(self) -> None:
        """Stop where samples have other labels than at their first visit; every rank calls this at the same time."""
        if self._ids is False:
            return
        self._check_rows()
        self._check_doubts()
        if world_size() > 1 and not self._memory.share():
            return
        if self._is_resumed:
            self._check_resumed()
            return
        found = self._memory.judge()
        if found is None or found.share < NOISE:
            return
        seen = f"{found.changed} of {found.compared} samples came with other labels than at their first visit"
        if found.share >= MOVED and not found.is_noise and self._ids is None:
            raise SelectionError(
                f"{seen}, as different as those of other samples, so an id does not mean the same sample in each epoch "
                "and predictions would be credited to other samples. Likely causes: a dataset that is drawn anew "
                "during training (a queue, a cache), a collate function that sorts, or labels of which most are drawn "
                "anew at each visit. Let index i mean one sample throughout; or, if only the labels change from visit "
                "to visit, pass ids= (a key of the batch, or a function (batch) -> ids), or ids=False to train "
                "without this check."
            )
        self._memory.is_steady = False
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"{seen}. If that is meant (labels that are drawn, or corrected), all is well; if an id "
                "comes to mean another sample, its history is of no use: let index i mean one sample throughout.",
                category=UserWarning,
            )

    def _check_doubts(self) -> None:
        """What one rank is sure of, or all of them together are, holds for all."""
        if world_size() > 1:
            told = gather_objects((self._doubtful, self._are_changed))
            counts = [one for one, _ in told if one is not None]
            total = sum(counts[1:], counts[0]) if counts else None
            if total is not None and (_is_noise(total) or any(is_sure for _, is_sure in told)):
                self._settle_changed(total)
        with self._together(self._warns_first):
            if self._doubtful is not None and self._labels is not None:
                found = judged(self._doubtful)
                seen = "some" if found is None else f"{found.changed} of {found.compared}"
                raise SelectionError(
                    f"{seen} samples came with other labels than the dataset's {self._labels.column} shows, and it "
                    f"could not be told that they are not of other samples. {_CAUSES}{_OTHER_LABELS}"
                )

    def _check_rows(self) -> None:
        """Check that the rows of the loss were those of the batch in all steps of the epoch."""
        seen = self.loss_rows.judge()
        if world_size() > 1:
            seen = sum(gather_objects(seen), Differences())
        if seen.moved > seen.changed:
            raise SelectionError(
                f"in {seen.moved} of {seen.batches} batches of this epoch, {seen.moved_rows} rows of the loss stood in "
                f"another order than in the batch, so predictions were credited to other samples. {_KEEP_ORDER}"
            )
        if seen.soft:
            with self._together(self._warns_first):
                raise SelectionError(
                    f"in at least {seen.soft} of {seen.batches} batches of this epoch, the targets of the loss were "
                    f"soft: {_MIXED}"
                )
        if not seen.changed or self._ids is not None:
            return
        told = (
            f"in {seen.changed} of {seen.batches} batches of this epoch, the targets of the loss were not the labels "
            "of the batch, row by row, so predictions may be of other samples or of several."
        )
        if seen.share >= OTHER and self._has_told_changes:
            raise SelectionError(f"{told} {_CHANGED}")
        if not self._has_told_changes:
            self._has_told_changes = True
            rank_zero_warn(f"{told} {_CHANGED}", category=UserWarning)

    @contextmanager
    def _together(self, warns_first: bool = False) -> Iterator[None]:
        """Let what one rank refuses stop all of them, so that none waits for it for ever; or warn once before."""
        refusal: SelectionError | None = None
        try:
            yield
        except SelectionError as error:
            refusal = error
        told = [None if refusal is None else str(refusal)]
        if world_size() > 1:
            told = gather_objects(told[0])
        others = [f"on process {rank}: {message}" for rank, message in enumerate(told) if message is not None]
        if others and warns_first and self._doubted_in == len(self._epochs):
            self.drop_step()
            return
        if others and warns_first and self._doubted_in is None:
            self._doubted_in = len(self._epochs)
            self.drop_step()
            first = next(message for message in told if message is not None)
            rank_zero_warn(
                f"{first} If the next epoch shows the same, training stops; pass ids=False if that is meant.",
                category=UserWarning,
            )
            return
        if refusal is not None:
            raise refusal
        if others:
            raise SelectionError(others[0])

    def state_dict(self) -> dict[str, Any]:
        """What a later run recognizes the samples by."""
        return self._memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Expect the samples of an earlier run."""
        self._memory.load_state_dict(state)
        self._is_resumed = not self._memory.is_empty

    def _see_rows(self, plan: EpochPlan, k: int, batch: Any) -> None:
        """Check a step of any kind: no row may be missing, and labels are compared with those of earlier visits."""
        ids = plan[k]
        planned = len(ids)
        known = None if self._place is None else part_at(batch, self._place)
        rows = known if isinstance(known, Tensor) and known.ndim > 0 else None
        count = _rows_in(batch) if rows is None else len(rows)
        if count is not None and (count < planned or (rows is not None and count > planned and self._ids is not False)):
            which, how = ("missing", "drops") if count < planned else ("added", "adds")
            raise SelectionError(
                f"epoch {plan.epoch}, batch {k} has rows for {count} samples, but the planned batch has {planned}, so "
                f"it cannot be told which are {which}. A collate function that {how} samples is the likely cause: "
                "leave bad samples out of the dataset (torch.utils.data.Subset), or let the collate function keep a "
                "row for each."
            )
        if rows is None or len(rows) != planned or self._ids is False:
            return
        self.loss_rows.start_step(rows, self._memory.add(ids, rows))
        if self._is_resumed and world_size() == 1:
            self._check_resumed()

    def _check_resumed(self) -> None:
        """Check that the first batches after a resume have the labels that their samples had before."""
        found = self._memory.judge()
        if found is not None:
            self._is_resumed = False
            self._check_same_dataset(found)

    def _check_same_dataset(self, found: Distance | None) -> None:
        if found is None or found.share < NOISE:
            return
        seen = f"{found.changed} of {found.compared} samples have other labels than in the run that is continued"
        if found.share >= OTHER:
            raise SelectionError(
                f"{seen}, so this is another dataset, another split, or another order of samples or labels, and "
                "what is remembered belongs to other samples. Use the same data in the same order (seed random_split), "
                "or start anew: a new Trainer and a new BatchSelection, without ckpt_path."
            )
        rank_zero_warn(
            f"{seen}; selection continues with what is remembered of them. If labels were corrected, all is well.",
            category=UserWarning,
        )

    def _batch_labels(self, targets: Tensor) -> Tensor | None:
        """The labels of the batch, on the CPU; from now on it is known where in a batch they are.

        They are what the loss compared its predictions with, in this order or another; else what is in the usual place.
        """
        usual = batch_targets(self._batch)
        same, moved, named = [], [], []
        for path, part in leaves(self._batch):
            if not isinstance(part, Tensor) or part.ndim == 0 or len(part) != len(targets):
                continue
            is_usual = usual is not None and part.data_ptr() == usual.data_ptr()
            fitted = _like(part.detach(), targets)
            fitted = None if fitted is None else fitted.cpu()
            if fitted is not None and compare(targets, fitted) is Verdict.SAME:
                same.append((path, fitted))
            elif fitted is not None and (is_usual or _is_telling(targets)) and _are_moved(targets, fitted):
                moved.append((path, fitted))
            elif is_usual:
                named.append((path, part.detach().cpu() if fitted is None else fitted))
        found = [*same, *moved, *named]
        if not found:
            return None
        self._place, rows = found[0]
        return rows

    def _compare_with_batch(self, targets: Tensor, rows: Tensor) -> None:
        """Check that the rows of the loss are those of the batch."""
        if compare(targets, rows) is Verdict.DIFFERENT and not _are_recoded(targets, rows):
            raise SelectionError(
                f"{self._where}: the targets of the loss are not the labels of the batch, row by row, so predictions "
                f"may be of other samples or of several. {_CHANGED}"
            )

    def _compare_with_items(self, planned: Tensor, rows: Tensor) -> None:
        """Ask the dataset for some of the planned samples, until their labels tell something."""
        asked = compare_with_items(self._dataset, planned, rows, self._place)
        if asked.same is not None or not asked.asked:
            self._dataset = None
        if asked.same is False:
            raise SelectionError(
                f"{self._where}: the labels of the batch are not those of the items that the dataset returns for the "
                f"planned ids, so predictions would be credited to other samples. {_CAUSES}"
            )

    def _remember(self, planned: Tensor, rows: Tensor | None) -> None:
        """From now on compare the labels of each sample with those of its first visit, beginning with this batch."""
        known = None if self._place is None else part_at(self._batch, self._place)
        if rows is None or not isinstance(known, Tensor) or self._labels is None:
            return
        is_first = self._memory.is_empty or self._is_resumed
        self._memory.expect(self._labels.num_samples, known)
        if is_first:
            self._memory.add(planned, known)
            if self._is_resumed:
                self._check_resumed()

    def _compare_labels(self, planned: Tensor, targets: Tensor, rows: Tensor | None) -> Verdict:
        column = None if self._labels is None else self._labels.column
        shown = None if column is None else _rows_of(column, planned)
        verdict = Verdict.INCOMPARABLE if shown is None or self._are_changed else compare(targets, shown)
        if shown is not None and verdict in (Verdict.DIFFERENT, Verdict.INCOMPARABLE) and _are_recoded(targets, shown):
            return Verdict.SAME
        if shown is not None and verdict is Verdict.DIFFERENT and self._may_be_changed(targets, shown):
            return Verdict.INCOMPARABLE
        if verdict is Verdict.DIFFERENT and self._ids is None and not self._is_another_column(planned, targets):
            raise SelectionError(
                f"{self._where}: the targets of the loss are not the labels of the planned samples (as the dataset's "
                f"{column.name if column else ''} shows them), so predictions would be credited to other "
                f"samples. {_CAUSES}{'' if self._labels is None or self._labels.is_given else _OTHER_LABELS}"
            )
        is_smoothed = rows is not None and not has_mixed_values(rows) and compare(targets, rows) is Verdict.SAME
        is_mixed = verdict is Verdict.INCOMPARABLE and has_mixed_values(targets) and not is_smoothed
        if verdict is Verdict.MIXED or is_mixed:
            raise SelectionError(f"{self._where}: the targets of the loss are soft: {_MIXED}")
        if verdict is Verdict.INCOMPARABLE:
            log.debug("%s: the dataset shows no labels to compare with.", self._where)
        return verdict

    def _may_be_changed(self, targets: Tensor, shown: Tensor) -> bool:
        """Whether the dataset may change its labels at each visit, so that its column is not what batches hold.

        More batches are compared until that is sure; an epoch that does not make it sure ends with a refusal.
        """
        if self._labels is None or self._labels.is_given or self._ids is not None or targets.shape != shown.shape:
            return False
        if are_rows_permuted((targets > 0.5).double(), (shown > 0.5).double()):
            return False
        counts = counted(signatures(shown), signatures(targets))
        counts = counts if self._doubtful is None else counts + self._doubtful
        found = judged(counts)
        if found is None or (found.share >= OTHER and not found.is_noise):
            return False
        self._doubtful = counts
        if _is_noise(counts):
            self._are_changed = True
            if world_size() == 1:
                self._settle_changed(counts)
        return True

    def _settle_changed(self, counts: Tensor) -> None:
        """The dataset changes its labels at each visit."""
        self._are_changed, self._doubtful = True, None
        found = judged(counts)
        assert self._labels is not None
        assert found is not None
        rank_zero_warn(
            f"{found.changed} of {found.compared} samples came with other labels than the dataset's "
            f"{self._labels.column} shows, and nearer ones than those of other samples: they are taken for labels "
            "that the dataset changes at each visit, and rows are verified by those of the batches. If they are of "
            "other samples, let index i mean one sample throughout.",
            category=UserWarning,
        )

    @property
    def _is_unsure(self) -> bool:
        """Whether more batches are to be compared; several processes must do so at the same time, so they do not."""
        return self._doubtful is not None and world_size() == 1

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
    shown = _rows_of(column, planned) if column.shape == tuple(targets.shape[1:]) else None
    return shown is not None and compare(targets, shown) is Verdict.SAME


def _rows_of(column: Column, ids: Tensor) -> Tensor | None:
    """The rows of a column; None where those of these samples turn out to be no numbers."""
    with suppress(TypeError, ValueError, RuntimeError, IndexError):
        return column.rows(ids)
    return None


def _like(part: Tensor, targets: Tensor) -> Tensor | None:
    """A part of a batch in the shape of the loss's targets, or as class indices; None if it cannot be those."""
    if part.numel() == targets.numel():
        return part.reshape(targets.shape)
    is_index = part.numel() == len(targets) and not part.is_floating_point()
    is_one_hot = part.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point()
    return part.flatten() if is_index else part if is_one_hot else None


def _may_be_others(found: Tensor, shown: Tensor) -> bool:
    """Whether a part of a batch may be labels, of another kind than those of this column."""
    if found.ndim != 2 or not bool(((found == 0) | (found == 1)).all()):
        return False
    if found.shape != shown.shape and shown.ndim == 2:
        return True
    is_of_classes = shown.ndim == 1 and bool((found.sum(1) == 1).all())
    return not is_of_classes and compare(found, shown) is Verdict.DIFFERENT


def _is_telling(targets: Tensor) -> bool:
    """Whether there are more than two kinds of rows: a yes and a no are in many parts of a batch."""
    return len(torch.unique(targets, dim=0)) > 2


def _are_moved(targets: Tensor, rows: Tensor) -> bool:
    """Whether the rows of the loss are those of the batch in another order; a few values alike are no proof."""
    known = targets.reshape(len(targets), -1)
    same_rows = known.shape == rows.reshape(len(rows), -1).shape and are_rows_permuted(targets.double(), rows.double())
    return same_rows and (known.shape[1] > 1 or len(torch.unique(known)) > 1)


def _is_noise(counts: Tensor) -> bool:
    """Whether labels are surely changed ones of the same samples."""
    found = judged(counts)
    return found is not None and found.is_noise and found.changed >= _CHANGED_ROWS


def _are_recoded(targets: Tensor, labels: Tensor) -> bool:
    """Whether targets are these labels in another code, row by row, such as the levels below a class."""
    if len(targets) != len(labels):
        return False
    one, other = signatures(labels, hold_classes(labels)), signatures(targets, hold_classes(targets))
    code = Recoding(one, other)
    return (code.tells and code.fits) or torch.equal(one, other)  # a batch of the first two classes, say


def _rows_in(batch: Any) -> int | None:
    """The number of rows of a batch whose labels are in the usual place; None where its tensors disagree."""
    usual = batch_targets(batch)
    sizes = {len(part) for path, part in leaves(batch) if isinstance(part, Tensor) and part.ndim > 0 and len(path) < 2}
    return len(usual) if usual is not None and usual.ndim > 0 and sizes == {len(usual)} else None


def _some(ids: Tensor) -> str:
    return f"{ids[:5].tolist()}{' …' if len(ids) > 5 else ''}"
