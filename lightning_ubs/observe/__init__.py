"""What a training step showed: predictions and targets, the dataset's matrices, and whether ids are right."""

from lightning_ubs.observe.columns import Column
from lightning_ubs.observe.dataset import DatasetLabels, feature_matrix, training_labels
from lightning_ubs.observe.observer import Observation, StepObserver
from lightning_ubs.observe.row_scaling import RowScaling
from lightning_ubs.observe.source import Outputs
from lightning_ubs.observe.targets import Targets
from lightning_ubs.observe.verification import Ids, IdVerification

__all__ = [
    "Column",
    "DatasetLabels",
    "IdVerification",
    "Ids",
    "Observation",
    "Outputs",
    "RowScaling",
    "StepObserver",
    "Targets",
    "feature_matrix",
    "training_labels",
]
