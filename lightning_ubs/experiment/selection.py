"""What ``selection/*.yaml`` describe: a batch selection in flat keys."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_ubs._utils.checks import constructor_arguments, did_you_mean
from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.config import digest, telling_settings, unknown_key
from lightning_ubs.experiment.own_code import fingerprint
from lightning_ubs.methods import BASELINE, METHODS, find_method
from lightning_ubs.selection.options import EpochSize
from lightning_ubs.strategies import Random, Shuffled, Strategy

# Arguments of the callback that stand in every record, whatever their value.
_TOLD = ("warmup_epochs", "start_epoch", "end_epoch", "replacement", "epoch_size", "unbiased", "fill_last", "refresh")
# Arguments that change nothing of what is selected: where things are kept and shown, and what the run itself sets.
_ASIDE = ("strategy", "seed", "device", "memory", "save_state", "log_metrics", "label_names", "ids")
Selection = Strategy | BatchSelection
"""What a user compares: a strategy, or a whole callback."""
NAMES = ("_target_", "name", "label", "variant")
"""Keys of a selection that are not settings."""


def batch_selection(
    strategy: str,
    name: str | None = None,
    label: str | None = None,
    variant: str = "",
    of: str | None = None,
    **settings: Any,
) -> BatchSelection:
    """The callback of this package's configurations; ``hydra.utils.instantiate`` calls it.

    Args:
        strategy: Key of a method of this package, such as ``"ubs"``.
        name: In results; not used here.
        label: To display; not used here.
        variant: Name of an ablation's variant; not used here.
        of: Label of the method that this is the control of: its probabilities are dealt to random samples.
        settings: Arguments of the strategy and of :class:`BatchSelection`, side by side.

    >>> batch_selection("ubs", lambda1=0.6, warmup_epochs=3).start_epoch
    3
    """
    kind = _strategy(strategy)
    own, shared = split_settings(kind, settings)
    if shared.get("seed", 0) is None:  # a root configuration that leaves its seed open
        shared["seed"] = 0
    made = kind(**own)
    if of is not None:
        made = Shuffled(strategy=made.strategy if isinstance(made, Shuffled) else made, of=of)
    return BatchSelection(made, **with_one_start(shared))


def with_one_start(settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` without the warm-up of ``selection/default.yaml`` where they name the first selected epoch.

    >>> with_one_start({"warmup_epochs": 5, "start_epoch": 3})
    {'start_epoch': 3}
    """
    replaced = settings.get("start_epoch") is not None and settings.get("warmup_epochs") == 5
    return {name: value for name, value in settings.items() if not (replaced and name == "warmup_epochs")}


def reseeded(selection: BatchSelection, seed: int) -> BatchSelection:
    """A new callback like ``selection`` with another seed; the given one is left as it is."""
    arguments = constructor_arguments(selection)
    if "seed" not in arguments:
        raise ConfigError(
            f"{type(selection).__name__} does not take the seed that pairs its runs with those of others; let its "
            "constructor take seed and keep it."
        )
    return type(selection)(**copy.deepcopy(arguments | {"seed": seed}))


def described(label: str, selection: Selection) -> dict[str, Any]:
    """How a record tells this method: a key of this package's table or the class, its settings, its name."""
    strategy = strategy_of(selection)
    row = next((row for row in METHODS if type(strategy) is row.strategy), None)
    callback = selection if isinstance(selection, BatchSelection) else BatchSelection(copy.deepcopy(strategy))
    told = _settings_of_callback(callback)
    arguments = telling_settings(constructor_arguments(strategy))
    parameters = {name: value for name, value in arguments.items() if _is_plain(value)} | told
    parameters |= {name: digest(value.tolist()) for name, value in vars(strategy).items() if _tells(name, value)}
    if not isinstance(strategy, Shuffled):  # whose strategy is told below
        parameters |= {name: _as_text(value) for name, value in arguments.items() if name not in parameters}
    if isinstance(strategy, Shuffled):
        whole = described(strategy.of, strategy.strategy)
        parameters |= {f"strategy.{name}": value for name, value in whole["parameters"].items() if name not in told}
        parameters |= {"strategy": whole["selection"]}
    if row is None:
        parameters |= {"code": fingerprint(strategy)} | ({} if label == type(strategy).__name__ else {"name": label})
    selected = BASELINE if isinstance(strategy, Random) else row.key if row else type(strategy).__name__
    return {"selection": selected, "label": label, "parameters": parameters}


