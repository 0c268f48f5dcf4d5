"""What ``selection/*.yaml`` describe: a batch selection in flat keys."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_ubs._utils.arguments import constructor_arguments
from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.config import unknown_key
from lightning_ubs.methods import METHODS, find_method
from lightning_ubs.strategies import Strategy

NAMES = ("_target_", "name", "label", "variant")
"""Keys of a selection that are not settings."""


def batch_selection(
    strategy: str, name: str | None = None, label: str | None = None, variant: str = "", **settings: Any
) -> BatchSelection:
    """The callback of this package's configurations; ``hydra.utils.instantiate`` calls it.

    Args:
        strategy: key of a method of this package, such as ``"ubs"``.
        name: in results; not used here.
        label: to display; not used here.
        variant: of an ablation; not used here.
        settings: arguments of the strategy and of :class:`BatchSelection`, side by side.

    >>> batch_selection("ubs", lambda1=0.6, warmup_epochs=3).start_epoch
    3
    """
    kind = _strategy(strategy)
    own, shared = split_settings(kind, settings)
    if shared.get("seed", 0) is None:  # a root configuration that leaves its seed open
        shared["seed"] = 0
    return BatchSelection(kind(**own), **shared)


def reseeded(selection: BatchSelection, seed: int) -> BatchSelection:
    """A new callback like ``selection`` with another seed; the given one is left as it is."""
    arguments = constructor_arguments(selection)
    if "seed" not in arguments:
        raise ConfigError(
            f"{type(selection).__name__} does not take the seed that pairs its runs with those of others; let its "
            "constructor take seed and keep it."
        )
    return type(selection)(**copy.deepcopy(arguments | {"seed": seed}))


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
        way_out = did_you_mean(str(name), known, f"choose from {', '.join(known)}.")
        raise ConfigError(f"selection.strategy={name!r} is unknown; {way_out}")
    return row.strategy
