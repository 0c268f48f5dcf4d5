"""The runs of a grid: every combination of data, model, selection, swept values, fold and seed."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from lightning_ubs._utils.checks import did_you_mean
from lightning_ubs.data import MultiLabelDataModule, catalog
from lightning_ubs.errors import ConfigError, DataError
from lightning_ubs.experiment.build import FILLED_IN, build_callbacks, build_data, build_selection
from lightning_ubs.experiment.config import (
    assign,
    check_comparison,
    check_run,
    check_types,
    compose_train,
    digest,
    file_as_data,
    has_key,
    is_file_name,
    leaves,
    resolved,
    target_of,
    unknown_key,
)
from lightning_ubs.experiment.from_config import Names, plan_from_config
from lightning_ubs.experiment.own_code import locate
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.selection import NAMES, parameters, plain_defaults
from lightning_ubs.models.losses import LossName
from lightning_ubs.strategies import Strategy

_SYMBOLS = {"lambda1": "λ1", "window": "T", "warmup_epochs": "γ", "bins": "τ"}
_GROUPS = ("data", "model", "selection")
_PASSED_ON = ("trace", "trace_epochs", "monitor", "mode", "callbacks")


def expand_grid(config: Mapping[str, Any]) -> list[Run]:
    """All runs of a resolved ``compare`` configuration, each once, in the order in which they are done.

    Folds and seeds come first, so that a grid that is stopped early has compared all methods on some of them.
    """
    check_comparison(config)
    grid = {name: _many(value, name) for name, value in config["grid"].items()}
    base = compose_train(["logger=none"]) | {name: config[name] for name in _PASSED_ON}
    groups = {name: {choice: _group(name, choice) for choice in grid[name]} for name in _GROUPS}
    _check_any_data(groups["data"])
    fixed = dict(leaves(config["train"]))
    by_data = _by_data("by_data", config["by_data"], grid["data"])
    by_loss = {_loss(loss): _by_data(f"by_loss.{loss}", one, grid["data"]) for loss, one in config["by_loss"].items()}
    sweeps = _sweeps(config)
    for given in (fixed, *sweeps, *by_data.values(), *(one for part in by_loss.values() for one in part.values())):
        _check_keys(given, base, groups)
    runs: dict[str, Run] = {}
    checked: set[str] = set()
    build_callbacks(config["callbacks"])
    for data, model, selection, fold, seed in _units(grid, groups["data"]):
        parts = {"data": groups["data"][data], "model": groups["model"][model]}
        run = copy.deepcopy(base | parts | {"selection": groups["selection"][selection], "seed": seed})
        own = target_of(run["data"]) is not None
        if not own:
            run["data"]["fold"] = fold
        defaults, known = copy.deepcopy(run), _known("data", data, grid["data"])
        for key, value in {**fixed, **by_data.get(known, {})}.items():
            assign(run, key, value)
        for swept, values in [(sweep, values) for sweep in sweeps for values in _combinations(run, sweep)]:
            planned = copy.deepcopy(run)
            loss = values.get("model.loss", planned["model"].get("loss"))
            for key, value in {**by_loss.get(loss, {}).get(known, {}), **values}.items():
                assign(planned, key, value)
            planned["trainer"]["enable_progress_bar"] = False
            final = resolved(planned)
            check_types(final, defaults)
            _check_values(final, checked)
            names = _names(final, {"data": data, "model": model, "selection": selection}, values, swept)
            done = plan_from_config(final, names, fold if own else None)
            runs.setdefault(done.key, done)
    _check_files(runs.values())
    return list(runs.values())


def _sweeps(config: Mapping[str, Any]) -> list[dict[str, list[Any]]]:
    """Values of each sweep by key: ``sweep`` alone, or each of ``sweeps`` with what ``sweep`` says besides."""
    common = dict(leaves(config["sweep"]))
    return [
        {key: _many(values, f"sweep.{key}") for key, values in {**dict(leaves(one)), **common}.items()}
        for one in config["sweeps"] or [{}]
    ]


def _units(grid: Mapping[str, list[Any]], data: Mapping[Any, Any]) -> Iterator[tuple[Any, ...]]:
    """Every (data, model, selection, fold, seed), the last two slowest.

    Data of the user that take no fold have as many seeds as there are folds instead, unless several seeds are given:
    the same split again would be the same run again.
    """
    seeds, folds = grid["seed"], grid["fold"]
    for seed, fold in itertools.product(seeds, folds):
        for name, model, selection in itertools.product(grid["data"], grid["model"], grid["selection"]):
            target = target_of(data[name])
            if target is None or "fold" in parameters(locate(target)):
                yield name, model, selection, fold, seed
            elif len(seeds) > 1:
                yield name, model, selection, 0, seed
            else:
                yield name, model, selection, 0, seed + folds.index(fold)


def _many(value: Any, name: str) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or any(item is None for item in values):
        raise ConfigError(f"{name}={value!r} names nothing to run; give one or more, such as {name}=[A,B].")
    if name in ("fold", "seed") and not all(isinstance(item, int) and item >= 0 for item in values):
        raise ConfigError(f"{name}={value!r} must be whole numbers of at least 0, such as {name}=[0,1].")
    return list(dict.fromkeys(values)) if all(isinstance(item, str | int | float) for item in values) else values


def _group(group: str, choice: Any) -> Any:
    """The configuration of one choice, or of the class that a dotted path names.

    A dataset that does not exist fails when it is run, so that the rest is run; a grid of none but such is refused.
    """
    from hydra.errors import MissingConfigException

    try:
        found = compose_train([f"{group}={choice}"])[group]
    except MissingConfigException as error:
        if group == "data" and is_file_name(str(choice)):
            raise ConfigError(file_as_data(str(choice))) from None
        if "." in str(choice):
            locate(str(choice))
            found = {"_target_": str(choice)}
        elif group == "data":
            return _dataset(str(choice))
        else:
            known = [str(option) for option in error.options or () if option != "default"]
            listed = f"choose from {', '.join(known)}, or give the dotted path of a class."
            hint = did_you_mean(str(choice), known, listed)
            raise ConfigError(f"{group}={choice}: there is no such {group}; {hint}") from None
    return found if target_of(found) is None else {**_defaults(group, str(found["_target_"])), **found}


def _defaults(group: str, target: str) -> dict[str, Any]:
    """Keys of a user's own class that its configuration leaves out: its plain defaults, so that they can be set.

    A strategy has the settings that all selections share as well, so that one key sets them for all.
    """
    kind = locate(target)
    shared = compose_train(["selection=random"])["selection"] if group == "selection" else {}
    whole = not (isinstance(kind, type) and issubclass(kind, Strategy))
    takes = parameters(kind)
    found = {
        name: value
        for name, value in shared.items()
        if name not in (*NAMES, "strategy") and (name in takes or not whole)
    }
    return plain_defaults(kind, leave_out=(*NAMES, *FILLED_IN)) | found


def _dataset(name: str) -> Any:
    """A dataset by another of its names, or one that does not exist."""
    try:
        return compose_train([f"data={catalog.entry(name).name}"])["data"]
    except DataError:
        return compose_train(["data=digits"])["data"] | {"name": name}


def _check_any_data(chosen: Mapping[Any, Any]) -> None:
    """Refuse a grid of which no dataset exists, rather than fail once per run."""
    names = [found.get("name") for found in chosen.values() if target_of(found) is None]
    if len(names) < len(chosen) or None in names:
        return  # data of the user's own
    errors = [error for name in names if (error := _missing(str(name))) is not None]
    if len(errors) == len(names):
        raise ConfigError(str(errors[0]))


def _missing(name: str) -> DataError | None:
    """Why there is no dataset of this name, if there is none."""
    try:
        catalog.entry(name)
    except DataError as error:
        return error
    return None


def _by_data(key: str, settings: Mapping[str, Any], chosen: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Settings of each dataset, by its own name and dotted key."""
    return {_known(key, name, chosen): dict(leaves(given)) for name, given in settings.items()}


