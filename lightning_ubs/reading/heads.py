"""Everything that a backward pass shows of what the predictions may be, and which of it is the same head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from lightning_ubs.reading.loss_graph import (
    Candidate,
    Edge,
    LossGraph,
    Pulls,
    TermPlace,
    follow,
    nearest_parameters,
    operands,
    origin,
)
from lightning_ubs.reading.predictions import Kind, as_rows, kind_by_origin, to_probabilities
from lightning_ubs.reading.proof import (
    PASSED,
    SURE,
    Evidence,
    Proof,
    as_label_matrix,
    in_code,
    is_difference,
    is_of_labels,
    one_per_row,
    same_values,
    told_at_once,
    told_by,
)
from lightning_ubs.reading.scale import Scale, fit_forms

# Probabilities that differ by less in the mean are the same: small numbers are added before logarithms.
_SAME = 1e-3
# So many elements, or samples, tell that the loss compares something else.
_SOME = 8


@dataclass(frozen=True)
class Place:
    """Where predictions are read, in the words that users see.

    Args:
        source: What training_step returned, a user's function, what a module returned, or what the loss is made of.
        name: The key, the module's name (empty for the LightningModule itself), or the loss in words.
        part: Which part of a module's output.
        term: Where in the graph of the loss.
        backward_pass: Number of the backward pass within the step.
    """

    source: Literal["returned", "function", "module", "loss"]
    name: str = ""
    part: str = ""
    term: TermPlace | None = None
    backward_pass: int = 0

    def __str__(self) -> str:
        if self.source == "module":
            where = f"the submodule {self.name!r}" if self.name else "the module's forward"
            return f"{where} (part {self.part})" if self.part else where
        return {
            "returned": f"training_step's {self.name!r}",
            "function": "the function given as outputs=",
            "loss": f"what the loss was computed from ({self.name})",
        }[self.source]


@dataclass
class Watched:
    """A matrix that a module returned in this step, with its graph."""

    place: Place
    tensor: Tensor


@dataclass
class Head:
    """What may be the predictions of this step, and how the loss pulls at it. Lives no longer than the step.

    Args:
        place: Where it is read.
        kind: What it holds; None where the graph does not tell.
        predictions: (rows, q), detached; None if they were masked and cannot be read.
        shape: Shape of the predictions, also where they cannot be read.
        targets: What the loss compares it with.
        edge: Where the loss pulls at it.
        origin: Tells which heads are one, whatever the form.
        text: The head in words, with its shape.
        inside: Origins of heads that are computed from this one.
        exclusive: Whether it is of exclusive classes.
        is_of_module: Whether a module returned it and the loss does not show it.
        evidence: Evidence of this step alone; None where no labels fit, or before the backward pass.
        pulled_targets: The targets, NaN where the loss does not pull, because they are masked there.
        sign: Minus one where the loss is to rise.
        labels: Labels by which it was proven in this step.
        changes: What changed it element by element before the loss.
    """

    place: Place
    kind: Kind | None
    predictions: Tensor | None
    shape: tuple[int, ...]
    targets: tuple[Tensor, ...]
    edge: Edge
    origin: Edge
    text: str
    inside: tuple[Edge, ...] = ()
    exclusive: bool = False
    is_of_module: bool = False
    evidence: Evidence | None = None
    pulled_targets: tuple[Tensor, ...] = ()
    sign: Tensor | None = None
    labels: Tensor | None = None
    changes: list[Tensor] = field(default_factory=list)

    @property
    def variant(self) -> tuple[int, bool]:
        """In which of several possible forms it is read: how often transposed, and whether with the other sign."""
        term = self.place.term
        return (0, False) if term is None else (term.turned, term.negated)

    @property
    def width(self) -> int | None:
        """Number of labels; None if it cannot be read."""
        return None if self.predictions is None else self.predictions.shape[1]

    @property
    def is_distance(self) -> bool:
        """Whether the loss measures how far it is from its targets."""
        return self.place.term is not None and self.place.term.is_distance

    @property
    def is_log(self) -> bool:
        """Whether the loss takes its logarithm."""
        return self.is_told_by_labels and not self.is_distance

    @property
    def is_of_others(self) -> bool:
        """Whether its targets are not the labels, as far as these tell."""
        return self.evidence is not None and self.evidence.told == -math.inf

    @property
    def is_told_by_labels(self) -> bool:
        """Whether only labels tell that these are probabilities, and of what: the argument of a logarithm, say."""
        return self.place.term is not None and self.place.term.needs_labels

    @property
    def _may_be_logits(self) -> bool:
        """Whether only the values of its gradient can tell the scale: a module returned what may be logits."""
        if not self.is_of_module or self.predictions is None or self.kind not in (None, Kind.LOGITS, Kind.SOFTMAX):
            return False
        return self.kind is not None or bool(((self.predictions < 0) | (self.predictions > 1)).any())

    def shows(self, raw: Tensor) -> bool:
        """Whether it has these values (rows, q), in whatever form."""
        if self.predictions is None or self.kind is None:
            return False
        return same_values(raw, self.predictions, self.kind) is not None

    def see_pull(self, gradient: Tensor | None) -> Tensor | None:
        """How the loss pulls at it, (rows, q), by the ``gradient`` that arrived at ``edge``; None if nothing did."""
        self.pulled_targets = self.targets
        if gradient is None or gradient.numel() != self.shape[0] * self.shape[1]:
            return None
        pull = gradient.reshape(self.shape)
        pull = -pull if self.variant[1] else pull
        pull = pull if self.sign is None else pull * self.sign.to(pull)
        self.pulled_targets = tuple(_where_pulled(one, pull) for one in self.targets)
        return pull

    def prove(self, gradient: Tensor | None, label_sets: list[Tensor]) -> None:
        """Take the evidence of this step; waits for the device.

        By the surest labels that prove the head, else by the surest that fit it.

        Args:
            gradient: What arrived at ``edge``.
            label_sets: Labels of these samples, the surest first.
        """
        pull = self.see_pull(gradient)
        if self.is_of_module and self.kind in (None, Kind.LOGITS) and pull is not None and _is_of_classes(pull):
            self.exclusive = any(_are_classes(one, self.shape) for one in label_sets)
            self.kind = Kind.SOFTMAX if self.exclusive else self.kind
        if self.is_told_by_labels and self.predictions is not None and not self.exclusive:
            sums = self.predictions.float().sum(1)
            is_one = bool(((sums - 1).abs() < 0.01).all()) and self.shape[1] > 1
            self.exclusive = is_one and any(_are_classes(one, self.shape) for one in label_sets)
        for given in label_sets:
            labels = as_label_matrix(given, self.shape, self.exclusive)
            if labels is None and (labels := in_code(given, self.targets)) is None:
                continue
            is_coded = given.ndim == 1 and labels.shape[1] > 1 and not self.exclusive
            told = told_by(self.pulled_targets, labels, labels if is_coded else given)
            if self.exclusive and given.ndim > 1 and pull is not None:
                labels = one_per_row(labels, pull.to(labels.device))
            probs = None
            # What is pulled one way only cannot be pulled back.
            if self.predictions is not None and self.kind is not None and not self.is_log:
                probs = to_probabilities(self.predictions.float(), self.kind)[0].to(labels.device)
            moved = torch.zeros_like(labels) if pull is None else pull.to(labels.device)
            seen = Evidence().add(moved, labels, probs, told)
            if pull is not None and self.predictions is not None and self._may_be_logits:
                seen.fit = fit_forms(self.predictions, pull, labels, self.exclusive)
            before = self.evidence
            # Labels that the dataset keeps in another form tell nothing; those that the loss uses tell more.
            is_nearer = before is not None and before.told == 0 and seen.matched
            is_surer = before is None or seen.proof is Proof.PROVEN
            if is_nearer or (is_surer and (before is None or before.proof is not Proof.PROVEN)):
                self.evidence, self.labels = seen, labels
            if self.evidence is not None and self.evidence.told and self.evidence.proof is Proof.PROVEN:
                return  # no other labels could change that


def _is_of_classes(pull: Tensor) -> bool:
    """Whether a loss minds only how the columns of its predictions differ, as after a softmax."""
    sums, sizes = pull.double().sum(1).abs(), pull.double().abs().sum(1)
    return pull.shape[1] > 1 and bool((sums <= 1e-4 * sizes).all()) and bool((sizes > 0).any())


def _are_classes(labels: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether labels are one class per sample, by number or as a row with a single one."""
    matrix = as_label_matrix(labels, shape, exclusive=True)
    return matrix is not None and bool((matrix.nan_to_num(0.0).sum(1) <= 1).all())


