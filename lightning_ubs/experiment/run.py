"""A run is a value: what it will be called, how its parts are made, and what trains it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_ubs.experiment.record import RunIdentity, RunRecord
from lightning_ubs.experiment.store import ResultsStore

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule
    from lightning.pytorch.loggers import Logger

    from lightning_ubs.callback import BatchSelection


def _nothing_more(*_: Any) -> list[Any]:
    return []


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that is to be done. It can be sent to another process.

    Attributes:
        identity: What the run's record will say of it.
        train: Does the run, as `lightning_ubs.experiment.training.train` does; a field, so that the grid, which only
            sends runs to their workers, needs neither torch nor Lightning.
        trainer: Arguments of ``lightning.Trainer``.
        make_data: Gives the data, not yet set up.
        make_module: Gives the model for these data; whoever needs to know their shape sets them up first.
        make_selection: Gives the selection, with the run's seed.
        make_callbacks: Gives further callbacks, which come after the selection.
        make_loggers: Gives loggers that write to a folder or elsewhere.
        config: The resolved configuration that describes the run; empty for a run of objects.
        trace: Whether to keep what became of each sample.
        trace_epochs: Epochs whose label correlation is kept; None: first selected, middle and last.
        samples: Number of training samples that the data must have; None: any.
    """

    identity: RunIdentity
    train: Callable[[Run, Path, ResultsStore | None, bool], RunRecord]
    trainer: Mapping[str, Any]
    make_data: Callable[[], LightningDataModule]
    make_module: Callable[[LightningDataModule], LightningModule]
    make_selection: Callable[[], BatchSelection]
    make_callbacks: Callable[[BatchSelection, LightningDataModule], list[Callback]] = _nothing_more
    make_loggers: Callable[[Path], list[Logger]] = _nothing_more
    config: Mapping[str, Any] = field(default_factory=dict)
    trace: bool = True
    trace_epochs: Sequence[int] | None = None
    samples: int | None = None

    @property
    def key(self) -> str:
        """Identity of the run in results."""
        return self.identity.key

    @property
    def shares_device(self) -> bool:
        """Whether runs beside it would share a GPU with it: each takes the first that there is."""
        if self.trainer.get("accelerator", "auto") == "cpu":
            return False
        import torch

        return torch.cuda.is_available() or torch.backends.mps.is_available()

    def execute(self, folder: Path, store: ResultsStore | None = None, keep: bool = True) -> RunRecord:
        """Do the run and return its record, which is not yet in the store.

        Args:
            folder: For everything that it writes.
            store: Gets the arrays of the run.
            keep: Whether ``folder`` is kept.
        """
        return self.train(self, folder, store, keep)

    def failed(self, error: str) -> RunRecord:
        """The record that says that the run failed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return self.identity.record(status="failed", error=error, versions=versions(), started=now)


def versions() -> dict[str, str]:
    """What runs are done with, and on."""
    packages = {name: version(name.replace("_", "-")) for name in ("lightning_ubs", "torch", "lightning")}
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    return packages | {"python": platform.python_version(), "machine": machine}
