"""Uncertainty-guided batch selection for multi-label training, as one PyTorch Lightning callback.

Attach :class:`BatchSelection` to a ``lightning.Trainer``; it chooses which samples the next mini-batches contain.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_ubs.callback import BatchSelection
    from lightning_ubs.comparison import Comparison, compare
    from lightning_ubs.errors import SelectionError
    from lightning_ubs.experiment.recorder import Recorder
    from lightning_ubs.inspection.loggers import SelectionImages
    from lightning_ubs.selection.evaluation import EvaluationPass
    from lightning_ubs.selection.loader import SelectionSampler
    from lightning_ubs.selection.options import EpochSize
    from lightning_ubs.selection.order import Blocks
    from lightning_ubs.selection.plan import EpochPlan
    from lightning_ubs.strategies import (
        D2ACE,
        UBS,
        ActiveBias,
        Balance,
        ClassAware,
        EpochRequest,
        GroupScores,
        HardImbalance,
        InfoBatch,
        LossBias,
        Measurement,
        Random,
        RecencyBias,
        RepeatFactor,
        Shuffled,
        Strategy,
        TrainingSet,
        UncertaintyStrategy,
        Weighted,
    )

__version__ = "0.2.0.dev0"

__all__ = [
    "D2ACE",
    "UBS",
    "ActiveBias",
    "Balance",
    "BatchSelection",
    "Blocks",
    "ClassAware",
    "Comparison",
    "EpochPlan",
    "EpochRequest",
    "EpochSize",
    "EvaluationPass",
    "GroupScores",
    "HardImbalance",
    "InfoBatch",
    "LossBias",
    "Measurement",
    "Random",
    "RecencyBias",
    "Recorder",
    "RepeatFactor",
    "SelectionError",
    "SelectionImages",
    "SelectionSampler",
    "Shuffled",
    "Strategy",
    "TrainingSet",
    "UncertaintyStrategy",
    "Weighted",
    "__version__",
    "compare",
]

_HOMES = {
    "BatchSelection": "callback",
    "Comparison": "comparison",
    "compare": "comparison",
    "SelectionError": "errors",
    "EpochSize": "selection.options",
    "EvaluationPass": "selection.evaluation",
    "Recorder": "experiment.recorder",
    "SelectionImages": "inspection.loggers",
    "Blocks": "selection.order",
    "EpochPlan": "selection.plan",
    "SelectionSampler": "selection.loader",
}
_PARTS = ("callback", "data", "errors", "functional", "metrics", "models", "state", "strategies")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that the command line answers before torch is loaded."""
    if name in _PARTS:
        return importlib.import_module(f"lightning_ubs.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'lightning_ubs' has no attribute {name!r}")
    home = importlib.import_module(f"lightning_ubs.{_HOMES.get(name, 'strategies')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
