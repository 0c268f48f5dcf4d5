"""The autograd graph of a loss, while it exists: what could be the predictions, and how the loss pulls at each.

The only file of this room that reads private parts of torch (what autograd nodes saved, and the form of their results).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_ubs.reading.predictions import TOLERANCE, Kind, as_rows

# Nodes of a graph that are looked at before the search is given up.
SEARCH_LIMIT = 50_000

_LOG_SIGMOID, _SOFTPLUS = "LogSigmoidBackward0", "SoftplusBackward0"
_LOG_SOFTMAX = "LogSoftmaxBackward0"
_NLL = ("NllLossBackward0", "NllLoss2DBackward0")


@dataclass(frozen=True)
class _Term:
    """What a kind of loss node tells: its name for users, what its predictions hold, and where it saved them."""

    name: str
    kind: Kind
    saved: str = "_saved_self"


_TERMS = {
    "BinaryCrossEntropyWithLogitsBackward0": _Term("binary_cross_entropy_with_logits", Kind.LOGITS),
    "BinaryCrossEntropyBackward0": _Term("binary_cross_entropy", Kind.PROBS),
    "SoftMarginLossBackward0": _Term("soft_margin_loss", Kind.LOGITS),
    _LOG_SIGMOID: _Term("logsigmoid", Kind.LOGITS),
    _SOFTPLUS: _Term("softplus", Kind.LOGITS),
    "SigmoidBackward0": _Term("sigmoid", Kind.PROBS, "_saved_result"),
    _LOG_SOFTMAX: _Term("log_softmax", Kind.SOFTMAX, "_saved_result"),
    "SoftmaxBackward0": _Term("softmax", Kind.PROBS, "_saved_result"),
    # These hold log-probabilities, whose softmax are the probabilities, whether or not a log_softmax made them.
    _NLL[0]: _Term("nll_loss or cross_entropy", Kind.SOFTMAX),
    _NLL[1]: _Term("a spatial nll_loss or cross_entropy", Kind.SOFTMAX),
    # Losses written by hand, of whatever makes the probabilities.
    "LogBackward0": _Term("log", Kind.PROBS),
    "Log2Backward0": _Term("log2", Kind.PROBS),
    "Log10Backward0": _Term("log10", Kind.PROBS),
    "XlogyBackward0": _Term("xlogy", Kind.PROBS, "_saved_other"),
    "MseLossBackward0": _Term("mse_loss", Kind.PROBS),
    "SmoothL1LossBackward0": _Term("smooth_l1_loss", Kind.PROBS),
    "HuberLossBackward0": _Term("huber_loss", Kind.PROBS),
}
# Only values and labels tell whether what these hold are probabilities, and which.
_LOGS = ("LogBackward0", "Log2Backward0", "Log10Backward0", "XlogyBackward0")
_DISTANCES = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")
# Half of a likelihood: alone they do not tell whether z or -z are the logits.
_HALVES = (_LOG_SIGMOID, _SOFTPLUS)
# What is computed below these makes the predictions; below the others predictions may be found again.
_ENDS = frozenset(_TERMS) - {"BinaryCrossEntropyBackward0", *_NLL, *_LOGS, *_DISTANCES}
_ACTIVATIONS = ("SigmoidBackward0", "SoftmaxBackward0", _LOG_SOFTMAX)
_WEIGHTS_NEAR = 8  # operations between a head and its weights, at most
_SAME_VALUES = ("ToCopy", "Clone", "Alias", "Clamp")
# What comes from one of these holds picked elements, not one label of each sample.
_PICKING = ("Index", "MaskedSelect", "Gather", "Take", "Nonzero")

_DEPTH = 8
# Nodes below a head that are looked at to see what it was changed by, and the least change in proportion to it.
_LEAST_CHANGE = 1e-3
_NODES_OF_A_HEAD = 64
# Operations on each element, those that choose elements, and those whose result is known from what they saved.
_ELEMENTWISE = frozenset(
    {
        *("Acos", "Cos", "Sin", "Sqrt", "Pow", "Tanh", "Hardtanh"),
        *("Alias", "Clone", "ToCopy", "Clamp", "ClampMax", "ClampMin", "Neg", "Rsub"),
        *("Amax", "Index", "Max", "Maximum", "Min", "Minimum"),
    }
)
# Nodes next to a loss among which what it compares with is looked for.
_NEAR = 300
_CHOOSING = ("Where", "MaskedFill", "IndexPut", "Scatter")
_INVERTIBLE = {"Acos": torch.acos, "Cos": torch.cos, "Sin": torch.sin, "Log": torch.log}

Edge = tuple[Any, int]


@dataclass(frozen=True)
class TermPlace:
    """Where in the graph of a loss predictions stand; holds no part of the graph.

    Args:
        node: Name of the autograd node that holds them.
        way: Path from the loss to it, per step: (which input leads on, name of the node, names of its inputs).
        turned: How many transpositions lie between the node and what has a row per sample.
        negated: Whether the node holds the predictions with the other sign.
        mirrors: Whether there is a node of z beside this one of -z.
        is_plain: Whether the node saved them as the head made them, so that nothing below it need be looked at.
    """

    node: str
    way: tuple[tuple[int, str, tuple[str, ...]], ...]
    turned: int = 0
    negated: bool = False
    mirrors: bool = False
    is_plain: bool = False

    @property
    def needs_labels(self) -> bool:
        """Whether only labels tell if these are the predictions, and not their complement or something else."""
        return self.node in _LOGS or self.is_distance

    @property
    def is_activation(self) -> bool:
        """Whether the node only makes probabilities, so that it does not show what the loss does with them."""
        return self.node in _ACTIVATIONS

    @property
    def is_distance(self) -> bool:
        """Whether the node measures how far the predictions are from its targets, whatever these are."""
        return self.node in _DISTANCES

    def __str__(self) -> str:
        return _TERMS[self.node].name


@dataclass(frozen=True)
class Candidate:
    """What may be the predictions of a step. Lives no longer than the step, because ``edge`` is part of its graph.

    Args:
        place: Where they stand.
        kind: What they hold.
        predictions: (rows, q), detached; None where the graph keeps only what was masked or scaled row by row.
        shape: (rows, q), or that in which they came, if it has no row per sample.
        targets: What the loss compares them with, (rows, q) or class indices (rows,); none where it does not tell.
        edge: (node, number of its output) that gave the predictions.
    """

    place: TermPlace
    kind: Kind
    predictions: Tensor | None
    shape: tuple[int, ...]
    targets: tuple[Tensor, ...]
    edge: Edge
    fits: bool

    @property
    def origin(self) -> Edge:
        """What tells which candidates read the same head, whatever its form or dtype."""
        return origin(self.edge)

    @property
    def pulled_edge(self) -> Edge:
        """Where all that the loss makes of the head was added up, if that has its form."""
        below = origin(self.edge, through_turns=False)
        form = None if below[0] is None else _form(*below)
        return below if form is not None and tuple(form.shape) == self.shape else self.edge

    @property
    def opposite(self) -> TermPlace | None:
        """The same place with the other sign, if the loss does not tell the sign of the predictions."""
        tells = self.place.node not in _HALVES or self.place.mirrors
        return None if tells else replace(self.place, negated=not self.place.negated)

    def __str__(self) -> str:
        return f"{self.place} of {list(self.shape)}"


class LossGraph:
    """The graph of one backward pass, searched breadth-first, the nearest to the loss first.

    Args:
        loss: The loss, before its backward pass.
        rows: Number of samples of this rank.
    """

    def __init__(self, loss: Tensor, rows: int) -> None:
        self._rows = rows
        self._parents: dict[Any, list[tuple[Any, int]]] = {}
        terms: list[Any] = []
        #: (place, values (rows, q)) of what is squared or taken without its sign, as differences from labels are.
        self.differences: list[tuple[Edge, Tensor]] = []
        root: Any = loss.grad_fn
        queue = deque([] if root is None else [root])
        # Below a head only so many nodes are looked at as may lie between it and its loss node.
        left, expanded = {root: SEARCH_LIMIT}, set[Any]()
        while queue and len(left) < SEARCH_LIMIT:
            node = queue.popleft()
            depth = left[node]
            if node.name() in _TERMS and depth == SEARCH_LIMIT and node not in terms:
                terms.append(node)
            if depth == SEARCH_LIMIT and node not in expanded and (difference := _difference(node, rows)) is not None:
                self.differences.append(((node, 0), difference))
            if depth == SEARCH_LIMIT and node.name() in _ENDS:
                depth = _DEPTH
            below = depth if depth == SEARCH_LIMIT else depth - 1
            for index, (child, _) in enumerate(node.next_functions if below >= 0 else ()):
                if child is None:
                    continue
                if node not in expanded:
                    self._parents.setdefault(child, []).append((node, index))
                if below > left.get(child, -1):
                    left[child] = below
                    queue.append(child)
            if below >= 0:
                expanded.add(node)
        self._plain = {node.next_functions[0][0] for node in terms if node.name() in _HALVES}
        found = _without_complements([one for node in terms for one in self._candidates(node)])
        #: Everything that may be the predictions.
        self.candidates = [one for one in found if one.fits]
        #: What has no row per sample.
        self.unfitting = [one for one in found if not one.fits]

    def contains(self, edge: Edge) -> bool:
        """Whether the loss was found to be computed from what stands at an edge."""
        return edge[0] is not None and edge[0] in self._parents

    def is_above(self, upper: Edge, lower: Edge) -> bool:
        """Whether ``upper`` is computed from ``lower``, so that it is nearer to the loss."""
        target, queue = lower[0], [upper[0]]
        seen: set[Any] = set()
        while queue and len(seen) < SEARCH_LIMIT:
            for child, _ in queue.pop().next_functions:
                if child is target:
                    return True
                if child is not None and child in self._parents and child not in seen:
                    seen.add(child)
                    queue.append(child)
        return False

    def stop(self) -> None:
        """Keep nothing of the graph."""
        self._parents, self._plain = {}, set()
        self.candidates, self.unfitting, self.differences = [], [], []

    def sign(self, edge: Edge) -> Tensor:
        """Minus one where the loss is to rise, because it is below the level of a flood: of all, or (rows, 1)."""
        sign, node = torch.ones(()), edge[0]
        while node in self._parents:
            node = self._parents[node][0][0]
            if node.name() == "AbsBackward0" and node._saved_self.ndim <= 1:
                level = node._saved_self.detach()
                if level.numel() in (1, self._rows):
                    sign = sign.to(level.device) * level.double().sign().reshape(-1, 1)
        return sign

    def _candidates(self, node: Any) -> list[Candidate]:
        below = node.next_functions[_compared(node)[1]][0]
        of_negative = node.name() in _HALVES and below is not None and below.name() == "NegBackward0"
        mirrors = of_negative and below.next_functions[0][0] in self._plain
        place = TermPlace(node.name(), self._way_to(node), mirrors=mirrors)
        parent, index = self._parents.get(node, [(None, -1)])[0]
        found = [_candidate(node, parent, index, self._rows, place)]
        if _turns(node):
            turned = _candidate(node, parent, index, self._rows, replace(place, turned=1))
            found += [turned] if turned.edge != found[0].edge else []
        fitting = [one for one in found if one.fits]
        if place.needs_labels:
            return [one for one in fitting if one.predictions is not None and _are_probabilities(one.predictions)]
        return fitting or found[:1]

    def _way_to(self, node: Any) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
        steps = [(-1, node.name(), _input_names(node))]
        while node in self._parents:
            node, index = self._parents[node][0]
            steps.append((index, node.name(), _input_names(node)))
        return tuple(reversed(steps))


def operands(edge: Edge, shape: tuple[int, ...], value: Tensor | None, known: Mapping[Edge, Tensor]) -> list[Tensor]:
    """By what logits were changed element by element, without a gradient: masks, factors, what was added.

    A margin that a loss adds to logits shows the labels there. What was added is known only where the logits below are.

    Args:
        edge: (node, number of its output) that gave the logits or probabilities.
        shape: (rows, q) of these.
        value: What they were, if that is known.
        known: What stood at other places, such as what modules returned.
    """
    found: list[Tensor | None] = []
    queue: list[tuple[Edge, Tensor | None]] = [(edge, _value_at(edge, known) if value is None else value)]
    seen: set[Any] = set()
    while queue and len(seen) < _NODES_OF_A_HEAD:
        (node, _), value = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name, below = _operation(node), node.next_functions
        live = [number for number, (child, _) in enumerate(below) if child is not None]
        known_below = {number: _value_at(below[number], known) for number in live}
        if name in ("Mul", "Div") and live:
            if len(live) == 1:
                factor = node._saved_self if live[0] else node._saved_other
                found.append(_saved(node, "_saved_self" if live[0] else "_saved_other"))
                if value is not None and factor is not None and known_below[live[0]] is None:
                    known_below[live[0]] = value / factor if name == "Mul" else value * factor
        elif name in ("Add", "Sub", "ScatterAdd", "IndexAdd") and live:
            if len(live) == 1:
                found.append(_added(value, known_below[live[0]]))
        elif name in _CHOOSING:
            found.append(_chosen(node, shape))
        elif name == "LogSoftmax":
            known_below[0] = node._saved_result.detach()  # up to a number per row
        elif name == "Sigmoid":
            known_below[0] = node._saved_result.detach().logit()
        elif name in _ELEMENTWISE or (undo := _undo(node)) is not None:
            if name in _ELEMENTWISE:
                known_below[0] = _saved(node, "_saved_self")
                if known_below[0] is None and name.startswith(_SAME_VALUES):
                    known_below[0] = value
            elif undo is not None and value is not None:
                known_below[0] = undo(value)
        else:
            continue
        queue += [(below[number], known_below[number]) for number in live]
    return [one.double() for one in found if one is not None and tuple(one.shape) == shape]


def _value_at(edge: Edge, known: Mapping[Edge, Tensor]) -> Tensor | None:
    """What stood at an edge in the forward pass, as far as a node or a parameter still shows it."""
    node = edge[0]
    if edge in known or node is None:
        return known.get(edge)
    name, below = _operation(node), node.next_functions
    if hasattr(node, "variable"):
        parameter: Tensor = node.variable.detach()
        return parameter
    if hasattr(node, "_saved_result"):
        return _saved(node, "_saved_result")
    if name in _INVERTIBLE:
        return _INVERTIBLE[name](node._saved_self.detach())
    if name.startswith(_SAME_VALUES) or name == "T":
        inner = _value_at(below[0], known)
        return inner.t() if inner is not None and name == "T" else inner
    if name not in ("Mm", "Addmm", "Div"):
        return None
    if name == "Div":
        left, right = _value_at(below[0], known), _saved(node, "_saved_other")
    else:
        left, right = _saved(node, "_saved_mat1" if name == "Addmm" else "_saved_self"), _saved(node, "_saved_mat2")
        left = _value_at(below[-2], known) if left is None else left
        right = _value_at(below[-1], known) if right is None else right
    bias = _value_at(below[0], known) if name == "Addmm" else torch.zeros(())
    if left is None or right is None or bias is None:
        return None
    # Autocast multiplies in half precision what it keeps in full.
    left, right = left.float(), right.float()
    return left / right if name == "Div" else left @ right + bias.to(left)


def _operation(node: Any) -> str:
    """The operation: ``Mul`` of a MulBackward0."""
    name: str = node.name()
    return name.partition("Backward")[0]


def _saved(node: Any, name: str) -> Tensor | None:
    value = getattr(node, name, None)
    return value.detach() if isinstance(value, Tensor) else None


def _added(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """What was added to one tensor to give another; nothing if that is no more than a rounding."""
    if total is None or part is None or total.shape != part.shape:
        return None
    added = total - part.to(total.device)
    # Small numbers are added before logarithms, too.
    least = max(_LEAST_CHANGE, *(4 * torch.finfo(one.dtype).eps for one in (total, part)))
    return added if bool(added.abs().amax() > least * total.abs().amax()) else None


def _chosen(node: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Which elements of a matrix a node treats unlike the others."""
    name = _operation(node)
    if name in ("Where", "MaskedFill"):
        return _saved(node, "_saved_condition" if name == "Where" else "_saved_mask")
    if name == "IndexPut":
        index = [one.detach() for one in node._saved_indices if one is not None]
        if len(index) == 1 and tuple(index[0].shape) == shape:
            mask: Tensor = index[0]
            return mask
        if len(index) != 2 or any(one.is_floating_point() or one.dtype == torch.bool for one in index):
            return None
        marked = torch.zeros(shape, device=index[0].device)
        return marked.index_put(tuple(index), torch.ones((), device=marked.device))
    index_of = node._saved_index.detach()
    if _signed(node._saved_dim) % 2 != 1 or index_of.ndim != 2:
        return None
    return torch.zeros(shape, device=index_of.device).scatter(1, index_of, 1.0)


