"""Uncertainty-guided batch selection for multi-label training, as one PyTorch Lightning callback.

Attach :class:`BatchSelection` to a ``lightning.Trainer``; it chooses which samples the next mini-batches contain.
"""

from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import SelectionError
from lightning_ubs.sampling import EpochPlan, SelectionSampler
from lightning_ubs.strategies import (
    UBS,
    ActiveBias,
    Balance,
    HardImbalance,
    Random,
    RecencyBias,
    Strategy,
    UncertaintyStrategy,
)

__version__ = "0.1.0"

__all__ = [
    "UBS",
    "ActiveBias",
    "Balance",
    "BatchSelection",
    "EpochPlan",
    "HardImbalance",
    "Random",
    "RecencyBias",
    "SelectionError",
    "SelectionSampler",
    "Strategy",
    "UncertaintyStrategy",
    "__version__",
]
