"""Runs of functions and objects that a user gave: what `lightning_ubs.compare` does."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.build import as_datamodule, set_up
from lightning_ubs.experiment.config import digest
from lightning_ubs.experiment.own_code import fingerprint
from lightning_ubs.experiment.record import Mode, RunIdentity
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.selection import Selection, described, reseeded, strategy_of, with_strategy
from lightning_ubs.experiment.training import train
from lightning_ubs.methods import METHODS
from lightning_ubs.strategies import Balance, Random, Shuffled, Strategy

Modules = Callable[..., LightningModule] | Mapping[str, Callable[..., LightningModule]]
"""What makes a model for every run, or several that do by name."""
_TRAINER = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


def plan_from_objects(
    module: Modules,
    data: Callable[..., Any],
    selections: Mapping[str, Selection],
    pairs: Sequence[tuple[int, int]],
    trainer: dict[str, Any],
    monitored: tuple[str, Mode],
    trace: bool,
) -> list[Run]:
    """Every pair of fold and seed with every module and selection; what cannot be made or compared is refused here.

    Args:
        module: Makes a model, or several that do by the name to display.
        data: Makes the data.
        selections: Selections by name.
        pairs: Pairs of fold and seed.
        trainer: Arguments of the trainer.
        monitored: The logged value that decides the best epoch, and its mode.
        trace: Whether to keep what became of each sample.
    """
    modules = _named_modules(module)
    _check_maker("data", data)
    samples = _samples(data, pairs)
    first = _make_data(data, *pairs[0])
    models = {name: name or type(_make_module(one, first)).__name__ for name, one in modules.items()}
    monitor, mode = monitored
    runs: dict[str, Run] = {}
    for (fold, seed), (name, make_module) in itertools.product(pairs, modules.items()):
        shared = {
            "code": [fingerprint(make_module), fingerprint(data)],
            "trainer": {option: fingerprint(value) for option, value in trainer.items()},
            "monitor": [monitor, mode],
        } | ({"module": name} if name else {})
        for label, selection in selections.items():
            told = {"data": type(first).__name__, "model": models[name]} | described(label, selection)
            method = {part: told[part] for part in ("selection", "parameters")}
            key = digest([shared, method, fold, seed])
            whole = told | {"fold": fold, "seed": seed, "monitor": monitor, "mode": mode}
            identity = RunIdentity(**whole, key=key, config_hash=digest([shared, whole]))
            if key in runs:
                raise ConfigError(
                    f"the selections {runs[key].identity.label!r} and {label!r} are the same method with the same "
                    "settings; remove one of them."
                )
            runs[key] = Run(
                identity=identity,
                train=train,
                trainer=_TRAINER | trainer,
                make_data=partial(_make_data, data, fold, seed),
                make_module=partial(_make_module, make_module),
                make_selection=partial(_make_selection, selection, seed),
                trace=trace,
                samples=samples,
            )
    return list(runs.values())


def _named_modules(module: Modules) -> dict[str, Callable[..., LightningModule]]:
    """What makes the models, by name; one alone has the empty name."""
    if not isinstance(module, Mapping):
        _check_maker("module", module)
        return {"": module}
    if not module:
        raise ConfigError("module={} names nothing to train; give one or more: module={'BCE': Net}.")
    for name, one in module.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(
                f"module has the key {name!r}; give each module a name to display: module={{'BCE': Net}}."
            )
        _check_maker(f"module[{name!r}]", one)
    return dict(module)


def _check_maker(name: str, given: Any) -> None:
    """Refuse what cannot make a new object for every run."""
    if given is None:
        raise ConfigError(
            f"{name} has no value; give a class or function that makes it for every run. Loaders of the module's "
            'own go there: data=lambda: {"train": ..., "val": ...}.'
        )
    if not callable(given) or isinstance(given, LightningModule):
        raise ConfigError(
            f"{name}={type(given).__name__}(...) is an object; give a class or function that makes a new one for "
            f"every run, such as {name}=lambda: {type(given).__name__}(...)."
        )


def _make_selection(selection: Selection, seed: int) -> BatchSelection:
    """A fresh copy of the user's selection, with the run's seed."""
    if isinstance(selection, Strategy):
        return BatchSelection(copy.deepcopy(selection), seed=seed)
    return reseeded(selection, seed)


def named_selections(selections: Mapping[str, Selection] | Sequence[Selection] | Selection) -> dict[str, Selection]:
    """Selections by name, Random first."""
    if isinstance(selections, Strategy | BatchSelection):
        selections = [selections]
    if not isinstance(selections, Mapping):
        selections = {_known_label(one): one for one in selections}
    for name, one in selections.items():
        if not isinstance(one, Strategy | BatchSelection):
            raise ConfigError(
                f"selections[{name!r}]={one!r} is neither a strategy nor a BatchSelection; give one, such as UBS()."
            )
    baseline = {name: one for name, one in selections.items() if isinstance(strategy_of(one), Random)}
    return {**(baseline or {"Random": Random()}), **selections}


def with_controls(selections: Mapping[str, Selection]) -> dict[str, Selection]:
    """The selections, and for each the controls that emphasize nothing.

    These are its own probabilities dealt to random samples, and, where its epochs are shortened, plain shuffling with
    as many samples in each.
    """
    found = dict(selections)
    for label, selection in selections.items():
        strategy = strategy_of(selection)
        if isinstance(strategy, Random | Balance | Shuffled):
            continue
        dealt = Shuffled(strategy=copy.deepcopy(strategy), of=label)
        found[f"{label}, shuffled P"] = (
            with_strategy(selection, dealt) if isinstance(selection, BatchSelection) else dealt
        )
        size = getattr(selection, "epoch_size", None)
        size = strategy.default_epoch_size if size is None else size
        if size is not None:
            found.setdefault(f"Random, {size:g} of an epoch", BatchSelection(Random(), epoch_size=size))
    return found


def fold_seed_pairs(data: Callable[..., Any], seeds: int | Sequence[int], folds: int | None) -> list[tuple[int, int]]:
    """All (fold, seed)."""
    many = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if not isinstance(many, Sequence) or not many or not all(isinstance(one, int) and one >= 0 for one in many):
        raise ConfigError(f"seeds={seeds!r} must be a number of at least 1, or a list of whole numbers of at least 0.")
    takes_fold = len(_open(data)) > 1 or "fold" in _open(data)
    if folds is None:
        return [(number if takes_fold else 0, seed) for number, seed in enumerate(many)]
    if not takes_fold:
        raise ConfigError(f"folds={folds!r} needs data that take one; give a function of (fold, seed).")
    return [(fold, seed) for seed in many for fold in range(folds)]


def _samples(data: Callable[..., Any], pairs: Sequence[tuple[int, int]]) -> int | None:
    """Training samples of every seed of a fold; seeds that differ cannot be compared. None if folds may differ."""
    if len({fold for fold, _ in pairs}) > 1:
        return None
    lengths = []
    for fold, seed in pairs[:2]:
        made = _make_data(data, fold, seed)
        try:
            set_up(made)
            lengths.append(len(made.train_dataloader().dataset))
        except (AttributeError, TypeError):  # several loaders, or data without a length: the selection will judge
            return None
        except Exception as error:
            raise ConfigError(f"data(seed={seed}): {type(error).__name__}: {' '.join(str(error).split())}") from error
    if len(set(lengths)) > 1:
        raise ConfigError(
            f"data give {lengths[0]} training samples with seed {pairs[0][1]} and {lengths[1]} with seed {pairs[1][1]};"
            " let them give the same number for every seed, or use folds."
        )
    return lengths[0]


def _make_data(data: Any, fold: int, seed: int) -> LightningDataModule:
    """Call the data function with what it takes: nothing, the seed, or fold and seed."""
    names = _open(data)
    known = {"fold": fold, "seed": seed}
    try:
        if set(names) <= set(known):
            found = data(**{name: known[name] for name in names})
        else:
            found = data(*([seed] if len(names) == 1 else [fold, seed]))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"data raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    return as_datamodule(found, "data")


def _make_module(module: Any, data: LightningDataModule) -> LightningModule:
    """Call the module function, with the data if it needs them; they are set up first."""
    try:
        if _open(module):
            set_up(data)
            found = module(data)
        else:
            found = module()
    except Exception as error:
        raise ConfigError(f"module raised {type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(found, LightningModule):
        raise ConfigError(f"module returned {type(found).__name__}; return a LightningModule.")
    return found


def _open(function: Any) -> list[str]:
    """Arguments that a function needs or that are called fold, seed or datamodule."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named if p.default is p.empty or p.name in ("fold", "seed", "datamodule")]


def _known_label(selection: Selection) -> str:
    kind = type(strategy_of(selection))
    return next((row.label for row in METHODS if row.strategy is kind), kind.__name__)
