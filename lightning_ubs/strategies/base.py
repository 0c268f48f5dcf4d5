"""What a strategy is, and what it is told."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Generator, Tensor

from lightning_ubs._utils.checks import call_repr
from lightning_ubs.functional import draw_epoch, expected_distinct, importance_weights, shuffled_pass
from lightning_ubs.functional.drawing import Replacement, epoch_generator
from lightning_ubs.state import Shard

LabelRows = Callable[[Tensor], Tensor]
Need = Literal["predictions", "targets", "labels", "features"]


@dataclass(frozen=True)
class TrainingSet:
    """The samples that a strategy chooses from.

    Attributes:
        num_samples: Number of samples n.
        labels: (n, q) label matrix, if the strategy needs ``"labels"``; or (n,) class ids, if it takes them.
        features: (n, d) feature matrix, if it needs ``"features"``.
        history_dtype: How predictions should be kept.
        shard: Whose rows this rank keeps; None for those of all samples.
    """

    num_samples: int
    labels: Tensor | None = None
    features: Tensor | None = None
    history_dtype: torch.dtype = torch.float32
    shard: Shard | None = None

    @property
    def label_matrix(self) -> Tensor | None:
        """The labels as (n, q); of class ids, a column for each class that a sample has.

        >>> TrainingSet(3, labels=torch.tensor([4, 0, 4])).label_matrix
        tensor([[0., 1.],
                [1., 0.],
                [0., 1.]])
        """
        if self.labels is None or self.labels.ndim == 2:
            return self.labels
        classes, number = torch.unique(self.labels, return_inverse=True)
        return torch.nn.functional.one_hot(number, len(classes)).float()


@dataclass(frozen=True)
class EpochRequest:
    """An epoch whose sample ids are wanted.

    Attributes:
        epoch: Counted from 0.
        seed: Seed for all sampling.
        num_samples: Number of samples n.
        batch_size: Samples in a batch of all ranks together.
        count: Samples in the epoch if its last batch may be short.
        full_count: Samples in the epoch if its last batch is full.
        first: Where the epoch begins in the sequence of all shuffled passes.
        replacement: How samples are drawn.
        fills_last: Whether a short last batch of a selected epoch is filled.
    """

    epoch: int
    seed: int
    num_samples: int
    batch_size: int
    count: int
    full_count: int
    first: int
    replacement: Replacement
    fills_last: bool = False

    @property
    def num_draws(self) -> int:
        """Samples in the epoch if it is selected."""
        return self.full_count if self.fills_last else self.count

    def generator(self, number: int | None = None) -> Generator:
        """A fresh generator, that of this epoch or of shuffled pass ``number``."""
        return epoch_generator(self.seed, self.epoch if number is None else number)


@dataclass(frozen=True)
class Measurement:
    """What a strategy found at the start of an epoch; None where it has no such thing.

    Attributes:
        uncertainty: U, (n, q) float32, or the rows of ``Strategy.shard``; None as well where it is too large to keep.
        correlation: C, (q, q) float64.
        weights: Weights w (n,) in [0, 1].
        mean_uncertainty: Mean of U over all samples and labels, a scalar tensor.
    """

    uncertainty: Tensor | None = None
    correlation: Tensor | None = None
    weights: Tensor | None = None
    mean_uncertainty: Tensor | None = None


class Strategy(ABC):
    """Base of all strategies: how likely each training sample is drawn in the next epoch.

    A new strategy overrides :meth:`update` and :meth:`probabilities`, and :meth:`state_dict` and
    :meth:`load_state_dict` if it keeps anything. The callback calls :meth:`reset` once, :meth:`update` after every
    step with what the model predicted, and at the start of every epoch :meth:`measure` and, once the warm-up is over,
    :meth:`probabilities`. How the ids of an epoch follow from P is :meth:`plan_epoch`.

    Attributes:
        needs: What the strategy reads: ``"predictions"`` of each step, the ``"targets"`` of a batch beside them, and
            at the start the ``"labels"`` or ``"features"`` of all samples. An empty set works with any module.
        num_samples: Number of samples n, known from :meth:`reset` on.
        history_dtype: How predictions should be kept, known from :meth:`reset` on.
        shard: Whose rows this rank keeps, known from :meth:`reset` on; those of all samples unless
            ``BatchSelection(memory="sharded")`` divides them among processes.
        measured: The latest :class:`Measurement`.
    """

    needs: frozenset[Need] = frozenset({"predictions"})
    #: Epochs before the first selected one are shuffled passes; False selects from the first epoch on.
    warms_up: ClassVar[bool] = True
    #: Whether the labels may be (n,) class ids, where each sample has one class.
    takes_class_ids: ClassVar[bool] = False
    #: How samples are drawn where the user does not say; with one given, only ways whose mean is exact are allowed.
    default_replacement: ClassVar[Replacement | None] = None
    #: Whether gradients count 1/(nP) where the user does not say.
    default_unbiased: ClassVar[bool] = False
    #: Whether ``memory="sharded"`` is of use: of each sample not in ``shard``, at most one number is kept.
    keeps_shard: ClassVar[bool] = False

    #: How far the schedule is, from 0 to 1, at the start of the epoch; set before :meth:`measure`.
    progress: float = 0.0
    num_samples: int = 0
    history_dtype: torch.dtype = torch.float32
    shard: Shard = Shard(0)
    measured: Measurement = Measurement()

    def __init_subclass__(cls, **options: Any) -> None:
        """Read ``needs_targets = True`` and the like, by which strategies for release 0.1.0 say what they need."""
        super().__init_subclass__(**options)
        flags: dict[Need, Any] = {need: vars(cls).get(f"needs_{need}") for need in get_args(Need)}
        if any(isinstance(flag, bool) for flag in flags.values()):
            refused = {need for need, flag in flags.items() if flag is False}
            cls.needs = (cls.needs | {need for need, flag in flags.items() if flag is True}) - refused

    def __repr__(self) -> str:
        return call_repr(self)

    @property
    def uses(self) -> frozenset[Need]:
        """What is read besides ``needs`` where there is any: ``"features"``."""
        return frozenset()

    @property
    def num_labels(self) -> int | None:
        """Number of labels q, if predictions for that many labels are kept."""
        return None

    @property
    def decays(self) -> bool:
        """Whether the schedule depends on the last epoch."""
        return False

    @property
    def default_epoch_size(self) -> float | None:
        """Share of the samples in an epoch where the user does not say; None for all."""
        return None

    def default_start(self, warmup_epochs: int) -> int:
        """The first selected epoch where the user does not say."""
        return warmup_epochs

    @property
    def decides_size(self) -> bool:
        """Whether :meth:`plan_epoch` may give fewer samples than are asked for, which makes the epoch shorter."""
        return False

    def sample_importance(self, probabilities: Tensor) -> Tensor:
        """What samples count if their draws are reweighted (``unbiased=True``), (n,) float64: 1/(nP)."""
        return importance_weights(probabilities)

    def default_end(self, start: int, num_epochs: int) -> int:
        """The end of the schedule where the user does not say: the last epoch, where the pressure is 1."""
        return max(start, num_epochs - 1)

    def plain_from(self, end: int, chosen: bool) -> int | None:
        """The epoch from which epochs are plain shuffled passes again; None for never.

        By default a strategy whose pressure does not fall by itself stops at the end that the user has chosen.

        Args:
            end: The end of the schedule.
            chosen: Whether the user chose it.
        """
        return end if chosen and not self.decays else None

    def reset(self, data: TrainingSet) -> None:
        """Forget everything and prepare for the samples of ``data``."""
        self.num_samples = data.num_samples
        self.history_dtype = data.history_dtype
        self.shard = Shard(data.num_samples) if data.shard is None else data.shard
        self.measured = Measurement()

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Learn what the model predicted; runs for every step, in order, and must not wait for the device.

        Args:
            ids: (b,) sample ids, distinct except for ``num_samples``: that id marks a row to forget, so tensors
                kept per sample have one spare row (:func:`lightning_ubs.state.spare_row_zeros`).
            probs: (b, q) float32 probabilities, detached.
            targets: (b, q) true labels if the strategy needs ``"targets"``.
        """
        return

    def refresh(self, ids: Tensor, samples: Tensor, targets: Tensor | None = None) -> None:
        """Learn from an evaluation pass; by default, the mean prediction counts as one visit.

        Args:
            ids: (b,) distinct sample ids.
            samples: (k, b, q) float32 probabilities, k predictions of each sample.
            targets: (b, q) true labels if the strategy needs ``"targets"``.
        """
        self.update(ids, samples.mean(0), targets)

    def measure(self) -> Measurement:
        """Measure anew from what is known now, keep the result in ``measured`` and return it."""
        return self.measured

    def current_uncertainty(self) -> Tensor | None:
        """U, (n, q) float32 (or the rows of ``shard``), from the predictions known now, if the strategy has one."""
        return None

    def prediction_history(self) -> tuple[Tensor, Tensor] | None:
        """The last T predictions (n, T, q) float32, oldest first, and how many of them are valid (n,), if kept."""
        return None

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """What is known of each sample, (n,) each, NaN where it is not: columns of :meth:`BatchSelection.to_frame`.

        Args:
            labels: Gives the true labels (b, q) of the samples ``ids`` (b,), where they are known.
        """
        return {}

    def mean_predictions(self, first: int, last: int) -> tuple[Tensor, Tensor] | None:
        """Mean (rows, q) of the predictions in the history of samples first .. last-1, and their number (rows,)."""
        return None

    def with_weights(self, weights: Tensor) -> Self:
        """A copy with these weights w, (n,) in [0, 1], used to preview the schedule."""
        other = copy.copy(self)
        other.num_samples, other.measured = len(weights), Measurement(weights=weights)
        return other

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Selection pressure s_t of an epoch; 1 means none."""
        return 1.0

    @abstractmethod
    def probabilities(self, pressure: float) -> Tensor:
        """Selection probabilities P, (n,) float64, non-negative, summing to 1."""

    def plan_epoch(self, probabilities: Tensor, request: EpochRequest) -> Tensor:
        """The ids of a selected epoch, one batch after the other, as a flat int64 tensor."""
        return draw_epoch(
            probabilities, request.batch_size, request.num_draws, request.generator(), request.replacement
        )

    def plain_epoch(self, request: EpochRequest) -> Tensor:
        """The ids of an epoch that is not selected: the next ``count`` of successive shuffled passes."""
        n, first = request.num_samples, request.first
        passes = range(first // n, (first + max(request.count, 1) - 1) // n + 1)
        ids = torch.cat([shuffled_pass(n, n, request.generator(number)) for number in passes])
        return ids[first - passes.start * n :][: request.count]

    def expected_distinct(self, probabilities: Tensor, request: EpochRequest) -> float:
        """How many different samples :meth:`plan_epoch` is expected to draw."""
        return expected_distinct(probabilities, request.batch_size, request.num_draws, request.replacement)

    def state_dict(self) -> dict[str, Any]:
        """Tensors on the CPU and plain scalars, enough to resume exactly."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave; runs after :meth:`reset`."""
        return

    def compact_state_dict(self) -> dict[str, Any]:
        """A smaller state that keeps the selection valid but not exact; by default the full one."""
        return self.state_dict()

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """Bytes kept in memory, and bytes added to a checkpoint, for this many labels."""
        return 0, 8 * self.num_samples

    def uniform(self) -> Tensor:
        """The same probability for every sample."""
        return torch.full((self.num_samples,), 1 / max(1, self.num_samples), dtype=torch.float64)
