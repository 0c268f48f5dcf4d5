"""Which way a metric is better."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchmetrics import Metric, MetricCollection

from lightning_ubs.experiment.record import Mode

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


def direction(name: str, monitor: str, mode: Mode, known: dict[str, bool]) -> bool | None:
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