def _known(key: str, name: str, chosen: Sequence[Any]) -> str:
    """A dataset's own name, whichever of its names was given, or that of one chosen from elsewhere."""
    from hydra.errors import MissingConfigException

    try:
        return catalog.entry(name).name
    except DataError as error:
        try:
            if name not in chosen:
                compose_train([f"data={name}"])
        except MissingConfigException:
            raise ConfigError(f"{key}.{name}: {error}") from None
        return name


def _loss(name: str) -> str:
    """The name of a loss of this package's models."""
    known = get_args(LossName)
    if name not in known:
        hint = did_you_mean(name, known, f"choose from {', '.join(known)}.")
        raise ConfigError(f"by_loss.{name}: there is no such loss; {hint}")
    return name


def _check_keys(given: Mapping[str, Any], base: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a key that no run has; one that only some have is for those."""
    for key, value in given.items():
        head = key.split(".")[0]
        choices = [{head: choice} for choice in groups[head].values()] if head in groups else [base]
        if not any(has_key(choice, key) for choice in choices):
            shown = value[0] if isinstance(value, list) and len(value) == 1 else value
            raise unknown_key(key, shown, choices[0] if len(choices) == 1 else {head: _keys_of_any(choices, head)})


def _keys_of_any(choices: Iterable[Mapping[str, Any]], group: str) -> dict[str, Any]:
    """The keys that any choice of a group has, without a name of its own."""
    return {key: value for choice in choices for key, value in choice[group].items()} | {"name": None}


def _check_values(config: Mapping[str, Any], checked: set[str]) -> None:
    """Refuse values out of range now, rather than once per run; what was seen before is not looked at again."""
    check_run(config)
    for group, build in (("selection", build_selection), ("data", build_data)):
        seen = digest([group, {name: value for name, value in config[group].items() if name != "seed"}])
        if seen not in checked:
            checked.add(seen)
            with contextlib.suppress(DataError):  # of a dataset that does not exist
                build(config[group], seed=config["seed"])


def _check_files(runs: Iterable[Run]) -> None:
    """Read the user's own files once, so that a bad one fails before the first run."""
    seen = set[str]()
    for run in runs:
        config = run.config["data"]
        source = str([config.get(key) for key in ("path", "labels", "max_bytes")])
        if source not in seen and config.get("path") is not None and target_of(config) is None:
            seen.add(source)
            data = build_data(config)
            if isinstance(data, MultiLabelDataModule):
                data.check_file()


def _combinations(run: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the swept values that this run has keys for."""
    own = {key: values for key, values in swept.items() if has_key(run, key)}
    for values in itertools.product(*own.values()):
        yield dict(zip(own, values, strict=True))


def _names(
    config: Mapping[str, Any], chosen: Mapping[str, Any], values: Mapping[str, Any], swept: Mapping[str, Sequence[Any]]
) -> Names:
    """Names of choices: the user's own are called as chosen; what tells the runs of a sweep apart is added."""
    added: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for key, value in values.items():
        head, _, last = key.partition(".")
        if len(swept[key]) > 1:
            text = f"{_SYMBOLS.get(last, last)}={f'{value:g}' if isinstance(value, int | float) else value}"
            added[head if head in added else "model"].append(text)
    plain = {
        "data": config["data"].get("name") or "file",
        "model": config["model"].get("name"),
        "selection": config["selection"].get("label"),
    }
    own = {group: str(chosen[group]).rpartition(".")[2] for group in _GROUPS if target_of(config[group])}
    if config["selection"].get("label"):
        own.pop("selection", None)
    names = {
        group: " ".join([str(own.get(group) or plain[group]), *added[group]]) if added[group] or group in own else None
        for group in _GROUPS
    }
    return Names(names["data"], names["model"], names["selection"])
