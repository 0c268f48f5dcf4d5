"""What a strategy is."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from lightning_ubs._utils.arguments import call_repr
from lightning_ubs.functional import draw_epoch
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.state import Shard

LabelRows = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measurement:
    """What a strategy found at the start of an epoch; None where it has no such thing.

    Attributes:
        uncertainty: U, (n, q) float32, or the rows of ``Strategy.shard``; None as well where it is too large to keep.
        correlation: C, (q, q) float64.
        weights: w, (n,) in [0, 1].
        mean_uncertainty: mean of U over all samples and labels, a scalar tensor.
    """

    uncertainty: Tensor | None = None
    correlation: Tensor | None = None
    weights: Tensor | None = None
    mean_uncertainty: Tensor | None = None


class Strategy(ABC):
    """Decides how likely each training sample is drawn in the next epoch.

    The callback calls :meth:`reset` once, :meth:`update` after every step with what the model predicted, and at
    the start of every epoch :meth:`measure` and, once the warm-up is over, :meth:`probabilities`. A new strategy
    overrides :meth:`update` and :meth:`probabilities`, and :meth:`state_dict` if it remembers anything.

    Attributes:
        num_samples: n, known from :meth:`reset` on.
        history_dtype: how predictions should be kept, known from :meth:`reset` on.
        shard: whose rows this process keeps, known before the first :meth:`update`; those of all samples unless
            ``BatchSelection(memory="sharded")`` divides them among processes.
        measured: the latest :class:`Measurement`.
    """

    #: Epochs before the first selected one are shuffled passes; False selects from the first epoch on.
    warms_up: ClassVar[bool] = True
    #: Whether :meth:`update` reads the batch's true labels.
    needs_targets: bool = False
    #: Whether :meth:`reset` needs the (n, q) label matrix.
    needs_labels: ClassVar[bool] = False
    #: Whether :meth:`reset` needs the (n, d) feature matrix.
    needs_features: ClassVar[bool] = False
    #: Whether :meth:`update` does anything; False spares looking for predictions.
    needs_predictions: ClassVar[bool] = True
    #: Whether epochs are successive parts of shuffled passes, whatever P is.
    only_shuffles: ClassVar[bool] = False
    #: Whether epochs that are not selected come in the order of the dataset instead of a shuffled one.
    in_file_order: ClassVar[bool] = False
    #: Whether an epoch holds each sample at most once, whatever P and the callback say.
    draws_each_once: ClassVar[bool] = False
    #: Whether the last batch of a selected epoch is filled, whatever the callback says.
    fill_last: bool = False
    #: Whether epochs are plain shuffled passes again from the end of the schedule on.
    ends_plain: ClassVar[bool] = False
    #: How samples are drawn where the user does not say; with one given, only ways whose mean is exact are allowed.
    default_replacement: ClassVar[Replacement | None] = None
    #: Whether gradients count 1/(nP) where the user does not say.
    default_unbiased: ClassVar[bool] = False
    #: Whether ``memory="sharded"`` is of use: of each sample not in ``shard``, at most one number is kept.
    keeps_shard: ClassVar[bool] = False

    num_samples: int = 0
    history_dtype: torch.dtype = torch.float32
    shard: Shard = Shard(0)
    measured: Measurement = Measurement()

    def __repr__(self) -> str:
        return call_repr(self)

    @property
    def num_labels(self) -> int | None:
        """q, if predictions for that many labels are remembered."""
        return None

    @property
    def decays(self) -> bool:
        """Whether the pressure depends on the last epoch."""
        return False

    @property
    def default_epoch_size(self) -> float | None:
        """Share of the samples in an epoch where the user does not say; None for all."""
        return None

    def default_end(self, start: int, num_epochs: int) -> int:
        """The end of the schedule where the user does not say: the last epoch, where the pressure is 1."""
        return max(start, num_epochs - 1)

    def reset(
        self,
        num_samples: int,
        labels: Tensor | None = None,
        features: Tensor | None = None,
        history_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Forget everything and prepare for ``num_samples`` samples.

        ``history_dtype`` is passed only where the user asked for another than float32, so a strategy that keeps no
        predictions need not accept it.
        """
        self.num_samples = num_samples
        self.history_dtype = history_dtype
        self.shard = Shard(num_samples)
        self.measured = Measurement()

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Learn what the model predicted; runs for every step, in order, and must not wait for the device.

        Args:
            ids: (b,) sample ids, distinct except for ``num_samples``: that id marks a row to forget, so tensors
                kept per sample have one spare row (:func:`lightning_ubs.state.spare_row_zeros`).
            probs: (b, q) float32 probabilities, detached.
            targets: (b, q) true labels if ``needs_targets``.
        """
        return

    def refresh(self, ids: Tensor, samples: Tensor, targets: Tensor | None = None) -> None:
        """Learn from an evaluation pass; by default, the mean prediction counts as one visit.

        Args:
            ids: (b,) distinct sample ids.
            samples: (k, b, q) float32 probabilities, k predictions of each sample.
            targets: (b, q) true labels if ``needs_targets``.
        """
        self.update(ids, samples.mean(0), targets)

    def measure(self) -> Measurement:
        """Measure anew from what is known now, keep the result in ``measured`` and return it."""
        return self.measured

    def current_uncertainty(self) -> Tensor | None:
        """U, (n, q) float32 (or the rows of ``shard``), from the predictions known now, if the strategy has one."""
        return None

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """What is known of each sample, (n,) each, NaN where it is not: columns of :meth:`BatchSelection.to_frame`.

        Args:
            labels: gives the true labels (b, q) of the samples ``ids`` (b,), where they are known.
        """
        return {}

    def mean_predictions(self, first: int, last: int) -> tuple[Tensor, Tensor] | None:
        """Mean (rows, q) of the remembered predictions of samples first .. last-1, and how many they are (rows,)."""
        return None

    def supposing(self, weights: Tensor) -> Self:
        """A copy that has found the weights w, (n,) in [0, 1]: for a look ahead of the training."""
        other = copy.copy(self)
        other.num_samples, other.measured = len(weights), Measurement(weights=weights)
        return other

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Selection pressure s_t of an epoch; 1 means none."""
        return 1.0

    @abstractmethod
    def probabilities(self, pressure: float) -> Tensor:
        """Selection probabilities P, (n,) float64, non-negative, summing to 1."""

    def draw(
        self, probabilities: Tensor, batch_size: int, num_draws: int, generator: Generator, replacement: Replacement
    ) -> Tensor:
        """The ids of a selected epoch of ``num_draws`` samples, one batch after the other, as a flat tensor."""
        return draw_epoch(probabilities, batch_size, num_draws, generator, replacement)

    def state_dict(self) -> dict[str, Any]:
        """Tensors on the CPU and plain scalars, enough to go on exactly."""
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
