"""The configuration of a run: composed by Hydra, checked, identified by a hash."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs._utils.files import sha256
from lightning_ubs.data.readers.stream import bare_name
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.own_code import fingerprint, locate

CONFIG_MODULE = "lightning_ubs.configs"
HYDRA_VERSION = "1.3"
"""Whose defaults Hydra shall use."""
GROUPS = ("data", "model", "selection", "trainer", "callbacks", "logger")
OWN_SELECTION = "lightning_ubs.experiment.selection.batch_selection"
"""``_target_`` of the selections in this package's configurations."""

# What changes neither a number nor a name: where a run happens and what is kept of it.
_ASIDE: Mapping[str, tuple[str, ...]] = {
    "data": ("data_dir", "num_workers", "max_bytes"),
    "selection": ("label", "save_state", "device", "memory"),
    "trainer": (
        "accelerator", "devices", "enable_progress_bar", "enable_model_summary", "log_every_n_steps",
        "num_sanity_val_steps", "deterministic",
    ),
}  # fmt: skip


# Settings of this package's groups that came later, with values at which nothing changes: older runs are the same.
_AS_BEFORE: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "selection": {"correlation_every": (1,), "original": (False,)},
    "model": {"loss": ("bce", None)},
}

# Arguments of a Trainer that may be an object, which a configuration describes by its ``_target_``.
_OF_OBJECTS = ("strategy", "logger", "callbacks", "profiler", "plugins")

_FILE_ENDINGS = (
    ".arff", ".csv", ".tsv", ".txt", ".dat", ".svm", ".svmlight", ".libsvm", ".parquet", ".mat", ".rda", ".rdata",
    ".npz",
)  # fmt: skip

# ${dotted.key} or ${oc.select:dotted.key,DEFAULT} and nothing else; a key that begins with a dot is relative.
_KEY = r"(\w+(?:\.\w+)*)"
_REFERENCE = re.compile(rf"\$\{{(?:{_KEY}|oc\.select:{_KEY}(?:,[^{{}}]*)?)\}}")