def _settings_of_callback(callback: BatchSelection) -> dict[str, Any]:
    """What is passed to the callback besides its strategy; of most arguments only what is not their default."""
    told = {name: getattr(callback, name) for name in _TOLD if _is_plain(getattr(callback, name, ...))}
    if isinstance(callback.epoch_size, EpochSize):
        told["epoch_size"] = repr(callback.epoch_size)
    if callback.order is not None:
        told["order"] = repr(callback.order)
        if callback.order.bounds is not None:
            told["bounds"] = digest(np.asarray(callback.order.bounds).tolist())
    if callback.refresh is not None:
        told["refresh"] = repr(callback.refresh)
        if callback.refresh.predict is not None:  # two functions may have one name
            told["refresh.predict"] = fingerprint(callback.refresh.predict)
    if type(callback) is not BatchSelection:
        told["callback"] = fingerprint(type(callback))
    usual = {name: one.default for name, one in inspect.signature(type(callback)).parameters.items()}
    given = constructor_arguments(callback)
    if "history_dtype" in given:  # as a name, as a type of torch, or not at all
        name = str(callback.history_dtype).removeprefix("torch.")
        given["history_dtype"] = None if name == "float32" else name
    for name in given.keys() - {*_TOLD, *_ASIDE, "order"}:
        if given[name] is not usual[name]:
            told[name] = given[name] if _is_plain(given[name]) else _as_text(given[name])
    return told


def strategy_of(selection: Selection) -> Strategy:
    """The strategy itself, or that of a callback."""
    return selection if isinstance(selection, Strategy) else selection.strategy


def with_strategy(selection: BatchSelection, strategy: Strategy) -> BatchSelection:
    """A new callback like ``selection`` with another strategy."""
    arguments = constructor_arguments(selection)
    if "strategy" not in arguments:
        raise ConfigError(
            f"{type(selection).__name__} does not take its strategy, so its control cannot be made; let its "
            "constructor take strategy and keep it, or leave controls out."
        )
    return type(selection)(**copy.deepcopy(arguments | {"strategy": strategy}))


def split_settings(strategy: type, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a strategy and those of the callback; a key that is neither is an error."""
    own, shared = parameters(strategy), [name for name in parameters(BatchSelection) if name != "strategy"]
    for key, value in settings.items():
        if key not in own and key not in shared:
            raise unknown_key(f"selection.{key}", value, {"selection": dict.fromkeys([*own, *shared])})
    return (
        {key: value for key, value in settings.items() if key in own},
        {key: value for key, value in settings.items() if key not in own},
    )


def parameters(function: Any) -> list[str]:
    """Names of the arguments of a function or class; empty if it does not tell."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def plain_defaults(function: Any, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Arguments of a function or class whose defaults a configuration can state.

    >>> plain_defaults(lambda a, b=1, c=list: None)
    {'b': 1}
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    plain = (int, float, str, bool, type(None))
    return {one.name: one.default for one in found if isinstance(one.default, plain) and one.name not in leave_out}


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a selection that are settings."""
    return {key: value for key, value in config.items() if key not in (*NAMES, "strategy")}


def _strategy(name: str) -> type[Strategy]:
    row = find_method(str(name))
    if row is None:
        known = [row.key for row in METHODS]
        hint = did_you_mean(str(name), known, f"choose from {', '.join(known)}.")
        raise ConfigError(f"selection.strategy={name!r} is unknown; {hint}")
    return row.strategy


def _tells(name: str, value: Any) -> bool:
    """Whether a tensor is an argument, such as weights of the user's."""
    return hasattr(value, "tolist") and not name.startswith("_")


def _as_text(value: Any) -> str:
    """What stands in a record for an argument that is no number and no text: a digest of what it holds or does."""
    return digest(value.tolist()) if hasattr(value, "tolist") else fingerprint(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | type(None))
