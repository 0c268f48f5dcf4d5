"""What Hydra may call: from 1.4 on it wants to be told, by a list that it calls the execution whitelist."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from lightning_ubs.errors import ConfigError


def allowed(named: Mapping[str, Any]) -> Any:
    """A context in which Hydra calls what a configuration names (name: object); without effect in Hydra 1.3.

    Of Python itself, classes can be named, as ``datetime.timedelta``, unless Hydra refuses them; functions, as
    ``shutil.rmtree``, cannot, under whatever name.
    """
    import hydra.utils

    whitelist = getattr(hydra.utils, "execution_whitelist", None)
    if whitelist is None:
        return nullcontext()
    # A function that makes a module may give one of any package, and Hydra looks at what it gives, too.
    packages = {_package(name) for name in sys.modules} - sys.stdlib_module_names
    exact = []
    for target, found in named.items():
        homes = {_home(found), _package(target)}
        if not homes & sys.stdlib_module_names:
            exact.append(target)
        elif isinstance(found, type):
            packages |= homes  # Hydra looks behind names that are only in a package: what it refuses stays refused
        else:
            raise ConfigError(
                f"_target_={target!r} is a function of Python itself, which a configuration may not call; name a "
                "function of your own that calls it."
            )
    return whitelist([*exact, *(f"{package}.*" for package in sorted(packages))])


def targets(config: Any) -> Iterator[str]:
    """Every ``_target_`` in a configuration that Hydra would call."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield str(config["_target_"])
        config = list(config.values()) if config.get("_recursive_", True) else []
    if isinstance(config, list | tuple):
        for part in config:
            yield from targets(part)


def _home(found: Any) -> str:
    """The package in which an object was written; empty if it does not tell, as functions of torch."""
    while isinstance(found, functools.partial):
        found = found.func
    owner = getattr(found, "__objclass__", found)  # of a method that is written in C
    return _package(getattr(owner, "__module__", None) or "")


def _package(name: str) -> str:
    return name.partition(".")[0]
