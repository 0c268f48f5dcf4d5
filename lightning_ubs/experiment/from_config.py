"""A run that a configuration describes: one of ``lightning-ubs train`` or of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger

from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.build import (
    build_callbacks,
    build_data,
    build_loggers,
    build_network,
    build_selection,
    data_name,
)
from lightning_ubs.experiment.config import digest, run_key, target_of, telling_settings
from lightning_ubs.experiment.direction import by_name
from lightning_ubs.experiment.record import Mode
from lightning_ubs.experiment.run import TrainingRun
from lightning_ubs.experiment.selection import settings_of
from lightning_ubs.inspection.loggers import SelectionImages

# A selection is told from others by its strategy's settings and these; the rest says where things are kept.
_ASIDE = ("seed", "history_dtype", "device", "memory", "save_state", "log_metrics", "loader")


@dataclass(frozen=True)
class Names:
    """What a run is called in results where that is more than its groups say: a sweep's values are added."""

    data: str | None = None
    model: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class ConfiguredRun(TrainingRun):
    """A run of a resolved configuration of ``lightning-ubs train``."""

    config: Mapping[str, Any] = field(default_factory=dict)

    def make_data(self) -> LightningDataModule:
        """The data of ``data``."""
        return build_data(self.config["data"], self.identity["fold"], self.identity["seed"])

    def make_module(self, data: LightningDataModule) -> LightningModule:
        """The model of ``model``."""
        name = data_name(self.config["data"])
        return build_network(self.config["model"], data, name, self.identity["fold"], self.identity["seed"])

    def make_selection(self) -> BatchSelection:
        """The callback of ``selection``."""
        return build_selection(self.config["selection"], self.identity["seed"])

    def make_callbacks(self, selection: BatchSelection, data: LightningDataModule) -> list[Callback]:
        """Those of ``callbacks``, and images if a logger that shows them is chosen."""
        found = build_callbacks(self.config.get("callbacks"))
        every = self.config["logger"].get("image_every_n_epochs", 0)
        return [*found, SelectionImages(selection, every)] if every else found

    def make_loggers(self, folder: Path) -> list[Logger]:
        """Those of ``logger``."""
        return build_loggers(self.config["logger"], folder)


def configured_run(config: Mapping[str, Any], names: Names | None = None, fold: int | None = None) -> ConfiguredRun:
    """The run of a resolved configuration; ``fold`` is for data that keep it elsewhere than in ``data.fold``."""
    names = names or Names()
    selection, model = config["selection"], config["model"]
    target = target_of(selection)
    plain = selection.get("name") or (target or "").rpartition(".")[2]
    monitor, mode = _monitor(config)
    identity = {
        "key": run_key(dict(config) | {"data": dict(config["data"]) | ({} if fold is None else {"fold": fold})}),
        "data": names.data or data_name(config["data"]),
        "model": names.model or model.get("name") or str(target_of(model)).rpartition(".")[2],
        "selection": plain,
        "label": names.label or selection.get("label") or plain,
        "variant": selection.get("variant") or "",
        "parameters": {
            key: value for key, value in telling_settings(settings_of(selection)).items() if key not in _ASIDE
        },
        "fold": config["data"].get("fold", 0) if fold is None else fold,
        "seed": config["seed"],
        "config_hash": digest(config),
        "monitor": monitor,
        "mode": mode,
    }
    return ConfiguredRun(identity, config["trainer"], config["trace"], config["trace_epochs"], config=config)


def _monitor(config: Mapping[str, Any]) -> tuple[str, Mode]:
    """What decides the best epoch: the user's word, else Macro-AUC for the models of this package."""
    monitor = config.get("monitor")
    if monitor is None and target_of(config["model"]) is not None:
        raise ConfigError(
            "monitor has no value; say which value that your model logs decides the best epoch: monitor=val_auc."
        )
    monitor = monitor or "val_macro_auc"
    return monitor, config.get("mode") or ("min" if by_name(monitor) is False else "max")
