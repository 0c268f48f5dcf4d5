"""The true labels of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs.errors import SelectionError

Targets = str | Callable[[LightningModule, Any, Any], Tensor] | None

LabelsOf = Callable[[Tensor], Tensor | None]

LABEL_NAMES = ("labels", "label", "targets", "target", "y", "Y", "multi_hot")


def shown_attributes(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Attributes and properties of these names, but for those that raise when they are read."""
    shown = {}
    for name in names:
        with suppress(Exception):
            shown[name] = getattr(value, name)
    return shown


def named_targets(source: Targets, module: LightningModule, outputs: Any, batch: Any) -> Tensor | None:
    """True labels from where a user said that they are: a key of what is returned or of the batch, or a function."""
    if callable(source):
        found: Any = source(module, outputs, batch)
    else:
        places = [place for place in (outputs, batch) if isinstance(place, Mapping) and source in place]
        found = places[0][source] if places else None
    return found.detach() if isinstance(found, Tensor) else None


def batch_targets(batch: Any, shape: tuple[int, ...] | None = None) -> Tensor | None:
    """True labels where batches usually have them: under a usual name, or second in a pair.

    With a ``shape``, also the only tensor of a longer tuple that has it.

    >>> batch_targets({"x": torch.zeros(2, 5), "label": torch.ones(2, 3)}).shape
    torch.Size([2, 3])
    >>> batch_targets((torch.arange(2), torch.zeros(2, 5), torch.ones(2, 3)), (2, 3)).shape
    torch.Size([2, 3])
    """
    if isinstance(batch, Mapping):
        values = [batch[name] for name in LABEL_NAMES if name in batch]
    elif isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        values = list(batch[1:2]) if len(batch) == 2 else list(batch) if shape is not None else []
    else:
        values = list(shown_attributes(batch, LABEL_NAMES).values())
    tensors = [value for value in values if isinstance(value, Tensor)]
    if shape is not None:
        tensors = [value for value in tensors if tuple(value.shape) == shape]
        if isinstance(batch, list | tuple) and not hasattr(batch, "_fields") and len(tensors) > 1:
            return None
    return tensors[0].detach() if tensors else None


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
    if values.dtype is torch.bool or (values.ndim == 1 and not values.is_floating_point()):
        return True
    return bool(((values == 0) | (values == 1) | (values == -1) | (values != values)).all())


def in_shape(found: Tensor | None, predictions: Tensor) -> Tensor:
    """True labels as float32 of the shape of the predictions (b, q); class indices become one-hot rows."""
    if found is not None and found.shape == predictions.shape:
        return found.detach().float()
    rows, labels = predictions.shape
    if found is not None and found.numel() == rows and labels == 1:
        return found.detach().float().reshape(rows, 1)
    if found is not None and found.shape == (rows,) and not found.is_floating_point():
        # Unlike one_hot, this neither waits for the device nor minds an index that stands for "ignore".
        return (found.detach().unsqueeze(1) == torch.arange(labels, device=found.device)).float()
    seen = f"a tensor of shape {list(found.shape)}" if found is not None else "none"
    raise SelectionError(
        f"the strategy needs the batch's true labels of shape {list(predictions.shape)}, but found {seen}; pass "
        "targets= (a key of the batch, or a function (pl_module, outputs, batch) -> Tensor)."
    )
