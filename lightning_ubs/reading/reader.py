"""What a training step predicted: found once, proven by the loss, and read there from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from lightning_ubs._utils.distributed import gather_objects, gather_rows
from lightning_ubs._utils.files import size_text
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.comparison import Verdict, are_rows_permuted, compare, has_mixed_values
from lightning_ubs.reading.loss_graph import Candidate, Edge, TermPlace, follow
from lightning_ubs.reading.modules import (
    Found,
    ModuleWatch,
    find,
    is_compiled,
    is_loss_or_metric,
    module_part,
    names_of,
    submodule,
)
from lightning_ubs.reading.predictions import (
    Kind,
    as_rows,
    check_kind,
    kind_by_origin,
    kind_by_values,
    to_probabilities,
)
from lightning_ubs.reading.proof import (
    PASSED,
    THRESHOLD,
    Evidence,
    Group,
    Head,
    Place,
    Proof,
    Watched,
    batch_leaves,
    grouped,
    heads_of,
    main_groups,
    same_values,
)
from lightning_ubs.reading.targets import Targets, batch_targets, in_shape, named_targets
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.strategies import Strategy

Outputs = str | Callable[[LightningModule, Any, Any], Tensor] | None
LabelsOf = Callable[[Tensor], Tensor | None]

# Steps of a fit in which the proof gathers evidence, and those in which targets are looked at in any case.
PROOF_STEPS, FIRST_STEPS = 32, 4

WAYS_OUT = (
    "return {'loss': loss, 'logits': logits} from training_step, or pass outputs='KEY' (a key of what it returns), "
    "outputs='module:NAME' (a submodule's output) or outputs=function(pl_module, outputs, batch), with kind='softmax' "
    "where they are logits of exclusive classes"
)
_NO_LABELS = "neither the dataset nor the batch shows labels that fit them"


class Observation(NamedTuple):
    """Predictions of global batches, in the order of their planned ids."""

    probs: Tensor
    usable: Tensor
    targets: Tensor | None


class Reading(NamedTuple):
    """Predictions of a global batch as they came, copied, because a step may use their memory again.

    Args:
        raw: (b, q) float32.
        targets: (b, q) true labels, if they are wanted.
        kind: what the predictions hold.
        device: where they are wanted; None leaves them where they are.
    """

    raw: Tensor
    targets: Tensor | None
    kind: Kind
    device: torch.device | None


def decode(readings: Sequence[Reading]) -> Observation:
    """Probabilities of batches, one behind the other; nothing here waits for the device."""
    first = readings[0]
    # Probabilities are float64, which MPS does not have.
    device = first.device or (torch.device("cpu") if first.raw.device.type == "mps" else first.raw.device)
    raw = _joined([one.raw for one in readings])
    probs, usable = to_probabilities(raw.to(device), first.kind, [len(one.raw) for one in readings])
    known = [one.targets for one in readings if one.targets is not None]
    return Observation(probs, usable, _joined(known).to(device) if len(known) == len(readings) else None)


class StepReader:
    """Reads the predictions (and true labels) of each step and gathers them from all processes.

    In the first steps everything in the loss's graph that may be the predictions is proven or refuted by the labels
    (:mod:`lightning_ubs.reading.proof`); from then on the proven place is followed. In the first step of later epochs
    it is checked anew. What ``outputs`` names, or ``probs`` or ``logits`` that ``training_step`` returns, is matched
    with the proven head by its values.

    Args:
        outputs: a key of what ``training_step`` returns, ``"module:NAME"``, a function, or None to look for them.
        targets: where the true labels are.
        kind: what the predictions hold; None to find it out.
        device: where they are wanted; None leaves them on the module's device.
        needs_targets: whether the true labels are wanted at all.
        ids: what planned ids are verified by; False believes them, and labels are then no reason to refuse.
    """

    def __init__(
        self,
        outputs: Outputs,
        targets: Targets,
        kind: str | None,
        device: str | torch.device | None,
        needs_targets: bool,
        ids: Any = None,
    ) -> None:
        self._outputs, self._targets = outputs, targets
        self._given = check_kind(kind)
        self._kind = self._given
        self._device = None if device is None else torch.device(device)
        self._needs_targets = needs_targets
        self._ids = ids
        self._watch = ModuleWatch()
        self._module: LightningModule | None = None
        self._heads: list[Head] = []
        self._unfitting: list[tuple[int, ...]] = []
        self._labels: list[Tensor] = []
        self._found: Candidate | None = None
        self._found_targets: tuple[Tensor, ...] = ()
        self._known_width: int | None = None
        self._passes = 0
        self._is_check = False
        self.forget()

    # One fit

    def attach(self, module: LightningModule) -> None:
        """A fit begins: look for the predictions anew."""
        self.forget()
        self._kind = self._given
        self._module = module

    def forget(self) -> None:
        """A fit is over: leave everything as it was found; what the predictions hold is still known."""
        self._module = None
        self._labels_of: LabelsOf | None = None
        self._is_shown = False
        self._num_labels: int | None = None
        self.place: Place | None = None
        self.status = ""
        self._ways: list[TermPlace] = []
        self._target_way: TermPlace | None = None
        self._evidence: dict[Place, Evidence] = {}
        self._later, self._doubts = Evidence(), 0
        self._steps = 0
        self._has_rivals = True
        self._is_barren = False
        self._evaluated: Kind | None = None
        self.end()

    def expect(self, labels_of: LabelsOf | None, is_shown: bool, num_labels: int | None) -> None:
        """The dataset is known.

        Args:
            labels_of: gives the labels of samples, as far as the dataset tells.
            is_shown: whether it shows them; otherwise its items are asked, where nothing else tells.
            num_labels: number of labels, if the dataset or a checkpoint tells it.
        """
        self._labels_of, self._is_shown, self._num_labels = labels_of, is_shown, num_labels

    @property
    def kind(self) -> str:
        """What the predictions hold, or nothing while it is undecided."""
        return str(self._kind or "")

    @kind.setter
    def kind(self, value: str) -> None:
        self._kind = self._given or (Kind(value) if value else None)

    # One step

    def start(self) -> None:
        """A training step begins."""
        self.end()
        module = self._module
        if module is None:
            return
        if isinstance(self._outputs, str) and self._outputs.startswith("module:"):
            part, _, name = module_part(module, self._outputs.removeprefix("module:"))
            self._watch.start(part, named=bool(name))
        elif self.place is not None and self.place.source == "module":
            self._watch.start(submodule(module, self.place.name))
        elif self.place is None and self._outputs is None and not is_compiled(module):
            self._watch.start(None)

    def see_loss(
        self,
        loss: Tensor,
        rows: int,
        batch: Any = None,
        planned: Tensor | None = None,
        *,
        check: bool = False,
        for_targets: bool = False,
    ) -> None:
        """Read the loss of a backward pass while its graph exists.

        Args:
            loss: the loss.
            rows: number of samples of this process.
            batch: the batch, which may show labels.
            planned: ids of these samples.
            check: search the whole graph and see whether what is read is still proven.
            for_targets: whether the targets of the loss are wanted.
        """
        self._watch.stop()
        self._passes += 1
        self._is_check = check
        if check or self.place is None or self._is_searching:
            self._search(loss, rows, batch, planned)
        elif self.place.source == "loss" or for_targets or (self._needs_targets and self._targets is None):
            if self._found is not None or self._is_barren:
                return
            for way in self._ways:
                found = follow(loss, rows, way)
                if found is not None and found.shape[1] == self._num_labels:
                    self._ways.remove(way)
                    self._ways.insert(0, way)
                    self._found = found
                    self._found_targets = self._follow_targets(loss, rows, found)
                    return
            self._search(loss, rows, batch, planned)

    def end(self) -> None:
        """The step is over: keep nothing of it."""
        self._watch.forget()
        self._heads, self._unfitting, self._labels = [], [], []
        self._found, self._found_targets = None, ()
        self._known_width, self._passes, self._is_check = None, 0, False

    @property
    def loss_targets(self) -> tuple[Tensor, ...]:
        """What the loss of this step compared its predictions with, labels first; empty if it does not show it."""
        if self._found is not None:
            return self._found_targets
        groups = self._groups()
        if self.place is None and len(main_groups(groups, Proof.PROVEN)) != 1:
            # What has another purpose has other targets.
            possible = [group for group in groups if group.proof is not Proof.REFUTED]
            return possible[0].targets if len(possible) == 1 else ()
        group = self._current_group()
        return () if group is None else group.targets

    def head(self, loss: Tensor, rows: int) -> Edge | None:
        """(autograd node, number of its output) that gave the predictions in this loss; keep neither."""
        group = self._current_group()
        if group is not None and group.heads:
            return group.heads[0].origin
        for way in self._ways:
            if (found := follow(loss, rows, way)) is not None:
                return found.edge
        return None

    def read(self, plan: EpochPlan, k: int, module: LightningModule, outputs: Any, batch: Any) -> Reading | None:
        """Read batch ``k`` of the plan on all processes; None while it is not yet clear where."""
        rows = plan.rank_size(k)
        self._watch.stop()
        self._steps += 1
        self._share_evidence(plan)
        if self._ids is not False:
            self._check_mixed(f"epoch {plan.epoch}, batch {k}")
        raw = self._read_rows(module, outputs, batch, rows)
        if self.place is None or self._is_searching:
            self._check_rivals()
        if raw is None:
            return None
        targets = in_shape(self._find_targets(module, outputs, batch, raw), raw) if self._needs_targets else None
        self.end()
        raw, targets = _gathered(raw.clone(), None if targets is None else targets.clone(), plan, k)
        if self._kind is None:
            self._kind = kind_by_values(raw, str(self.place))
        return Reading(raw, targets, self._kind, self._device)

    def announcement(self, strategy: Strategy, observation: Observation, compact: bool = False) -> str:
        """One sentence for the user: what is read, from where, as what, by what proof, and the memory it takes."""
        labels, device = observation.probs.shape[1], observation.probs.device
        noun = "class" if self._kind is Kind.SOFTMAX else "label"
        plural = ("es" if noun == "class" else "s") if labels > 1 else ""
        memory, saved = strategy.footprint(labels, compact)
        found = self._outputs is None and self.place is not None and self.place.source == "module"
        aside = " (its loss does not show them unchanged)" if found else ""
        return (
            f"BatchSelection reads predictions of {labels} {noun}{plural} from {self.place}{aside}, as {self._kind} "
            f"({self.status}); "
            f"{type(strategy).__name__} keeps {size_text(memory)} for {strategy.num_samples} samples x {labels} "
            f"{noun}{plural} on {device}; each checkpoint grows by about {size_text(saved)}."
        )

    # Evaluation passes

    @property
    def knows_evaluation(self) -> bool:
        """Whether it is known what the predictions of an evaluation pass hold."""
        return self._evaluated is not None

    def read_evaluation(
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
            self._evaluated = self._given or first.kind or kind_by_origin(first.tensor) or self._kind
            if self._evaluated is Kind.LOGITS and self._kind is Kind.SOFTMAX:
                self._evaluated = Kind.SOFTMAX
        targets = None
        if self._needs_targets:
            targets = in_shape(self._find_targets(module, None, batch, matrices[0]), matrices[0])
        gathered = [_gathered(one, targets, plan, k) for one in matrices]
        if self._evaluated is None:
            self._evaluated = kind_by_values(gathered[0][0], "an evaluation pass")
        seen = [decode([Reading(one, labels, self._evaluated, self._device)]) for one, labels in gathered]
        usable = torch.stack([one.usable for one in seen]).all(0)
        if not bool(usable.all()):
            raise SelectionError(
                f"the evaluation pass of epoch {plan.epoch} predicted something that is not a probability for sample "
                f"{int(plan.global_batch(k)[int(usable.int().argmin())])}; training has diverged, or kind= is wrong: "
                "lower the learning rate, or say what the predictions are."
            )
        return torch.stack([one.probs for one in seen]), seen[0].targets

    # Searching and proving

    @property
    def _is_searching(self) -> bool:
        return self.status.startswith("not verified yet") or 0 < self._steps < FIRST_STEPS or self._has_rivals

    def _search(self, loss: Tensor, rows: int, batch: Any, planned: Tensor | None) -> None:
        """Every head in the graph of a backward pass; those of earlier passes of the step stay what they were."""
        self._labels = labels = self._label_sets(batch, planned, rows)
        shown = heads_of(loss, rows, labels, self._watched(rows), self._passes)
        known = {head.place for head in self._heads}
        self._heads += [head for head in shown.heads if head.place not in known]
        self._unfitting += shown.unfitting
        if not self._num_labels:
            wide = [one.shape[1] for one in labels if one.ndim == 2 and len(one) == rows]
            self._known_width = wide[0] if wide else None

    def _label_sets(self, batch: Any, planned: Tensor | None, rows: int) -> list[Tensor]:
        """Labels of these samples: the dataset's, then the batch's; the other way round where ids are given."""
        dataset = None
        if self._labels_of is not None and planned is not None and self._is_shown:
            dataset = self._labels_of(planned)
        named = batch_targets(batch) if self._targets is None else self._named_labels(batch)
        usual = [] if named is None else [named]
        others = [one for one in batch_leaves(batch, rows) if one is not named] if named is None else []
        of_batch = [one for one in usual + others if one.ndim and len(one) == rows]
        of_dataset = [] if dataset is None or len(dataset) != rows else [dataset]
        if not of_dataset and not of_batch and self._labels_of is not None and planned is not None and not self._steps:
            asked = self._labels_of(planned)
            return [] if asked is None or len(asked) != rows else [asked]
        return of_dataset + of_batch if self._ids is None else of_batch + of_dataset

    def _named_labels(self, batch: Any) -> Tensor | None:
        """What ``targets`` names, as far as it is known before the step returns something."""
        assert self._targets is not None
        assert self._module is not None
        try:
            return named_targets(self._targets, self._module, None, batch)
        except (AttributeError, IndexError, KeyError, TypeError):  # a function that reads what the step returns
            return None

    def _watched(self, rows: int) -> list[Watched]:
        """Matrices that modules returned so far in this step."""
        names = {} if self._module is None else names_of(self._module)
        return [
            Watched(Place("module", names[seen.module], found.part), found.tensor)
            for seen in self._watch.seen
            if seen.module in names and not seen.is_step_result and not is_loss_or_metric(seen.module)
            for found in seen.found
            if found.tensor.grad_fn is not None and as_rows(found.tensor, rows) is not None
        ]

    def _check_mixed(self, where: str) -> None:
        """Refuse targets of several samples, also where mixing begins in a later epoch or comes in some batches."""
        targets = self.loss_targets if self._heads else ()
        if not targets or not self._labels:
            return
        target, labels = targets[0].cpu(), self._labels[0].cpu()
        verdict = compare(target, labels) if len(target) == len(labels) else Verdict.INCOMPARABLE
        mixed = verdict is Verdict.MIXED or (verdict is Verdict.INCOMPARABLE and has_mixed_values(target))
        if mixed or any(are_rows_permuted(target, other.cpu()) for other in targets[1:]):
            raise SelectionError(
                f"{where}: the loss compares predictions with labels of several samples; an augmentation mixes samples "
                "(mixup, cutmix), or targets are soft for another reason. Let training_step return clean predictions "
                "besides ({'loss': loss, 'logits': clean}) and pass ids=False; ids=False alone is enough if each "
                "prediction still belongs to one sample."
            )

    def _share_evidence(self, plan: EpochPlan) -> None:
        """Add up what all processes saw in this step, so that they decide alike."""
        if plan.layout.world_size == 1 or not (self.place is None or self._is_searching or self._is_check):
            return
        own = {head.place: head.evidence for head in self._heads if head.evidence is not None}
        others = gather_objects(own)
        for head in self._heads:
            seen = [one[head.place] for one in others if head.place in one]
            head.evidence = sum(seen[1:], seen[0]) if seen else None

    def _groups(self) -> list[Group]:
        width = self._num_labels or self._known_width
        heads = [
            head
            for head in self._heads
            if head.evidence is not None or width is None or _width(head) == width or head.kind is Kind.SOFTMAX
        ]
        proven = [head for head in heads if head.evidence is not None]
        return grouped(proven or heads, self._evidence)

    def _current_group(self) -> Group | None:
        groups = self._groups()
        if self.place is not None:
            same = [group for group in groups if any(head.place.term in self._ways for head in group.heads)]
            if same:
                return same[0]
        for wanted in (Proof.PROVEN, Proof.OPEN, Proof.REFUTED):
            if found := main_groups(groups, wanted):
                return found[0]
        return None

    def _follow_targets(self, loss: Tensor, rows: int, found: Candidate) -> tuple[Tensor, ...]:
        if self._target_way is None or self._target_way == found.place:
            return found.targets
        other = follow(loss, rows, self._target_way)
        return found.targets if other is None else other.targets

    # Reading

    def _read_rows(self, module: LightningModule, outputs: Any, batch: Any, rows: int) -> Tensor | None:
        """Predictions of this process as they came, (rows, q), detached float32."""
        if self.place is None:
            return self._first_rows(module, outputs, batch, rows)
        groups = self._groups() if self._heads else []
        if self.place.source == "loss":
            return self._followed(groups, rows)
        found = self._found_at(self.place, module, outputs, batch, first=False)
        raw = self._checked(found.tensor, self.place, rows).detach().float()
        if groups:
            self._check_again(groups, raw)
        return raw

    def _first_rows(self, module: LightningModule, outputs: Any, batch: Any, rows: int) -> Tensor | None:
        """Settle where predictions are read, from what the first steps showed."""
        place = self._named_place(outputs)
        groups = self._groups()
        if place is None:
            group = self._proven_group(groups, outputs, rows)
            if group is None or group.readable is None:
                return None
            head = group.readable
            assert head.predictions is not None
            self._settle(head.place, self._given or head.kind or self._kind, group, head.predictions.shape[1])
            return head.predictions.detach().float()
        found = self._found_at(place, module, outputs, batch, first=True)
        tensor = self._checked(found.tensor, place, rows)
        kind, group = self._matched(found, tensor, groups)
        self._settle(place, self._given or kind or self._kind, group, tensor.shape[1])
        return tensor.detach().float()

    def _settle(self, place: Place, kind: Kind | None, group: Group | None, width: int) -> None:
        """Read at ``place`` from now on."""
        self.place, self._kind, self._num_labels = place, kind, width
        self._is_barren = group is None and place.source != "loss"
        if group is not None:
            self._ways = [head.place.term for head in group.heads if head.place.term is not None]
            if place.term is not None:
                self._ways = [place.term]
            labeled = [head.place.term for head in group.heads if head.evidence is not None and head.evidence.matched]
            self._target_way = next((way for way in labeled if way in self._ways), None) or next(iter(labeled), None)
        self.status = self._status_of(group)

    def _status_of(self, group: Group | None) -> str:
        if group is None:
            return "not verified: what the loss shows has other values"
        if group.evidence is None:
            return f"not verified: {_NO_LABELS}"
        if group.proof is Proof.PROVEN:
            return "verified: the loss pulls them to the labels"
        if group.proof is Proof.REFUTED:
            return "not verified: the loss does not pull them to the labels"
        return "not verified yet: the first batch shows too little"

    def _proven_group(self, groups: list[Group], outputs: Any, rows: int) -> Group | None:
        """The one head that is proven, or that alone may be; None to wait for more evidence."""
        for wanted in (Proof.PROVEN, Proof.OPEN):
            found = main_groups(groups, wanted)
            if wanted is Proof.OPEN:
                found = [one for one in found if not _is_of_module(one) or (one.evidence and any(one.evidence.mass))]
            if not found:
                continue
            if len(found) == 1 and found[0].readable is not None:
                return found[0]
            if len(found) == 1:
                raise SelectionError(
                    f"the predictions ({found[0].heads[0].text}) are masked or scaled sample by sample before the "
                    f"loss, and no module returned them before that; {WAYS_OUT}."
                )
            likely = [one for one in found if self._is_likely(one)]
            if wanted is Proof.OPEN and len(likely) == 1 and likely[0].readable is not None:
                return likely[0]
            if wanted is Proof.OPEN and all(one.evidence is not None for one in found) and self._steps < PROOF_STEPS:
                return None
            views = {shape[0] for shape in self._unfitting if len(shape) == 2 and shape[0] % rows == 0}
            if views and all(_is_of_module(one) for one in found):
                raise _other_rows("this step", views.pop(), rows)
            raise _several([group.heads[0] for group in found])
        refuted = main_groups(groups, Proof.REFUTED)
        if not refuted:
            self._raise_not_found(outputs, rows)
        if len(refuted) > 1 or not self._is_believed(refuted[0].targets) or refuted[0].readable is None:
            self._refuse(refuted)
        return refuted[0]

    def _is_believed(self, targets: tuple[Tensor, ...]) -> bool:
        """Whether the user answers for the rows: targets whose ids are verified may be changed on purpose."""
        return self._ids is False or (self._ids is not None and bool(targets))

    def _is_likely(self, group: Group) -> bool:
        """Whether all that was seen so far speaks for a group."""
        if group.evidence is None:
            return True
        return group.proof is Proof.PROVEN or (group.evidence.value is not None and group.evidence.value >= PASSED)

    def _check_rivals(self) -> None:
        """Refuse where another head than the one that is read turns out to be pulled to the labels as well."""
        groups = self._groups()
        named = self.place is not None and self.place.source in ("returned", "function")
        proven = main_groups(groups, Proof.PROVEN)
        if self.place is not None and not named and self._outputs is None and len(proven) > 1:
            raise _several([group.heads[0] for group in proven])
        for head in self._heads:
            if head.evidence is not None:
                self._evidence[head.place] = self._evidence.get(head.place, Evidence()) + head.evidence
        likely = [group for group in main_groups(groups, Proof.OPEN) if group.evidence and self._is_likely(group)]
        self._has_rivals = not named and bool(likely) and self._steps < PROOF_STEPS

    def _refuse(self, groups: list[Group]) -> NoReturn:
        raise SelectionError(
            f"the loss does not pull what it is computed from ({'; '.join(map(str, groups))}; {THRESHOLD} is needed) "
            "to the labels of the planned samples, so predictions would be credited to other samples or are none: keep "
            f"the order of the samples in training_step and the collate function, or {WAYS_OUT}; ids=False trains "
            "without this proof."
        )

    def _matched(self, found: Found, tensor: Tensor, groups: list[Group]) -> tuple[Kind | None, Group | None]:
        """What returned predictions hold, and the head of the loss that they are; refused if the labels refute it."""
        by_origin = found.kind or kind_by_origin(found.tensor)
        for wanted in (Proof.PROVEN, Proof.OPEN, Proof.REFUTED):
            for group in groups:
                for head in group.heads if group.proof is wanted else ():
                    if head.predictions is None or head.kind is None or head.predictions.shape != tensor.shape:
                        continue
                    kind = same_values(tensor.detach(), head.predictions, head.kind)
                    if kind is None:
                        continue
                    if wanted is Proof.REFUTED and not self._is_believed(group.targets):
                        self._refuse([group])
                    return kind, group
        exclusive = any(head.kind is Kind.SOFTMAX for group in groups for head in group.heads)
        only = exclusive and all(head.kind is Kind.SOFTMAX for group in groups for head in group.heads)
        return (Kind.SOFTMAX if only and by_origin in (None, Kind.LOGITS) else by_origin), None

    def _followed(self, groups: list[Group], rows: int) -> Tensor:
        """Predictions where the loss showed them before; a loss of another form is proven anew."""
        if self._found is not None and self._found.predictions is not None:
            return self._found.predictions.detach().float()
        own = [head for group in groups for head in group.heads if head.predictions is not None]
        own = [head for head in own if head.place.term in self._ways]
        if own:
            raw = own[0].predictions
            assert raw is not None
            raw = raw.detach().float()
            self._check_again(groups, raw, own[0])
            return raw
        groups = [one for one in groups if _width(one.heads[0]) == self._num_labels]
        for wanted in (Proof.PROVEN, Proof.OPEN):
            found = [one for one in main_groups(groups, wanted) if one.readable is not None]
            found = [one for one in found if one.readable is not None and one.readable.kind is self._kind]
            if len(found) == 1 and (head := found[0].readable) is not None and head.predictions is not None:
                if head.place.term is not None:
                    self._ways.append(head.place.term)
                return head.predictions.detach().float()
        seen = "; ".join(head.text for head in self._heads)
        raise SelectionError(
            f"no predictions: {self.place} was not found in this step's loss{f', only {seen}' if seen else ''}; "
            f"{WAYS_OUT}."
        )

    def _check_again(self, groups: list[Group], raw: Tensor, head: Head | None = None) -> None:
        """What later steps show: the proof is completed, and what turned against it is warned of before it stops."""
        if head is None:
            head = next((one for group in groups for one in group.heads if _shows(one, raw)), None)
        if head is None or head.evidence is None:
            return
        self._later = self._later + head.evidence
        proof = self._later.proof
        if proof is Proof.PROVEN:
            if self.status.startswith("not verified yet"):
                self.status = "verified: the loss pulls them to the labels"
                rank_zero_info(f"The predictions are verified: the loss pulls {head.text} to the labels.")
            self._later, self._doubts = Evidence(), 0
        elif proof is Proof.REFUTED and not self._is_believed(head.targets):
            shown, value = self._later, self._later.value
            self._later = Evidence()
            if self.status.startswith("not verified yet") or self._doubts:
                self._refuse([Group([head], shown)])
            self._doubts += 1
            rank_zero_warn(
                f"The loss no longer pulls the predictions ({head.text}) to the labels of the planned samples "
                f"({value:.2f} of its gradient, {THRESHOLD} is needed); if the next epoch shows the same, training "
                "stops. Keep the order of the samples, or pass ids=False if labels are changed on purpose.",
                category=UserWarning,
            )

    def _named_place(self, outputs: Any) -> Place | None:
        """Where the user says, or returns, the predictions; None to take what is proven in the loss."""
        if callable(self._outputs):
            return Place("function")
        if self._outputs is not None:
            head, _, tail = self._outputs.partition(":")
            if head == "module" and tail and self._module is not None:
                _, name, part = module_part(self._module, tail)
                return Place("module", name, part)
            return Place("returned", self._outputs)
        for key in ("probs", "logits"):
            if isinstance(outputs, Mapping) and find(outputs.get(key)) is not None:
                return Place("returned", key)
        return None

    def _found_at(self, place: Place, module: LightningModule, outputs: Any, batch: Any, first: bool) -> Found:
        """What is at a place outside of the loss in this step."""
        many: list[Found | None] = []
        if place.source == "function":
            many = [self._call(module, outputs, batch, first)]
        elif place.source == "returned":
            if isinstance(outputs, Mapping) and place.name in outputs:
                many = [find(outputs[place.name])]
        else:
            target = submodule(module, place.name)
            seen = [seen for seen in self._watch.seen if seen.module is target and not seen.is_step_result]
            many = [_part(one.found, place.part) for one in seen]
            if seen and not any(many):
                raise SelectionError(
                    f"no predictions: {place} gave {seen[0].shapes or 'no tensor'}, and which part holds them is not "
                    f"said; use one of {_parts_in_words(place.name, seen[0].found)}."
                )
        found = [one for one in many if one is not None]
        if not found:
            raise SelectionError(f"no predictions: {place} {_missing(place, outputs)}; {WAYS_OUT}.")
        if len(found) > 1:
            # In several processes Lightning calls training_step through forward, so the loss is seen there too.
            found = [one for one in found if one.tensor.ndim > 0]
        if len(found) > 1:
            raise SelectionError(f"{place} gave predictions {len(found)} times in this step, not once; {WAYS_OUT}.")
        return found[0]

    def _call(self, module: LightningModule, outputs: Any, batch: Any, first: bool) -> Found | None:
        """Call the user's function, which runs after the optimizer step; the first time, its use of weights is seen."""
        assert callable(self._outputs)
        if not first:
            return find(self._outputs(module, outputs, batch))
        with _WeightWatch() as watch:
            found = find(self._outputs(module, outputs, batch))
        if watch.used:
            raise SelectionError(
                "the function given as outputs= computes with the module's weights, which the optimizer has changed "
                "since the loss was computed, so these are not the predictions of the step; let training_step return "
                "them ({'loss': loss, 'logits': logits}), or leave outputs= out to have them read from the loss."
            )
        return found

    def _checked(self, tensor: Tensor, place: Place, rows: int) -> Tensor:
        # A squeezed batch of one sample has lost its first axis.
        matrix = as_rows(tensor.reshape(1, -1) if rows == 1 and tensor.ndim < 2 else tensor, rows)
        if matrix is not None:
            return matrix
        if tensor.ndim == 2 and tensor.is_floating_point():
            raise _other_rows(str(place), len(tensor), rows)
        raise SelectionError(
            f"predictions must be floating-point [batch, labels], but {place} gave {list(tensor.shape)} of "
            f"{tensor.dtype}; {WAYS_OUT}."
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

    def _raise_not_found(self, outputs: Any, rows: int) -> NoReturn:
        """Say what was seen; where everything has another number of rows, that number is what is wrong."""
        labels = self._num_labels or self._known_width
        names = {} if self._module is None else names_of(self._module)
        ran = [(names[seen.module], seen) for seen in self._watch.seen if seen.module in names]
        matrices: list[tuple[int, ...]] = [shape for shape in self._unfitting if len(shape) == 2]
        matrices += [tuple(f.tensor.shape) for _, s in ran for f in s.found if f.tensor.shape[1:] == (labels,)]
        counts = {shape[0] for shape in matrices if shape[0] != rows and labels in (None, shape[1])}
        if len(counts) == 1:
            raise _other_rows("this step", counts.pop(), rows)
        compiled = self._module is not None and is_compiled(self._module)
        modules = ", ".join(f"{name or 'forward'} {seen.shapes}" for name, seen in ran)
        keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
        known = "the number of labels is not known" if labels is None else f"there are {labels} labels"
        shapes = [list(shape) for shape in self._unfitting] + [
            list(head.predictions.shape) for head in self._heads if head.predictions is not None
        ]
        raise SelectionError(
            f"no predictions were found in this step of {rows} samples: the graph of the loss has no cross-entropy, "
            f"sigmoid or softmax of them{_shapes(shapes)}, training_step "
            f"returned the keys {keys}, "
            f"{'modules are compiled and cannot be watched' if compiled else f'modules gave: {modules or None}'}, and "
            f"{known}; {WAYS_OUT}."
        )


class _WeightWatch(TorchFunctionMode):
    """Notices when a tensor is computed from parameters."""

    used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        if isinstance(result, Tensor) and any(isinstance(value, Parameter) for value in given):
            self.used = True
        return result


def _several(heads: list[Head]) -> SelectionError:
    names = ", ".join(head.text for head in heads)
    if all(head.place.source == "module" for head in heads):
        return SelectionError(f"several outputs of this step may be the predictions: {names}; {WAYS_OUT}.")
    return SelectionError(
        f"the loss is computed from several predictions ({names}) and which of them are the main ones is ambiguous; "
        f"{WAYS_OUT}."
    )


def _is_of_module(group: Group) -> bool:
    return group.readable is not None and group.readable.place.source == "module"


def _shows(head: Head, raw: Tensor) -> bool:
    """Whether a head has the values that were read."""
    known = head.predictions is not None and head.kind is not None
    return known and same_values(raw, head.predictions, head.kind) is not None  # type: ignore[arg-type]


def _width(head: Head) -> int | None:
    return None if head.predictions is None else head.predictions.shape[1]


def _part(found: tuple[Found, ...], name: str) -> Found | None:
    """The named part of an output, or its only one."""
    named = [part for part in found if part.part == name] if name else list(found)
    return named[0] if len(named) == 1 else None


def _parts_in_words(module: str, found: Sequence[Found]) -> list[str]:
    return [f"outputs='module:{module}[{part.part}]'" for part in found]


def _missing(place: Place, outputs: Any) -> str:
    """Why there is nothing at a place in this step."""
    if place.source == "function":
        return "returned no tensor"
    if place.source == "returned":
        keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
        return f"is not there: training_step returned no tensor under that key, only {keys}"
    return "was not called in training_step or gave no tensor"


def _other_rows(where: str, seen: int, rows: int) -> SelectionError:
    views = (
        f" Where these are {seen // rows} views of each sample, return the predictions of one of them, one row per "
        f"sample: {{'loss': loss, 'logits': logits[:{rows}]}}."
    )
    return SelectionError(
        f"{where} gave predictions for {seen} samples, but the planned batch has {rows}; a collate function or "
        "training_step must not drop or add samples: keep all of them, or mask them in the loss."
        + (views if seen > rows and seen % rows == 0 else "")
    )


def _shapes(shapes: list[list[int]]) -> str:
    return f" (only of {', '.join(map(str, shapes))})" if shapes else ""


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