def _where_pulled(target: Tensor, pull: Tensor) -> Tensor:
    """Targets as the loss minds them."""
    silent = pull == 0
    if target.shape != pull.shape or not target.is_floating_point() or not bool(silent.any()):
        return target
    return target.masked_fill(silent.to(target.device), torch.nan)


class BackwardPass:
    """What one backward pass shows: looked for before it, and judged once it has passed.

    Args:
        loss: The loss, before its backward pass.
        rows: Number of samples of this rank.
        label_sets: Labels of these samples, the surest first.
        watched: What modules returned.
        number: Number of the backward pass within the step.
        terms: Places of one head; where the loss shows it at all of them and compares it with the labels, no other head
            is looked for.
    """

    def __init__(
        self,
        loss: Tensor,
        rows: int,
        label_sets: list[Tensor],
        watched: list[Watched],
        number: int,
        terms: tuple[TermPlace, ...] = (),
    ) -> None:
        self._labels = label_sets
        #: Shapes of what has no row per sample.
        self.unfitting: list[tuple[int, ...]] = []
        self._heads = _heads_at(loss, rows, terms, number) if label_sets else []
        self._told = [told_at_once(head.targets, label_sets[0]) for head in self._heads if head.targets]
        self._graph: LossGraph | None = None
        if min(self._told, default=0.0) < SURE:
            self._graph = graph = LossGraph(loss, rows)
            self.unfitting = [tuple(one.shape) for one in graph.unfitting]
            self._heads = _heads_of_loss(graph, rows, watched, number, knows_labels=bool(label_sets))
            # Without labels, what modules return is as good as anything.
            if label_sets:
                known = {head.origin for head in self._heads}
                self._heads += [
                    head for head in _heads_of_modules(graph, rows, watched, number) if head.origin not in known
                ]
        self._pulls = Pulls(head.edge for head in self._heads) if label_sets else None
        self._judged: int | None = None

    def heads(self) -> list[Head]:
        """Everything that may be the predictions, with the evidence for each, if the backward pass is over."""
        if self._pulls is not None and self._judged != self._pulls.count:
            self._judged = self._pulls.count
            if self._graph is None:
                for head in self._heads:
                    head.see_pull(self._pulls.at(head.edge))
                    head.evidence = Evidence(told=min(self._told) if head.targets else 0.0)
                return self._heads
            for head in self._heads:
                head.evidence = None
                head.prove(self._pulls.at(head.edge), self._labels)
            # A distance from something else says nothing of its values.
            self._heads = [
                one
                for one in self._heads
                if not (one.is_distance and one.is_of_others) and not (one.is_told_by_labels and one.evidence is None)
            ]
            for head in self._heads:
                if head.evidence is not None and self._is_changed(head, self._graph):
                    head.evidence.is_changed = True
                if head.evidence is not None and self._is_moved(head):
                    head.evidence.is_moved = True
        return self._heads

    def _is_moved(self, head: Head) -> bool:
        """Whether the labels are in what a head was changed by; waits for the device."""
        labels = head.labels
        if labels is None:
            return False
        for one in head.changes:
            if is_of_labels(one, labels, head.exclusive) and not _is_threshold(one, head.predictions):
                return True
        return False

    def _is_changed(self, head: Head, graph: LossGraph) -> bool:
        """Whether the loss compares something else with the labels, which it makes of a head; waits for the device.

        What it compares is seen where logarithms are pulled up on positives, and in differences from the labels.
        """
        is_made = head.is_of_module or (head.place.term is not None and head.place.term.is_activation)
        if not is_made or head.labels is None or head.predictions is None or head.evidence is None:
            return False
        kind = head.kind or (Kind.LOGITS if head._may_be_logits else Kind.PROBS)
        probs, labels = to_probabilities(head.predictions.float(), kind)[0], head.labels.to(head.predictions.device)
        others = []
        for one in self._heads:
            share = None if one.evidence is None else one.evidence.shares[1]
            if share is None or share < PASSED or not one.is_log or one.predictions is None:
                continue
            if one.shape == head.shape and one.variant == head.variant:
                far = (one.predictions - probs).abs()[(labels == 1) & (one.predictions != 0)]
                rounding = max(torch.finfo(values.dtype).eps for values in (one.predictions, head.predictions))
                if float(far.sum()) <= max(_SAME, rounding) * len(far):
                    return False
                others += [one.edge] if len(far) >= _SOME else []
        for edge, difference in graph.differences:
            if difference.shape != probs.shape:
                continue
            told = is_difference(difference.float(), probs, labels)
            if told:
                return False
            if told is False and len(labels) >= _SOME:
                others.append(edge)
        return any(graph.is_above(edge, head.edge) for edge in others)

    def stop(self) -> None:
        """Keep nothing of the graph."""
        if self._pulls is not None:
            self._pulls.stop()
        if self._graph is not None:
            self._graph.stop()


