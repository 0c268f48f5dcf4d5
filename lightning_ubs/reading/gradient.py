"""Reweight the samples of a batch in the gradient, without touching the module, and prove that nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.loss_graph import SEARCH_LIMIT

# A node of the autograd graph and the number of its output: a tensor of the forward pass.
Edge = tuple[Any, int]

_BY_HAND = (
    "pass unbiased=False, and weigh the loss of each sample in training_step by selection.importance_weights, the (b,) "
    "weights of the current batch"
)
# A share of the gradient below this is rounding.
_NOTHING = 1e-5
# So many first steps of a fit are proven, besides the first of each epoch.
_PROVEN_STEPS = 3
# Nodes of a term that are looked at to see what it is made of.
_NODES_OF_A_TERM = 24

_ACCUMULATE = "torch::autograd::AccumulateGrad"


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


# One row in, the same row out: elementwise operations, and losses without a reduction.
_ELEMENTWISE = _names(
    "Abs Add Addcdiv Addcmul BinaryCrossEntropy BinaryCrossEntropyWithLogits Clamp ClampMax ClampMin Cos Div Elu Erf "
    "Exp Expm1 FusedDropout Gelu Hardsigmoid Hardtanh HuberLoss KlDiv LeakyRelu Lerp Log Log10 Log1P Log2 LogSigmoid "
    "LogSigmoidBackward Logit Maximum Minimum MaskedFill MseLoss Mul NanToNum NativeDropout Neg Pow Reciprocal Relu "
    "Rsqrt Rsub Sigmoid SigmoidBackward Silu Sin SmoothL1Loss SoftMarginLoss Softplus SoftplusBackward Sqrt Sub Tanh "
    "TanhBackward Threshold ThresholdBackward Where Xlogy"
)
# These change the form of a tensor; where its first axis is as long as before, it is the same axis.
_FORMS = _names("Alias Clone Contiguous Expand NllLoss ReshapeAlias Slice Squeeze ToCopy UnsafeView Unsqueeze View")
# These keep the rows if they work along other axes than the first.
_ALONG_AXES = _names("Amax Amin LogSoftmax Logsumexp Mean Prod Select Softmax Sum Transpose")
# Whatever comes out of these has rows of another kind or order, even if their number is the same.
_MIXING = _names(
    "AsStrided Cat Cummax Cumprod Cumsum Diagonal Flip Gather Index IndexAdd IndexPut IndexSelect LinalgVectorNorm "
    "MaskedScatter MaskedSelect Max Median Min Norm Permute Put Repeat Roll Scatter ScatterAdd Sort Split "
    "SplitWithSizes Stack Std T Take TakeAlongDim Topk Unbind Unfold Var"
)
# What these take out of a parameter is told by the samples.
_LOOKUPS = _names("Embedding EmbeddingBag Gather Index IndexSelect Take TakeAlongDim")
_PRODUCTS = _names("Mm Bmm Addmm Mv Dot")
_TURNED = _names("T Transpose Permute")
# The gradient that leaves these does not depend on what went in.
_LINEAR = (_FORMS - {"NllLoss"}) | _names("Add Cat Mean Neg Rsub Stack Sub Sum")


class RowScaling:
    """Scaling of each sample's gradient in a backward pass, as if its own loss counted so much.

    The terms of a loss are followed from the loss down to the tensors that have a row for each sample: losses of
    samples, probabilities, predictions. The gradient is scaled row by row where it enters these, once on each way. So
    every term of the loss is scaled whatever it is computed by, parameters that join on the way included. Terms of
    parameters alone, such as a penalty on weights, depend on no sample and are not scaled.

    The gradient of other parameters could arrive beside the rows, as where two crops of a sample are predicted in
    one (2b, q) tensor. Whether there is such a way is known from the graph, in every step and without a computation;
    in the first steps of a fit and the first of each epoch, the share that would be left with all weights zero is then
    measured, and refused. No node is kept beyond the backward pass.

    Args:
        accepts_rest: Leave as it is what has no row per sample, instead of refusing it.
    """

    def __init__(self, accepts_rest: bool = False) -> None:
        self._accepts_rest = accepts_rest
        self._handles: list[Any] = []
        self._fit_steps = self._epoch_steps = 0

    def begin_fit(self) -> None:
        """Prove the first steps anew."""
        self._fit_steps = self._epoch_steps = 0

    def begin_epoch(self) -> None:
        """Prove the first step of the epoch."""
        self._epoch_steps = 0

    def start(self, loss: Tensor, weights: Tensor, head: Edge | None = None) -> None:
        """Scale the rows in the backward pass that follows.

        Args:
            loss: The loss, before its backward pass.
            weights: (b,) float64, on the CPU.
            head: (node, number of its output) of predictions that are known to have a row per sample.
        """
        self.stop()
        cut = _Cut(loss, len(weights), head)
        if self._epoch_steps == 0 or self._fit_steps < _PROVEN_STEPS:
            self._prove(loss, cut)
        self._fit_steps += 1
        self._epoch_steps += 1
        self._handles = cut.hook(lambda gradient: _times(gradient, weights))

    def stop(self) -> None:
        """Stop scaling at the end of a backward pass; another one through the same graph is scaled anew."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _prove(self, loss: Tensor, cut: _Cut) -> None:
        """Refuse a loss of whose gradient a part would not be scaled, or scaled twice."""
        if not cut.edges and cut.beside:
            raise SelectionError(
                f"nothing that the loss is computed of has one row for each of the {cut.rows} samples (there is "
                f"{cut.seen}), so its gradient cannot be weighed per sample; {_BY_HAND}."
            )
        if cut.scales_twice():
            raise SelectionError(
                "a term of the loss reads parts of what the predictions are computed from without one row for each of "
                f"the {cut.rows} samples, so that their gradient would be weighed twice; {_BY_HAND}."
            )
        if self._accepts_rest or not cut.beside:
            return
        share = _share_left(loss, cut)
        if share is None or share > _NOTHING:
            part = "a part" if share is None else f"{100 * share:.2g} %"
            raise SelectionError(
                f"{part} of the gradient does not pass through the predictions: it comes from a term of the loss "
                f"without one row for each of the {cut.rows} samples ({cut.seen}), so it cannot be weighed per sample; "
                f'pass unbiased="predictions" to weigh the rest and leave it as it is, or {_BY_HAND}.'
            )


