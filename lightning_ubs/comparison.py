"""Your model, your data, your verdict: paired runs of batch selections in one call."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.seed import isolate_rng

from lightning_ubs._arguments import constructor_arguments
from lightning_ubs._extras import optional_import, require_experiments
from lightning_ubs.callback import BatchSelection
from lightning_ubs.experiment.config import ConfigError, digest
from lightning_ubs.experiment.direction import by_name
from lightning_ubs.experiment.engine import Engine, check_engine, check_jobs
from lightning_ubs.experiment.fingerprint import fingerprint
from lightning_ubs.experiment.grid import run_grid
from lightning_ubs.experiment.instantiate import set_up
from lightning_ubs.experiment.loaders import as_datamodule
from lightning_ubs.experiment.record import Mode, RunRecord
from lightning_ubs.experiment.run import TrainingRun
from lightning_ubs.experiment.selection import reseeded
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.methods import BASELINE, METHODS
from lightning_ubs.strategies import Random, Strategy

Selection = Strategy | BatchSelection
_TRAINER = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
# Arguments of the callback that tell one selection from another; the rest says where things are and are kept.
_TOLD = ("warmup_epochs", "start_epoch", "end_epoch", "replacement", "epoch_size", "unbiased", "fill_last", "refresh")


class Comparison:
    """What `compare` found. Its text is the verdict.

    Attributes:
        records: the finished runs.
        results: the results folder.
        monitor: the logged value that decided the best epochs.
    """

    def __init__(self, records: Sequence[RunRecord], results: Path, monitor: str) -> None:
        self.records = list(records)
        self.results = results
        self.monitor = monitor

    @property
    def verdict(self) -> str:
        """Which selection is better than Random, by how much, at what cost, in a few lines."""
        return console_verdict(self.records, self.monitor)

    def __str__(self) -> str:
        return self.verdict

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.records)} runs in {str(self.results)!r}>"

    def frame(self) -> Any:
        """One row per run, as a pandas DataFrame: names, fold, seed, metrics, epochs and seconds."""
        return optional_import("pandas").DataFrame([_row(record) for record in self.records])

    def report(self, **options: Any) -> Path:
        """Write the report, in ``report/`` of the results folder unless ``output`` says otherwise; return its page.

        Args:
            options: those of `lightning_ubs.report.build_report`.
        """
        from lightning_ubs.report import build_report

        return build_report(self.results, **options)


def compare(
    module: Callable[..., LightningModule],
    data: Callable[..., Any],
    selections: Mapping[str, Selection] | Sequence[Selection],
    seeds: int | Sequence[int] = 5,
    trainer: Mapping[str, Any] | None = None,
    monitor: str | None = None,
    mode: Mode = "max",
    results: str | Path = "results/compare",
    jobs: int | None = None,
    engine: Engine = "loky",
    folds: int | None = None,
    trace: bool = True,
) -> Comparison:
    """Train your model on your data with several batch selections, and say which is better.

    All methods have the same initial weights, the same data and the same order of samples in the warm-up for each
    seed, so that their results are compared in pairs. Runs happen in processes; one that is in the results folder is
    not done again unless your code or settings changed.

    Args:
        module: a class or function, ``()`` or ``(datamodule)`` → LightningModule. It is called once per run.
        data: a function, ``()``, ``(seed)`` or ``(fold, seed)`` → LightningDataModule, or loaders (train, val) or
            (train, val, test). It is called once per run.
        selections: strategies or whole ``BatchSelection(...)``, by the name to display. Random is always added.
        seeds: how many (from 0), or which; each is a pair of runs for every method.
        trainer: arguments of ``lightning.Trainer``, such as ``{"max_epochs": 30}``.
        monitor: the value that the module logs and that decides the best epoch, such as ``"val_auc"``.
        mode: whether it should be large (``"max"``) or small (``"min"``).
        results: folder in which runs are kept.
        jobs: processes at a time; None: one per processor.
        engine: ``"loky"``: processes here, ``"sequential"``: this one, ``"ray"`` or ``"dask"``: those of a cluster.
        folds: every seed is run on folds 0 to ``folds`` - 1; None: data that take a fold get another with each seed.
        trace: keep label correlations, uncertainty and selections of every sample, for the report's figures.

    Raises:
        ConfigError: if something that was given cannot be used; the message says what to do.
        RunsFailed: if runs failed; those that finished are kept.
    """
    require_experiments()
    check_engine(engine)
    check_jobs(jobs)
    monitored = _monitored(monitor, mode)
    store = ResultsStore(results)
    with isolate_rng():
        pairs = _pairs(data, seeds, folds)
        runs = _plan(module, data, _named(selections), pairs, dict(trainer or {}), monitored, trace)
    outcome = run_grid(runs, store, jobs, engine)
    keys = {run.key for run in runs}
    records = {record.key: record for record in store.records() if record.key in keys and record.finished}
    outcome.check()
    # A run that was done under another name is called as it is now.
    named = [replace(records[run.key], label=run.identity["label"]) for run in runs]
    return Comparison(named, Path(results), monitored[0])


def console_verdict(records: Sequence[RunRecord], monitor: str | None = None) -> str:
    """The verdict in a few lines of text."""
    from lightning_ubs.report.verdict import console_verdict as told

    return str(told(records, monitor))


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


def _monitored(monitor: str | None, mode: Mode) -> tuple[str, Mode]:
    if monitor is None:
        raise ConfigError("monitor has no value; say which logged value decides the best epoch: monitor='val_auc'.")
    if mode not in ("max", "min"):
        raise ConfigError(f"mode={mode!r} is unknown; use 'max' or 'min'.")
    if mode == "max" and by_name(monitor) is False:
        raise ConfigError(f"monitor={monitor!r} is better when it is small, but mode='max'; give mode='min'.")
    return monitor, mode


def _plan(
    module: Callable[..., LightningModule],
    data: Callable[..., Any],
    selections: Mapping[str, Selection],
    pairs: Sequence[tuple[int, int]],
    trainer: dict[str, Any],
    monitored: tuple[str, Mode],
    trace: bool,
) -> list[CalledRun]:
    for name, given in (("module", module), ("data", data)):
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
            method = _described(label, selection)
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


def _named(selections: Mapping[str, Selection] | Sequence[Selection]) -> dict[str, Selection]:
    """Selections by name, Random first."""
    if not isinstance(selections, Mapping):
        selections = {_known_label(one): one for one in selections}
    for name, one in selections.items():
        if not isinstance(one, Strategy | BatchSelection):
            raise ConfigError(
                f"selections[{name!r}]={one!r} is neither a strategy nor a BatchSelection; give one, such as UBS()."
            )
    baseline = {name: one for name, one in selections.items() if isinstance(_strategy(one), Random)}
    return {**(baseline or {"Random": Random()}), **selections}


def _described(label: str, selection: Selection) -> dict[str, Any]:
    """How a record tells this method: a key of this package's table or the class, its settings, its name."""
    strategy = _strategy(selection)
    row = next((row for row in METHODS if type(strategy) is row.strategy), None)
    callback = selection if isinstance(selection, BatchSelection) else BatchSelection(copy.deepcopy(strategy))
    told = {name: getattr(callback, name) for name in _TOLD if _is_plain(getattr(callback, name, ...))}
    parameters = {name: value for name, value in constructor_arguments(strategy).items() if _is_plain(value)} | told
    if row is None:
        parameters |= {"code": fingerprint(strategy)} | ({} if label == type(strategy).__name__ else {"name": label})
    selected = BASELINE if isinstance(strategy, Random) else row.key if row else type(strategy).__name__
    return {"selection": selected, "label": label, "parameters": parameters}


def _pairs(data: Callable[..., Any], seeds: int | Sequence[int], folds: int | None) -> list[tuple[int, int]]:
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
        raise ConfigError(f"module gave {type(found).__name__}; let it give a LightningModule.")
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


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str | bool | type(None))


def _row(record: RunRecord) -> dict[str, Any]:
    names = {"data": record.data, "model": record.model, "selection": record.label}
    run = {"fold": record.fold, "seed": record.seed, record.monitor: record.monitored, "best_epoch": record.best_epoch}
    metrics = {f"{metric.stage}_{name}": metric.value for name, metric in record.metrics.items()}
    cost = {"epochs": record.epochs, "seconds": record.seconds, "samples_trained": record.samples_trained}
    return names | run | metrics | cost