def _is_threshold(change: Tensor, predictions: Tensor | None) -> bool:
    """Whether a condition is where predictions exceed a number, as it is in sigmoids that avoid overflow."""
    if predictions is None or predictions.shape != change.shape:
        return False
    on = change == change.amax()
    if not bool((on | (change == change.amin())).all()):
        return False
    one, other = predictions[on], predictions[~on]
    return bool((one.amin() >= other.amax()) | (one.amax() <= other.amin())) if len(other) else False


def _heads_at(loss: Tensor, rows: int, terms: tuple[TermPlace, ...], number: int) -> list[Head]:
    """One head at all of the places where the loss showed it before; none if it is not at each of them."""
    heads: list[Head] = []
    for term in terms:
        one = follow(loss, rows, term)
        if one is None or one.predictions is None or (heads and one.origin != heads[0].origin):
            return []
        place, exclusive = Place("loss", str(term), "", term, number), _is_exclusive(one)
        heads.append(
            Head(
                place,
                one.kind,
                one.predictions,
                one.shape,
                one.targets,
                one.pulled_edge,
                one.origin,
                str(one),
                exclusive=exclusive,
            )
        )
    return heads


def _heads_of_loss(graph: LossGraph, rows: int, watched: list[Watched], number: int, knows_labels: bool) -> list[Head]:
    values = {(one.tensor.grad_fn, one.tensor.output_nr): one.tensor.detach() for one in watched}
    returned = {origin((one.tensor.grad_fn, one.tensor.output_nr)): one for one in reversed(watched)}
    heads = []
    for one in graph.candidates:
        if not knows_labels and (one.opposite is not None or one.place.needs_labels):
            continue  # z and -z look the same, and so do p and 1 - p
        place, predictions = Place("loss", str(one.place), "", one.place, number), one.predictions
        kind: Kind | None = one.kind
        behind = returned.get(one.origin)
        if predictions is None and behind is not None:
            place, predictions = replace(behind.place, backward_pass=number), as_rows(behind.tensor.detach(), rows)
            kind = kind_by_origin(behind.tensor) or kind
        above = tuple(
            upper.origin for upper in graph.candidates if upper is not one and graph.is_above(upper.edge, one.edge)
        )
        head = Head(
            place,
            kind,
            predictions,
            one.shape,
            one.targets,
            one.pulled_edge,
            one.origin,
            str(one),
            above,
            _is_exclusive(one),
            sign=graph.sign(one.edge),
            changes=operands(one.edge, one.shape, one.predictions, values) if knows_labels else [],
        )
        heads.append(head)
        if one.opposite is not None and predictions is not None:
            opposite = replace(place, term=one.opposite)
            heads.append(replace(head, place=opposite, predictions=-predictions, targets=()))
    return heads


