"""What a training step showed: predictions and targets, the dataset's matrices, and whether ids are right."""

from lightning_ubs.reading.dataset import Column, DatasetLabels, feature_matrix, training_labels
from lightning_ubs.reading.gradient import RowScaling
from lightning_ubs.reading.named import Outputs
from lightning_ubs.reading.predictions import Observation, Reading, decode
from lightning_ubs.reading.reader import StepReader
from lightning_ubs.reading.targets import Targets
from lightning_ubs.reading.verification import Ids, IdVerification

__all__ = [
    "Column",
    "DatasetLabels",
    "IdVerification",
    "Ids",
    "Observation",
    "Outputs",
    "Reading",
    "RowScaling",
    "StepReader",
    "Targets",
    "decode",
    "feature_matrix",
    "training_labels",
]
