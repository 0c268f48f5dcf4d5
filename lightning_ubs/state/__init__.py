"""The history of each sample between its visits."""

from lightning_ubs.state.draws import DrawCounts
from lightning_ubs.state.history import PredictionHistory
from lightning_ubs.state.moments import RunningMoments
from lightning_ubs.state.shard import Shard, host_copy, spare_row_zeros

__all__ = ["DrawCounts", "PredictionHistory", "RunningMoments", "Shard", "host_copy", "spare_row_zeros"]