def _is_exclusive(candidate: Candidate) -> bool:
    return candidate.kind is Kind.SOFTMAX or candidate.place.node == "SoftmaxBackward0"


def _heads_of_modules(graph: LossGraph, rows: int, watched: list[Watched], number: int) -> list[Head]:
    """What modules returned, once for each tensor: by the outermost module that did."""
    found: dict[Edge, tuple[Watched, Tensor]] = {}
    for one in watched:
        matrix = as_rows(one.tensor, rows)
        edge = (one.tensor.grad_fn, one.tensor.output_nr)
        if matrix is None or not graph.contains(edge):
            continue
        if edge not in found or one.place.name.count(".") <= found[edge][0].place.name.count("."):
            found[edge] = one, matrix.detach()
    heads = []
    for edge, (one, matrix) in found.items():
        above = tuple(upper for upper in found if upper != edge and graph.is_above(upper, edge))
        shape, kind = tuple(matrix.shape), kind_by_origin(one.tensor)
        text = f"{one.place} {list(shape)}"
        place = replace(one.place, backward_pass=number)
        sign = graph.sign(edge)
        head = Head(place, kind, matrix, shape, (), edge, origin(edge), text, above, is_of_module=True, sign=sign)
        heads.append(head)
    return heads


@dataclass
class Group:
    """Heads that are one, whatever their form.

    Args:
        heads: Heads, the nearest to the loss first.
        evidence: Evidence of all steps so far; None where no labels fit.
        targets: What the loss compares them with, those first that are the labels.
        pulled_targets: The same, NaN where they are masked.
    """

    heads: list[Head]
    evidence: Evidence | None
    targets: tuple[Tensor, ...] = ()
    pulled_targets: tuple[Tensor, ...] = ()

    @property
    def proof(self) -> Proof:
        """Whether it is what the model predicts."""
        return Proof.OPEN if self.evidence is None else self.evidence.proof

    @property
    def readable(self) -> Head | None:
        """The head to read: the nearest to the loss that the graph or a module shows unmasked."""
        return next((head for head in self.heads if head.predictions is not None), None)

    @property
    def is_of_module(self) -> bool:
        """Whether the loss does not show it, only a module does."""
        return all(head.is_of_module for head in self.heads)

    @property
    def is_pulled(self) -> bool:
        """Whether the loss was seen to pull at it."""
        return self.evidence is not None and any(self.evidence.mass)

    @property
    def scale(self) -> Scale:
        """Whether what it holds is what the loss reads; of what the loss shows itself, that is known."""
        if self.evidence is not None and self.evidence.is_changed:
            return Scale.OTHER
        if not self.heads[0].is_of_module:
            return Scale.SHOWN
        fit = None if self.evidence is None else self.evidence.fit
        return Scale.NONE if fit is None else fit.scale

    @property
    def is_matched(self) -> bool:
        """Whether the loss compared it with the very labels, as far as is known."""
        return self.evidence is not None and self.proof is not Proof.REFUTED and self.evidence.matched

    @property
    def is_likely(self) -> bool:
        """Whether all that was seen so far speaks for it."""
        if self.evidence is None or self.proof is Proof.PROVEN or self.is_matched:
            return True
        return self.evidence.value is not None and self.evidence.value >= PASSED

    def __str__(self) -> str:
        head = self.readable or self.heads[0]
        share = None if self.evidence is None else self.evidence.decisive
        return head.text if share is None else f"{head.text}, {share:.2f} right"


