"""The runs of a grid: every combination of data, model, selection, swept values, fold and seed."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_ubs.data import DataError, catalog
from lightning_ubs.experiment.build import build_data, build_selection
from lightning_ubs.experiment.config import (
    ConfigError,
    assign,
    check_run,
    check_types,
    compose_train,
    leaves,
    lookup,
    resolved,
    run_key,
    suggestion,
    unknown_key,
)
from lightning_ubs.experiment.run import Names

_SYMBOLS = {"lambda1": "λ1", "window": "T", "warmup_epochs": "γ", "bins": "τ"}


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be done: its identity, its resolved configuration, its names in results."""

    key: str
    config: dict[str, Any]
    names: Names

    @property
    def title(self) -> str:
        """One line for the progress display."""
        config = self.config
        data = self.names.data or config["data"]["name"] or config["data"]["path"]
        model = self.names.model or config["model"]["name"]
        label = self.names.label or config["selection"]["label"]
        return f"{data} {model} {label} fold {config['data']['fold']} seed {config['seed']}"


def plan_runs(config: Mapping[str, Any]) -> list[PlannedRun]:
    """All runs of a resolved ``compare`` configuration, each once, in the order in which they are done.

    Folds and seeds come first, so that a grid that is stopped early has compared all methods on some of them.
    """
    grid = {name: _many(value, name) for name, value in config["grid"].items()}
    base = compose_train(["logger=none"]) | {name: config[name] for name in ("trace", "trace_epochs")}
    groups = {name: {choice: _group(name, choice) for choice in grid[name]} for name in ("data", "model", "selection")}
    fixed = dict(leaves(config["train"]))
    swept = {key: _many(values, f"sweep.{key}") for key, values in leaves(config["sweep"])}
    _check_keys({**fixed, **swept}, base, groups)
    runs: dict[str, PlannedRun] = {}
    units = itertools.product(grid["seed"], grid["fold"], grid["data"], grid["model"], grid["selection"])
    for seed, fold, data, model, selection in units:
        parts = {"data": groups["data"][data], "model": groups["model"][model]}
        run = copy.deepcopy(base | parts | {"selection": groups["selection"][selection], "seed": seed})
        run["data"]["fold"] = fold
        defaults = copy.deepcopy(run)
        for key, value in fixed.items():
            assign(run, key, value)
        for values in _combinations(run, swept):
            planned = copy.deepcopy(run)
            for key, value in values.items():
                assign(planned, key, value)
            planned["trainer"]["enable_progress_bar"] = False
            final = resolved(planned)
            check_types(final, defaults)
            _check_values(final)
            done = PlannedRun(run_key(final), final, _names(final, values, swept))
            runs.setdefault(done.key, done)
    _check_files(runs.values())
    return list(runs.values())


def _many(value: Any, name: str) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or any(item is None for item in values):
        raise ConfigError(f"{name}={value!r} names nothing to run; give one or more, such as {name}=[A,B].")
    if name in ("fold", "seed") and not all(isinstance(item, int) and item >= 0 for item in values):
        raise ConfigError(f"{name}={value!r} must be whole numbers of at least 0, such as {name}=[0,1].")
    return list(dict.fromkeys(values)) if all(isinstance(item, str | int | float) for item in values) else values


def _group(group: str, choice: Any) -> Any:
    """The configuration of one choice. A dataset that does not exist fails when it is run, so that the rest goes on."""
    from hydra.errors import MissingConfigException

    try:
        return compose_train([f"{group}={choice}"])[group]
    except MissingConfigException as error:
        if group == "data":
            return _dataset(str(choice))
        known = [str(option) for option in error.options or () if option != "default"]
        raise ConfigError(
            f"{group}={choice}: there is no such {group}; {suggestion(str(choice), known)}"
            f"choose from {', '.join(known)}."
        ) from None


def _dataset(name: str) -> Any:
    """A dataset by another of its names, or one that does not exist."""
    try:
        return compose_train([f"data={catalog.entry(name).name}"])["data"]
    except DataError:
        return compose_train(["data=digits"])["data"] | {"name": name}


def _check_keys(given: Mapping[str, Any], base: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a key that no run has; one that only some have is for those."""
    for key, value in given.items():
        head = key.split(".")[0]
        choices = [{head: choice} for choice in groups[head].values()] if head in groups else [base]
        if not any(_has(choice, key) for choice in choices):
            shown = value[0] if isinstance(value, list) and len(value) == 1 else value
            raise unknown_key(key, shown, choices[-1])


def _check_values(config: Mapping[str, Any]) -> None:
    """Refuse values out of range now, rather than once per run."""
    check_run(config)
    build_selection(config["selection"])
    with contextlib.suppress(DataError):  # of a dataset that does not exist
        build_data(config["data"])


def _check_files(runs: Iterable[PlannedRun]) -> None:
    """Read the user's own files once, so that a bad one fails before the first run."""
    seen = set[str]()
    for run in runs:
        data = run.config["data"]
        source = str([data.get(key) for key in ("path", "labels", "max_bytes")])
        if source not in seen and data.get("path") is not None:
            seen.add(source)
            build_data(data).check_file()


def _has(config: Mapping[str, Any], key: str) -> bool:
    path, _, last = key.rpartition(".")
    parent = lookup(config, path) if path else config
    return isinstance(parent, Mapping) and last in parent


def _combinations(run: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the swept values that this run has keys for."""
    own = {key: values for key, values in swept.items() if _has(run, key)}
    for values in itertools.product(*own.values()):
        yield dict(zip(own, values, strict=True))


def _names(config: Mapping[str, Any], values: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]) -> Names:
    """Add what tells the runs of a sweep apart to the name that it changes."""
    added: dict[str, list[str]] = {"data": [], "model": [], "selection": []}
    for key, value in values.items():
        head, _, last = key.partition(".")
        if len(swept[key]) > 1:
            text = f"{_SYMBOLS.get(last, last)}={f'{value:g}' if isinstance(value, int | float) else value}"
            added[head if head in added else "model"].append(text)
    return Names(
        data=" ".join([config["data"]["name"] or "file", *added["data"]]) if added["data"] else None,
        model=" ".join([config["model"]["name"], *added["model"]]) if added["model"] else None,
        label=" ".join([config["selection"]["label"], *added["selection"]]) if added["selection"] else None,
    )
