"""The proof that something is what the model predicts for these samples: the loss falls when it moves to their labels.

For each candidate the share of its gradient with the right sign is taken, over the positive labels and over the
negative ones apart, and the smaller of the two counts. Random weights, 25 losses and 5 layouts
(``tests/reading/test_proof.py``): right candidates have 0.98 to 1.00, also under mixup; the wrong ones (rows in
another order, heads of other tasks, teachers, gates, rankings) have 0.00 to 0.66 in a batch of 32, because what pulls
them knows nothing of the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_ubs.reading.comparison import Verdict as Rows
from lightning_ubs.reading.comparison import compare
from lightning_ubs.reading.loss_graph import Candidate, Edge, LossGraph, TermPlace, origin
from lightning_ubs.reading.predictions import Kind, as_rows, kind_by_origin, to_probabilities

# Right candidates have 1.00, mixed or noisy labels somewhat less; what chance or a teacher pulls has 0.5 to 0.7. Where
# ENOUGH elements of like weight were seen on a side, a coin passes PASSED once in 28,000 times (at least 22 of 24), and
# one that is right in seven of ten cases once in 80. Between the two limits nothing is decided yet; targets that equal
# the labels need no count.
PASSED, THRESHOLD = 0.9, 0.75
ENOUGH = 24
# A prediction this near to its label is right already: smoothed or soft targets pull it back once it is fitted.
_FITTED = 0.2


class Proof(Enum):
    """What is known of a candidate."""

    PROVEN = "proven"
    REFUTED = "refuted"
    OPEN = "open"


@dataclass
class Evidence:
    """How the loss pulled at a candidate so far: sums over elements of negatives (0) and positives (1).

    >>> y = torch.tensor([[1.0, 0.0]] * 24)
    >>> seen = Evidence().add(0.5 - y, y, None)
    >>> seen.value, seen.proof, Evidence().add(y - 0.5, y, None).proof
    (1.0, <Proof.PROVEN: 'proven'>, <Proof.REFUTED: 'refuted'>)
    """

    right: tuple[float, float] = (0.0, 0.0)
    mass: tuple[float, float] = (0.0, 0.0)
    squares: tuple[float, float] = (0.0, 0.0)
    labels: tuple[float, float] = (0.0, 0.0)
    matched: bool = False

    def add(self, gradient: Tensor, labels: Tensor, probs: Tensor | None, matched: bool = False) -> Evidence:
        """With one more step; waits for the device.

        Args:
            gradient: of the loss with respect to the candidate, (rows, q).
            labels: (rows, q), NaN where a label is not known.
            probs: what the candidate predicts, if that can be told.
            matched: whether the loss compares it with these very labels.
        """
        weight = gradient.detach().double().nan_to_num(0.0, 0.0, 0.0).abs()
        # A scaled loss of half precision may be large: only ratios count.
        weight = weight / weight.max().clamp(min=torch.finfo(torch.float64).tiny)
        is_right = gradient * (labels - 0.5) < 0
        if probs is not None:
            is_right |= (probs - labels).abs() < _FITTED
        sides = [labels < 0.5, labels >= 0.5]
        sums = torch.stack(
            [
                torch.stack([part[side].sum().double() for side in sides])
                for part in (weight * is_right, weight, weight.square(), torch.ones_like(weight))
            ]
        ).tolist()
        right, mass, squares, counts = ((side[0], side[1]) for side in sums)
        return self + Evidence(right, mass, squares, counts, matched)

    def __add__(self, other: Evidence) -> Evidence:
        """What several steps or processes saw."""

        def total(one: tuple[float, float], more: tuple[float, float]) -> tuple[float, float]:
            return one[0] + more[0], one[1] + more[1]

        return Evidence(
            total(self.right, other.right),
            total(self.mass, other.mass),
            total(self.squares, other.squares),
            total(self.labels, other.labels),
            self.matched or other.matched,
        )

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Share of the gradient with the right sign over negatives and over positives; None where there is none."""
        negatives, positives = (
            right / mass if mass > 0 else None for right, mass in zip(self.right, self.mass, strict=True)
        )
        return negatives, positives

    @property
    def value(self) -> float | None:
        """The smaller share."""
        return min((share for share in self.shares if share is not None), default=None)

    @property
    def proof(self) -> Proof:
        """Whether it is enough."""
        if self.matched:
            return Proof.PROVEN
        enough = [self._elements(side) >= ENOUGH for side in (0, 1)]
        if any(is_enough and (share or 0.0) < THRESHOLD for is_enough, share in zip(enough, self.shares, strict=True)):
            return Proof.REFUTED
        # A side on which the loss does not pull at all (only positives are known, say) proves and refutes nothing.
        silent = [self.mass[side] == 0 and self.labels[side] >= ENOUGH for side in (0, 1)]
        done = [enough[side] or silent[side] for side in (0, 1)]
        return Proof.PROVEN if all(done) and any(enough) and (self.value or 0.0) >= PASSED else Proof.OPEN

    def _elements(self, side: int) -> float:
        """How many elements of like weight there were (Kish)."""
        return self.mass[side] ** 2 / self.squares[side] if self.squares[side] > 0 else 0.0


