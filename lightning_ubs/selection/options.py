"""What the arguments of the callback mean: what the user passed, or else the strategy's own values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import torch

from lightning_ubs._utils.checks import call_repr, check_choice, check_range, did_you_mean
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import check_replacement
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.state import Shard
from lightning_ubs.strategies import Strategy, TrainingSet

Memory = Literal["replicated", "sharded"]
SaveState = Literal["full", "selection", "weights"]
Unbiased = bool | Literal["annealed", "predictions"]
WARMUP = 5
"""Shuffled epochs before the first selected one (γ), where the user does not say and the training is long enough."""

# Ways of drawing in which sample i comes mP_i times on average.
_EXACT = ("systematic", "full")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
}


@dataclass(frozen=True, repr=False)
class EpochSize:
    """How many samples an epoch has, as a share of all that changes from epoch to epoch.

    The first epoch has the share ``start``, the last one before the whole ones at the end has ``end``. With
    :class:`Random`, a constant small share is RS2 (repeated sampling of random subsets), and a falling one is
    progressive data dropout by chance.

    Steps, progress bars, validation and ``trainer.estimated_stepping_batches`` follow the sizes.

    Args:
        start: Share of the samples in the first epoch, in (0, 1].
        end: Share in the last epoch that is not whole, in (0, 1].
        shape: How the share changes in between: ``"linear"``, ``"exponential"`` (by the same factor in each epoch) or
            ``"cosine"`` (slowly at both ends).
        full_last: How many epochs at the end are whole.

    >>> [EpochSize(1.0, 0.25).share(epoch, 5) for epoch in range(5)]
    [1.0, 0.75, 0.5, 0.25, 1.0]
    """

    start: float = 1.0
    end: float = 0.25
    shape: Literal["linear", "exponential", "cosine"] = "linear"
    full_last: int = 1

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, Real) and 0 < float(value) <= 1):
                raise ValueError(f"{name}={value!r} is out of range; it must be a share in (0, 1], such as 0.5.")
            object.__setattr__(self, name, float(value))
        check_choice("shape", self.shape, ("linear", "exponential", "cosine"))
        check_range("full_last", self.full_last, 0, whole=True)
        object.__setattr__(self, "full_last", int(self.full_last))

    def __repr__(self) -> str:
        return call_repr(self)

    def share(self, epoch: int, num_epochs: int) -> float:
        """The share of the samples in ``epoch`` of a training of ``num_epochs`` epochs."""
        last = num_epochs - 1 - self.full_last
        if epoch > last:
            return 1.0
        progress = epoch / last if last > 0 else 0.0
        if self.shape == "exponential":
            return float(self.start * (self.end / self.start) ** progress)
        if self.shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.start + (self.end - self.start) * progress

    def samples(self, epoch: int, num_epochs: int, num_samples: int) -> int:
        """How many of ``num_samples`` samples ``epoch`` has, at least 1."""
        return max(1, round(self.share(epoch, num_epochs) * num_samples))


Size = float | int | EpochSize | None


def default_warmup(num_epochs: int) -> int:
    """The warm-up where the user does not say: 5 epochs, at most half of the training, and at least 1.

    >>> [default_warmup(epochs) for epochs in (100, 10, 9, 5, 2, 1)]
    [5, 5, 4, 2, 1, 1]
    """
    return min(WARMUP, max(1, num_epochs // 2))


def chosen_replacement(given: Replacement | None, strategy: Strategy) -> Replacement:
    """How samples are drawn; ``"systematic"`` where neither the user nor the strategy says."""
    own = strategy.default_replacement
    replacement: Replacement = given or own or "systematic"
    check_replacement(replacement)
    if own is not None and replacement not in _EXACT:
        raise ValueError(
            f"replacement={replacement!r} does not go with {type(strategy).__name__}, which needs each sample to come "
            "as often as P says; use replacement='systematic' or 'full', or leave it out."
        )
    return replacement


def chosen_unbiased(given: Unbiased | None, strategy: Strategy, replacement: Replacement) -> Unbiased:
    """How far gradients are reweighted against P."""
    unbiased = strategy.default_unbiased if given is None else given
    check_choice("unbiased", unbiased, (True, False, "annealed", "predictions"))
    if unbiased and replacement not in _EXACT:
        raise ValueError(
            f"unbiased={unbiased!r} needs each sample to come as often as P says, which replacement={replacement!r} "
            "does not keep exactly; use replacement='systematic' or 'full'."
        )
    return unbiased


def chosen_size(given: Size | Mapping[str, Any], strategy: Strategy) -> Size:
    """A share of the dataset (a float up to 1), a number of samples, or a schedule; None for all."""
    if isinstance(given, Mapping):
        known = inspect.signature(EpochSize).parameters
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            way_out = did_you_mean(str(unknown), known, f"a schedule takes {', '.join(known)}.")
            raise ValueError(f"epoch_size={dict(given)!r} has no key {unknown!r}; {way_out}")
        given = EpochSize(**given)
    if given is not None and strategy.decides_size:
        raise ValueError(
            f"epoch_size={given!r} does not go with {strategy!r}, which decides in each epoch how many samples are "
            "left; leave it out."
        )
    value = strategy.default_epoch_size if given is None else given
    if value is None or isinstance(value, EpochSize):
        return value
    check_range("epoch_size", value, 0)
    if value == 0 or (value > 1 and value % 1):
        raise ValueError(f"epoch_size={value!r} is out of range; use a share in (0, 1] or a whole number of samples.")
    return float(value) if value <= 1 else int(value)


def samples_per_epoch(size: Size, num_samples: int) -> int | None:
    """What a share or number of samples means for n samples; None where it is all of them, or at times.

    >>> samples_per_epoch(0.5, 42)
    21
    """
    if size is None or size == 1 or isinstance(size, EpochSize):
        return None
    if size > num_samples:
        raise SelectionError(
            f"epoch_size={size} is more than the {num_samples} training samples; use at most {num_samples}, or a share "
            "in (0, 1]."
        )
    return max(1, round(size * num_samples)) if isinstance(size, float) else size


def check_sizes(size: EpochSize, num_epochs: int, layout: BatchLayout) -> None:
    """Refuse a schedule in which an epoch would have no batch."""
    for epoch in range(num_epochs):
        samples = size.samples(epoch, num_epochs, layout.num_samples)
        if replace(layout, epoch_samples=samples).num_batches == 0:
            raise SelectionError(
                f"with {size!r}, epoch {epoch} has {samples} samples and no whole batch of {layout.global_batch_size}, "
                "and drop_last=True drops the rest; use larger shares, smaller batches, or drop_last=False."
            )


def chosen_dtype(value: str | torch.dtype | None) -> torch.dtype:
    """How predictions are kept, in the user's words."""
    name = str(value or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"history_dtype={value!r} is unknown; use one of {sorted(_DTYPES)}.")
    return _DTYPES[name]


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
    """The samples whose rows this rank keeps; ``device`` is where processes talk."""
    if memory == "replicated":
        return Shard(layout.num_samples)
    return Shard(layout.num_samples, layout.rank, layout.world_size, device)


