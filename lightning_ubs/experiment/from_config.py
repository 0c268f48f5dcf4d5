"""From a resolved configuration to a run: one of ``lightning-ubs train`` or of a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule

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
from lightning_ubs.experiment.record import Mode, RunIdentity
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.selection import settings_of
from lightning_ubs.experiment.training import train
from lightning_ubs.inspection.loggers import SelectionImages
from lightning_ubs.metrics import by_name

# A selection is told from others by its strategy's settings and these; the rest says where things are kept.
_ASIDE = ("seed", "history_dtype", "device", "memory", "save_state", "log_metrics", "loader")


@dataclass(frozen=True)
class Names:
    """What a run is called in results where that is more than its groups say: a sweep's values are added."""

    data: str | None = None
    model: str | None = None
    label: str | None = None


def plan_from_config(config: Mapping[str, Any], names: Names | None = None, fold: int | None = None) -> Run:
    """The run of a resolved configuration; ``fold`` is for data that keep it elsewhere than in ``data.fold``."""
    names = names or Names()
    selection, model = config["selection"], config["model"]
    target = target_of(selection)
    plain = selection.get("name") or (target or "").rpartition(".")[2]
    monitor, mode = _monitor(config)
    told = {name: value for name, value in telling_settings(settings_of(selection)).items() if name not in _ASIDE}
    identity = RunIdentity(
        key=run_key(dict(config) | {"data": dict(config["data"]) | ({} if fold is None else {"fold": fold})}),
        data=names.data or data_name(config["data"]),
        model=_with_loss(names.model or model.get("name") or str(target_of(model)).rpartition(".")[2], model),
        selection=plain,
        label=names.label or selection.get("label") or plain,
        variant=selection.get("variant") or "",
        parameters=told,
        fold=config["data"].get("fold", 0) if fold is None else fold,
        seed=config["seed"],
        config_hash=digest(dict(config) | {"model": telling_settings(model, "model")}),
        monitor=monitor,
        mode=mode,
    )
    return Run(
        identity=identity,
        train=train,
        trainer=config["trainer"],
        make_data=partial(build_data, config["data"], identity.fold, identity.seed),
        make_module=partial(_network, config, identity),
        make_selection=partial(build_selection, selection, identity.seed),
        make_callbacks=partial(_callbacks, config),
        make_loggers=partial(build_loggers, config["logger"]),
        config=config,
        trace=config["trace"],
        trace_epochs=config["trace_epochs"],
    )


def _with_loss(name: str, model: Mapping[str, Any]) -> str:
    """The name of a model of this package with its loss, so that in no store it passes for one with another loss."""
    loss = None if target_of(model) is not None else telling_settings(model, "model").get("loss")
    first, space, rest = name.partition(" ")
    return name if loss is None or "loss=" in name else f"{first} loss={loss}{space}{rest}"


def _network(config: Mapping[str, Any], identity: RunIdentity, data: LightningDataModule) -> LightningModule:
    return build_network(config["model"], data, data_name(config["data"]), identity.fold, identity.seed)


def _callbacks(config: Mapping[str, Any], selection: BatchSelection, data: LightningDataModule) -> list[Callback]:
    """Those of ``callbacks``, and images if a logger that shows them is chosen."""
    found = build_callbacks(config.get("callbacks"))
    every = config["logger"].get("image_every_n_epochs", 0)
    return [*found, SelectionImages(selection, every)] if every else found


def _monitor(config: Mapping[str, Any]) -> tuple[str, Mode]:
    """What decides the best epoch: the user's word, else Macro-AUC for the models of this package."""
    monitor = config.get("monitor")
    if monitor is None and target_of(config["model"]) is not None:
        raise ConfigError(
            "monitor has no value; say which value that your model logs decides the best epoch: monitor=val_auc."
        )
    monitor = monitor or "val_macro_auc"
    return monitor, config.get("mode") or ("min" if by_name(monitor) is False else "max")
