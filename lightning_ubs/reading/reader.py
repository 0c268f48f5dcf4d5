"""What a training step predicted: found once, proven by the loss, and read there from then on."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs._utils.distributed import gather_rows
from lightning_ubs._utils.files import size_text
from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.heads import Group, Place, Watched, main_groups
from lightning_ubs.reading.loss_graph import Candidate, TermPlace, follow, nearest_parameters
from lightning_ubs.reading.modules import (
    ModuleWatch,
    find,
    is_compiled,
    is_loss_or_metric,
    module_part,
    names_of,
    submodule,
)
from lightning_ubs.reading.named import Outputs, as_matrix, check_called_probabilities, matched, named_place, read_named
from lightning_ubs.reading.predictions import (
    Kind,
    Observation,
    Reading,
    as_rows,
    check_kind,
    decode,
    kind_by_origin,
    kind_by_values,
)
from lightning_ubs.reading.proof import Proof
from lightning_ubs.reading.refusals import WAYS_OUT, nothing_found
from lightning_ubs.reading.scale import Scale
from lightning_ubs.reading.search import Search
from lightning_ubs.reading.targets import LabelsOf, Targets, batch_leaves, batch_targets, in_shape, named_targets
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.strategies import Strategy


class StepReader:
    """Reader of the predictions (and true labels) of each step, which gathers them from all ranks.

    In the first steps everything in the loss's graph that may be the predictions is proven or refuted by the labels
    (:mod:`lightning_ubs.reading.proof`); from then on the proven place is followed. In the first step of later epochs
    it is checked anew. What ``outputs`` names, or ``probs`` or ``logits`` that ``training_step`` returns, is matched
    with the proven head by its values.

    Args:
        outputs: A key of what ``training_step`` returns, ``"module:NAME"``, a function, or None to look for them.
        targets: Where the true labels are.
        kind: What the predictions hold; None to find it out.
        device: Where predictions are wanted; None leaves them on the module's device.
        needs_targets: Whether the true labels are wanted at all.
        ids: What planned ids are verified by; False believes them, and labels are then no reason to refuse.
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
        self._prefers_batch = ids is not None
        self._watch = ModuleWatch()
        self._module: LightningModule | None = None
        self._search = Search(ids, self._given is not None or outputs is not None)
        self._found: Candidate | None = None
        self._found_targets: tuple[Tensor, ...] = ()
        # What predictions hold where a loss of another form shows them.
        self._other_kinds: dict[TermPlace, Kind] = {}
        self._passes = self._rows = 0
        # Whether modules are watched in this step, and in the next one: until it is clear that they need not be.
        self._watches = self._may_watch = True
        self._has_begun = self._has_looked = False
        # Whether all heads of a step are to be looked at.
        self._is_open = True
        self.forget()

    # One fit

    def attach(self, module: LightningModule) -> None:
        """A fit begins: look for the predictions anew."""
        self.forget()
        self._kind = self._given
        self._module = module

    def forget(self) -> None:
        """End a fit: leave everything as it was found; what the predictions hold is still known."""
        self._module = None
        self._labels_of: LabelsOf | None = None
        self._is_shown = False
        self._has_asked = False
        self._target_way: TermPlace | None = None
        self._evaluated: Kind | None = None
        # In which backward pass of a step the predictions were found last.
        self._usual_pass = 0
        self._other_kinds = {}
        self._parameters: frozenset[int] = frozenset()
        self._search.begin_fit()
        self._watches = self._may_watch = self._is_open = True
        self.end()

    def expect(self, labels_of: LabelsOf | None, is_shown: bool, num_labels: int | None) -> None:
        """Note what the dataset tells.

        Args:
            labels_of: Gives the labels of samples, as far as the dataset tells.
            is_shown: Whether the dataset shows them; otherwise its items are asked, where nothing else tells.
            num_labels: Number of labels, if the dataset or a checkpoint tells it.
        """
        self._labels_of, self._is_shown, self._search.num_labels = labels_of, is_shown, num_labels

    @property
    def place(self) -> Place | None:
        """Where predictions are read; None until that is clear."""
        return self._search.place

    @property
    def kind(self) -> str:
        """What the predictions hold, or nothing while it is undecided."""
        return str(self._kind or "")

    @kind.setter
    def kind(self, value: str) -> None:
        self._kind = self._given or (Kind(value) if value else None)

    # One step: start, see_loss for each backward pass, read, end

    def start(self) -> None:
        """Begin a training step: watch the modules that may return its predictions."""
        if self._has_begun:
            self.end()
        self._has_begun = True
        module, place = self._module, self._search.place
        if module is None or not self._watches:
            return
        if isinstance(self._outputs, str) and self._outputs.startswith("module:"):
            part, _, name = module_part(module, self._outputs.removeprefix("module:"))
            self._watch.start(part, named=bool(name))
        elif place is not None and place.source == "module":
            self._watch.start(submodule(module, place.name))
        elif place is None and self._outputs is None and not is_compiled(module):
            self._watch.start(None)

    def see_loss(
        self, loss: Tensor, rows: int, batch: Any = None, planned: Tensor | None = None, *, check: bool = False
    ) -> None:
        """Read the loss of a backward pass while its graph exists.

        Args:
            loss: The loss.
            rows: Number of samples of this rank.
            batch: The batch, which may show labels.
            planned: Ids of these samples.
            check: Look at all of its heads, and see whether what is read is still proven.
        """
        if self._watches:
            self._watch.stop()
        search, place = self._search, self._search.place
        self._rows = rows
        number, self._passes = self._passes, self._passes + 1
        if check or self._is_open:
            self._has_looked = True
            search.look(loss, rows, self._label_sets(batch, planned, rows), self._watched(rows))
            return
        reads_loss = place is not None and place.source == "loss"
        if self._found is not None or not (reads_loss or (self._needs_targets and self._targets is None)):
            return
        if number in search.other_passes:
            return
        for way in search.ways:
            found = follow(loss, rows, way, self._needs_targets)
            if found is not None and found.shape[1] == search.num_labels:
                if way is not search.ways[0]:
                    search.ways.remove(way)
                    search.ways.insert(0, way)
                self._found, self._usual_pass = found, number
                if self._needs_targets:
                    self._found_targets = self._follow_targets(loss, rows, found)
                return
        if search.ways and number >= self._usual_pass:  # a loss of another form
            self._has_looked = True
            search.look(loss, rows, self._label_sets(batch, planned, rows), self._watched(rows))

    def end(self) -> None:
        """End the step: keep nothing of it."""
        if self._watches:
            self._watch.forget()
            self._watches = self._may_watch
        if self._has_looked:
            self._search.end_step()
            self._has_looked = False
        self._found, self._found_targets = None, ()
        self._passes = self._rows = 0
        self._has_begun = False

    def end_epoch(self) -> None:
        """Refuse to continue if nothing in the steps of an epoch could be told to be the predictions."""
        self._search.give_up()

    @property
    def loss_targets(self) -> tuple[Tensor, ...]:
        """What the loss compared its predictions with, labels first, NaN where it does not mind; empty if not told.

        Known between a backward pass that was looked at and the end of its step.
        """
        group = self._search.current(self._search.groups()) if self._search.has_looked else None
        targets = () if group is None else group.pulled_targets
        return tuple(one for one in targets if not one.is_floating_point() or bool(one.isfinite().any()))

    def read(self, plan: EpochPlan, k: int, module: LightningModule, outputs: Any, batch: Any) -> Reading | None:
        """Read batch ``k`` of the plan on all ranks; None while it is not yet clear where."""
        search, rows = self._search, self._rows or plan.rank_size(k)
        if self._watches:
            self._watch.stop()
        other: Kind | None = None
        if self._found is not None and search.place is not None and search.place.source == "loss":
            raw, other = self._found.predictions, self._other_kinds.get(self._found.place)
        elif search.place is None or search.has_looked:
            raw, other = self._read_and_prove(plan, k, module, outputs, batch)
        else:
            raw = self._read_named(search.place, module, outputs, batch, rows)
        if raw is None:
            return None
        raw = raw.detach().to(torch.float32, copy=True)
        targets = None
        if self._needs_targets:
            targets = in_shape(self._find_targets(module, outputs, batch, raw), raw).clone()
        if plan.layout.world_size > 1:
            raw, targets = _gathered(raw, targets, plan, k)
        if self._kind is None:
            self._kind = kind_by_values(raw, str(search.place))
        return Reading(raw, targets, other or self._kind, self._device)

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
            f"({self._search.announced}); "
            f"{type(strategy).__name__} keeps {size_text(memory)} for {strategy.num_samples} samples x {labels} "
            f"{noun}{plural} on {device}; each checkpoint grows by about {size_text(saved)}."
        )

    # Finding and proving

    def _read_and_prove(
        self, plan: EpochPlan, k: int, module: LightningModule, outputs: Any, batch: Any
    ) -> tuple[Tensor | None, Kind | None]:
        """The predictions of a step whose heads were looked at, or that comes before any is known.

        And what they hold, where a loss of another form shows them.
        """
        search, rows = self._search, plan.rank_size(k)
        self._has_looked, is_open = True, self._is_open
        search.share(plan.layout.world_size)
        search.check_mixed(f"epoch {plan.epoch}, batch {k}")
        groups = search.groups()
        place, other = search.place, None
        if place is None:
            raw = self._first(groups, module, outputs, batch, rows)
        else:
            if place.source == "loss":
                raw, other = self._known(groups)
            else:
                raw = self._read_named(place, module, outputs, batch, rows)
            search.check(groups, raw)
        if is_open:
            place = search.place
            search.note(self._outputs is not None or (place is not None and place.source == "returned"))
        self._is_open = search.is_open
        return raw, other

    def _first(
        self, groups: list[Group], module: LightningModule, outputs: Any, batch: Any, rows: int
    ) -> Tensor | None:
        """Settle where predictions are read, from what the first steps showed."""
        search = self._search
        place = named_place(self._outputs, self._module, outputs)
        if place is not None:
            found = read_named(place, self._outputs, module, self._watch, outputs, batch, first=True)
            tensor = as_matrix(found.tensor, place, rows)
            kind, group = matched(found, tensor, place, groups, search.believes)
            if self._given is None:
                check_called_probabilities(tensor, place, group)
            self._settle(place, kind, group, tensor.shape[1])
            return tensor
        group = search.choose(groups, rows)
        if group is None or group.readable is None:
            self._check_possible(groups, outputs, rows)
            return None
        head = group.readable
        assert head.predictions is not None
        self._settle(head.place, head.kind, group, head.predictions.shape[1])
        return head.predictions

    def _settle(self, place: Place, kind: Kind | None, group: Group | None, width: int) -> None:
        self._kind = self._given or kind or self._kind
        self._may_watch = place.source == "module"
        self._search.settle(place, group, width)
        if group is not None:
            self._parameters = nearest_parameters(group.heads[0].origin)
            labeled = [head.place.term for head in group.heads if head.evidence is not None and head.evidence.matched]
            ways = self._search.ways
            self._target_way = next((way for way in labeled if way in ways), None) or next(iter(labeled), None)

    def _check_possible(self, groups: list[Group], outputs: Any, rows: int) -> None:
        """Refuse where no more evidence would help."""
        if any(group.evidence is not None and any(group.evidence.mass) for group in groups):
            return
        names = {} if self._module is None else names_of(self._module)
        ran = [(names[seen.module], seen) for seen in self._watch.seen if seen.module in names]
        compiled = self._module is not None and is_compiled(self._module)
        labels = self._search.num_labels or next((one.shape[1] for one in self._search.labels if one.ndim == 2), None)
        raise nothing_found(rows, labels, self._search.heads, self._search.unfitting, ran, compiled, outputs)

    def _known(self, groups: list[Group]) -> tuple[Tensor, Kind | None]:
        """Predictions where the loss showed them before; a loss of another form is proven anew.

        And what they hold, if that is something else than at the usual place.
        """
        search = self._search
        for group in groups:
            for head in group.heads:
                if search.is_chosen(head) and head.predictions is not None:
                    term = head.place.term
                    return head.predictions, None if term is None else self._other_kinds.get(term)
        fitting = [one for one in groups if one.heads[0].width == search.num_labels]
        for wanted in (Proof.PROVEN, Proof.OPEN):
            main = main_groups(fitting, wanted)
            same = [group for group in main if group.readable is not None and group.readable.kind is self._kind]
            other = [group for group in main if self._shows_otherwise(group)]
            chosen = same or (other if len(main) == 1 else [])
            shown = chosen[0].readable if len(chosen) == 1 else None
            if shown is None or shown.predictions is None:
                continue
            other_kind = None if shown.kind is self._kind else shown.kind
            if shown.place.term is not None:
                search.ways.append(shown.place.term)
                if other_kind is not None:
                    self._other_kinds[shown.place.term] = other_kind
            return shown.predictions, other_kind
        seen = "; ".join(head.text for head in search.heads)
        raise SelectionError(
            f"no predictions: {search.place} was not found in this step's loss{f', only {seen}' if seen else ''}; "
            f"{WAYS_OUT}."
        )

    def _shows_otherwise(self, group: Group) -> bool:
        """Whether a head shows the same predictions as the usual one, as something else: probabilities for logits."""
        head, classes = group.readable, Kind.SOFTMAX
        if self._given is not None or head is None or head.kind is None or group.is_of_module:
            return False
        if group.evidence is None or group.evidence.is_moved or not group.is_likely:
            return False
        is_same = bool(self._parameters & nearest_parameters(head.origin))
        is_alike = (head.kind is classes) == (self._kind is classes)
        return is_same and is_alike and group.scale is Scale.SHOWN

    def _read_named(self, place: Place, module: LightningModule, outputs: Any, batch: Any, rows: int) -> Tensor:
        found = read_named(place, self._outputs, module, self._watch, outputs, batch, first=False)
        return as_matrix(found.tensor, place, rows)

    def _watched(self, rows: int) -> list[Watched]:
        """Matrices that modules returned so far in this step."""
        names = {} if self._module is None or not self._watch.seen else names_of(self._module)
        return [
            Watched(Place("module", names[seen.module], found.part), found.tensor)
            for seen in self._watch.seen
            if seen.module in names and not seen.is_step_result and not is_loss_or_metric(seen.module)
            for found in seen.found
            if found.tensor.grad_fn is not None and as_rows(found.tensor, rows) is not None
        ]

    # Labels

    def _label_sets(self, batch: Any, planned: Tensor | None, rows: int) -> list[Tensor]:
        """Labels of these samples: the dataset's, then the batch's; the other way round where ids are given."""
        of_dataset: list[Tensor | None] = []
        if self._labels_of is not None and planned is not None and self._is_shown:
            of_dataset = [self._labels_of(planned)]
        named = batch_targets(batch) if self._targets is None else self._named_labels(batch)
        of_batch = batch_leaves(batch, rows) if named is None else [named]
        found = [*of_batch, *of_dataset] if self._prefers_batch else [*of_dataset, *of_batch]
        fitting = [one for one in found if one is not None and one.ndim and len(one) == rows]
        if not fitting and self._labels_of is not None and planned is not None and not self._has_asked:
            self._has_asked = True  # items are asked for once
            asked = self._labels_of(planned)
            return [] if asked is None or len(asked) != rows else [asked]
        return fitting

    def _named_labels(self, batch: Any) -> Tensor | None:
        """What ``targets`` names, as far as it is known before the step returns something."""
        assert self._targets is not None
        assert self._module is not None
        try:
            return named_targets(self._targets, self._module, None, batch)
        except (AttributeError, IndexError, KeyError, TypeError):  # a function that reads what the step returns
            return None

    def _follow_targets(self, loss: Tensor, rows: int, found: Candidate) -> tuple[Tensor, ...]:
        if self._target_way is None or self._target_way == found.place:
            return found.targets
        other = follow(loss, rows, self._target_way)
        return found.targets if other is None else other.targets

    def _find_targets(self, module: LightningModule, outputs: Any, batch: Any, raw: Tensor) -> Tensor | None:
        """True labels: where the user said, in the loss, or where batches usually have them."""
        if self._targets is not None:
            return named_targets(self._targets, module, outputs, batch)
        of_loss = self._found_targets
        if self._search.has_looked:
            group = self._search.current(self._search.groups())
            of_loss = () if group is None else group.targets
        for found in of_loss:
            if found.shape in (raw.shape, raw.shape[:1]):
                return found
        shape = tuple(raw.shape)
        fitting = batch_targets(batch, shape)
        return fitting if fitting is not None else batch_targets(batch)

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


def _gathered(raw: Tensor, targets: Tensor | None, plan: EpochPlan, k: int) -> tuple[Tensor, Tensor | None]:
    """Predictions and labels of batch ``k`` from all ranks."""
    if plan.layout.world_size == 1:
        return raw, targets
    sizes = plan.rank_sizes(k)
    # A short last batch may repeat samples so that no process goes without; the repeats come last.
    size = len(plan.global_batch(k))
    return gather_rows(raw, sizes)[:size], None if targets is None else gather_rows(targets, sizes)[:size]
