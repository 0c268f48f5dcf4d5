"""Predictions and targets from what the loss was computed of: the autograd graph of the loss, while it exists."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_ubs.reading.predictions import TRANSPARENT, Kind
from lightning_ubs.reading.shapes import PICKING, as_rows

# Nodes of a graph that are looked at before the search is given up.
SEARCH_LIMIT = 50_000

_BCE_LOGITS = "BinaryCrossEntropyWithLogitsBackward0"
_BCE = "BinaryCrossEntropyBackward0"
_LOG_SIGMOID = "LogSigmoidBackward0"
LOG_SOFTMAX = "LogSoftmaxBackward0"
_NLL = ("NllLossBackward0", "NllLoss2DBackward0")
_SPOKEN = {
    _BCE_LOGITS: "binary_cross_entropy_with_logits",
    _BCE: "binary_cross_entropy",
    _LOG_SIGMOID: "logsigmoid",
    LOG_SOFTMAX: "log_softmax",
    _NLL[0]: "nll_loss or cross_entropy",
    _NLL[1]: "a spatial nll_loss or cross_entropy",
}
# Between the predictions and the loss node, these keep each value in its place.
_ELEMENTWISE = {"SigmoidBackward0", "ClampBackward0", "ClampBackward1", LOG_SOFTMAX}
_SAME_VALUES = TRANSPARENT | _ELEMENTWISE
_SCALING = ("MulBackward", "DivBackward")


@dataclass(frozen=True)
class TermPlace:
    """Where in the graph of a loss a term stands; holds no part of the graph.

    Args:
        node: name of the loss node.
        way: from the loss to it, per step: (which input leads on, name of the node, names of its inputs).
        shows_targets: whether the targets are read there as well.
    """

    node: str
    way: tuple[tuple[int, str, tuple[str, ...]], ...]
    shows_targets: bool

    def __str__(self) -> str:
        return _SPOKEN[self.node]


@dataclass(frozen=True)
class LossTerm:
    """What one loss node was computed of; holds no part of the graph.

    Args:
        place: where the node stands.
        kind: what the predictions hold.
        predictions: detached, (rows, q) if they fit the batch, else as they came.
        targets: what they were compared with, (rows, q) or class indices (rows,); more than one where several terms
            share the predictions, none where the graph does not tell.
        fits: whether there is one row per sample.
        origin: tells which terms read the same head; means nothing after the search.
        factors: (number, exponent) by which it is scaled on its way into the loss; 1 for what is no number on the host.
    """

    place: TermPlace
    kind: Kind
    predictions: Tensor
    targets: tuple[Tensor, ...]
    fits: bool
    origin: int = 0
    factors: tuple[tuple[Tensor | float, int], ...] = ()

    @property
    def weight(self) -> float:
        """How much the term counts in the loss."""
        return abs(math.prod(float(number) ** exponent for number, exponent in self.factors))

    def __str__(self) -> str:
        return f"{self.place} of {list(self.predictions.shape)}"


def search(loss: Tensor, rows: int) -> list[LossTerm]:
    """Every loss term of the graph that shows predictions, the nearest to the loss first."""
    graph = _Graph(loss)
    return [_term(graph, node, rows) for node in graph.terms]


def follow(loss: Tensor, rows: int, place: TermPlace) -> LossTerm | None:
    """The term at a place that an earlier search found; None if this loss is built another way."""
    node: Any = loss.grad_fn
    parent, index = None, -1
    for slot, name, inputs in place.way:
        if node is None or node.name() != name or _input_names(node) != inputs:
            return None
        if slot >= 0:
            parent, index = node, slot
            node = node.next_functions[slot][0]
    predictions = _matrix(node, _SAVED[place.node](node).detach(), rows)
    if predictions is None:
        return None
    target = _target(node, parent, index) if place.shows_targets else None
    targets = () if target is None else _shaped_like(target, predictions)
    return LossTerm(place, _KINDS[place.node], predictions, targets, fits=True)


def loss_nodes(loss: Tensor, rows: int) -> list[tuple[Any, str, bool]]:
    """(node, its name in words, whether it reads one row per sample) of every loss node; keep no node."""
    saved = [(node, _SAVED[node.name()](node)) for node in _Graph(loss).terms]
    return [
        (
            node,
            f"{_SPOKEN[node.name()]} of {list(tensor.shape)}",
            node.name() != _NLL[1] and _matrix(node, tensor, rows) is not None,
        )
        for node, tensor in saved
    ]


def predictions_of(node: Any) -> tuple[Any, int]:
    """(node, number of its output) whose result are the predictions of a loss node, with a row per sample."""
    below, output = node.next_functions[0]
    while below.next_functions and below.name() in _SAME_VALUES and not below.name().startswith("TBackward"):
        below, output = below.next_functions[0]
    return below, output


class _Graph:
    """Breadth-first search for loss nodes; lives only as long as one search, so that no node outlives the step."""

    def __init__(self, loss: Tensor | None) -> None:
        self.terms: list[Any] = []
        self.parents: dict[Any, tuple[Any, int]] = {}
        root: Any = None if loss is None else loss.grad_fn
        queue = deque([] if root is None else [root])
        seen = {root}
        while queue and len(seen) < SEARCH_LIMIT:
            node = queue.popleft()
            if node.name() in _SPOKEN:
                self.terms.append(node)
                if node.name() not in _NLL:
                    continue
            for index, (child, _) in enumerate(node.next_functions):
                if child is not None and child not in seen:
                    seen.add(child)
                    self.parents[child] = (node, index)
                    queue.append(child)
        self._drop_mirrors()

    def _drop_mirrors(self) -> None:
        """Leave out log-sigmoids of −z where there is one of z, but remember them."""
        plain = {node.next_functions[0][0]: node for node in self.terms if node.name() == _LOG_SIGMOID}
        self.mirrors: dict[Any, Any] = {}
        for node in plain.values():
            below = node.next_functions[0][0]
            if below is not None and below.name() == "NegBackward0" and below.next_functions[0][0] in plain:
                self.mirrors[plain[below.next_functions[0][0]]] = node
        mirrored = set(self.mirrors.values())
        self.terms = [node for node in self.terms if node not in mirrored]

    def way_to(self, node: Any) -> Iterator[tuple[Any, int]]:
        """The nodes from ``node`` up to the loss, each with the input that leads down."""
        yield node, -1
        while node in self.parents:
            node, index = self.parents[node]
            yield node, index


def _term(graph: _Graph, node: Any, rows: int) -> LossTerm:
    name = node.name()
    tensor = _SAVED[name](node).detach()
    predictions = None if name == _NLL[1] else _matrix(node, tensor, rows)
    target = _target(node, *graph.parents.get(node, (None, -1)))
    if name == _LOG_SIGMOID and target is not None and not _are_halves(graph, node, target):
        target = None
    targets = () if target is None or predictions is None else _shaped_like(target, predictions)
    way = list(graph.way_to(node))
    return LossTerm(
        place=TermPlace(
            name, tuple((index, step.name(), _input_names(step)) for step, index in reversed(way)), bool(targets)
        ),
        kind=_KINDS[name],
        predictions=tensor if predictions is None else predictions,
        targets=targets,
        fits=predictions is not None,
        origin=hash(_origin(node)[0]),
        factors=tuple(_factor(step) for step, _ in way[1:] if step.name().startswith(_SCALING)),
    )


_KINDS = {
    _BCE_LOGITS: Kind.LOGITS,
    _BCE: Kind.PROBS,
    _LOG_SIGMOID: Kind.LOGITS,
    LOG_SOFTMAX: Kind.SOFTMAX,
    # These hold log-probabilities, whose softmax are the probabilities, whether or not a log_softmax made them.
    _NLL[0]: Kind.SOFTMAX,
    _NLL[1]: Kind.SOFTMAX,
}
_SAVED: dict[str, Callable[[Any], Tensor]] = dict.fromkeys(_KINDS, lambda node: node._saved_self) | {
    LOG_SOFTMAX: lambda node: node._saved_result
}


def _target(node: Any, parent: Any, index: int) -> Tensor | None:
    """What the node compares its predictions with; ``parent`` reads it as its input number ``index``."""
    if node.name() not in (_LOG_SIGMOID, LOG_SOFTMAX):
        target: Tensor = node._saved_target.detach()
        return target
    if parent is None or parent.name() != "MulBackward0":
        return None
    factor = parent._saved_self if index else parent._saved_other
    return factor if isinstance(factor, Tensor) and not factor.requires_grad else None


def _are_halves(graph: _Graph, node: Any, target: Tensor) -> bool:
    """Whether log-sigmoids of z and −z are weighted by y and 1 − y, so that y are the targets; waits for the device."""
    mirror = graph.mirrors.get(node)
    other = None if mirror is None else _target(mirror, *graph.parents.get(mirror, (None, -1)))
    return (
        other is not None
        and other.shape == target.shape
        and bool(torch.allclose(other + target, torch.ones(()).to(target)))
    )


def _shaped_like(target: Tensor, predictions: Tensor) -> tuple[Tensor, ...]:
    """The targets as (rows, q), or as class indices (rows,); nothing if they are of another shape."""
    if target.ndim == 1 and len(target) == len(predictions) and not target.is_floating_point():
        return (target,)
    if target.shape == predictions.shape:
        return (target,)
    return (target.reshape(predictions.shape),) if target.numel() == predictions.numel() else ()


def _matrix(node: Any, tensor: Tensor, rows: int) -> Tensor | None:
    """The predictions of a loss node as (rows, q), if they hold the same labels of each sample."""
    if tensor.ndim == 2 and tensor.shape[1] > 1:
        return as_rows(tensor, rows)
    (below, _), made_by = _origin(node)
    matrix = as_rows(tensor, rows, made_by)
    is_picked = below is not None and below.name().startswith(PICKING)
    return None if matrix is not None and matrix.shape[1] == 1 and is_picked else matrix


def _origin(node: Any) -> tuple[tuple[Any, int], Any]:
    """(node and output that the predictions are, whatever their form or dtype; the node that gave them their form)."""
    below, output = node.next_functions[0]
    made_by = None
    while below is not None and below.next_functions and below.name() in _SAME_VALUES:
        if made_by is None and below.name() not in _ELEMENTWISE and not below.name().startswith(("ToCopy", "Clone")):
            made_by = below
        below, output = below.next_functions[0]
    return (below, output), made_by or below


def _factor(node: Any) -> tuple[Tensor | float, int]:
    """The number by which a multiplication (exponent 1) or division (−1) scales the loss."""
    for name in ("_saved_other", "_saved_self"):
        saved = getattr(node, name, None)
        if isinstance(saved, Tensor) and (saved.ndim or saved.device.type != "cpu" or saved.requires_grad):
            continue
        if saved is not None:
            return saved, -1 if node.name().startswith("Div") else 1
    return 1.0, 1


def _input_names(node: Any) -> tuple[str, ...]:
    return tuple("" if child is None else child.name() for child, _ in node.next_functions)
