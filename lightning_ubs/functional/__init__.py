"""The paper's equations as pure functions of tensors, on any device, without waiting for it."""

from lightning_ubs.functional.batches import repeats_in_rows
from lightning_ubs.functional.correlation import correlation_of_chunks, uncertainty_correlation
from lightning_ubs.functional.drawing import (
    check_replacement,
    draw_epoch,
    draw_plan,
    expected_distinct,
    fill_last_batch,
    shuffled_pass,
    weighted_order,
)
from lightning_ubs.functional.stratification import stratified_order
from lightning_ubs.functional.uncertainty import (
    binary_entropy,
    label_uncertainty,
    prediction_spread,
    recency_entropy,
    tempered,
    window_fluctuation,
)
from lightning_ubs.functional.weights import (
    class_aware_weights,
    effective_sample_size,
    hardness_probabilities,
    imbalance_weights,
    importance_weights,
    min_max_scale,
    proportional_probabilities,
    pruned_probabilities,
    raw_weights,
    repeat_factors,
    sample_cross_entropy,
    sample_weights,
    selection_pressure,
    selection_probabilities,
    unknown_as_largest,
)

__all__ = [
    "binary_entropy",
    "check_replacement",
    "class_aware_weights",
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
    "repeat_factors",
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