def as_label_matrix(labels: Tensor, shape: tuple[int, ...], exclusive: bool) -> Tensor | None:
    """Labels as float64 (rows, q) of 0 and 1, NaN where they are not known; None if they do not fit predictions.

    Args:
        labels: a matrix of two values, or one class index (``exclusive``) or one label per sample.
        shape: (rows, q) of the predictions.
        exclusive: whether predictions are of exclusive classes.
    """
    labels = labels.detach()
    rows, width = shape
    if labels.numel() == rows * width and labels.shape[:1] == (rows,):
        return _binary(labels.reshape(rows, width).double())
    whole = not labels.is_floating_point() and labels.dtype != torch.bool and not labels.is_complex()
    if not exclusive or not whole or labels.numel() != rows or labels.shape[:1] != (rows,):
        return None
    index = labels.reshape(rows, 1).long()
    if bool((index >= width).any()):
        return None
    classes = torch.arange(width, device=index.device)
    return (index == classes).double().masked_fill(index < 0, torch.nan)


def _binary(values: Tensor) -> Tensor | None:
    """Zeros and ones; −1 beside zeros is an unknown label, else a negative one; soft ones are rounded."""
    finite = values[values.isfinite()]
    low, high = (float(one) for one in finite.aminmax()) if len(finite) else (0.0, 0.0)
    if low < -1 or high > 1:
        return None
    known = torch.where(values.isfinite(), values, torch.nan)
    if low < 0:
        missing = bool((finite == 0).any())
        known = torch.where(known < 0, torch.nan if missing else 0.0, known)
    return torch.where(known.isnan(), known, (known >= 0.5).double())


def one_per_row(labels: Tensor, pull: Tensor) -> Tensor:
    """Labels of predictions of exclusive classes: of several positive ones in a row only one can be the class.

    It is the one to which the loss pulls most; rows without a positive label tell nothing.
    """
    positive = labels == 1
    chosen = pull.masked_fill(~positive, torch.inf).argmin(1, keepdim=True)
    others = positive & (torch.arange(labels.shape[1], device=labels.device) != chosen)
    return labels.masked_fill(others | ~positive.any(1, keepdim=True), torch.nan)


def is_telling(labels: Tensor) -> bool:
    """Whether label rows are unlike, so that another order of rows would be seen."""
    known = labels.nan_to_num(0.0)
    return bool((known != known[:1]).any()) and bool((known > 0).any())


def is_matched(targets: tuple[Tensor, ...], labels: Tensor, given: Tensor) -> bool:
    """Whether the loss compares its predictions with these very labels, row by row."""
    return is_telling(labels) and any(compare(one.cpu(), given.cpu()) is Rows.SAME for one in targets)


