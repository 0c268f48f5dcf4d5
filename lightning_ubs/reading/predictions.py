"""What a tensor of predictions holds, how it becomes one row per sample, and how it becomes probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError

# Rounding may carry a probability this far out of [0, 1].
TOLERANCE = 1e-4


class Kind(StrEnum):
    """What predictions hold."""

    LOGITS = "logits"  # one sigmoid per label
    PROBS = "probs"
    SOFTMAX = "softmax"  # logits or log-probabilities of exclusive classes
    LOG_PROBS = "log_probs"  # logarithms of one probability per label


# Autograd nodes that change neither the values nor what they mean, and those that tell it.
TRANSPARENT = frozenset(
    f"{name}Backward{i}"
    for name in ("ToCopy", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "Alias", "T")
    for i in range(3)
)
_TELLING = {
    "Sigmoid": Kind.PROBS,
    "Softmax": Kind.PROBS,
    "LogSoftmax": Kind.SOFTMAX,
    "LogSigmoid": Kind.LOG_PROBS,
    "Log": Kind.LOG_PROBS,
    "Addmm": Kind.LOGITS,
    "Mm": Kind.LOGITS,
    "Linear": Kind.LOGITS,
    "Convolution": Kind.LOGITS,
    "Bmm": Kind.LOGITS,
}

_PRODUCTS = ("Mm", "Bmm", "Addmm")


def check_kind(value: str | None) -> Kind | None:
    """The kind that a user named; None leaves it to be found out."""
    if value is None:
        return None
    try:
        return Kind(value)
    except ValueError:
        names = ", ".join(repr(str(kind)) for kind in Kind)
        raise ValueError(f"kind={value!r} is unknown; use one of {names}, or None to find it out.") from None


def kind_by_origin(tensor: Tensor) -> Kind | None:
    """What the last operation says: the result of a sigmoid is a probability, that of a linear layer is not."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name()
        if name.startswith(_PRODUCTS) and _is_of_probabilities(node):
            return None
        if (kind := _TELLING.get(name.partition("Backward")[0])) is not None:
            return kind
        if name not in TRANSPARENT or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return None


def _is_of_probabilities(product: Any) -> bool:
    """Whether what is multiplied comes out of a sigmoid or softmax, so that the product may hold probabilities."""
    nodes = [child for child, _ in product.next_functions]
    for _ in range(8):
        if any(node is not None and node.name().startswith(("Sigmoid", "Softmax")) for node in nodes):
            return True
        nodes = [node.next_functions[0][0] for node in nodes if node is not None and len(node.next_functions) == 1]
    return False


def kind_by_values(raw: Tensor, where: str) -> Kind:
    """What a first batch of predictions (b, q) looks like; waits for the device.

    Values that leave [0, 1] on both sides are logits, values inside are probabilities. What both could be, a constant
    or values that are all negative, is refused.

    >>> kind_by_values(torch.tensor([[-1.0, 2.0]]), "here")
    <Kind.LOGITS: 'logits'>
    """
    values = raw[raw.isfinite()]
    low, high = (float(value) for value in values.aminmax()) if len(values) else (0.0, 0.0)
    if low == high:
        seen = f"hold nothing but {low:g}"
    elif low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return Kind.PROBS
    elif high <= 0:
        seen = f"are all between {low:g} and {high:g}, which logits and log-probabilities may be,"
    else:
        return Kind.LOGITS
    raise SelectionError(
        f"the predictions in {where} {seen} in the first batch, so their kind is ambiguous; pass kind='logits', "
        "'probs', 'softmax' or 'log_probs'."
    )


def as_rows(tensor: Tensor, rows: int) -> Tensor | None:
    """The tensor as (rows, q); None if it is no floating-point matrix with a row per sample.

    ``[rows]`` is one label, and axes of length one are dropped.

    >>> as_rows(torch.zeros(4, 3, 1), 4).shape, as_rows(torch.zeros(4), 4).shape, as_rows(torch.zeros(12), 4)
    (torch.Size([4, 3]), torch.Size([4, 1]), None)
    """
    if not tensor.is_floating_point() or tensor.ndim == 0 or tensor.shape[0] != rows:
        return None
    if tensor.ndim == 2:
        return tensor
    wide = [size for size in tensor.shape[1:] if size != 1]
    return None if len(wide) > 1 else tensor.reshape(rows, wide[0] if wide else 1)


def to_probabilities(raw: Tensor, kind: Kind, sizes: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Probabilities (rows, q), and which rows (rows,) can be used; the others hold some number in [0, 1].

    Nothing here waits for the device.

    Args:
        raw: (rows, q) predictions of one batch, or of several one behind the other.
        kind: What they hold.
        sizes: Rows of each batch. The last bits of a sigmoid depend on where its values lie among others, so they
            are taken batch by batch: which batches come together then changes no bit.

    >>> to_probabilities(torch.tensor([[0.0, 0.0], [torch.nan, 0.0]]), Kind.LOGITS)
    (tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]]), tensor([ True, False]))
    """
    if kind is Kind.LOGITS:
        # Zero times anything finite is zero, else it is not a number: fewer kernels than to ask each value.
        return _by_batch(torch.sigmoid, raw, sizes).nan_to_num_(nan=0.5), raw.mul(0).sum(1) == 0
    if kind is Kind.SOFTMAX:
        # The logarithm of a vanished probability is no fault, as long as some class has one.
        probs = _by_batch(partial(torch.softmax, dim=1), raw, sizes).nan_to_num_(nan=0.5)
        return probs, (raw < torch.inf).all(1) & raw.isfinite().any(1)
    probs = raw if kind is Kind.PROBS else _by_batch(torch.exp, raw, sizes)
    low, high = probs.aminmax(dim=1)
    usable = (low >= -TOLERANCE) & (high <= 1 + TOLERANCE)
    return probs.nan_to_num(nan=0.5).clamp(0, 1), usable


def _by_batch(function: Callable[[Tensor], Tensor], raw: Tensor, sizes: Sequence[int] | None) -> Tensor:
    if sizes is None or len(sizes) == 1:
        return function(raw)
    return torch.cat([function(batch) for batch in torch.split(raw, list(sizes))])


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
        kind: What the predictions hold.
        device: Where predictions are wanted; None leaves them where they are.
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
    seen = []
    for kind, alike in groupby(readings, key=lambda one: one.kind):
        raws = [one.raw for one in alike]
        seen.append(to_probabilities(_joined(raws).to(device), kind, [len(raw) for raw in raws]))
    probs, usable = (_joined(parts) for parts in zip(*seen, strict=True))
    known = [one.targets for one in readings if one.targets is not None]
    return Observation(probs, usable, _joined(known).to(device) if len(known) == len(readings) else None)


def _joined(batches: Sequence[Tensor]) -> Tensor:
    return batches[0] if len(batches) == 1 else torch.cat(list(batches))
