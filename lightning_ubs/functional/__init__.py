"""The paper's equations as pure functions of tensors, on any device, without waiting for it."""

from lightning_ubs.functional.active import prediction_spread, proportional_probabilities
from lightning_ubs.functional.correlation import correlation_of_chunks, uncertainty_correlation
from lightning_ubs.functional.distinct import repeats_in_rows
from lightning_ubs.functional.drawing import (
    check_replacement,
    draw_epoch,
    draw_plan,
    fill_last_batch,
    shuffled_pass,
    weighted_order,
)
from lightning_ubs.functional.hard import hardness_probabilities, imbalance_weights
from lightning_ubs.functional.loss import pruned_probabilities, sample_cross_entropy, unknown_as_largest
from lightning_ubs.functional.outlook import effective_sample_size, expected_distinct
from lightning_ubs.functional.recency import recency_entropy
from lightning_ubs.functional.selection import (
    importance_weights,
    min_max_scale,
    raw_weights,
    sample_weights,
    selection_pressure,
    selection_probabilities,
)
from lightning_ubs.functional.stratification import stratified_order
from lightning_ubs.functional.uncertainty import binary_entropy, label_uncertainty, tempered, window_fluctuation

__all__ = [
    "binary_entropy",
    "check_replacement",
    "correlation_of_chunks",
    "draw_epoch",
    "draw_plan",
    "effective_sample_size",
    "expected_distinct",
    "fill_last_batch",
    "hardness_probabilities",
    "imbalance_weights",
    "importance_weights",
    "label_uncertainty",
    "min_max_scale",
    "prediction_spread",
    "proportional_probabilities",
    "pruned_probabilities",
    "raw_weights",
    "recency_entropy",
    "repeats_in_rows",
    "sample_cross_entropy",
    "sample_weights",
    "selection_pressure",
    "selection_probabilities",
    "shuffled_pass",
    "stratified_order",
    "tempered",
    "uncertainty_correlation",
    "unknown_as_largest",
    "weighted_order",
    "window_fluctuation",
]