def batch_leaves(batch: Any, rows: int) -> list[Tensor]:
    """Every tensor of a batch, under any name, that may be labels with a row per sample."""
    found: list[Tensor] = []
    queue, seen = [batch], set[int]()
    while queue and len(seen) < 100:
        value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.layout == torch.strided and value.ndim and len(value) == rows and value[0].numel() <= 2**16:
                found.append(value)
        elif isinstance(value, Mapping):
            queue += list(value.values())
        elif isinstance(value, list | tuple):
            queue += list(value)
        elif hasattr(value, "__dict__"):
            queue += list(vars(value).values())
    return [one for one in found if _may_be_labels(one)]


def _may_be_labels(values: Tensor) -> bool:
    """Whether a tensor holds zeros and ones, or a class index per sample."""
    if values.is_complex() or values.is_quantized:
        return False
    if values.ndim == 1 and not values.is_floating_point():
        return True
    return bool(((values == 0) | (values == 1) | (values == -1) | (values != values)).all())


def gradient_as_rows(gradient: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """A gradient in the form of the predictions (rows, q)."""
    if gradient is None or gradient.numel() != shape[0] * shape[1]:
        return None
    return gradient.detach().reshape(shape)


def same_values(raw: Tensor, other: Tensor, kind: Kind) -> Kind | None:
    """What ``raw`` holds, if it shows the same predictions as ``other`` of this kind; None if it does not.

    The same numbers, their probabilities or logarithms, or logits of another scale.
    """
    if raw.shape != other.shape:
        return None
    rounding = 4 * max(torch.finfo(one.dtype).eps for one in (raw, other))
    raw, other = raw.detach().float(), other.detach().float()
    if _close(raw, other, rounding):
        return kind
    probs, _ = to_probabilities(other, kind)
    kinds = {
        Kind.LOGITS: (Kind.PROBS, Kind.LOGITS, Kind.LOG_PROBS),
        Kind.SOFTMAX: (Kind.PROBS, Kind.SOFTMAX, Kind.LOG_PROBS),
    }.get(kind, tuple(Kind))
    for holds in kinds:
        shown, usable = to_probabilities(raw, holds)
        if bool(usable.all()) and _close(shown, probs, rounding):
            return holds
    scale = float((raw * other).sum() / raw.square().sum().clamp(min=1e-12))
    return kind if kind is Kind.LOGITS and scale > 0 and _close(raw * scale, other, rounding) else None


def _close(one: Tensor, other: Tensor, rounding: float) -> bool:
    return bool(((one - other).abs() <= rounding * other.abs().clamp(min=1.0) + 1e-6).all())


@dataclass(frozen=True)
class Place:
    """Where predictions are read, as users are told of it.

    Args:
        source: what training_step returned, a user's function, what a module returned, or what the loss is made of.
        name: the key, the module's name (empty for the LightningModule itself), or the loss in words.
        part: which part of a module's output.
        term: where in the graph of the loss.
    """

    source: Literal["returned", "function", "module", "loss"]
    name: str = ""
    part: str = ""
    term: TermPlace | None = None

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
class Head:
    """What may be the predictions of this step, and how the loss pulls at it. Lives no longer than the step.

    Args:
        place: where it is read.
        kind: what it holds; None where the graph does not tell.
        predictions: (rows, q), detached; None if they were masked and cannot be read.
        targets: what the loss compares it with.
        origin: tells which heads are one, whatever the form.
        text: in words, with its shape.
        backward_pass: number of the backward pass within the step.
        evidence: of this step alone; None where no labels fit.
        inside: origins of heads that are computed from this one.
    """

    place: Place
    kind: Kind | None
    predictions: Tensor | None
    targets: tuple[Tensor, ...]
    origin: Edge
    text: str
    backward_pass: int
    evidence: Evidence | None = None
    inside: tuple[Edge, ...] = ()


@dataclass
class Watched:
    """A matrix that a module returned in this step, with its graph."""

    place: Place
    tensor: Tensor


def heads_of(loss: Tensor, rows: int, label_sets: list[Tensor], watched: list[Watched], number: int) -> Heads:
    """Everything in the graph of a loss that may be the predictions, with the evidence for each; waits for the device.

    Args:
        loss: the loss of a backward pass.
        rows: number of samples of this process.
        label_sets: labels of these samples, the surest first.
        watched: what modules returned.
        number: of the backward pass.
    """
    graph = LossGraph(loss, rows)
    returned = {_origin_of(one.tensor): one for one in reversed(watched)}
    candidates = graph.candidates
    modules = _module_candidates(watched, rows) if not candidates else []
    edges = [graph.pulled_edge(one) for one in candidates] + [edge for _, edge, _ in modules]
    gradients = graph.gradients(edges) if label_sets else [None] * len(edges)
    heads = []
    for one, gradient in zip(candidates, gradients, strict=False):
        if one.opposite is not None and not label_sets:
            continue  # z and -z look the same
        place, predictions = Place("loss", str(one.place), term=one.place), one.predictions
        kind: Kind | None = one.kind
        behind = returned.get(one.origin)
        if predictions is None and behind is not None:
            place, predictions = behind.place, as_rows(behind.tensor.detach(), rows)
            kind = kind_by_origin(behind.tensor) or kind
        seen = _evidence(gradient, one, predictions, label_sets)
        above = tuple(upper.origin for upper in candidates if upper is not one and graph.is_above(upper.edge, one.edge))
        heads.append(Head(place, kind, predictions, one.targets, one.origin, str(one), number, seen, above))
        if one.opposite is not None and gradient is not None and predictions is not None:
            turned = replace(one, place=one.opposite, predictions=-predictions, targets=())
            seen = _evidence(-gradient, turned, turned.predictions, label_sets)
            place = Place("loss", str(one.place), term=one.opposite)
            heads.append(Head(place, kind, turned.predictions, (), one.origin, str(one), number, seen, above))
    for (module, edge, matrix), gradient in zip(modules, gradients[len(candidates) :], strict=True):
        told, shape = kind_by_origin(module.tensor), tuple(matrix.shape)
        candidate = Candidate(TermPlace("", ()), told or Kind.LOGITS, matrix, shape, (), edge, fits=True)
        seen = _evidence(gradient, candidate, matrix if told else None, label_sets)
        above = tuple(upper for _, upper, _ in modules if upper != edge and graph.is_above(upper, edge))
        heads.append(Head(module.place, told, matrix, (), edge, f"{module.place} {list(shape)}", number, seen, above))
    return Heads(heads, [tuple(one.shape) for one in graph.unfitting])


class Heads(NamedTuple):
    """What a backward pass showed."""

    heads: list[Head]
    unfitting: list[tuple[int, ...]]


def _origin_of(tensor: Tensor) -> Edge:
    return origin((tensor.grad_fn, tensor.output_nr))


def _module_candidates(watched: list[Watched], rows: int) -> list[tuple[Watched, Edge, Tensor]]:
    """What modules returned, once for each tensor: by the outermost module that did."""
    found: dict[Edge, tuple[Watched, Edge, Tensor]] = {}
    for one in watched:
        matrix = as_rows(one.tensor, rows)
        if matrix is None or one.tensor.grad_fn is None:
            continue
        edge = (one.tensor.grad_fn, one.tensor.output_nr)
        if edge not in found or one.place.name.count(".") <= found[edge][0].place.name.count("."):
            found[edge] = one, edge, matrix.detach()
    return list(found.values())


def _evidence(
    gradient: Tensor | None, candidate: Candidate, predictions: Tensor | None, label_sets: list[Tensor]
) -> Evidence | None:
    """By the surest labels that prove the candidate, else by the surest that fit it."""
    exclusive = candidate.kind is Kind.SOFTMAX or candidate.place.node == "SoftmaxBackward0"
    rows = gradient_as_rows(gradient, candidate.shape)
    found: Evidence | None = None
    for given in label_sets:
        labels = as_label_matrix(given, candidate.shape, exclusive)
        if labels is None:
            continue
        matched = is_matched(candidate.targets, labels, given)
        if exclusive and given.ndim > 1 and rows is not None:
            labels = one_per_row(labels, rows.to(labels.device))
        probs = None if predictions is None else to_probabilities(predictions.detach().float(), candidate.kind)[0]
        pull = torch.zeros_like(labels) if rows is None else rows.to(labels.device)
        seen = Evidence().add(pull, labels, None if probs is None else probs.to(labels.device), matched)
        if found is None or (seen.proof is Proof.PROVEN and found.proof is not Proof.PROVEN):
            found = seen
    return found


@dataclass
class Group:
    """Heads that are one, whatever their form.

    Args:
        heads: the nearest to the loss first.
        evidence: of all steps so far; None where no labels fit.
        targets: what the loss compares them with, those first that are the labels.
    """

    heads: list[Head]
    evidence: Evidence | None
    targets: tuple[Tensor, ...] = ()

    @property
    def proof(self) -> Proof:
        """Whether it is what the model predicts."""
        return Proof.OPEN if self.evidence is None else self.evidence.proof

    @property
    def readable(self) -> Head | None:
        """The head to read: the nearest to the loss that the graph or a module shows unmasked."""
        return next((head for head in self.heads if head.predictions is not None), None)

    def __str__(self) -> str:
        head = self.readable or self.heads[0]
        value = None if self.evidence is None else self.evidence.value
        return head.text if value is None else f"{head.text}, {value:.2f} right"


_RANK = {Proof.PROVEN: 0, Proof.OPEN: 1, Proof.REFUTED: 2}


def grouped(heads: list[Head], before: Mapping[Place, Evidence]) -> list[Group]:
    """Heads by their origin, with what earlier steps showed; the proven ones of a group come first."""
    by_origin: dict[Edge, list[Head]] = {}
    for head in heads:
        by_origin.setdefault(head.origin, []).append(head)
    groups = []
    for same in by_origin.values():
        sums = [(_summed(head, before), head) for head in same]
        best = min(_RANK[_proof_of(seen)] for seen, _ in sums)
        chosen = [(seen, head) for seen, head in sums if _RANK[_proof_of(seen)] == best]
        ordered = sorted(same, key=lambda head: not (head.evidence and head.evidence.matched))
        targets = tuple(target for head in ordered for target in head.targets)
        groups.append(Group([head for _, head in chosen], chosen[0][0], targets))
    return groups


def _summed(head: Head, before: Mapping[Place, Evidence]) -> Evidence | None:
    return None if head.evidence is None else head.evidence + before.get(head.place, Evidence())


def _proof_of(evidence: Evidence | None) -> Proof:
    return Proof.OPEN if evidence is None else evidence.proof


def main_groups(groups: list[Group], wanted: Proof) -> list[Group]:
    """Groups with this proof that say something of their own.

    What others are computed from is part of these, later backward passes of a step repeat the first, and heads with
    the same values are one.
    """
    found = [group for group in groups if group.proof is wanted]
    origins = {group.heads[0].origin for group in found if group.readable is not None}
    found = [group for group in found if not origins.intersection(group.heads[0].inside)] or found
    first = min((group.heads[0].backward_pass for group in found), default=0)
    widths = {_width_of(group) for group in found if group.heads[0].backward_pass == first}
    kept: list[Group] = []
    for group in found:
        # Without labels, predictions of another width may as well be the main ones.
        is_other = group.evidence is None and _width_of(group) not in widths
        if group.heads[0].backward_pass != first and not is_other:
            continue
        if not any(_are_alike(group.readable, other.readable) for other in kept):
            kept.append(group)
    return kept


def _width_of(group: Group) -> int | None:
    head = group.readable
    return None if head is None or head.predictions is None else head.predictions.shape[1]


def _are_alike(one: Head | None, other: Head | None) -> bool:
    if one is None or other is None or one.predictions is None or other.predictions is None:
        return False
    if one.kind is None or other.kind is None:
        return torch.equal(one.predictions, other.predictions)
    return same_values(one.predictions, other.predictions, other.kind) is one.kind
