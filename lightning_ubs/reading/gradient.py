"""Weighs the samples of a batch in the gradient, without touching the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.loss_graph import SEARCH_LIMIT, loss_nodes, predictions_of

_BY_HAND = (
    "pass unbiased=False, and weigh the loss of each sample in training_step by selection.importance_weights, the (b,) "
    "weights of the current batch"
)


class RowScaling:
    """Scales the gradient of each sample's predictions in a backward pass.

    The gradient is scaled where it arrives at the predictions that a cross-entropy of the loss reads, after all that
    is computed of these predictions was added up. So every term of the loss that reads the same predictions is scaled,
    be it a cross-entropy or not, and several heads are scaled each. What the loss has besides, such as a penalty on
    weights or a term of hidden layers, is not. No node is kept beyond the backward pass.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def start(self, loss: Tensor, weights: Tensor) -> None:
        """Scale the rows in the backward pass that follows.

        Args:
            loss: the loss, before its backward pass.
            weights: (b,) float64, on the CPU.
        """
        self.stop()
        outputs: dict[Any, set[int]] = {}
        for node, output in _heads(loss, len(weights)):
            outputs.setdefault(node, set()).add(output)
        _check_apart(list(outputs))
        self._handles = [node.register_prehook(_scaled(weights, taken)) for node, taken in outputs.items()]

    def stop(self) -> None:
        """The backward pass is over; another one through the same graph is scaled anew."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _heads(loss: Tensor, rows: int) -> list[tuple[Any, int]]:
    """(node, number of its output) of all predictions that the loss reads."""
    found = loss_nodes(loss, rows)
    unfitting = [name for _, name, fits in found if not fits]
    if unfitting:
        raise SelectionError(
            f"the loss has a term ({unfitting[0]}) without one row for each of the {rows} samples, so its gradient "
            f"cannot be weighed per sample; {_BY_HAND}."
        )
    if not found:
        raise SelectionError(
            "the graph of the loss has no binary or multi-class cross-entropy at which the gradient of each sample "
            f"could be weighed; {_BY_HAND}."
        )
    return [predictions_of(node) for node, *_ in found]


def _check_apart(heads: list[Any]) -> None:
    """Refuse predictions that are computed from other predictions, whose gradient would be scaled twice."""
    for head in heads[:] if len(heads) > 1 else []:
        seen, queue = {head}, [head]
        while queue and len(seen) < SEARCH_LIMIT:
            below = {child for child, _ in queue.pop().next_functions if child is not None} - seen
            if not below.isdisjoint(heads):
                raise SelectionError(
                    "some of the predictions in the loss are computed from others, so that the gradient of a sample "
                    f"would be weighed twice; {_BY_HAND}."
                )
            seen |= below
            queue += below


def _scaled(weights: Tensor, outputs: set[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def scale(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            gradient if gradient is None or number not in outputs else _times(gradient, weights)
            for number, gradient in enumerate(gradients)
        )

    return scale


def _times(gradient: Tensor, weights: Tensor) -> Tensor:
    precise = torch.promote_types(gradient.dtype, torch.float32)
    factor = weights.to(precise).to(gradient.device, non_blocking=True)
    return (gradient * factor.view(-1, *[1] * (gradient.ndim - 1))).to(gradient.dtype)
