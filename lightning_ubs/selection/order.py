"""Epochs in which blocks of neighboring samples come together, for data that lie in chunks, shards or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from lightning_ubs._utils.checks import call_repr, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.blocks import BlockedEpoch, Integers
from lightning_ubs.functional.drawing import Replacement, epoch_generator
from lightning_ubs.selection.plan import BatchLayout, EpochPlan
from lightning_ubs.strategies import ActiveBias, InfoBatch, Random, Strategy

_SIZE = 4096


class Blocks:
    """The order of an epoch on data that lie in blocks: chunks, shards, row groups, record batches, files.

    Blocks come in random order, ``window`` of them are open at a time, and samples are shuffled inside the window. How
    often a sample comes is what systematic drawing says, decided in its block; copies of a sample are spread over its
    window. Warm-up epochs take the same order. The plan of an epoch is made window by window, so that its memory does
    not grow with the epoch, and a resume in mid-epoch makes no window but those that it reads.

    Args:
        size: Samples per block, where blocks are equally long. Defaults to the bounds that the dataset shows (its
            ``block_bounds``, the record batches of a Hugging Face dataset, the chunks of an HDF5 or Zarr array), or to
            4,096.
        window: Blocks that are open at a time.
        bounds: Where blocks begin, ascending from 0, and as the last number n.
        per_rank: Whether each rank reads blocks of its own, so that a block is fetched by one rank alone, but for the
            window at the border of two ranks. The samples of a step are then others than with one process. By default
            all ranks share the window, and select what one process would.

    >>> Blocks(bounds=[0, 100, 150], window=1)
    Blocks(window=1, bounds=[0, 100, 150])
    """

    def __init__(
        self,
        size: int | None = None,
        window: int = 16,
        bounds: Sequence[int] | npt.NDArray[Any] | Tensor | None = None,
        per_rank: bool = False,
    ) -> None:
        if size is not None and bounds is not None:
            raise ValueError(f"size={size!r} and bounds= both say where blocks begin; pass one of them.")
        if size is not None:
            check_range("size", size, 1, whole=True)
        check_range("window", window, 1, whole=True)
        if not isinstance(per_rank, bool):
            raise ValueError(f"per_rank={per_rank!r} is not a truth value; use True or False.")
        self.size = None if size is None else int(size)
        self.window = int(window)
        self.bounds = bounds
        self.per_rank = per_rank
        if bounds is not None:
            checked_bounds(bounds, None)

    def __repr__(self) -> str:
        return call_repr(self)

    def bounds_of(self, dataset: Any) -> Integers:
        """Where the blocks of a dataset begin, and n: (blocks + 1,) int64."""
        n = len(dataset)
        if self.bounds is not None:
            return checked_bounds(self.bounds, n)
        shown = None if self.size is not None else shown_bounds(dataset)
        if shown is not None:
            return checked_bounds(shown, n)
        return np.append(np.arange(0, n, self.size or _SIZE, dtype=np.int64), n)


class BlockOrder:
    """Maker of the plans of epochs in block order.

    Args:
        blocks: What the user said.
        dataset: The dataset whose blocks they are.
    """

    def __init__(self, blocks: Blocks, dataset: Any) -> None:
        self.blocks = blocks
        self.bounds = blocks.bounds_of(dataset)

    def __str__(self) -> str:
        """What a checkpoint says of the order, to be compared on resume."""
        sizes = np.diff(self.bounds)
        # Weighed by place, so that the same blocks in another order are told apart.
        check = int((sizes * (np.arange(len(sizes)) % 8191 + 1)).sum() % (2**31 - 1))
        return f"Blocks(window={self.blocks.window}, per_rank={self.blocks.per_rank}, {len(sizes)} blocks, sum {check})"

    def plan(
        self,
        epoch: int,
        seed: int,
        layout: BatchLayout,
        probabilities: Tensor | None,
        fill: bool,
        first: int | None = None,
    ) -> BlockPlan:
        """The plan of a selected epoch, or of a plain one where ``probabilities`` is None.

        Plain epochs are shuffled passes, or where epochs are shorter, parts of passes that follow each other; ``first``
        is where this one begins in them, where epochs are not equally long.
        """
        if probabilities is not None:
            count = layout.full_draws if fill else layout.num_draws
            return BlockPlan(
                epoch, layout, [self._epoch(probabilities, seed, epoch, layout, count)], 0, count, self.blocks.per_rank
            )
        n, count = layout.num_samples, layout.num_draws
        if first is None:
            first = epoch * (n if layout.epoch_samples is None else count)
        numbers = range(first // n, (first + max(count, 1) - 1) // n + 1)
        passes = [self._epoch(None, seed, number, layout, n) for number in numbers]
        return BlockPlan(epoch, layout, passes, first % n, count, self.blocks.per_rank)

    def _epoch(self, probs: Tensor | None, seed: int, number: int, layout: BatchLayout, count: int) -> BlockedEpoch:
        size, kept = layout.global_batch_size, 4
        if self.blocks.per_rank:
            size, kept = max(1, size // layout.world_size), layout.world_size + 4
        key = epoch_generator(seed, number).initial_seed()
        return BlockedEpoch(probs, self.bounds, self.blocks.window, count, size, key, kept)


class BlockPlan(EpochPlan):
    """The plan of an epoch whose ids are made window by window, when they are asked for.

    Args:
        epoch: Number of the epoch.
        layout: How it is cut into batches.
        passes: What the ids are taken from, one behind the other.
        start: Place in the passes at which the epoch begins.
        num_draws: Samples in the epoch.
        per_rank: Whether each rank reads a stretch of its own.
    """

    def __init__(
        self,
        epoch: int,
        layout: BatchLayout,
        passes: Sequence[BlockedEpoch],
        start: int,
        num_draws: int,
        per_rank: bool = False,
    ) -> None:
        self.epoch = epoch
        self.layout = layout
        self._passes = passes
        self._start = start
        self._num_draws = num_draws
        self._per_rank = per_rank and layout.world_size > 1

    @property
    def ids(self) -> Tensor:  # type: ignore[override]
        """All ids of the epoch, in the order of its global batches; made anew each time, 8 bytes for each."""
        if not self._per_rank:
            return self._between(0, self._num_draws)
        return torch.cat([self.global_batch(batch) for batch in range(len(self))] or [self._between(0, 0)])

    @property
    def num_draws(self) -> int:
        """Samples in the epoch."""
        return self._num_draws

    def global_batch(self, batch: int) -> Tensor:
        """Ids of batch ``batch`` over all ranks."""
        batch = self._checked(batch)
        if self._per_rank:
            return torch.cat([self.rank_batch(batch, rank) for rank in range(self.layout.world_size)])
        first = batch * self.layout.global_batch_size
        return self._between(first, first + self.layout.global_batch_size)

    def rank_batch(self, batch: int, rank: int) -> Tensor:
        """Ids of batch ``batch`` on process ``rank``."""
        if not self._per_rank:
            return super().rank_batch(batch, rank)
        batch = self._checked(batch)
        # All batches but the last are of one size.
        before = sum(self._samples_of(other) for other in range(rank))
        first = before + batch * self._size(0, rank)
        return self._between(first, first + self._size(batch, rank))

    def rows(self, batch: int, count: int) -> Tensor:
        """The ids of the ``count`` samples from global batch ``batch`` on."""
        parts = []
        while count > 0:
            parts.append(self.global_batch(batch)[:count])
            batch, count = batch + 1, count - len(parts[-1])
        return torch.cat(parts) if parts else self._between(0, 0)

    def ids_of(self, batches: Tensor) -> Tensor:
        """Ids, over all ranks, of the batches where the (batches,) mask is true."""
        chosen = [self.global_batch(batch) for batch in batches.nonzero().flatten().tolist()]
        return torch.cat(chosen) if chosen else self._between(0, 0)

    def _checked(self, batch: int) -> int:
        count = len(self)
        if not -count <= batch < count:
            raise IndexError(f"batch {batch} is not in a plan of {count} batches.")
        return batch % count

    def _between(self, first: int, last: int) -> Tensor:
        """The ids at these places of the epoch; behind its end it begins again, for a rank that would go without."""
        if last > self._num_draws and first < last and self._per_rank:
            head = self._between(first, self._num_draws) if first < self._num_draws else torch.empty(0).long()
            again = max(first - self._num_draws, 0)
            return torch.cat([head, self._between(again, last - self._num_draws)])
        last = min(last, self._num_draws)
        if len(self._passes) == 1:
            return self._passes[0].ids(first + self._start, last + self._start)
        parts = []
        begin = self._start
        for part in self._passes:
            parts.append(part.ids(first + begin, last + begin))
            begin -= part.num_draws
        full = [ids for ids in parts if len(ids)]
        return full[0] if len(full) == 1 else torch.cat(parts)

    def _samples_of(self, rank: int) -> int:
        """Samples of a rank in the whole epoch."""
        whole = len(self) - 1
        return whole * self._size(0, rank) + self._size(whole, rank)

    def _size(self, batch: int, rank: int) -> int:
        size, world = self.layout.global_batch_size, self.layout.world_size
        share, rest = divmod(max(min(size, self._num_draws - batch * size), world), world)
        return share + (rank < rest)


def chosen_order(
    given: Blocks | Mapping[str, Any] | None, strategy: Strategy, replacement: Replacement
) -> Blocks | None:
    """The order that the user chose, also as a mapping of its arguments; None for samples in any order.

    What is no order is refused, and so are a strategy and a way of drawing that block order cannot follow.
    """
    order = Blocks(**given) if isinstance(given, Mapping) else given
    if order is None:
        return None
    if not isinstance(order, Blocks):
        raise ValueError(f"order={order!r} is not an order; use order=Blocks(), or None for samples in any order.")
    name = type(strategy).__name__
    if replacement != "systematic":
        raise ValueError(
            f"replacement={replacement!r} does not go with order=Blocks(...), which draws systematically; use "
            "replacement='systematic', or leave order out."
        )
    draws_itself = _owner(strategy, "plan_epoch") not in (Strategy, Random, ActiveBias, InfoBatch)
    if draws_itself or strategy.decides_size or _owner(strategy, "plain_epoch") is not Strategy:
        raise ValueError(
            f"{name} makes the batches of its epochs itself, which order=Blocks(...) would break up; leave order out, "
            "or use another strategy."
        )
    return order


def draws_by_probabilities(strategy: Strategy) -> bool:
    """Whether P says how often a sample comes in a selected epoch, which else is a plain one."""
    return _owner(strategy, "plan_epoch") is not Random


def _owner(strategy: Strategy, method: str) -> type:
    """The class that a strategy has a method of."""
    return next(base for base in type(strategy).__mro__ if method in vars(base))


def checked_bounds(bounds: Any, num_samples: int | None) -> Integers:
    """Bounds as ascending int64 without empty blocks, if they are bounds of ``num_samples`` samples."""
    try:
        array = np.asarray(bounds)
        whole = array.astype(np.int64)
        valid = array.ndim == 1 and len(array) > 1 and bool((whole == array).all())
    except (TypeError, ValueError, RuntimeError, OverflowError):
        valid = False
    if not valid or whole[0] != 0 or bool((np.diff(whole) < 0).any()) or whole[-1] < 1:
        raise ValueError(
            "bounds must ascend from 0 to the number of samples, a whole number where each block begins and one at "
            "the end, such as [0, 4096, 8192]; check the bounds."
        )
    if num_samples is not None and whole[-1] != num_samples:
        raise SelectionError(
            f"the blocks end at sample {whole[-1]}, but the train dataset has {num_samples}; let the last of the "
            f"bounds be {num_samples}, or pass Blocks(size=...)."
        )
    return np.unique(whole)


def shown_bounds(dataset: Any) -> Any:
    """Where the blocks of a dataset begin, if it shows that: None if not."""
    own = getattr(dataset, "block_bounds", None)
    if own is not None:
        return own() if callable(own) else own
    if isinstance(dataset, ConcatDataset):
        sized: list[Any] = list(dataset.datasets)
        parts = [shown_bounds(part) for part in sized]
        starts = [0, *dataset.cumulative_sizes]
        found = [[0, len(part)] if bounds is None else bounds for part, bounds in zip(sized, parts, strict=True)]
        joined = [np.asarray(one)[:-1] + start for one, start in zip(found, starts[:-1], strict=True)]
        return None if all(part is None for part in parts) else np.append(np.concatenate(joined), starts[-1])
    if isinstance(dataset, Subset):
        whole = shown_bounds(dataset.dataset)
        return None if whole is None else _bounds_within(whole, np.asarray(dataset.indices))
    n = len(dataset)
    batches = _record_batches(dataset)
    if batches is not None:
        return batches if batches[-1] == n else None
    held = [dataset, *getattr(dataset, "__dict__", {}).values()]
    rows = [size for size in (_chunk_rows(one, n) for one in held) if size]
    return [*range(0, n, max(rows)), n] if rows else None


def _bounds_within(bounds: Any, indices: npt.NDArray[Any]) -> Integers | None:
    """Where the blocks begin among the samples ``indices`` of all that they hold."""
    if bool((np.diff(indices) < 0).any()):
        rank_zero_warn(
            "the train dataset is a Subset whose indices do not ascend, as random_split gives them, so neighbors in it "
            "are in no block together and order=Blocks() opens all blocks at once; use Subset(dataset, "
            "sorted(indices)).",
            category=UserWarning,
        )
        return None
    return np.searchsorted(indices, np.asarray(bounds))


def _record_batches(dataset: Any) -> list[int] | None:
    """Of a Hugging Face dataset that is not shuffled or filtered by a list of indices."""
    table = getattr(dataset, "data", None)
    if not hasattr(dataset, "select_columns") or getattr(dataset, "_indices", None) is not None or table is None:
        return None
    try:
        return list(accumulate((len(chunk) for chunk in table.column(0).chunks), initial=0))
    except (AttributeError, IndexError, TypeError):
        return None


def _chunk_rows(array: Any, num_samples: int) -> int | None:
    """Samples per chunk of an HDF5 or Zarr array with one row per sample."""
    if type(array).__module__.split(".")[0] not in ("h5py", "zarr"):
        return None
    shape, chunks = getattr(array, "shape", None), getattr(array, "chunks", None)
    return int(chunks[0]) if shape and chunks and shape[0] == num_samples else None
