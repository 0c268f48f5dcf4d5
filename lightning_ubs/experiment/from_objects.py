"""Runs of functions and objects that a user gave: what `lightning_ubs.compare` does."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule

from lightning_ubs._utils.arguments import constructor_arguments
from lightning_ubs.callback import BatchSelection
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.build import set_up
from lightning_ubs.experiment.config import digest, telling_settings
from lightning_ubs.experiment.fingerprint import fingerprint
from lightning_ubs.experiment.loaders import as_datamodule
from lightning_ubs.experiment.record import Mode
from lightning_ubs.experiment.run import TrainingRun
from lightning_ubs.experiment.selection import reseeded
from lightning_ubs.methods import BASELINE, METHODS
from lightning_ubs.strategies import Random, Strategy

Selection = Strategy | BatchSelection
_TRAINER = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
# Arguments of the callback that tell one selection from another; the rest says where things are and are kept.
_TOLD = ("warmup_epochs", "start_epoch", "end_epoch", "replacement", "epoch_size", "unbiased", "fill_last", "refresh")


@dataclass(frozen=True)
class CalledRun(TrainingRun):
    """A run of functions and objects that the user gave."""

    module: Callable[..., LightningModule] | None = None
    data: Callable[..., Any] | None = None
    selection: Selection = field(default_factory=Random)

    def make_data(self) -> LightningDataModule:
        """What the user's data function gives for this fold and seed."""
        return _make_data(self.data, self.identity["fold"], self.identity["seed"])

    def make_module(self, data: LightningDataModule) -> LightningModule:
        """What the user's module function gives."""
        return _make_module(self.module, data)

    def make_selection(self) -> BatchSelection:
        """A fresh copy of the user's selection, with the run's seed."""
        seed = self.identity["seed"]
        if isinstance(self.selection, Strategy):
            return BatchSelection(copy.deepcopy(self.selection), seed=seed)
        return reseeded(self.selection, seed)


def plan_runs(
    module: Callable[..., LightningModule],
    data: Callable[..., Any],
    selections: Mapping[str, Selection],
    pairs: Sequence[tuple[int, int]],
    trainer: dict[str, Any],
    monitored: tuple[str, Mode],
    trace: bool,
) -> list[CalledRun]:
    """Every pair of fold and seed with every selection; what cannot be made or compared is refused here.

    Args:
        module: makes a model.
        data: makes the data.
        selections: by name.
        pairs: of fold and seed.
        trainer: arguments of the trainer.
        monitored: the logged value that decides the best epoch, and its mode.
        trace: whether to keep what became of each sample.
    """
    for name, given in (("module", module), ("data", data)):
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
    samples = _samples(data, pairs)
    first = _make_data(data, *pairs[0])
    names = {"data": type(first).__name__, "model": type(_make_module(module, first)).__name__}
    monitor, mode = monitored
    shared = {
        "code": [fingerprint(module), fingerprint(data)],
        "trainer": {name: fingerprint(value) for name, value in trainer.items()},
        "monitor": [monitor, mode],
    }
    runs: dict[str, CalledRun] = {}
    for fold, seed in pairs:
        for label, selection in selections.items():
            method = described(label, selection)
            key = digest([shared, {name: method[name] for name in ("selection", "parameters")}, fold, seed])
            identity = names | method | {"fold": fold, "seed": seed, "monitor": monitor, "mode": mode}
            whole = identity | {"key": key, "config_hash": digest([shared, identity])}
            if key in runs:
                raise ConfigError(
                    f"the selections {runs[key].identity['label']!r} and {label!r} are the same method with the same "
                    "settings; remove one of them."
                )
            runs[key] = CalledRun(whole, _TRAINER | trainer, trace, None, samples, module, data, selection)
    return list(runs.values())


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
    baseline = {name: one for name, one in selections.items() if isinstance(_strategy(one), Random)}
    return {**(baseline or {"Random": Random()}), **selections}


def described(label: str, selection: Selection) -> dict[str, Any]:
    """How a record tells this method: a key of this package's table or the class, its settings, its name."""
    strategy = _strategy(selection)
    row = next((row for row in METHODS if type(strategy) is row.strategy), None)
    callback = selection if isinstance(selection, BatchSelection) else BatchSelection(copy.deepcopy(strategy))
    told = {name: getattr(callback, name) for name in _TOLD if _is_plain(getattr(callback, name, ...))}
    parameters = {
        name: value for name, value in telling_settings(constructor_arguments(strategy)).items() if _is_plain(value)
    } | told
    parameters |= {name: digest(value.tolist()) for name, value in vars(strategy).items() if _tells(name, value)}
    if row is None:
        parameters |= {"code": fingerprint(strategy)} | ({} if label == type(strategy).__name__ else {"name": label})
    selected = BASELINE if isinstance(strategy, Random) else row.key if row else type(strategy).__name__
    return {"selection": selected, "label": label, "parameters": parameters}


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


def _strategy(selection: Selection) -> Strategy:
    return selection if isinstance(selection, Strategy) else selection.strategy


def _known_label(selection: Selection) -> str:
    kind = type(_strategy(selection))
    return next((row.label for row in METHODS if row.strategy is kind), kind.__name__)


def _tells(name: str, value: Any) -> bool:
    """Whether a tensor is an argument, such as weights of the user's."""
    return hasattr(value, "tolist") and not name.startswith("_")


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | type(None))
