"""Strategies whose P is known before training: weights of the user's, repeat factors, class-aware sampling."""

from __future__ import annotations

import logging
import numbers
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_choice
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import class_aware_weights, repeat_factors
from lightning_ubs.strategies.base import Measurement, Strategy, TrainingSet

_log = logging.getLogger(__name__)
_ONE_EACH = "pass one number per training sample."


@dataclass(kw_only=True, eq=False, repr=False)
class StaticStrategy(Strategy):
    """Draws by weights in closed form; no predictions are read, so that any module will do.

    Epochs are selected from the first on, and by default the second half of the training is plain shuffled passes:
    emphasis first, then none. ``BatchSelection(end_epoch=...)`` ends it elsewhere, ``end_epoch=1.0`` never.
    """

    needs = frozenset()
    keeps_shard: ClassVar[bool] = True
    takes_class_ids: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._weights = torch.empty(0, dtype=torch.float64)

    @abstractmethod
    def sample_weights(self, data: TrainingSet) -> Tensor:
        """The (n,) weights to which P is proportional."""

    @property
    def decays(self) -> bool:
        """Whether the end must be known: it must, because the last epochs are plain."""
        return True

    def default_start(self, warmup_epochs: int) -> int:
        """The first epoch: there is nothing to warm up."""
        return 0

    def default_end(self, start: int, num_epochs: int) -> int:
        """Half of the training; at least one epoch is selected."""
        return max(start + 1, (num_epochs + 1) // 2)

    def plain_from(self, end: int, chosen: bool) -> int | None:
        """First plain epoch: the end, whoever chose it."""
        return end

    def reset(self, data: TrainingSet) -> None:
        """Weigh the samples."""
        super().reset(data)
        self._weights = self.sample_weights(data).to("cpu", torch.float64)
        self.measured = Measurement(weights=self._weights / self._weights.max())

    def probabilities(self, pressure: float) -> Tensor:
        """P in proportion to the weights."""
        return self._weights / self._weights.sum()

    def with_weights(self, weights: Tensor) -> Self:
        """A copy with these weights."""
        other = super().with_weights(weights)
        other._weights = weights
        return other


@dataclass(kw_only=True, eq=False, repr=False)
class Weighted(StaticStrategy):
    """Draws in proportion to weights of your own, as with torch's ``WeightedRandomSampler``.

    **What it does.** Sample i comes nP_i times per epoch on average, P_i being its share of all weights. Unlike the
    sampler, it is right in several processes and after a resume. ``BatchSelection(replacement="full")`` draws with
    repeats anywhere, as the sampler with ``replacement=True``; the default draws each sample as often as P says,
    rounded up or down.

    **When to use it.** With weights that you know better than any rule.

    **What it costs.** Nothing.

    Args:
        weights: One number of at least 0 per training sample: a list, an array or a tensor.

    >>> Weighted([1, 1, 2])
    Weighted(weights=<Tensor of shape (3,)>)
    """

    weights: Any = field(kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            given = _as_tensor(self.weights)
            if given.is_complex():
                raise ValueError("they are complex")
            weights = given.to("cpu", torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"weights of type {type(self.weights).__name__} are no numbers; {_ONE_EACH}") from error
        if weights.ndim != 1 or len(weights) == 0:
            raise ValueError(f"weights have shape {list(weights.shape)}; {_ONE_EACH}")
        bad = ~(weights.isfinite() & (weights >= 0))
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            raise ValueError(
                f"weights[{first}]={float(weights[first])} cannot be drawn by; weights must be finite and at least 0."
            )
        if not bool((weights > 0).any()):
            raise ValueError("weights are all 0, so no sample could be drawn; let at least one be positive.")
        if not bool(weights.sum().isfinite()):
            weights = weights / weights.max()
        self.weights = weights

    def sample_weights(self, data: TrainingSet) -> Tensor:
        """The user's weights, if they are as many as the samples."""
        if len(self.weights) != data.num_samples:
            raise SelectionError(
                f"there are {len(self.weights)} weights for {data.num_samples} training samples; {_ONE_EACH}"
            )
        weights: Tensor = self.weights
        return weights


@dataclass(kw_only=True, eq=False, repr=False)
class LabelWeighted(StaticStrategy):
    """A static strategy whose weights follow from the labels of the training samples.

    Args:
        labels: The (n, q) label matrix, or the (n,) class ids where each sample has one class; None reads them from
            the dataset or from ``BatchSelection(labels=...)``.
    """

    labels: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.needs = frozenset({"labels"} if self.labels is None else ())
        if self.labels is not None:
            try:
                self.labels = _as_tensor(self.labels)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"labels of type {type(self.labels).__name__} are no matrix; pass [samples, labels] or class ids."
                ) from error

    def label_matrix(self, data: TrainingSet) -> Tensor:
        """The (n, q) labels, or (n,) class ids."""
        labels: Tensor | None = data.labels if self.labels is None else self.labels
        name = type(self).__name__
        if labels is None:
            raise ValueError(f"{name} needs the label matrix; pass labels=.")
        is_ids = labels.ndim == 1 and not labels.is_floating_point()
        if len(labels) != data.num_samples or not (labels.ndim == 2 or is_ids) or not _are_whole(labels):
            raise SelectionError(
                f"{name} cannot use labels of shape {list(labels.shape)} and type {labels.dtype} for "
                f"{data.num_samples} training samples; pass [samples, labels] of 0 and 1, or whole class ids of at "
                "least 0, one per sample."
            )
        if labels.ndim == 2 and labels.shape[1] == 1 and bool((labels > 1).any()):
            raise SelectionError(
                f"{name} has labels of shape {list(labels.shape)} up to {int(labels.max())}: one column of 0 and 1 is "
                "one label; pass class ids as a flat list, labels=labels[:, 0]."
            )
        return labels


def _as_tensor(values: Any) -> Tensor:
    """A list, an array, a sparse matrix or a tensor as a tensor."""
    if isinstance(values, Tensor):
        return values.detach()
    return torch.as_tensor(values.toarray() if hasattr(values, "toarray") else np.asarray(values))


def _are_whole(labels: Tensor) -> bool:
    """Whether these are whole numbers of at least 0, and none is NaN."""
    return bool((labels >= 0).all()) and not (labels.is_floating_point() and bool((labels.frac() != 0).any()))


@dataclass(kw_only=True, eq=False, repr=False)
class RepeatFactor(LabelWeighted):
    r"""Repetition of samples of rare labels (repeat factor sampling, Gupta et al., LVIS, CVPR 2019).

    **What it does.** A label that a share :math:`f_j` of the samples has gets :math:`r_j=\max(1,\sqrt{t/f_j})`, a
    sample the largest :math:`r_j` of its labels, and :math:`P_i\propto r_i`. Labels more frequent than t are left
    alone. An epoch has as many samples as a plain one, not :math:`\sum_i r_i`.

    **When to use it.** With rare labels; it is free, and the least invasive way to see them more often.

    **What it costs.** Nothing.

    Args:
        threshold: Share of samples t below which a label is rare, in (0, 1].
        frequency: ``"image"``, the share of samples that have the label, or ``"instance"``, the geometric mean of it
            and of the label's share of all label instances.
        labels: The label matrix or class ids, if neither the dataset nor the callback tells; the matrix may hold
            numbers of instances.
    """

    threshold: float = field(default=0.05, kw_only=False)
    frequency: Literal["image", "instance"] = "image"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.threshold, numbers.Real) and 0 < self.threshold <= 1):
            raise ValueError(
                f"threshold={self.threshold!r} is out of range; it must be a share in (0, 1], such as 0.05."
            )
        check_choice("frequency", self.frequency, ("image", "instance"))
        self.threshold = float(self.threshold)

    def sample_weights(self, data: TrainingSet) -> Tensor:
        """The repeat factors."""
        return repeat_factors(self.label_matrix(data), self.threshold, self.frequency)


@dataclass(kw_only=True, eq=False, repr=False)
class ClassAware(LabelWeighted):
    r"""The same total weight for every label: :math:`P_i\propto\sum_jY_{ij}/n_j`.

    **What it does.** A label's weight is divided equally among the samples that have it, and a sample gets the sum over
    its labels. A sample without any label gets the mean of the others.

    **When to use it.** With many rare labels and few epochs, at the beginning of the training: by default its second
    half is plain.

    **What it costs.** Nothing.

    Args:
        labels: The label matrix or class ids, if neither the dataset nor the callback tells.
    """

    def sample_weights(self, data: TrainingSet) -> Tensor:
        """The weights by label."""
        labels = self.label_matrix(data)
        without = 0 if labels.ndim == 1 else int((labels.sum(1) == 0).sum())
        if without:
            _log.info("%d samples have no label; ClassAware gives each the mean weight of the others.", without)
        return class_aware_weights(labels)
