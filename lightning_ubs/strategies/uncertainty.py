"""What the uncertainty strategies share: U → C → w → P, and windows of predictions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import (
    correlation_of_chunks,
    min_max_scale,
    raw_weights,
    sample_cross_entropy,
    selection_pressure,
    selection_probabilities,
    window_fluctuation,
)
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.functional.weights import Quantizer
from lightning_ubs.state import PredictionHistory, RunningMoments
from lightning_ubs.strategies.base import LabelRows, Measurement, Strategy, TrainingSet

Correlation = Literal["mutual_information"]

# Up to this many bytes U is kept for the epoch, if it is small or at most a quarter of the history; else it is
# computed again when it is asked for.
SNAPSHOT_BYTES, SMALL_SNAPSHOT = 2**28, 2**24


@dataclass(kw_only=True, eq=False, repr=False)
class UncertaintyStrategy(Strategy):
    """Preference for samples by the uncertainty of their labels, more so where related labels are uncertain together.

    A subclass says how predictions are kept (:meth:`new_state`) and what the uncertainty of a block of
    samples is (:meth:`block_uncertainty`). If the rows are divided among ranks, each measures its own.

    Args:
        s0: Selection pressure in the first selected epoch; it falls to 1.
        correlation: ``"mutual_information"`` weighs labels by how much their uncertainty is shared, None does not.
        bins: Bins of U for the mutual information (τ; the paper does not say, its code has 5).
        log_base: Base of its logarithm; the paper writes plain "log".
        quantizer: ``"floor"`` as in the paper, ``"ceil"`` as in its released code.
        correlation_every: Epochs for which a correlation is used before it is computed anew, to save time where there
            are many labels; the paper computes it in every epoch.
    """

    keeps_shard: ClassVar[bool] = True

    s0: float = 100.0
    correlation: Correlation | None = None
    bins: int = 5
    log_base: float = math.e
    quantizer: Quantizer = "floor"
    correlation_every: int = 1

    def __post_init__(self) -> None:
        check_range("s0", self.s0, 1)
        check_range("correlation_every", self.correlation_every, 1, whole=True)
        check_range("bins", self.bins, 2, whole=True)
        if not (math.isfinite(self.log_base) and self.log_base > 1):
            raise ValueError(f"log_base={self.log_base!r} is out of range; it must be above 1, such as e, 2 or bins.")
        check_choice("correlation", self.correlation, ("mutual_information", None))
        check_choice("quantizer", self.quantizer, ("floor", "ceil"))
        self.s0 = float(self.s0)
        self.bins = int(self.bins)
        self.log_base = float(self.log_base)
        self.correlation_every = int(self.correlation_every)
        self._correlation_age = 0
        self._memory: PredictionHistory | RunningMoments | None = None
        self._raw: Tensor | None = None
        self._prior: Tensor | None = None

    @abstractmethod
    def new_state(self, num_labels: int, device: torch.device) -> PredictionHistory | RunningMoments:
        """An empty memory for ``num_samples`` samples, which keeps the rows of ``shard``."""

    @abstractmethod
    def block_uncertainty(self, first: int, last: int) -> Tensor:
        """U of samples first .. last-1, (rows, q) float32."""

    @property
    def decays(self) -> bool:
        """The pressure falls from s0 to 1."""
        return True

    def reset(self, data: TrainingSet) -> None:
        """Forget all predictions."""
        super().reset(data)
        self._memory = self._raw = self._prior = None
        self._correlation_age = 0

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Keep the predictions."""
        if self._memory is None:
            self._memory = self._empty_memory(probs.shape[1], probs.device)
        elif self._memory.visits.device != probs.device:
            self._memory.to(probs.device)
        self._memory.push(ids, probs)

    def measure(self) -> Measurement:
        """U → C → w in blocks of rows."""
        if self._memory is None:
            return self.measured
        cells = self.num_samples * self._memory.num_labels
        snapshot = self.current_uncertainty() if self._keeps_snapshot(self._memory.num_labels) else None
        correlation = None if self.correlation is None else self._used_correlation(snapshot)
        weighed = [
            (raw_weights(u, correlation)[own], u[own].sum(dtype=torch.float64))
            for u, own in self._measured_blocks(snapshot)
        ]
        raw = torch.cat([part for part, _ in weighed])
        if self._prior is not None:
            # Samples not visited since a compact resume keep the weight they had.
            raw = torch.where(self._memory.visits[:-1] > 0, raw, self.shard.own(self._prior).to(raw))
        self._raw = self.shard.gather(raw)
        mean = self.shard.total(torch.stack([total for _, total in weighed]).sum()) / cells
        self.measured = Measurement(snapshot, correlation, min_max_scale(self._raw), mean)
        return self.measured

    def current_uncertainty(self) -> Tensor | None:
        """U of all samples whose rows are kept here, computed from the present history."""
        if self._memory is None:
            return None
        found, done = None, 0
        for u, own in self._blocks():
            # Filled block by block: putting blocks together at the end would take twice the memory.
            found = u.new_empty(len(self.shard), u.shape[1]) if found is None else found
            found[done : done + own.stop - own.start] = u[own]
            done += own.stop - own.start
            del u  # before the next block is computed
        return found

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """U as :attr:`BatchSelection.uncertainty` shows it, the mean over the labels."""
        if self._memory is None or self.measured.weights is None:
            return {}
        kept = self.measured.uncertainty
        parts = [u[own].mean(1) for u, own in self._blocks()] if kept is None else [kept.mean(1)]
        return {"mean_uncertainty": self.shard.spread(torch.cat(parts))}

    def mean_predictions(self, first: int, last: int) -> tuple[Tensor, Tensor] | None:
        """Of the history kept here: the last T predictions, or all of them."""
        if self._memory is None:
            return None
        means, counts = self._memory.means(first, last)
        kept, ids = self.shard.ids, torch.arange(first, last, device=counts.device)
        return means, counts * ((ids >= kept.start) & (ids < kept.stop))

    def with_weights(self, weights: Tensor) -> Self:
        """A copy with these weights w, scaled or not."""
        other = super().with_weights(weights)
        other._raw = weights
        return other

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Pressure s_t, falling geometrically from s0 to 1."""
        return selection_pressure(epoch, start, end, self.s0)

    def probabilities(self, pressure: float) -> Tensor:
        """P from the weights; uniform while nothing was predicted yet."""
        weights = self.measured.weights
        return self.uniform() if weights is None else selection_probabilities(weights, pressure, self.quantizer)

    def state_dict(self) -> dict[str, Any]:
        """The whole history, and what was measured at the start of the epoch."""
        memory = {} if self._memory is None else {"num_labels": self._memory.num_labels, **self._memory.state_dict()}
        return memory | self._measured_state()

    def _used_correlation(self, snapshot: Tensor | None) -> Tensor:
        """C, which serves for ``correlation_every`` epochs."""
        known, self._correlation_age = self.measured.correlation, self._correlation_age + 1
        if known is not None and self._correlation_age < self.correlation_every:
            return known.to(self.memory.visits.device)
        self._correlation_age = 0
        labels, chunks = self.memory.num_labels, partial(self._own_rows, snapshot)
        return correlation_of_chunks(chunks, self.num_samples, labels, self.bins, self.log_base, total=self.shard.total)

    def _measured_state(self) -> dict[str, Any]:
        measured = {
            "correlation": self.measured.correlation,
            "weights": self.measured.weights,
            "raw": self._raw,
            "prior": self._prior,
        }
        age = {"correlation_age": self._correlation_age} if self.correlation_every > 1 else {}
        return age | {name: value.to("cpu", copy=True) for name, value in measured.items() if value is not None}

    def compact_state_dict(self) -> dict[str, Any]:
        """Only what was measured: a sample keeps its weight until it is visited again."""
        state = {name: value for name, value in self._measured_state().items() if name != "prior"}
        return state | ({"prior": state["raw"]} if "raw" in state else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` or :meth:`compact_state_dict` gave."""
        self.measured = Measurement(correlation=state.get("correlation"), weights=state.get("weights"))
        self._raw, self._prior = state.get("raw"), state.get("prior")
        self._correlation_age = state.get("correlation_age", 0)
        if "num_labels" in state:
            self._memory = self._empty_memory(state["num_labels"], torch.device("cpu"))
            self._memory.load_state_dict(state)

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """Bytes of the memory, of U while it is kept, and of a checkpoint."""
        cells, own = self.num_samples * num_labels, len(self.shard) * num_labels
        snapshot = own * 4 if self._keeps_snapshot(num_labels) else 0
        saved = 0 if compact else cells * self.bytes_per_label
        return own * self.bytes_per_label + snapshot, saved + 4 * 8 * self.num_samples

    @property
    @abstractmethod
    def bytes_per_label(self) -> int:
        """Bytes of history per sample and label."""

    @property
    def num_labels(self) -> int | None:
        """Number of labels q, or None before the first prediction."""
        return None if self._memory is None else self._memory.num_labels

    @property
    def memory(self) -> PredictionHistory | RunningMoments:
        """The history; only asked for once there is one."""
        if self._memory is None:
            raise RuntimeError("no predictions were seen yet; call update first.")
        return self._memory

    def _keeps_snapshot(self, num_labels: int) -> bool:
        size = 4 * self.num_samples * num_labels
        return size <= SNAPSHOT_BYTES and (size <= SMALL_SNAPSHOT or self.bytes_per_label >= 4 * 4)

    def _empty_memory(self, num_labels: int, device: torch.device) -> PredictionHistory | RunningMoments:
        memory = self.new_state(num_labels, device)
        if memory.shard != self.shard:
            raise SelectionError(
                f"{type(self).__name__}.new_state keeps the rows of all samples, but memory='sharded' divides them; "
                "pass shard=self.shard to what it makes, or leave memory out."
            )
        return memory

    def _blocks(self) -> Iterator[tuple[Tensor, slice]]:
        """U in blocks of rows, computed from the history, and which rows of a block are kept here."""
        rows = block_rows(self.memory.num_labels * max(self.bins, self.memory.depth))
        for first, last, own in self.shard.blocks(rows):
            yield self.block_uncertainty(first, last), own

    def _measured_blocks(self, snapshot: Tensor | None) -> Iterator[tuple[Tensor, slice]]:
        if snapshot is None:
            yield from self._blocks()
            return
        done = 0
        for first, last, own in self.shard.blocks(block_rows(self.memory.num_labels * self.bins)):
            kept = snapshot[done : done + own.stop - own.start]
            done += len(kept)
            others = own.start, last - first - own.stop
            yield (pad(kept, (0, 0, *others)) if any(others) else kept), own

    def _own_rows(self, snapshot: Tensor | None) -> Iterator[Tensor]:
        return (u[own] for u, own in self._measured_blocks(snapshot))


