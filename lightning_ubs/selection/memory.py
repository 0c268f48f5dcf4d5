"""How predictions are remembered, and whether processes divide them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_choice
from lightning_ubs.errors import SelectionError
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.state import Shard
from lightning_ubs.strategies import Strategy

Memory = Literal["replicated", "sharded"]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
}


def chosen_dtype(value: str | torch.dtype | None) -> torch.dtype:
    """How predictions are kept, in the user's words."""
    name = str(value or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"history_dtype={value!r} is unknown; use one of {sorted(_DTYPES)}.")
    return _DTYPES[name]


def reset(
    strategy: Strategy, num_samples: int, labels: Tensor | None, features: Tensor | None, dtype: torch.dtype
) -> None:
    """Prepare the strategy for a dataset; only where the user asked for another type must it take one."""
    if dtype == torch.float32:
        strategy.reset(num_samples, labels, features)
        return
    try:
        strategy.reset(num_samples, labels, features, history_dtype=dtype)
    except TypeError as error:
        raise SelectionError(
            f"{type(strategy).__name__}.reset takes no history_dtype, so {dtype} would be ignored; leave "
            "history_dtype out, or let its reset accept it."
        ) from error


def chosen_memory(memory: Memory, strategy: Strategy) -> Memory:
    """The user's word, which must be one that the strategy can follow."""
    check_choice("memory", memory, ("replicated", "sharded"))
    if memory == "sharded" and not strategy.keeps_shard:
        raise ValueError(
            f"memory='sharded' is not possible with {type(strategy).__name__}, which keeps all that it remembers on "
            "every process; let it keep only the rows of self.shard and set keeps_shard = True, or leave memory out."
        )
    return memory


def shard_of(memory: Memory, layout: BatchLayout, device: torch.device) -> Shard:
    """The samples whose rows this process keeps; ``device`` is where processes talk."""
    if memory == "replicated":
        return Shard(layout.num_samples)
    return Shard(layout.num_samples, layout.rank, layout.world_size, device)


def check_shard(strategy: Strategy, shard: Shard) -> None:
    """Refuse to go on with rows that were divided otherwise in the fit before."""
    if strategy.shard != shard:
        raise SelectionError(
            f"the fit before kept the samples of {strategy.shard.ids} on this process, this one keeps {shard.ids}, so "
            "rows would be missing; go on from a checkpoint, which has all of them."
        )