class _Cut:
    """Where rows are scaled: every way from the loss that leads to a sample crosses it exactly once.

    Args:
        loss: The loss, whose graph is walked down to the first tensors with a row per sample.
        rows: Number of rows b.
        head: A tensor that is known to have them.

    Attributes:
        edges: Node → which of its inputs have a row per sample; None for the loss itself.
        beside: Whether a parameter is reached without crossing the cut, by a term that depends on samples.
        seen: What is on such a way, in words.
    """

    def __init__(self, loss: Tensor, rows: int, head: Edge | None) -> None:
        self.rows, self._head = rows, head
        self._has_rows: dict[Edge, bool] = {}
        self.edges: dict[Any, set[int]] = {}
        self.beside = False
        self.seen = ""
        self._root = loss.grad_fn
        self._scales_loss = self._root is not None and self.has_rows((self._root, 0))
        if not self._scales_loss:
            self._walk()

    def hook(self, scale: Callable[[Tensor], Tensor]) -> list[Any]:
        """Let ``scale`` change the gradients that cross the cut, until the handles are removed."""

        def scaled(taken: set[int]) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]:
            return lambda inputs, _: tuple(
                scale(gradient) if number in taken and gradient is not None else gradient
                for number, gradient in enumerate(inputs)
            )

        if self._scales_loss:
            assert self._root is not None
            return [self._root.register_prehook(lambda outputs: tuple(scale(gradient) for gradient in outputs))]
        return [node.register_hook(scaled(taken)) for node, taken in self.edges.items()]

    def scales_twice(self) -> bool:
        """Whether some way from the loss crosses the cut twice; walks the whole graph."""
        starts = [node.next_functions[number][0] for node, taken in self.edges.items() for number in taken]
        return any(node in self.edges for node in _below(starts))

    def _walk(self) -> None:
        """Follow all ways from the loss to the cut."""
        # A way is direct as long as what leaves its nodes does not depend on samples. It shows its first tensor that
        # is no scalar.
        queue: list[tuple[Any, bool, str]] = [(self._root, True, "")]
        visited: dict[Any, bool] = {}
        while queue and len(visited) < SEARCH_LIMIT:
            node, direct, shown = queue.pop()
            if node is None or (node in visited and (direct or not visited[node])):
                continue
            visited[node] = direct
            for number, edge in enumerate(node.next_functions):
                if edge[0] is None:
                    continue
                if self.has_rows(edge):
                    self.edges.setdefault(node, set()).add(number)
                    continue
                constant = direct and self._is_constant(node, number)
                if not _is_of_parameters(edge[0]):
                    queue.append((edge[0], constant, shown or (_named(edge) if _shape(edge) else "")))
                elif not constant:
                    self.beside = True
                    self.seen = self.seen or shown or f"{_kind(node)} of scalars"
        if len(visited) >= SEARCH_LIMIT:
            self.beside, self.seen = True, self.seen or f"more than {SEARCH_LIMIT} operations"

    def _is_constant(self, node: Any, number: int) -> bool:
        """Whether the gradient of an input depends on no sample, if that of the output does not."""
        kind = _kind(node)
        if kind in _LINEAR:
            return True
        others = [child for k, (child, _) in enumerate(node.next_functions) if k != number and child is not None]
        return kind in ("Mul", "Div") and all(_is_of_parameters(other) for other in others)

    def has_rows(self, edge: Edge) -> bool:
        """Whether a tensor has a row per sample, in their order: of the right length, and of nothing that denies it."""
        stack = [edge]
        while stack:
            current = stack[-1]
            if current not in self._has_rows:
                missing = [below for below in self._decisive(current) if below not in self._has_rows]
                if missing:
                    stack += missing
                    continue
                self._has_rows[current] = self._judged(current)
            stack.pop()
        return self._has_rows[edge]

    def _decisive(self, edge: Edge) -> list[Edge]:
        """The inputs on which it depends whether a tensor has rows."""
        node = edge[0]
        if not self._fits(edge) or edge == self._head or _kind(node) not in _ELEMENTWISE | _FORMS | _ALONG_AXES:
            return []
        return [below for below in node.next_functions if below[0] is not None and self._fits(below)]

    def _judged(self, edge: Edge) -> bool:
        if not self._fits(edge):
            return False
        if edge == self._head:
            return True
        node, kind = edge[0], _kind(edge[0])
        if _is_of_parameters(node):
            return False
        fitting = [below for below in node.next_functions if below[0] is not None and self._fits(below)]
        fitting = [below for below in fitting if not _is_of_parameters(below[0])]
        if not fitting:
            return not (_is_turned_product(node) or self._joins_terms(node))
        if kind in _MIXING or _is_turned_product(node) or not self._keeps_rows(edge, fitting):
            return False
        return all(self._has_rows.get(below, True) for below in fitting)

    def _joins_terms(self, node: Any) -> bool:
        """Whether scalars are put together that are computed of the same rows, such as the losses of the labels."""
        pieces = [edge for edge in node.next_functions if edge[0] is not None]
        if _kind(node) not in ("Stack", "Cat") or len(pieces) < 2 or _shape(pieces[0]) not in ((), (1,)):
            return False
        first, second = (
            {edge for below in islice(_below([piece[0]]), _NODES_OF_A_TERM) for edge in below.next_functions}
            for piece in pieces[:2]
        )
        return any(self._fits(edge) and not _is_of_parameters(edge[0]) for edge in first & second if edge[0])

    def _keeps_rows(self, edge: Edge, fitting: list[Edge]) -> bool:
        kind, axes = _kind(edge[0]), len(_shape(edge))
        if kind in _ELEMENTWISE or kind == "Expand":
            return all(len(_shape(below)) == axes for below in fitting)
        if kind in _ALONG_AXES:
            return _works_along_others(edge[0], len(_shape(fitting[0])))
        return True

    def _fits(self, edge: Edge) -> bool:
        shape = _shape(edge)
        return len(shape) > 0 and shape[0] == self.rows and edge[0].name() != _ACCUMULATE


