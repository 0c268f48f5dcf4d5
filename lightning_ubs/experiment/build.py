"""From a resolved configuration to objects: data, model, selection, callbacks, loggers.

Parts of this package are named by their groups. A user's own class or function is named by ``_target_``, and
``hydra.utils.instantiate`` calls it, with Hydra's own protections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from typing_extensions import override

from lightning_ubs.callback import BatchSelection
from lightning_ubs.data import MultiLabelDataModule
from lightning_ubs.errors import ConfigError, DataError
from lightning_ubs.experiment.config import target_of
from lightning_ubs.experiment.own_code import locate
from lightning_ubs.experiment.selection import (
    NAMES,
    batch_selection,
    parameters,
    reseeded,
    split_settings,
    with_one_start,
)
from lightning_ubs.models import build_model, original_lr
from lightning_ubs.strategies import Strategy

FILLED_IN = ("num_features", "num_labels", "fold", "seed")
"""Arguments that a user's own class gets where it takes them."""
LOGGERS = ("csv", "tensorboard", "none")
_STAGES = ("train", "val", "test")


def instantiate(group: str, config: Mapping[str, Any], **known: Any) -> Any:
    """Call the ``_target_`` of a configuration. Of ``known``, what it takes and the user left open is filled in.

    Only targets that the configuration names are imported; Hydra's list of dangerous ones stays in force.
    """
    import hydra.utils

    target = str(config["_target_"])
    takes = parameters(locate(target))
    filled = {name: value for name, value in known.items() if name in takes and config.get(name) is None}
    for part in _targets(config):
        locate(part)
    try:
        return hydra.utils.instantiate(dict(config) | filled, _convert_="all")
    except Exception as error:
        cause = error.__cause__ or error
        text = " ".join(str(cause).split()) or "no message"
        raise ConfigError(f"{group}: {target} raised {type(cause).__name__}: {text}") from error


def _targets(config: Any) -> Iterator[str]:
    """Every ``_target_`` in a configuration that Hydra would call."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield str(config["_target_"])
        config = list(config.values()) if config.get("_recursive_", True) else []
    if isinstance(config, list | tuple):
        for part in config:
            yield from _targets(part)


def build_selection(config: Mapping[str, Any], seed: int) -> BatchSelection:
    """The callback of ``selection``; its target may give a strategy or a whole callback."""
    target = target_of(config)
    if target is None:
        with _naming("selection", config):
            return batch_selection(**{key: value for key, value in config.items() if key != "_target_"})
    settings, kind = {key: value for key, value in config.items() if key not in NAMES}, locate(target)
    shared: dict[str, Any] = {}
    if isinstance(kind, type) and issubclass(kind, Strategy):
        settings, shared = split_settings(kind, settings)
    found = instantiate("selection", {"_target_": target} | with_one_start(settings), seed=seed)
    if isinstance(found, Strategy):
        with _naming("selection", config):
            return BatchSelection(found, **{"seed": seed} | with_one_start(shared))
    if isinstance(found, BatchSelection):
        return reseeded(found, seed)
    raise ConfigError(f"selection: {target} returned {type(found).__name__}; return a Strategy or a BatchSelection.")


def build_data(config: Mapping[str, Any], fold: int = 0, seed: int = 0) -> LightningDataModule:
    """The data of ``data``: one fold."""
    target = target_of(config)
    if target is not None:
        return as_datamodule(instantiate("data", config, fold=fold, seed=seed), f"data: {target}")
    _check_source(config)
    options = {key: value for key, value in config.items() if key not in ("name", "path")}
    source = {key: config[key] for key in ("name", "path") if config.get(key) is not None}
    with _naming("data", config):
        return MultiLabelDataModule(**source, **options)


def build_network(
    config: Mapping[str, Any], data: LightningDataModule, name: str, fold: int = 0, seed: int = 0
) -> LightningModule:
    """The model of ``model`` for ``data``; null takes the authors' setting for the dataset ``name``."""
    target = target_of(config)
    if target is None:
        set_up(data)
        options = {key: value for key, value in config.items() if key != "name" and value is not None}
        features, labels = _sizes(data)
        if features is None or labels is None:
            raise ConfigError(
                f"model={config['name']} needs num_features and num_labels from the data; add these two attributes to "
                f"{type(data).__name__}, or use a model of your own with _target_."
            )
        with _naming("model", config):
            options.setdefault("lr", original_lr(config["name"], name))
            return build_model(config["name"], features, labels, dataset=name, **options)
    known: dict[str, Any] = {"fold": fold, "seed": seed}
    if {"num_features", "num_labels"} & set(parameters(locate(target))):
        set_up(data)
        known |= {
            name: size
            for name, size in zip(("num_features", "num_labels"), _sizes(data), strict=True)
            if size is not None
        }
    found = instantiate("model", config, **known)
    if not isinstance(found, LightningModule):
        raise ConfigError(f"model: {target} returned {type(found).__name__}; return a LightningModule.")
    return found


