"""What is remembered of each sample between its visits."""

from lightning_ubs.state.draws import DrawCounts
from lightning_ubs.state.history import PredictionHistory
from lightning_ubs.state.moments import RunningMoments
from lightning_ubs.state.rows import host_copy, spare_row_zeros

__all__ = ["DrawCounts", "PredictionHistory", "RunningMoments", "host_copy", "spare_row_zeros"]
