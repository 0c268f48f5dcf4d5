r"""Multi-label metrics on torchmetrics, with the tie rules of the paper's evaluation.

Every metric takes ``preds`` (n, q), probabilities in [0, 1], and ``target`` (n, q), zeros and ones. Scores
are compared by sorting, so that memory stays O(n q). Metrics that need all scores at once (Macro-AUC,
macro average precision, macro F1) share one copy of them in `multilabel_metrics`.

The second half tells which way any logged metric is better: by the user's word, by torchmetrics, or by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import BinaryF1Score, BinaryHammingDistance
from torchmetrics.functional.classification import multilabel_average_precision
from torchmetrics.utilities import dim_zero_cat

from lightning_ubs._utils.metric_names import METRICS, THIRDS

__all__ = [
    "HIGHER_IS_BETTER",
    "BrierScore",
    "CalibrationError",
    "Coverage",
    "HammingLoss",
    "MacroAUC",
    "MacroAveragePrecision",
    "MacroF1",
    "MicroF1",
    "OneError",
    "RankingLoss",
    "frequency_thirds",
    "multilabel_metrics",
]

HIGHER_IS_BETTER: dict[str, bool] = {row.key: row.higher_is_better for row in METRICS if row.collected}
"""Direction of every key of `multilabel_metrics`."""

_LABELS_PER_CHUNK = 64


def _check(preds: Tensor, target: Tensor) -> None:
    if preds.ndim != 2 or preds.shape != target.shape:
        raise ValueError(
            f"preds {tuple(preds.shape)} and target {tuple(target.shape)} must have one shape (n, q); "
            "pass a batch of probabilities with one column per label."
        )


def _at_end_of_tie(values: Tensor, ordered: Tensor) -> Tensor:
    """Replace each of the rising ``values`` (m, n) by the one that ends its run of equal ``ordered``."""
    is_end = torch.ones_like(ordered, dtype=torch.bool)
    is_end[:, :-1] = ordered[:, 1:] != ordered[:, :-1]
    ends = values.masked_fill(~is_end, torch.iinfo(values.dtype).max)
    return ends.flip(-1).cummin(-1).values.flip(-1)


def _pairs_not_below(scores: Tensor, positive: Tensor) -> Tensor:
    """Count, in each row of (m, n), the (positive, negative) pairs with score⁺ ≥ score⁻.

    >>> _pairs_not_below(torch.tensor([[0.2, 0.2, 0.1, 0.9]]), torch.tensor([[True, False, False, False]]))
    tensor([2])
    """
    ordered, order = scores.sort(dim=-1)
    positive = positive.gather(-1, order)
    negatives_up_to = _at_end_of_tie((~positive).cumsum(-1), ordered)
    return (negatives_up_to * positive).sum(-1)


class _ScoreMetric(Metric):
    """Metric that keeps every score, because it compares samples of different batches."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("preds", default=[], dist_reduce_fx="cat")
        self.add_state("target", default=[], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        self.preds.append(preds.detach().float())
        self.target.append((target > 0.5).to(torch.uint8))

    def _by_label(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield chunks of labels as (scores, positive), each (labels, n)."""
        preds, target = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        for start in range(0, preds.shape[1], _LABELS_PER_CHUNK):
            labels = slice(start, start + _LABELS_PER_CHUNK)
            yield preds[:, labels].T.contiguous(), target[:, labels].T.bool().contiguous()


class MacroAUC(_ScoreMetric):
    r"""Mean over labels of the fraction of (positive, negative) sample pairs ordered well; a tie is well.

    .. math:: \frac1{q'} \sum_j \frac{|\{(a, b): y_{aj}=1, y_{bj}=0, p_{aj} \ge p_{bj}\}|}{|Y_j^+||Y_j^-|}

    Args:
        degenerate: What a label without both classes does: ``"skip"`` leaves it out of the mean (NaN if all
            are), ``"zero"`` counts it as 0. After ``compute``, ``skipped`` is the number of such labels.

    The tie rule is generous: a model that gives all samples one score has Macro-AUC 1. After ``compute``, ``tied`` is
    the mean share of tied pairs over the labels with both classes, so that the usual AUC, where a tie counts half, is
    Macro-AUC − tied / 2.

    >>> metric = MacroAUC()
    >>> metric(torch.tensor([[0.9, 0.1], [0.9, 0.2], [0.1, 0.3]]), torch.tensor([[1, 0], [0, 0], [0, 0]]))
    tensor(1.)
    >>> metric.skipped
    1
    """

    def __init__(self, degenerate: Literal["skip", "zero"] = "skip", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if degenerate not in ("skip", "zero"):
            raise ValueError(f"degenerate must be 'skip' or 'zero', got {degenerate!r}; choose one of the two.")
        self.degenerate = degenerate
        self.skipped, self.tied = 0, 0.0

    def compute(self) -> Tensor:
        """Return the metric over everything seen since the last reset; NaN if a score is NaN."""
        values, tied, pairs = [], [], []
        for scores, positive in self._by_label():
            pairs.append(positive.sum(-1) * (~positive).sum(-1))
            auc = _pairs_not_below(scores, positive) / pairs[-1]
            values.append(auc.masked_fill(scores.isnan().any(-1), torch.nan))
            worse = _pairs_not_below(scores, ~positive) / pairs[-1]
            tied.append(values[-1] + worse - 1)
        usable = torch.cat(pairs) > 0
        self.skipped = int((~usable).sum())
        self.tied = float(torch.cat(tied)[usable].mean())
        total = torch.cat(values)[usable].sum()
        return total / (usable.sum() if self.degenerate == "skip" else len(usable))


class MacroAveragePrecision(_ScoreMetric):
    """Mean of average precision over the labels that have positives; NaN if none has.

    torchmetrics computes it per label; equal scores are one threshold. Labels without positives are left out before,
    because versions of torchmetrics disagree on their value. After ``compute``, ``by_label`` (q,) holds the values of
    the labels, NaN for those without positives.

    >>> metric = MacroAveragePrecision()
    >>> metric(torch.tensor([[0.9, 0.1], [0.6, 0.2], [0.1, 0.3]]), torch.tensor([[0, 0], [1, 0], [0, 0]]))
    tensor(0.5000)
    >>> metric.by_label
    tensor([0.5000,    nan])
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.by_label = torch.empty(0)

    def compute(self) -> Tensor:
        """Return the metric over everything seen since the last reset."""
        preds, target = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        present = target.bool().any(0)
        count = int(present.sum())
        self.by_label = preds.new_full(present.shape, torch.nan)
        if count and not bool(preds.isnan().any()):
            self.by_label[present] = multilabel_average_precision(
                preds[:, present], target[:, present].long(), count, average="none", validate_args=False
            )
        return self.by_label.nanmean()


class MacroF1(_ScoreMetric):
    """Mean over labels of F1 at p > 0.5; a label that is neither present nor predicted counts as 0."""

    def compute(self) -> Tensor:
        """Return the metric over everything seen since the last reset."""
        values = []
        for scores, positive in self._by_label():
            predicted = scores > 0.5
            hits = (predicted & positive).sum(-1)
            values.append(2 * hits / (predicted.sum(-1) + positive.sum(-1)).clamp(min=1))
        return torch.cat(values).mean()


class _SampleMean(Metric):
    """Mean over samples of a value that each sample yields by itself."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", default=torch.tensor(0), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        # A model in half precision takes its metrics' states along, in which a sum would stop growing.
        self.total = self.total.float() + values.float().sum()
        self.count += len(values)

    def compute(self) -> Tensor:
        """Return the metric over everything seen since the last reset."""
        return self.total / self.count


class RankingLoss(_SampleMean):
    r"""Mean over samples of the fraction of (relevant, irrelevant) label pairs ordered badly; a tie is bad.

    .. math:: \frac1n \sum_i \frac{|\{(a, b): y_{ia}=1, y_{ib}=0, p_{ia} \le p_{ib}\}|}{|Y_i^+||Y_i^-|}

    A sample with no label or with all of them contributes 0 and counts in n.

    >>> RankingLoss()(torch.tensor([[0.9, 0.9, 0.1], [0.5, 0.6, 0.7]]), torch.tensor([[1, 0, 0], [0, 0, 0]]))
    tensor(0.2500)
    """

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        relevant = target > 0.5
        pairs = relevant.sum(-1) * (~relevant).sum(-1)
        loss = _pairs_not_below(-preds.float(), relevant) / pairs.clamp(min=1)
        self._add(loss.masked_fill(preds.isnan().any(-1), torch.nan))


class OneError(_SampleMean):
    """Fraction of samples with an irrelevant label among the highest scores (always, if it has no labels)."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        top = preds == preds.amax(-1, keepdim=True)
        self._add((top & (target <= 0.5)).any(-1))


class Coverage(_SampleMean):
    """Mean number of top-ranked labels that hold all relevant ones, ties included, as in scikit-learn."""

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        lowest = preds.masked_fill(target <= 0.5, torch.inf).amin(-1, keepdim=True)
        self._add((preds >= lowest).sum(-1))


class HammingLoss(BinaryHammingDistance):
    """Fraction of the n q (sample, label) cells that 1[p > 0.5] gets wrong."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(threshold=0.5, validate_args=False, **kwargs)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        super().update(preds, target.long())


class MicroF1(BinaryF1Score):
    """F1 of 1[p > 0.5] over all n q (sample, label) cells together."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(threshold=0.5, validate_args=False, **kwargs)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        super().update(preds, target.long())


class BrierScore(_SampleMean):
    """Mean of (p − y)² over the n q (sample, label) cells: 0 for the truth, ¼ for p = ½ everywhere.

    >>> BrierScore()(torch.tensor([[1.0, 0.5]]), torch.tensor([[1, 0]]))
    tensor(0.1250)
    """

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        self._add((preds.float() - (target > 0.5).float()).square().mean(-1))


class CalibrationError(Metric):
    r"""How far probabilities are from frequencies: :math:`\sum_k \frac{n_k}{nq} |\bar p_k - \bar y_k|`.

    The n q (sample, label) cells are sorted into bins of p of equal width; :math:`\bar p_k` and :math:`\bar y_k`
    are the mean probability and the share of positives in bin k (expected calibration error). It is small wherever most
    cells are surely negative: compare methods by it, not sets.

    Args:
        bins: Number of bins.

    >>> CalibrationError()(torch.tensor([[0.8, 0.8], [0.8, 0.8]]), torch.tensor([[1, 1], [0, 1]]))
    tensor(0.0500)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    cells: Tensor
    positives: Tensor
    probabilities: Tensor

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if bins < 1:
            raise ValueError(f"bins={bins} must be at least 1; 15 is usual.")
        self.bins = bins
        self.add_state("cells", default=torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("positives", default=torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("probabilities", default=torch.zeros(bins), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (b, q) and labels (b, q)."""
        _check(preds, target)
        probs, positive = preds.detach().float().flatten(), (target > 0.5).long().flatten()
        # A probability that is NaN goes to some bin and makes its sum NaN, and so the result.
        bins = (probs.nan_to_num() * self.bins).long().clamp(0, self.bins - 1)
        self.cells.index_add_(0, bins, torch.ones_like(bins))
        self.positives.index_add_(0, bins, positive)
        self.probabilities = self.probabilities.float().index_add(0, bins, probs)

    def compute(self) -> Tensor:
        """Return the metric over everything seen since the last reset."""
        return (self.probabilities - self.positives).abs().sum() / self.cells.sum()


def frequency_thirds(labels: Tensor) -> dict[str, Tensor]:
    """Thirds of the labels by how many training samples have them, as positions of labels; none of fewer than 3 labels.

    Equally frequent labels go by their position. Where q is no multiple of 3, the rarer thirds are larger.

    Args:
        labels: (n, q) of the training samples.

    >>> {name: labels.tolist() for name, labels in frequency_thirds(torch.tensor([[1, 1, 0], [1, 0, 0]])).items()}
    {'rare': [2], 'medium': [1], 'frequent': [0]}
    """
    if labels.ndim != 2 or labels.shape[1] < len(THIRDS):
        return {}
    order = (labels > 0).sum(0).argsort(stable=True)
    return dict(zip(THIRDS, order.tensor_split(len(THIRDS)), strict=True))


def multilabel_metrics(degenerate: Literal["skip", "zero"] = "skip", prefix: str | None = None) -> MetricCollection:
    """Return all metrics under the keys of `HIGHER_IS_BETTER`.

    >>> sorted(multilabel_metrics(prefix="val_"))[:2]
    ['val_brier_score', 'val_calibration_error']
    """
    metrics: dict[str, Metric | MetricCollection] = {
        "macro_auc": MacroAUC(degenerate),
        "ranking_loss": RankingLoss(),
        "hamming_loss": HammingLoss(),
        "one_error": OneError(),
        "coverage": Coverage(),
        "micro_f1": MicroF1(),
        "macro_f1": MacroF1(),
        "map": MacroAveragePrecision(),
        "brier_score": BrierScore(),
        "calibration_error": CalibrationError(),
    }
    # Named groups: left alone, torchmetrics merges ranking loss and one-error if they start out equal.
    groups = [
        ["macro_auc", "map", "macro_f1"],
        ["hamming_loss", "micro_f1"],
        ["ranking_loss"],
        ["one_error"],
        ["coverage"],
        ["brier_score"],
        ["calibration_error"],
    ]
    return MetricCollection(metrics, prefix=prefix, compute_groups=groups)


_LOWER = (
    "loss", "error", "err", "mse", "rmse", "mae", "mape", "distance", "divergence", "perplexity", "nll", "bce", "ece",
    "brier", "wer", "cer", "fpr", "fnr", "regret",
)  # fmt: skip
_HIGHER = (
    "acc", "accuracy", "auc", "auroc", "auprc", "ap", "map", "f1", "fbeta", "precision", "recall", "specificity",
    "sensitivity", "iou", "jaccard", "dice", "kappa", "mcc", "r2", "ndcg", "mrr", "bleu", "score", "psnr", "ssim",
)  # fmt: skip


def by_name(name: str) -> bool | None:
    """Whether more is better, as far as the words of a name tell.

    >>> by_name("val_hamming_loss"), by_name("test_macro_auc"), by_name("val_coverage")
    (False, True, None)
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    if any(word in _LOWER for word in words):
        return False
    return True if any(word in _HIGHER for word in words) else None


def logged_directions(module: Any) -> dict[str, bool]:
    """Directions of the torchmetrics that a module holds, under the names by which it is likely to log them.

    A metric in ``self.val_auc`` is found as ``val_auc``, one of a collection as its key with the collection's prefix.
    """
    found = {name: metric for owner, one in _metrics(module) for name, metric in _named(owner, one)}
    return {name: metric.higher_is_better for name, metric in found.items() if metric.higher_is_better is not None}


def direction(name: str, monitor: str, mode: Literal["max", "min"], known: dict[str, bool]) -> bool | None:
    """Whether more of the metric ``name`` (without ``val_`` or ``test_``) is better; None if nothing tells.

    The user's word on the monitored metric comes first, then that of torchmetrics, then the name itself.
    """
    if name == monitor.removeprefix("val_"):
        return mode == "max"
    for logged in (f"test_{name}", f"val_{name}", name):
        if logged in known:
            return known[logged]
    return by_name(name)


def _metrics(module: Any) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_modules():
        if isinstance(child, Metric | MetricCollection):
            yield name.rpartition(".")[2], child


def _named(owner: str, metric: Any) -> Iterator[tuple[str, Metric]]:
    if isinstance(metric, MetricCollection):
        yield from ((str(name), one) for name, one in metric.items())
    else:
        yield owner, metric