def _share_left(loss: Tensor, cut: _Cut) -> float | None:
    """How much of the gradient's norm would be left with all weights zero; None where it cannot be measured."""
    parameters = [node.variable for node in _below([loss.grad_fn]) if _is_parameter(node)]

    def norm() -> Tensor:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        sums = [gradient.detach().double().square().sum().cpu() for gradient in gradients if gradient is not None]
        return torch.stack(sums).sum().sqrt()

    try:
        handles = cut.hook(torch.zeros_like)
        try:
            left = norm()
        finally:
            for handle in handles:
                handle.remove()
        share = float(left / norm()) if left > 0 else 0.0
    except RuntimeError:
        # Compiled modules and re-entrant checkpoints allow one backward pass only.
        return None
    # Loss scales that overflow say nothing; the next steps are measured as well.
    return share if share == share else 0.0


def _below(nodes: list[Any]) -> Iterator[Any]:
    """All nodes of the graph at or below these."""
    seen = {node for node in nodes if node is not None}
    queue = list(seen)
    while queue:
        node = queue.pop()
        yield node
        below = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= below
        queue += below


def _kind(node: Any) -> str:
    """The operation: ``Mul`` for a MulBackward0."""
    name: str = node.name()
    return name.rpartition("Backward")[0] or name


def _shape(edge: Edge) -> tuple[int, ...]:
    metadata = edge[0]._input_metadata
    return tuple(metadata[edge[1]].shape) if edge[1] < len(metadata) else ()


