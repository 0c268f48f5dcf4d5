"""D2ACE: uncertainty first and hardness later, each supported by the labels around a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.functional import (
    label_hardness,
    label_uncertainty,
    min_max_scale,
    neighborhood_labels,
    selection_pressure,
    selection_probabilities,
)
from lightning_ubs.functional.correlation import block_rows
from lightning_ubs.state import PredictionHistory, host_copy, spare_row_zeros
from lightning_ubs.strategies.base import LabelRows, Measurement, Need, Strategy, TrainingSet

# A label's flip is renewed by this share at each visit.
_RENEWED = 0.7
# Shares of the training at which the weight of uncertainty begins to fall, and has fallen.
_FALLS = (0.1, 0.7)


@dataclass(kw_only=True, eq=False, repr=False)
class D2ACE(Strategy):
    r"""Mixture of two distributions, by uncertainty and by hardness, more of the latter as training proceeds (2026).

    **What it does.** E is UBS's uncertainty; the hardness of a label is :math:`h=g(L)(1-f)`, L its latest cross-entropy
    and f how much its prediction flips, :math:`f\leftarrow 0.7|\Delta p|+0.3f`. In both, a label counts the more the
    larger and the more unequal its values are, :math:`v_j=\exp(\mathrm{mean}_j/2+\mathrm{std}_j/2)`, and a label that a
    sample has counts the more, the more it is related (by cosine) to labels of the sample and of its nearest neighbors.
    Each gives a P as UBS's weights do, and :math:`P=\beta P_E+(1-\beta)P_h`, :math:`\beta` falling linearly between a
    tenth and seven tenths of the training.

    **When to use it.** As the successor of UBS by the same group, in comparisons.

    **What it costs.** T + 2 numbers per sample and label, two passes over them per epoch, and with features one
    nearest-neighbor search at the start, O(n²d).

    Without features (none in the dataset, none passed, or ``neighbors=0``) a sample is supported by its own labels.

    Args:
        lambda1: Weight of the fluctuation against the entropy of the latest prediction (λ1).
        window: How many predictions are kept (T).
        s0: Selection pressure in the first selected epoch; it falls to 1.
        neighbors: Number of nearest neighbors whose labels support a sample.
        hardness: Form of g: ``"paper"`` is 1 - exp(-L); ``"code"`` is 2 - exp(-L), as in the authors' code.
        beta_start: Share of the uncertainty (β) up to a tenth of the training.
        beta_end: Share of the uncertainty from seven tenths of the training on.
    """

    needs = frozenset({"predictions", "targets", "labels"})

    lambda1: float = 0.5
    window: int = 5
    s0: float = 8.0
    neighbors: int = 6
    hardness: Literal["paper", "code"] = "paper"
    beta_start: float = 0.7
    beta_end: float = 0.3

    def __post_init__(self) -> None:
        for name in ("lambda1", "beta_start", "beta_end"):
            check_range(name, getattr(self, name), 0, 1)
            setattr(self, name, float(getattr(self, name)))
        check_range("window", self.window, 2, whole=True)
        check_range("neighbors", self.neighbors, 0, whole=True)
        check_range("s0", self.s0, 1)
        check_choice("hardness", self.hardness, ("paper", "code"))
        self.window, self.neighbors, self.s0 = int(self.window), int(self.neighbors), float(self.s0)
        self._labels = self._around = torch.empty(0, 0)
        self._memory: PredictionHistory | None = None
        self._flips = self._losses = torch.empty(0)
        self._by: tuple[Tensor, Tensor] | None = None

    @property
    def uses(self) -> frozenset[Need]:
        """Features, where there are any."""
        return frozenset({"features"} if self.neighbors else ())

    @property
    def decays(self) -> bool:
        """Whether the schedule depends on the last epoch: it does, because the pressure falls from s0 to 1."""
        return True

    @property
    def num_labels(self) -> int | None:
        """Number of labels q, or None before the first prediction."""
        return None if self._memory is None else self._memory.num_labels

    def reset(self, data: TrainingSet) -> None:
        """Find the neighbors, and forget all predictions."""
        super().reset(data)
        if data.labels is None:
            raise ValueError("D2ACE needs the label matrix; pass labels=.")
        self._labels = data.labels > 0
        self._around = self._labels
        if data.features is not None and self.neighbors:
            self._around = neighborhood_labels(data.labels, data.features, self.neighbors)
        self._memory = self._by = None

    def update(self, ids: Tensor, probs: Tensor, targets: Tensor | None = None) -> None:
        """Keep the prediction, how much it flips, and its loss for each label."""
        if targets is None:
            raise ValueError("D2ACE needs the batch's true labels; pass targets=.")
        memory = self._prepared(probs.shape[1], probs.device)
        before, seen = memory.latest(ids)
        flips = self._flips[ids]
        renewed = _RENEWED * (probs - before).abs() + (1 - _RENEWED) * flips
        self._flips[ids] = torch.where(seen.unsqueeze(1), renewed, flips)
        self._losses[ids] = torch.nn.functional.binary_cross_entropy(probs, targets.to(probs), reduction="none")
        memory.push(ids, probs)

    def measure(self) -> Measurement:
        """The support of each sample by uncertainty and by hardness, each scaled to [0, 1]."""
        if self._memory is None:
            return self.measured
        total, square, gram = self._moments()
        n = self.num_samples
        mean = total / n
        importance = (0.5 * mean + 0.5 * (square / n - mean.square()).clamp(min=0).sqrt()).exp()
        length = gram.diagonal(dim1=1, dim2=2).sqrt()
        cosines = gram / (length.unsqueeze(1) * length.unsqueeze(2)).clamp(min=torch.finfo(gram.dtype).tiny)
        related = cosines / cosines.sum(2, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
        sums: tuple[list[Tensor], list[Tensor]] = [], []
        for measures, labels, around in self._blocks():
            for found, measure, v, c in zip(sums, measures, importance, related, strict=True):
                valued = measure * v
                found.append(valued.sum(1) + (labels * valued * (around @ c.T)).sum(1))
        first, second = (min_max_scale(torch.cat(found)) for found in sums)
        self._by = first, second
        beta = self._beta()
        self.measured = Measurement(weights=beta * first + (1 - beta) * second, mean_uncertainty=mean[0].mean())
        return self.measured

    def pressure_at(self, epoch: int, start: int, end: int) -> float:
        """Pressure s_t, falling geometrically from s0 to 1."""
        return selection_pressure(epoch, start, end, self.s0)

    def probabilities(self, pressure: float) -> Tensor:
        """P, mixed of that by uncertainty and that by hardness; uniform while nothing was predicted yet."""
        if self._by is None:
            return self.uniform()
        by_uncertainty, by_hardness = (selection_probabilities(by, pressure, "ceil") for by in self._by)
        beta = self._beta()
        return beta * by_uncertainty + (1 - beta) * by_hardness

    def with_weights(self, weights: Tensor) -> Self:
        """A copy in which both distributions follow from these weights."""
        other = super().with_weights(weights)
        other._by = weights, weights
        return other

    def current_uncertainty(self) -> Tensor | None:
        """E of all samples, computed from the predictions known now."""
        if self._memory is None:
            return None
        return torch.cat([measures[0].float() for measures, *_ in self._blocks()])

    def prediction_history(self) -> tuple[Tensor, Tensor] | None:
        """The window of each sample."""
        return None if self._memory is None else self._memory.rows(0, self.num_samples)

    def sample_columns(self, labels: LabelRows | None = None) -> dict[str, Tensor]:
        """The mean E, and the latest losses."""
        if self._memory is None or self.measured.weights is None:
            return {}
        unseen = self._memory.visits[:-1] == 0
        columns = {"mean_uncertainty": torch.cat([measures[0].mean(1) for measures, *_ in self._blocks()])}
        return columns | {"latest_loss": self._losses[:-1].mean(1).masked_fill(unseen, torch.nan)}

    def mean_predictions(self, first: int, last: int) -> tuple[Tensor, Tensor] | None:
        """Of the window."""
        return None if self._memory is None else self._memory.means(first, last)

    def state_dict(self) -> dict[str, Any]:
        """Predictions, flips and losses, and what was measured at the start of the epoch."""
        if self._memory is None:
            return {}
        state: dict[str, Any] = {"num_labels": self._memory.num_labels, **self._memory.state_dict()}
        state |= {"flips": host_copy(self._flips), "losses": host_copy(self._losses)}
        if self._by is not None and self.measured.weights is not None:
            shown = {"weights": self.measured.weights, "uncertain": self._by[0], "hard": self._by[1]}
            state |= {name: value.to("cpu", copy=True) for name, value in shown.items()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        if "num_labels" not in state:
            return
        self._prepared(state["num_labels"], torch.device("cpu")).load_state_dict(state)
        self._flips[:-1], self._losses[:-1] = state["flips"], state["losses"]
        if "weights" in state:
            self.measured, self._by = Measurement(weights=state["weights"]), (state["uncertain"], state["hard"])

    def footprint(self, num_labels: int, compact: bool = False) -> tuple[int, int]:
        """Bytes of predictions, flips and losses; a checkpoint has them, the weights and P."""
        kept = self.num_samples * num_labels * (self.window * self.history_dtype.itemsize + 8)
        return kept, kept + 5 * 8 * self.num_samples

    def _beta(self) -> float:
        """Value of β at this point of the training."""
        begin, end = _FALLS
        fallen = min(1.0, max(0.0, (self.progress - begin) / (end - begin)))
        return self.beta_start + (self.beta_end - self.beta_start) * fallen

    def _prepared(self, num_labels: int, device: torch.device) -> PredictionHistory:
        """What is kept, on ``device``; made at the first prediction."""
        if self._memory is None:
            self._memory = PredictionHistory(self.num_samples, num_labels, self.window, self.history_dtype, device)
            self._flips = spare_row_zeros(self.num_samples, num_labels, device=device)
            # Of a sample that was not seen yet nothing is known: p = 1/2.
            self._losses = torch.full_like(self._flips, math.log(2))
        elif self._memory.visits.device != device:
            self._memory.to(device)
            self._flips, self._losses = self._flips.to(device), self._losses.to(device)
        return self._memory

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """E and h (2, rows, q), the labels, and those around, of block after block of samples, in float64."""
        memory = self._memory
        assert memory is not None
        device = memory.visits.device
        rows = block_rows(memory.num_labels * self.window)
        for first in range(0, self.num_samples, rows):
            last = min(first + rows, self.num_samples)
            uncertainty = label_uncertainty(*memory.rows(first, last), self.lambda1)
            hard = label_hardness(self._losses[first:last], self._flips[first:last], self.hardness)
            labels, around = (some[first:last].to(device, torch.float64) for some in (self._labels, self._around))
            yield torch.stack([uncertainty, hard]).double(), labels, around

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of E and of h: sums and sums of squares of each label (2, q), products of the labels' positives (2, q, q)."""
        found: list[Tensor] = []
        for measures, labels, _ in self._blocks():
            positive = measures * labels
            parts = [measures.sum(1), measures.square().sum(1), positive.transpose(1, 2) @ positive]
            found = [one + part for one, part in zip(found, parts, strict=True)] if found else parts
        total, square, gram = found
        return total, square, gram