@dataclass(kw_only=True, eq=False, repr=False)
class WindowStrategy(UncertaintyStrategy):
    """An uncertainty strategy that keeps the last ``window`` predictions of each sample.

    Args:
        window: How many predictions are kept (T).
    """

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("window", self.window, 2, whole=True)
        self.window = int(self.window)

    @property
    def bytes_per_label(self) -> int:
        """T predictions."""
        return self.window * self.history_dtype.itemsize

    def new_state(self, num_labels: int, device: torch.device) -> PredictionHistory:
        """The last T predictions."""
        return PredictionHistory(
            self.num_samples, num_labels, self.window, self.history_dtype, device, shard=self.shard
        )

    def prediction_history(self) -> tuple[Tensor, Tensor] | None:
        """The window of each sample whose rows are kept here."""
        if not isinstance(self._memory, PredictionHistory):
            return None
        return self._memory.rows(self.shard.ids.start, self.shard.ids.stop)

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """Mean U, how much the predictions in the window move, and the loss of the latest one."""
        columns = super().sample_columns(labels)
        if not isinstance(self._memory, PredictionHistory):
            return columns
        memory, rows = self._memory, block_rows(self._memory.num_labels * self.window)
        moves, losses = [], []
        for first, last, own in self.shard.blocks(rows):
            ids = torch.arange(first, last)[own]
            window, counts = memory.rows_of(ids.to(memory.visits.device))
            unseen = counts == 0
            moves.append(window_fluctuation(window, counts).mean(1).masked_fill(unseen, torch.nan))
            if labels is not None:
                loss = sample_cross_entropy(window[:, -1], labels(ids).to(window))
                losses.append(loss.masked_fill(unseen, torch.nan))
        columns["fluctuation"] = self.shard.spread(torch.cat(moves))
        return columns | ({"latest_loss": self.shard.spread(torch.cat(losses))} if losses else {})