def _named(edge: Edge) -> str:
    return f"{_kind(edge[0])} of {list(_shape(edge))}"


def _is_parameter(node: Any) -> bool:
    return node.name() == _ACCUMULATE and isinstance(node.variable, nn.Parameter)


def _is_of_parameters(node: Any) -> bool:
    """Whether a tensor follows from parameters alone, as a penalty on weights does."""
    queue, seen = [node], {node}
    while queue:
        current = queue.pop()
        if current.name() == _ACCUMULATE:
            if not _is_parameter(current):
                return False
            continue
        below = {child for child, _ in current.next_functions if child is not None}
        # What comes in beside is a number or a mask if the form stays, else data.
        beside = len(current.next_functions) > 1 and any(child is None for child, _ in current.next_functions)
        if not below or _kind(current) in _LOOKUPS or (beside and not _keeps_form(current)):
            return False
        queue += below - seen
        seen |= below
        if len(seen) > _NODES_OF_A_TERM:
            return False
    return True


def _keeps_form(node: Any) -> bool:
    shape = _shape((node, 0))
    return _kind(node) in _ELEMENTWISE and any(_shape(e) == shape for e in node.next_functions if e[0] is not None)


def _is_turned_product(node: Any) -> bool:
    """Whether the rows of a product are the columns of what is multiplied, as in z.T @ z."""
    if _kind(node) not in _PRODUCTS:
        return False
    left = node.next_functions[1 if _kind(node) == "Addmm" else 0][0]
    return left is not None and _kind(left) in _TURNED


def _works_along_others(node: Any, axes: int) -> bool:
    """Whether an operation along axes leaves the first one alone."""
    along = (node._saved_dim0, node._saved_dim1) if _kind(node) == "Transpose" else getattr(node, "_saved_dim", None)
    if along is None:
        return False
    along = along if isinstance(along, tuple | list) else (along,)
    # A negative axis is saved as an unsigned number.
    along = {axis - 2**64 if axis >= 2**63 else axis for axis in along}
    return bool(along) and along.isdisjoint({0, -axes})


def _times(gradient: Tensor, weights: Tensor) -> Tensor:
    precise = torch.promote_types(gradient.dtype, torch.float32)
    factor = weights.to(precise).to(gradient.device, non_blocking=True)
    return (gradient * factor.view(-1, *[1] * (gradient.ndim - 1))).to(gradient.dtype)
