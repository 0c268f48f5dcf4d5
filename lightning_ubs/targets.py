"""Finding the true labels of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from lightning_ubs.errors import SelectionError

Targets = str | Callable[[LightningModule, Any, Any], Tensor] | None


def read_targets(source: Targets, module: LightningModule, outputs: Any, batch: Any, shape: list[int]) -> Tensor:
    """True labels of a step, from where ``source`` says: a key, a function, or None for the usual places."""
    found: Any
    if callable(source):
        found = source(module, outputs, batch)
    elif isinstance(source, str):
        places = [place for place in (outputs, batch) if isinstance(place, Mapping) and source in place]
        found = places[0][source] if places else None
    else:
        found = default_targets(batch)
    if not isinstance(found, Tensor) or list(found.shape) != shape:
        seen = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else "none"
        raise SelectionError(
            f"the strategy needs the batch's true labels of shape {shape}, but found {seen}; pass targets= (a key of "
            "the batch, or a function (pl_module, outputs, batch) -> Tensor)."
        )
    return found.detach().float()


def default_targets(batch: Any) -> Tensor | None:
    """True labels of a batch: ``batch[1]``, or ``batch["labels"]``, ``["y"]``, ``["target"]``."""
    if isinstance(batch, Mapping):
        found = next((batch[key] for key in ("labels", "y", "target", "targets") if key in batch), None)
    else:
        found = batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None
    return found if isinstance(found, Tensor) else None
