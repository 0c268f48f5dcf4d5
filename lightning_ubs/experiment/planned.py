"""A run that is to be done: what it is called, and how its parts are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger

from lightning_ubs.callback import BatchSelection


@dataclass(frozen=True)
class PlannedRun(ABC):
    """Everything that one run needs; it can be sent to another process.

    Attributes:
        identity: what the run's record will say of it: key, data, model, selection, label, variant, parameters, fold,
            seed, config_hash, monitor and mode.
        trainer: arguments of ``lightning.Trainer``.
        trace: whether to keep what became of each sample.
        trace_epochs: epochs whose label correlation is kept; None: first selected, middle and last.
        samples: number of training samples that the data must have; None: any.
    """

    identity: Mapping[str, Any]
    trainer: Mapping[str, Any]
    trace: bool = True
    trace_epochs: Sequence[int] | None = None
    samples: int | None = None

    @property
    def key(self) -> str:
        """Identity of the run in results."""
        return str(self.identity["key"])

    @property
    def title(self) -> str:
        """One line for people."""
        one = self.identity
        return f"{one['data']} {one['model']} {one['label']} fold {one['fold']} seed {one['seed']}"

    @abstractmethod
    def make_data(self) -> LightningDataModule:
        """The data, not yet set up."""

    @abstractmethod
    def make_module(self, data: LightningDataModule) -> LightningModule:
        """The model for these data; whoever needs to know their shape sets them up first."""

    @abstractmethod
    def make_selection(self) -> BatchSelection:
        """The selection, with the run's seed."""

    def make_callbacks(self, selection: BatchSelection, data: LightningDataModule) -> list[Callback]:
        """Further callbacks, which come after the selection."""
        return []

    def make_loggers(self, folder: Path) -> list[Logger]:
        """Loggers that write to ``folder`` or elsewhere."""
        return []