def check_shard(strategy: Strategy, shard: Shard) -> None:
    """Refuse to continue with rows that the previous fit divided otherwise."""
    if strategy.shard != shard:
        raise SelectionError(
            f"the previous fit kept the samples of {strategy.shard.ids} on this rank, this one keeps {shard.ids}, so "
            "rows would be missing; resume from a checkpoint, which has all of them."
        )


def prepare_strategy(strategy: Strategy, data: TrainingSet) -> None:
    """Prepare the strategy for a training set; an error of its own reaches the user as it is.

    Raises:
        SelectionError: Its ``reset`` takes the samples one by one, as in release 0.1.0.
    """
    if "num_samples" in inspect.signature(strategy.reset).parameters:
        name = type(strategy).__name__
        raise SelectionError(
            f"{name}.reset takes num_samples, but it is called with one TrainingSet; write reset(self, data), call "
            "super().reset(data), and read data.num_samples, data.labels and data.features."
        )
    strategy.reset(data)


def chosen_end(end_epoch: int | float | None, start_epoch: int) -> int | float | None:
    """The end of the schedule: an epoch, or (a float up to 1) a share of all epochs.

    >>> chosen_end(0.5, 5), chosen_end(7, 5)
    (0.5, 7)
    """
    if end_epoch is None or (isinstance(end_epoch, float) and 0 < end_epoch <= 1):
        return end_epoch
    if isinstance(end_epoch, float) and end_epoch < 1:
        raise ValueError(f"end_epoch={end_epoch!r} is out of range; use an epoch, or a share of all epochs in (0, 1].")
    check_range("end_epoch", end_epoch, start_epoch, whole=True)
    return int(end_epoch)