_RANK = {Proof.PROVEN: 0, Proof.OPEN: 1, Proof.REFUTED: 2}


def grouped(heads: list[Head], before: Mapping[Place, Evidence]) -> list[Group]:
    """Heads that read the same in the same form, with what earlier steps showed; of each the best proven ones."""
    same_form: dict[tuple[Edge, tuple[int, bool]], list[Head]] = {}
    for head in heads:
        same_form.setdefault((head.origin, head.variant), []).append(head)
    groups = []
    for same in same_form.values():
        sums = [None if one.evidence is None else one.evidence + before.get(one.place, Evidence()) for one in same]
        proofs = [Proof.OPEN if seen is None else seen.proof for seen in sums]
        best = min(proofs, key=_RANK.__getitem__)
        chosen = [(seen, head) for seen, head, proof in zip(sums, same, proofs, strict=True) if proof is best]
        matched = sorted(same, key=lambda head: not (head.evidence and head.evidence.matched))
        targets = tuple(target for head in matched for target in head.targets)
        pulled = tuple(target for head in matched for target in head.pulled_targets)
        groups.append(Group([head for _, head in chosen], chosen[0][0], targets, pulled))
    return groups


def main_groups(groups: list[Group], wanted: Proof) -> list[Group]:
    """Groups with this proof that say something of their own.

    What others are computed from is part of these, later backward passes of a step repeat the first unless
    other weights make what is proven there, heads with the same values are one, and what modules return counts
    where the loss shows nothing as good.
    """
    found = [group for group in groups if group.proof is wanted and (group.is_pulled or not group.is_of_module)]
    of_loss = [group for group in found if not group.is_of_module]
    if any(group.is_likely and group.evidence is not None for group in of_loss):
        found = of_loss
    shown = [group for group in found if group.readable is not None and (group.evidence is None or group.is_likely)]
    origins = {group.heads[0].origin for group in shown}
    found = [group for group in found if not origins.intersection(group.heads[0].inside)] or found
    first = min((group.heads[0].place.backward_pass for group in found), default=0)
    widths = {_width_of(group) for group in found if group.heads[0].place.backward_pass == first}
    kept: list[Group] = []
    for group in found:
        # Without labels, predictions of another width may as well be the main ones.
        is_other = group.evidence is None and _width_of(group) not in widths
        if group.heads[0].place.backward_pass != first and not is_other and not _is_another(group, found, first):
            continue
        same = next((other for other in kept if _are_alike(group.readable, other.readable)), None)
        if same is None:
            kept.append(group)
        else:
            same.targets += group.targets
            same.pulled_targets += group.pulled_targets
    return kept


