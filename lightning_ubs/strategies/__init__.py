"""The paper's method and its rivals, strategies that save training, and static ones that read no predictions."""

from lightning_ubs.strategies.active import ActiveBias
from lightning_ubs.strategies.balance import Balance
from lightning_ubs.strategies.base import EpochRequest, Measurement, Strategy, TrainingSet
from lightning_ubs.strategies.d2ace import D2ACE
from lightning_ubs.strategies.group_scores import GroupScores
from lightning_ubs.strategies.hard import HardImbalance
from lightning_ubs.strategies.infobatch import InfoBatch
from lightning_ubs.strategies.loss import LossBias
from lightning_ubs.strategies.plain import Random
from lightning_ubs.strategies.recency import RecencyBias
from lightning_ubs.strategies.shuffled import Shuffled
from lightning_ubs.strategies.static import ClassAware, RepeatFactor, Weighted
from lightning_ubs.strategies.ubs import UBS
from lightning_ubs.strategies.uncertainty import UncertaintyStrategy

__all__ = [
    "D2ACE",
    "UBS",
    "ActiveBias",
    "Balance",
    "ClassAware",
    "EpochRequest",
    "GroupScores",
    "HardImbalance",
    "InfoBatch",
    "LossBias",
    "Measurement",
    "Random",
    "RecencyBias",
    "RepeatFactor",
    "Shuffled",
    "Strategy",
    "TrainingSet",
    "UncertaintyStrategy",
    "Weighted",
]