def build_callbacks(config: Mapping[str, Any] | None) -> list[Callback]:
    """The callbacks of ``callbacks``: a ``_target_`` under each name."""
    found = []
    for name, part in (config or {}).items():
        if not isinstance(part, Mapping) or "_target_" not in part:
            raise ConfigError(f"callbacks.{name}={part!r} has no _target_; give one: callbacks.{name}._target_=CLASS.")
        callback = instantiate(f"callbacks.{name}", part)
        if not isinstance(callback, Callback):
            raise ConfigError(f"callbacks.{name}: {part['_target_']} is not a Lightning callback; give one.")
        found.append(callback)
    return found


def build_loggers(config: Mapping[str, Any], folder: Path) -> list[Logger]:
    """CSV in ``folder``/log, and TensorBoard's events beside it if chosen; or Lightning's class in ``_target_``."""
    if config.get("_target_"):
        settings = {key: value for key, value in config.items() if key not in ("name", "image_every_n_epochs")}
        return [CSVLogger(folder, name="log", version=""), instantiate("logger", settings, save_dir=str(folder))]
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


def data_name(config: Mapping[str, Any]) -> str:
    """The name of the data in results: the dataset's, the file's without its ending, or the user's class."""
    target = target_of(config)
    if target is not None:
        return target.rpartition(".")[2]
    _check_source(config)
    return str(config["name"]) if config.get("name") else Path(config["path"]).name.split(".")[0]


def _check_source(config: Mapping[str, Any]) -> None:
    if config.get("path") is None and config.get("name") is None:
        raise ConfigError("data.path has no value; give the file: data.path=FILE.")


def set_up(data: LightningDataModule) -> None:
    """Make the data ready to be asked for their shape."""
    data.prepare_data()
    data.setup("fit")


def _sizes(data: LightningDataModule) -> tuple[int | None, int | None]:
    return getattr(data, "num_features", None), getattr(data, "num_labels", None)


@contextmanager
def _naming(group: str, config: Mapping[str, Any]) -> Iterator[None]:
    """Turn the complaint of a constructor into one about the key that the user can change."""
    try:
        yield
    except (DataError, ConfigError):
        raise
    except (TypeError, ValueError) as error:
        text = str(error).splitlines()[0]
        first = text.replace("=", " ").split(" ")[0]
        known = first in config and first not in NAMES
        raise ConfigError(f"{group}.{text}" if known else f"{group}={config.get('name')}: {text}") from error


class LoaderData(LightningDataModule):
    """Loaders for training and validation.

    Args:
        train: A loader.
        val: A loader.
    """

    def __init__(self, train: Any, val: Any) -> None:
        super().__init__()
        self.train, self.val = train, val

    @override
    def train_dataloader(self) -> Any:
        return self.train

    @override
    def val_dataloader(self) -> Any:
        return self.val


class TestedLoaderData(LoaderData):
    """Loaders for training, validation and testing.

    Args:
        train: A loader.
        val: A loader.
        test: A loader.
    """

    def __init__(self, train: Any, val: Any, test: Any) -> None:
        super().__init__(train, val)
        self.test = test

    @override
    def test_dataloader(self) -> Any:
        return self.test


def as_datamodule(found: Any, source: str) -> LightningDataModule:
    """A datamodule as it is; two or three loaders, in order or by name, as a datamodule.

    >>> type(as_datamodule({"train": [1], "val": [2]}, "data")).__name__
    'LoaderData'
    """
    if isinstance(found, LightningDataModule):
        return found
    if isinstance(found, Mapping) and {"train", "val"} <= set(found) <= set(_STAGES):
        found = [found[stage] for stage in _STAGES if stage in found]
    if isinstance(found, Sequence) and not isinstance(found, str) and len(found) in (2, 3):
        return LoaderData(*found) if len(found) == 2 else TestedLoaderData(*found)
    raise ConfigError(
        f"{source} returned {type(found).__name__}; return a LightningDataModule, or loaders for training, validation "
        "and (if there is one) testing."
    )