class Pulls:
    """The gradients that arrive at some edges in the backward pass that follows.

    They are read there in passing: nothing is computed for it, and what cannot be computed twice (compiled functions,
    re-entrant checkpoints) shows them as well.

    Args:
        edges: (node, number of its output) each.
    """

    def __init__(self, edges: Iterable[Edge]) -> None:
        self._arrived: dict[Any, tuple[Tensor | None, ...]] = {}
        #: How often a gradient arrived; what was made of them holds until it changes.
        self.count = 0
        self._handles = [node.register_prehook(partial(self._keep, node)) for node in {node for node, _ in edges}]

    def at(self, edge: Edge) -> Tensor | None:
        """The gradient of the loss at an edge; None if none arrived."""
        arrived = self._arrived.get(edge[0], ())
        return arrived[edge[1]] if edge[1] < len(arrived) else None

    def stop(self) -> None:
        """Keep nothing of the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._arrived = [], {}

    def _keep(self, node: Any, gradients: tuple[Tensor | None, ...]) -> None:
        # The last pass counts: others through the same graph come before it.
        self._arrived[node] = tuple(None if one is None else one.detach() for one in gradients)
        self.count += 1


def follow(loss: Tensor, rows: int, place: TermPlace, needs_targets: bool = True) -> Candidate | None:
    """What stands at a place that an earlier search found; None if this loss is built another way."""
    node: Any = loss.grad_fn
    parent, index = None, -1
    for slot, name, inputs in place.way:
        if node is None or node.name() != name or _input_names(node) != inputs:
            return None
        if slot >= 0:
            parent, index = node, slot
            node = node.next_functions[slot][0]
    if place.is_plain:
        saved, number = _compared(node)
        predictions = as_rows(saved, rows)
        if predictions is None:
            return None
        shape = tuple(predictions.shape)
        target = _target(node, parent, index, place) if needs_targets else None
        targets = () if target is None else _shaped(target, saved, (), shape)
        edge = (node, 0) if place.node in _ACTIVATIONS else node.next_functions[number]
        return Candidate(place, _TERMS[place.node].kind, predictions, shape, targets, edge, fits=True)
    found = _candidate(node, parent, index, rows, place, may_mask=False)
    return found if found.fits else None


@dataclass(frozen=True)
class SavedPlace:
    """Where in the graph of a loss a tensor stands that needs no gradient; holds no part of the graph.

    Args:
        way: Path from the loss to the node that saved it, which input leads on at each step.
        name: Name of what the node saved.
    """

    way: tuple[int, ...]
    name: str

    @property
    def is_target(self) -> bool:
        """Whether a loss function saved it as what it compares with, rather than a product one of its factors."""
        return self.name == "_saved_target"


def saved_constants(loss: Tensor, rows: int) -> list[tuple[SavedPlace, Tensor]]:
    """What nodes near a loss compare or multiply with and has a row per sample; the nearest first."""
    found: list[tuple[SavedPlace, Tensor]] = []
    queue: deque[tuple[Any, tuple[int, ...]]] = deque([(loss.grad_fn, ())])
    seen = {loss.grad_fn}
    while queue and len(seen) < _NEAR:
        node, way = queue.popleft()
        if node is None:
            continue
        names = ("_saved_target", "_saved_self") if hasattr(node, "_saved_target") else ()
        names = ("_saved_self", "_saved_other") if node.name() == "MulBackward0" else names
        for name in names:
            saved = getattr(node, name, None)
            if isinstance(saved, Tensor) and not saved.requires_grad and saved.ndim and saved.numel() % rows == 0:
                found.append((SavedPlace(way, name), saved.detach()))
        for index, (child, _) in enumerate(node.next_functions):
            if child is not None and child not in seen:
                seen.add(child)
                queue.append((child, (*way, index)))
    return found


def saved_at(loss: Tensor, place: SavedPlace) -> Tensor | None:
    """What stands at a place that an earlier search found; None if this loss is built another way."""
    node: Any = loss.grad_fn
    for index in place.way:
        below = () if node is None else node.next_functions
        if index >= len(below):
            return None
        node = below[index][0]
    saved = getattr(node, place.name, None)
    return saved.detach() if isinstance(saved, Tensor) and not saved.requires_grad else None


def _candidate(node: Any, parent: Any, index: int, rows: int, place: TermPlace, may_mask: bool = True) -> Candidate:
    """What a loss node holds, in the form and order in which the model made it.

    Factors of zeros and ones are taken for a mask if they ``may_mask``, even if this batch masks nothing.
    """
    saved, _ = _compared(node)
    descent = _Descent(node, saved, rows, place, may_mask)
    target = _target(node, parent, index, place)
    shape = descent.matrix_shape
    targets = () if target is None or shape is None else _shaped(target, saved, descent.forms, shape)
    return Candidate(
        replace(place, is_plain=descent.is_plain and as_rows(saved, rows) is not None),
        descent.kind,
        descent.matrix(),
        shape or tuple(saved.shape),
        targets,
        descent.edge,
        shape is not None and place.node != _NLL[1],
    )


class _Descent:
    """From a loss node down to the head: past changes of form, and past what scales or masks it sample by sample.

    Args:
        node: The loss node.
        saved: The predictions as it saved them.
        rows: Number of samples.
        place: How many transpositions to pass, and whether the sign is to be changed.
        may_mask: Whether a product with ones may be a mask that hides nothing in this batch.
    """

    def __init__(self, node: Any, saved: Tensor, rows: int, place: TermPlace, may_mask: bool) -> None:
        self.rows = rows
        self.forms: list[Callable[[Tensor], Tensor]] = []
        self.kind = _TERMS[place.node].kind
        self._saved = saved
        self._value: Tensor | None = -saved if place.negated else saved
        self.shape = tuple(saved.shape)
        edge: Edge = node.next_functions[_compared(node)[1]]
        if place.node in _ACTIVATIONS:
            base, _ = _product(edge, rows, self.shape)
            if base is None:
                fits = as_rows(torch.empty(self.shape, device="meta"), rows) is not None
                is_as_made = place.node != "SigmoidBackward0" or (fits and not place.turned)
                edge = (node, 0) if is_as_made else edge
            else:  # what the activation gives is masked or scaled row by row, the head below is not
                self._value, edge = None, base
                self.kind = Kind.LOGITS if place.node == "SigmoidBackward0" else Kind.SOFTMAX
        turned = 0
        matrix, at = self._as_matrix(edge), edge
        while edge[0] is not None and edge[0].next_functions and edge[0] is not node:
            below, name = edge[0], edge[0].name()
            undo = _undo(below)
            if undo is not None:
                turned += name.startswith(_TURNING)
                if turned > place.turned:
                    break
                self.forms.append(undo)
                self.shape = tuple(undo(torch.empty(self.shape, device="meta")).shape)
                self._value = None if self._value is None else undo(self._value)
            elif name == "NegBackward0" and place.mirrors:
                self._value = None if self._value is None else -self._value
                place = replace(place, mirrors=False)
            elif not name.startswith(_SAME_VALUES):
                base, factor = _product(edge, rows, self.shape)
                if base is None:
                    break
                self._value = _divided(self._value, factor, may_mask)
                edge = base
                at, matrix = edge, self._as_matrix(edge)
                continue
            edge = below.next_functions[0]
            if (found := self._as_matrix(edge)) is not None:
                at, matrix = edge, found
            elif matrix is not None:
                break
        if matrix is not None and matrix[1] == 1 and edge[0] is not None and edge[0].name().startswith(_PICKING):
            matrix = None
        self.edge, self.matrix_shape = at, matrix

    @property
    def is_plain(self) -> bool:
        """Whether what the loss node saved is the head as it is."""
        return self._value is self._saved and not self.forms and self.matrix_shape is not None

    def matrix(self) -> Tensor | None:
        """The predictions as (rows, q); None if the graph does not keep them."""
        if self._value is None or self.matrix_shape is None:
            return self._value
        return self._value.reshape(self.matrix_shape)

    def _as_matrix(self, edge: Edge) -> tuple[int, ...] | None:
        """(rows, q) if what stands here holds the same labels of each sample."""
        found = as_rows(torch.empty(self.shape, device="meta"), self.rows)
        if found is None or edge[0] is None:
            return None
        return tuple(found.shape)


_TURNING = ("TBackward", "Transpose", "Permute")


def _compared(node: Any) -> tuple[Tensor, int]:
    """What a loss node compares with its targets, and the number of the input that it is."""
    name = node.name()
    # Distances are the same the other way round.
    if name in _DISTANCES and node.next_functions[0][0] is None:
        return node._saved_target.detach(), 1
    saved: Tensor = getattr(node, _TERMS[name].saved).detach()
    return saved, 1 if name == "XlogyBackward0" else 0


def _difference(node: Any, rows: int) -> Tensor | None:
    """What is squared, or taken without its sign, as (rows, q)."""
    name, value = node.name(), None
    if name == "AbsBackward0" or (name == "PowBackward0" and node._saved_exponent == 2):
        value = node._saved_self
    elif name == "MulBackward0" and all(child is not None for child, _ in node.next_functions):
        value, other = node._saved_self, node._saved_other
        value = value if value.shape == other.shape and value.ndim and torch.equal(value, other) else None
    return as_rows(value.detach(), rows) if isinstance(value, Tensor) else None


def _without_complements(candidates: list[Candidate]) -> list[Candidate]:
    """Without the arguments of logarithms that are one minus what stands at another candidate."""
    ways = [_signs(one.edge) for one in candidates]
    plain = [{node for node, flips in way.items() if not flips} for way in ways]
    return [
        one
        for one, way in zip(candidates, ways, strict=True)
        if one.place.node not in _LOGS
        or not any(flips % 2 and any(node in nodes for nodes in plain) for node, flips in way.items())
    ]


def _signs(edge: Edge) -> dict[Any, int]:
    """Nodes that give what stands at an edge up to constants and sign, with how often the sign was changed above."""
    found: dict[Any, int] = {}
    node, flips = edge[0], 0
    while node is not None and len(found) < _DEPTH:
        found[node] = flips
        name = node.name().partition("Backward")[0]
        live = [number for number, (child, _) in enumerate(node.next_functions) if child is not None]
        if len(live) != 1 or not (name in ("Add", "Sub", "Rsub", "Neg", "Clamp", "ToCopy", "Clone") or _undo(node)):
            break
        flips += name in ("Rsub", "Neg") or (name == "Sub" and live == [1])
        node = node.next_functions[live[0]][0]
    return found


def _are_probabilities(values: Tensor) -> bool:
    """Whether all values are in [0, 1]; waits for the device."""
    return bool(((values >= -TOLERANCE) & (values <= 1 + TOLERANCE)).all())


def _turns(node: Any) -> bool:
    """Whether a transposition is among the changes of form right below a node."""
    below = node.next_functions[_compared(node)[1]][0]
    while below is not None and below.next_functions:
        if below.name().startswith(_TURNING):
            return True
        if _undo(below) is None and not below.name().startswith(_SAME_VALUES):
            return False
        below = below.next_functions[0][0]
    return False


def _undo(node: Any) -> Callable[[Tensor], Tensor] | None:
    """What gives the input of a node back from its result, if the node only changes the form."""
    name = node.name().partition("Backward")[0]
    if name in ("View", "UnsafeView", "ReshapeAlias", "Squeeze"):
        sizes = getattr(node, "_saved_self_sym_sizes", None)
        return None if sizes is None else lambda tensor: tensor.reshape(tuple(sizes))
    if name == "Unsqueeze":
        return lambda tensor: tensor.squeeze(_signed(node._saved_dim))
    if name == "T":
        return lambda tensor: tensor.t()
    if name == "Transpose":
        return lambda tensor: tensor.transpose(_signed(node._saved_dim0), _signed(node._saved_dim1))
    if name == "Permute":
        order = [_signed(dim) for dim in node._saved_dims]
        return lambda tensor: tensor.permute(tuple(sorted(range(len(order)), key=lambda i: order[i] % len(order))))
    return None


def _signed(number: int) -> int:
    """Negative axes are shown as unsigned numbers."""
    return number - 2**64 if number >= 2**63 else number


def _product(edge: Edge, rows: int, shape: tuple[int, ...]) -> tuple[Edge | None, Tensor | None]:
    """(head, factor) where what stands at an edge is a head times numbers that depend on the sample and need no grad.

    Missing labels that are masked, and logits that are scaled by their targets, are such products. The factor is None
    where the head cannot be told from the product. Numbers that are the same for all samples belong to the model.
    """
    base, factor, by_sample = _linear(edge, rows, len(shape))
    same_form = base[0] is not None and (form := _form(*base)) is not None and tuple(form.shape) == shape
    return (base, factor) if by_sample and same_form else (None, None)


def _linear(edge: Edge, rows: int, ndim: int, in_sum: bool = False) -> tuple[Edge, Tensor | None, bool]:
    node = edge[0]
    name = "" if node is None else node.name()
    here = edge, torch.ones(()), False
    inputs = [] if node is None else list(node.next_functions)
    live = [i for i, (child, _) in enumerate(inputs) if child is not None]
    if name in ("MulBackward0", "DivBackward0") and len(live) == 1 and not (name[0] == "D" and live[0] == 1):
        number = node._saved_self if live[0] else node._saved_other
        if not isinstance(number, Tensor):
            return here
        base, factor, by_sample = _linear(inputs[live[0]], rows, ndim, in_sum)
        if not (in_sum or by_sample or _is_by_sample(number, rows, ndim)):
            return here
        own = number.detach() if number.ndim else number
        factor = (
            None if factor is None else factor.to(own.device) * own if name[0] == "M" else factor.to(own.device) / own
        )
        return base, factor, by_sample or _is_by_sample(own, rows, ndim)
    if name in ("MaskedFillBackward0", "WhereBackward0") and len(live) == 1:
        mask = node._saved_mask if name[0] == "M" else node._saved_condition
        base, _, by_sample = _linear(inputs[live[0]], rows, ndim)
        if by_sample or _is_by_sample(mask, rows, ndim):
            return base, None, True
    if name in ("AddBackward0", "SubBackward0") and len(live) == 2:
        (first, one, a), (second, other, b) = (_linear(child, rows, ndim, in_sum=True) for child in inputs)
        if first == second and (a or b):
            known = one is not None and other is not None and node._saved_alpha == 1
            if one is None or other is None or not known:
                return first, None, True
            return first, one.to(other.device) + (other if name[0] == "A" else -other), True
    if name == "WhereBackward0" and len(live) == 2:
        (first, one, _), (second, other, _) = (_linear(child, rows, ndim, in_sum=True) for child in inputs)
        condition = node._saved_condition
        if first == second and one is not None and other is not None and _is_by_sample(condition, rows, ndim):
            return first, torch.where(condition, one.to(condition.device), other.to(condition.device)), True
    return here


def _is_by_sample(operand: Tensor, rows: int, ndim: int) -> bool:
    """Whether an operand has numbers of its own for each sample."""
    if operand.ndim != ndim or rows < 2 or operand.numel() < rows:
        return False
    return operand.shape[0] == rows if ndim > 1 else operand.numel() % rows == 0


def _divided(value: Tensor | None, factor: Tensor | None, may_mask: bool) -> Tensor | None:
    """The head, unless some of it was masked; waits for the device."""
    if value is None or factor is None or not bool((factor != 0).all()):
        return None
    if may_mask and bool((factor == 1).all()):
        return None
    return (value / factor.to(value.device)).to(value.dtype)


def origin(edge: Edge, through_turns: bool = True) -> Edge:
    """The head below an edge: what it is but for its form (transposed, too), its dtype and a sigmoid or softmax."""
    node = edge[0]
    while node is not None and node.next_functions:
        name = node.name()
        passes = name in _ACTIVATIONS or name.startswith(_SAME_VALUES) or _undo(node) is not None
        if not passes or (name.startswith(_TURNING) and not through_turns):
            break
        edge = node.next_functions[0]
        node = edge[0]
    return edge


def nearest_parameters(edge: Edge) -> frozenset[int]:
    """Those that a head is made of in the fewest operations; they tell it from another head in another step."""
    nodes = [edge[0]]
    for _ in range(_WEIGHTS_NEAR):
        found = frozenset(id(node.variable) for node in nodes if hasattr(node, "variable"))
        if found:
            return found
        nodes = [child for node in nodes if node is not None for child, _ in node.next_functions]
    return frozenset()


def _target(node: Any, parent: Any, index: int, place: TermPlace) -> Tensor | None:
    """What a node compares its predictions with; ``parent`` reads it as its input number ``index``."""
    if node.name() in _DISTANCES and node.next_functions[0][0] is None:
        other: Tensor = node._saved_self.detach()
        return other
    if hasattr(node, "_saved_target"):
        target: Tensor = node._saved_target.detach()
        return target
    if node.name() not in (_LOG_SIGMOID, _LOG_SOFTMAX) or parent is None or parent.name() != "MulBackward0":
        return None
    if place.mirrors or place.negated:
        return None  # what the half of -z is multiplied with says where labels are not
    factor = parent._saved_self if index else parent._saved_other
    if not isinstance(factor, Tensor) or factor.requires_grad or not factor.ndim:
        return None
    # Weights are not negative: a minus before the targets belongs to the loss.
    return (factor.detach() * 1.0).abs()


def _shaped(
    target: Tensor, saved: Tensor, forms: Iterable[Callable[[Tensor], Tensor]], shape: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """The targets in the form of the predictions, or as class indices (rows,); nothing if they are of another shape."""
    if target.ndim == 1 and len(target) == shape[0] and not target.is_floating_point():
        return (target,)
    if target.shape != saved.shape:
        return ()
    for undo in forms:
        target = undo(target)
    return (target.reshape(shape),)


def _form(node: Any, output: int) -> Any:
    forms = node._input_metadata
    return forms[output] if output < len(forms) else None


def _input_names(node: Any) -> tuple[str, ...]:
    names = []
    for child, _ in node.next_functions:
        names.append("" if child is None else child.name())
    return tuple(names)