def _is_another(group: Group, groups: list[Group], first: int) -> bool:
    """Whether what a later backward pass proves is made of other weights than the heads of the first one."""
    if group.proof is not Proof.PROVEN:
        return False
    known = [one.heads[0].origin for one in groups if one.heads[0].place.backward_pass == first]
    weights = [nearest_parameters(edge) for edge in known]
    own = nearest_parameters(group.heads[0].origin)
    return bool(own) and all(weights) and own.isdisjoint(frozenset().union(*weights))


def _width_of(group: Group) -> int | None:
    return None if group.readable is None else group.readable.width


def _are_alike(one: Head | None, other: Head | None) -> bool:
    if one is None or other is None or one.predictions is None or other.predictions is None:
        return False
    if one.kind is None or other.kind is None:
        return torch.equal(one.predictions, other.predictions)
    if {one.kind, other.kind} == {Kind.LOGITS, Kind.PROBS}:
        logits, probs = (one, other) if one.kind is Kind.LOGITS else (other, one)
        return _are_scaled(logits.predictions, probs.predictions)
    return same_values(one.predictions, other.predictions, other.kind) is one.kind


def _are_scaled(logits: Tensor | None, probs: Tensor | None) -> bool:
    """Whether probabilities are those of logits of any scale, as where one term of a loss has a temperature."""
    if logits is None or probs is None or logits.shape != probs.shape:
        return False
    z, p = logits.double(), probs.double()
    scale = (z * p.logit(eps=1e-6)).sum() / z.square().sum().clamp(min=1e-12)
    return bool(scale > 0) and torch.allclose((scale * z).sigmoid(), p, atol=1e-4)