def compose_train(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration of ``lightning-ubs train`` as a plain dict, interpolations still in it.

    Inside a Hydra application its own search path is used, so that configurations of the user are found.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from lightning_ubs.data.entries import register_datasets
    from lightning_ubs.methods import register_methods

    register_datasets()
    register_methods()
    if GlobalHydra.instance().is_initialized():
        return _unresolved(compose("train", list(overrides)))
    with initialize_config_module(CONFIG_MODULE, version_base=HYDRA_VERSION):
        return _unresolved(compose("train", list(overrides)))


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with every ``${...}`` and the warm-up in numbers; a value that is still missing is an error."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    plain = _with_plain_references(config, config)
    if not any(isinstance(text, str) and ("${" in text or text == "???") for text in _values(plain)):
        return _with_warmup(plain)
    try:
        plain = OmegaConf.to_container(OmegaConf.create(dict(config)), resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = str(error.full_key or error.key)
        raise ConfigError(f"{key} has no value; give one: {key}=VALUE.") from None
    return _with_warmup(plain)  # type: ignore[arg-type]


def check_types(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse a value whose type is not that of the default, such as text for a number; a model's null is its own."""
    for key, default in leaves(defaults):
        value = lookup(config, key)
        wanted = "" if value is None and key.startswith("model.") else _wanted(default, value)
        if wanted:
            raise ConfigError(f"{key}={value!r} must be {wanted}; the default is {default!r}.")


def check_run(config: Mapping[str, Any]) -> None:
    """Refuse what neither a constructor nor Lightning would refuse in a sentence."""
    epochs = lookup(config, "trainer.max_epochs")
    if not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(f"trainer.max_epochs={epochs!r} is out of range; it must be at least 1.")
    seed = config["seed"]
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed!r} is out of range; it must be from 0 to {2**32 - 1}.")
    if config.get("mode") not in (None, "max", "min"):
        raise ConfigError(f"mode={config['mode']!r} is unknown; choose max or min.")
    monitor, epochs = config.get("monitor"), config.get("trace_epochs")
    if not isinstance(monitor, str | None):
        raise ConfigError(
            f"monitor={monitor!r} must be the name of a logged value; give one, such as monitor=val_macro_auc."
        )
    if epochs is not None and not (isinstance(epochs, list) and all(type(one) is int for one in epochs)):
        raise ConfigError(
            f"trace_epochs={epochs!r} must be a list of whole numbers; give one, such as trace_epochs=[0,10]."
        )


# The form of each key of ``lightning-ubs compare``: a section of keys, a list, or what its default is.
_SECTIONS = ("grid", "train", "by_data", "by_loss", "sweep")
_TEXTS, _SWITCHES = ("name", "results"), ("dry_run", "trace")


def check_comparison(config: Mapping[str, Any]) -> None:
    """Refuse keys of ``lightning-ubs compare`` that have another form than theirs, before anything is run."""
    for name in _SECTIONS:
        _check_section(name, config[name])
    sections = {f"by_data.{name}": part for name, part in config["by_data"].items()}
    for loss, part in config["by_loss"].items():
        _check_section(f"by_loss.{loss}", part)
        sections |= {f"by_loss.{loss}.{name}": one for name, one in part.items()}
    if not isinstance(config["sweeps"], list):
        raise ConfigError(f"sweeps={config['sweeps']!r} must be a list of sections; write each as sweep has it.")
    sections |= {f"sweeps[{place}]": part for place, part in enumerate(config["sweeps"])}
    for key, part in sections.items():
        _check_section(key, part)
    for key in _TEXTS:
        if isinstance(config[key], bool | Mapping | list) or config[key] in (None, ""):
            raise ConfigError(f"{key}={config[key]!r} must be text; give some, such as {key}=mine.")
    for key in _SWITCHES:
        if not isinstance(config[key], bool):
            raise ConfigError(f"{key}={config[key]!r} must be true or false; write {key}=true.")


def _check_section(key: str, part: Any) -> None:
    if not isinstance(part, Mapping):
        raise ConfigError(f"{key}={part!r} is a section and takes no value of its own; set its keys: {key}.KEY=VALUE.")


def target_of(config: Mapping[str, Any]) -> str | None:
    """The user's own class or function that a part of the configuration names; None for a part of this package."""
    target = config.get("_target_")
    return None if target in (None, OWN_SELECTION) else str(target)


def is_file_name(text: str) -> bool:
    """Whether a choice of data names a file rather than a dataset.

    >>> is_file_name("mine.csv.gz"), is_file_name("yahoo-Arts1"), is_file_name("mypackage.MyData")
    (True, False, False)
    """
    path = Path(text)
    return Path(bare_name(path)).suffix.lower() in _FILE_ENDINGS or path.name != text or path.is_file()


def file_as_data(text: str) -> str:
    """The sentence for a file that was given in the place of a dataset's name."""
    return (
        f"data={text} is a file; use data=file data.path={text}, and data.labels=PREFIX if it does not tell which "
        "columns are labels."
    )


def run_key(config: Mapping[str, Any]) -> str:
    """16 hexadecimal digits for everything that decides the outcome of a run, the user's own code included."""
    parts: dict[str, Any] = {
        group: {
            name: value
            for name, value in config[group].items()
            if name not in _ASIDE.get(group, ()) and value != OWN_SELECTION
        }
        for group in ("data", "model", "selection", "trainer")
    }
    parts |= {group: telling_settings(parts[group], group) for group in ("selection", "model")}
    path = config["data"].get("path")
    if path is not None and os.path.isfile(path):
        parts["data"]["path"] = sha256(path)
    parts |= {name: config[name] for name in ("callbacks", "monitor", "mode") if config.get(name)}
    own = {group: target_of(config[group]) for group in ("data", "model", "selection")}
    code = {group: fingerprint(locate(target)) for group, target in own.items() if target}
    return digest({**parts, **({"code": code} if code else {}), "seed": config["seed"]})


def telling_settings(settings: Mapping[str, Any], group: str = "selection") -> dict[str, Any]:
    """The settings that tell a selection or model from others, without those at which all is as it was before them.

    >>> telling_settings({"s0": 64, "correlation_every": 1})
    {'s0': 64}
    """
    before = _AS_BEFORE[group] if group == "selection" or target_of(settings) is None else {}
    return {name: value for name, value in settings.items() if name not in before or value not in before[name]}


def digest(value: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a value as JSON; 1 and 1.0 are the same.

    >>> digest({"s0": 100}) == digest({"s0": 100.0})
    True
    """
    text = json.dumps(_canonical(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All (dotted key, value) of a nested mapping; a list is a value.

    >>> list(leaves({"trainer": {"max_epochs": 3}, "seed": 0}))
    [('trainer.max_epochs', 3), ('seed', 0)]
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + str(name), value


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key, or None."""
    for name in key.split("."):
        if not isinstance(config, Mapping) or name not in config:
            return None
        config = config[name]
    return config


def has_key(config: Mapping[str, Any], key: str) -> bool:
    """Whether a configuration has a place for a dotted key; ``trainer`` has one for any argument of a Trainer."""
    path, _, last = key.rpartition(".")
    parent = lookup(config, path) if path else config
    return (isinstance(parent, Mapping) and last in parent) or ("trainer" in config and is_trainer_key(key))


def assign(config: dict[str, Any], key: str, value: Any) -> bool:
    """Set a dotted key for which there is a place; tell whether there is."""
    if not has_key(config, key):
        return False
    *path, last = key.split(".")
    for name in path:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[last] = value
    return True


def is_trainer_key(key: str) -> bool:
    """Whether a dotted key is an argument of ``lightning.Trainer``, or a part of one that ``_target_`` makes.

    >>> is_trainer_key("trainer.limit_train_batches"), is_trainer_key("trainer.max_epoch")
    (True, False)
    """
    group, _, rest = key.partition(".")
    name, _, part = rest.partition(".")
    return group == "trainer" and name in trainer_arguments() and (not part or name in _OF_OBJECTS)


def trainer_arguments() -> tuple[str, ...]:
    """The names of what ``lightning.Trainer`` takes; it is imported only for a key that the group does not list."""
    from lightning.pytorch import Trainer

    return tuple(name for name in inspect.signature(Trainer.__init__).parameters if name != "self")


def unknown_key(key: str, value: Any, config: Mapping[str, Any], run: Mapping[str, Any] | None = None) -> ConfigError:
    """The error for a key that a configuration does not have.

    Args:
        key: Dotted key.
        value: What was given for it.
        config: The configuration.
        run: The configuration of a run, whose keys ``config`` takes as well; None: ``config`` itself.
    """
    *path, last = key.split(".")
    depth = len(path)
    while depth and not isinstance(lookup(config, ".".join(path[:depth])), Mapping):
        last, depth = path[depth - 1], depth - 1
    place = ".".join(path[:depth])
    siblings = lookup(config, place) if place else config
    known = [str(name) for name in siblings if name != "_target_"]
    chosen = siblings.get("name") if place in GROUPS else None
    where = f" in {place}={chosen}" if chosen else f" in {place}" if place else ""
    given = key if value is None else f"{key}={value}"
    elsewhere = [] if place else _groups_with(last, config if run is None else run)
    if elsewhere:
        shown = " or ".join(f"{group}.{last}={'VALUE' if value is None else value}" for group in elsewhere)
        return ConfigError(f"{given}: there is no key {last!r}; did you mean {shown}?")
    listed = f"valid keys are {', '.join(known)}." if known else f"a new one takes a plus: '+{key}=VALUE'."
    if place == "trainer":
        listed = "valid keys are the arguments of lightning.Trainer, such as max_epochs or limit_train_batches."
        known = list(trainer_arguments())
    return ConfigError(f"{given}: there is no key {last!r}{where}; {did_you_mean(last, known, listed)}")


def _groups_with(name: str, run: Mapping[str, Any]) -> list[str]:
    """The groups of a run that have a key of this name, the name and the seed of each aside."""
    if name in ("name", "seed", "_target_"):
        return []
    return [group for group in GROUPS if isinstance(run.get(group), Mapping) and has_key(run, f"{group}.{name}")]


def _unresolved(config: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return dict(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]


def _with_warmup(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the number that ``selection.warmup_epochs: null`` stands for, which identifies the run."""
    selection, epochs = config.get("selection"), lookup(config, "trainer.max_epochs")
    if not isinstance(selection, Mapping) or selection.get("warmup_epochs", ...) is not None:
        return dict(config)
    from lightning_ubs.selection.options import WARMUP, default_warmup

    follows = selection.get("start_epoch") is None and isinstance(epochs, int)
    return {**config, "selection": {**selection, "warmup_epochs": default_warmup(epochs) if follows else WARMUP}}


def _with_plain_references(value: Any, config: Mapping[str, Any]) -> Any:
    """A copy with every reference replaced whose key has a number.

    OmegaConf does this as well, and much more; a grid has hundreds of runs with one such reference each.
    """
    if isinstance(value, Mapping):
        return {name: _with_plain_references(item, config) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_plain_references(item, config) for item in value]
    named = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    found = lookup(config, named[1] or named[2]) if named else None
    return found if isinstance(found, int | float) else value


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _values(item)
    else:
        yield value


def _wanted(default: Any, value: Any) -> str:
    """What the value should have been, or nothing if it is that."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(default, float):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return "" if number else "a number"
    if isinstance(default, list):
        return "" if isinstance(value, list) else "a list"
    return ""


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return value
