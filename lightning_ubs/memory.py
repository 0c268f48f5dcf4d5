"""Whether processes divide what is remembered among them."""

from __future__ import annotations

from typing import Literal

import torch

from lightning_ubs._checks import check_choice
from lightning_ubs.errors import SelectionError
from lightning_ubs.sampling import BatchLayout
from lightning_ubs.state import Shard
from lightning_ubs.strategies import Strategy

Memory = Literal["replicated", "sharded"]


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
