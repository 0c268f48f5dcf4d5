"""From a resolved configuration to objects: data, model, selection, loggers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lightning_ubs.callback import BatchSelection
from lightning_ubs.data import DataError, MultiLabelDataModule
from lightning_ubs.experiment.config import ConfigError, suggestion, unknown_key
from lightning_ubs.methods import METHODS
from lightning_ubs.models import MultiLabelModule, build_model, original_lr
from lightning_ubs.strategies import Strategy

STRATEGIES: dict[str, type[Strategy]] = {row.key: row.strategy for row in METHODS}
LOGGERS = ("csv", "tensorboard", "none")
_NAMES = ("name", "strategy", "label", "variant")


def split_selection(config: Mapping[str, Any]) -> tuple[type[Strategy], dict[str, Any], dict[str, Any]]:
    """The strategy, its own arguments, and those of the callback, from the flat keys of a selection."""
    name = config["strategy"]
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise ConfigError(
            f"selection.strategy={name!r} is unknown; {suggestion(str(name), STRATEGIES)}choose one of {known}."
        )
    strategy = STRATEGIES[name]
    own, shared = _arguments(strategy), _arguments(BatchSelection)
    rest = {key: value for key, value in config.items() if key not in _NAMES}
    for key, value in rest.items():
        if key not in own and key not in shared:
            raise unknown_key(f"selection.{key}", value, {"selection": dict.fromkeys([*own, *shared])})
    return (
        strategy,
        {key: value for key, value in rest.items() if key in own},
        {key: value for key, value in rest.items() if key not in own},
    )


def build_selection(config: Mapping[str, Any]) -> BatchSelection:
    """The callback of ``selection``."""
    strategy, own, shared = split_selection(config)
    with _naming("selection", config):
        return BatchSelection(strategy(**own), **shared)


def build_data(config: Mapping[str, Any]) -> MultiLabelDataModule:
    """The data of ``data``: one fold."""
    if config.get("path") is None and config.get("name") is None:
        raise ConfigError("data.path has no value; give the file: data.path=FILE.")
    options = {key: value for key, value in config.items() if key not in ("name", "path")}
    source = {"path": config["path"]} if config.get("path") is not None else {"name": config["name"]}
    with _naming("data", config):
        return MultiLabelDataModule(**source, **options)


def data_name(config: Mapping[str, Any]) -> str:
    """The name of the data in results: the dataset's, or the file's without its ending."""
    return str(config["name"]) if config.get("name") else Path(config["path"]).name.split(".")[0]


def build_network(config: Mapping[str, Any], data: MultiLabelDataModule, name: str) -> MultiLabelModule:
    """The model of ``model`` for loaded data; null takes the authors' setting for the dataset ``name``."""
    options = {key: value for key, value in config.items() if key != "name" and value is not None}
    with _naming("model", config):
        options.setdefault("lr", original_lr(config["name"], name))
        return build_model(config["name"], data.num_features, data.num_labels, dataset=name, **options)


def build_loggers(config: Mapping[str, Any], folder: Path) -> list[Logger]:
    """CSV in ``folder``/log, and TensorBoard's events beside it if chosen."""
    name = config["name"]
    if name not in LOGGERS:
        raise ConfigError(f"logger.name={name!r} is unknown; choose one of {', '.join(LOGGERS)}.")
    if name == "none":
        return []
    loggers: list[Logger] = [CSVLogger(folder, name="log", version="")]
    if name == "tensorboard":
        try:
            loggers.append(TensorBoardLogger(folder, name="log", version=""))
        except ModuleNotFoundError:
            raise ConfigError("logger=tensorboard needs TensorBoard; run: pip install tensorboard.") from None
    return loggers


def _arguments(cls: type) -> list[str]:
    return [name for name in inspect.signature(cls).parameters if name != "strategy"]


@contextmanager
def _naming(group: str, config: Mapping[str, Any]) -> Iterator[None]:
    """Turn the complaint of a constructor into one about the key that the user can change."""
    try:
        yield
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        text = str(error).splitlines()[0]
        first = text.replace("=", " ").split(" ")[0]
        raise ConfigError(f"{group}.{text}" if first in config else f"{group}={config.get('name')}: {text}") from error
