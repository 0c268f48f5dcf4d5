"""A run that is to be done, as the grid sees it."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore


@dataclass(frozen=True)
class PlannedRun(ABC):
    """What a run will be called, and how it is done. It can be sent to another process.

    Attributes:
        identity: what the run's record will say of it: key, data, model, selection, label, variant, parameters, fold,
            seed, config_hash, monitor and mode.
    """

    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Identity of the run in results."""
        return str(self.identity["key"])

    @property
    def title(self) -> str:
        """One line for people."""
        one = self.identity
        return f"{one['data']} {one['model']} {one['label']} fold {one['fold']} seed {one['seed']}"

    @property
    def shares_device(self) -> bool:
        """Whether runs beside it would share a GPU with it."""
        return False

    @abstractmethod
    def execute(self, folder: Path, store: ResultsStore | None = None, keep: bool = True) -> RunRecord:
        """Do the run and return its record, which is not yet in the store.

        Args:
            folder: for everything that it writes.
            store: gets the arrays of the run.
            keep: whether ``folder`` is kept.
        """

    def failed(self, error: str) -> RunRecord:
        """The record that says that the run failed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return RunRecord(**self.identity, status="failed", error=error, versions=versions(), started=now)


def versions() -> dict[str, str]:
    """What runs are done with."""
    packages = {name: version(name.replace("_", "-")) for name in ("lightning_ubs", "torch", "lightning")}
    return packages | {"python": platform.python_version()}
