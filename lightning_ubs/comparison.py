"""Your model, your data, your verdict: paired runs of batch selections in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.seed import isolate_rng

from lightning_ubs._utils.extras import optional_import, require_experiments
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.engine import Engine, check_engine, check_jobs
from lightning_ubs.experiment.from_objects import (
    Modules,
    fold_seed_pairs,
    named_selections,
    plan_from_objects,
    with_controls,
)
from lightning_ubs.experiment.grid import run_grid
from lightning_ubs.experiment.record import Mode, RunRecord
from lightning_ubs.experiment.selection import Selection
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.metrics import by_name

if TYPE_CHECKING:
    from lightning_ubs.report import Report


class Comparison:
    """What `compare` found. Its text is the verdict.

    Attributes:
        records: The finished runs.
        results: The results folder.
        monitor: The logged value that decided the best epochs.
        margin: Differences that do not matter; None: 0.001.
    """

    def __init__(self, records: Sequence[RunRecord], results: Path, monitor: str, margin: float | None = None) -> None:
        self.records = list(records)
        self.results = results
        self.monitor = monitor
        self.margin = margin

    @cached_property
    def verdict(self) -> str:
        """Which selection is better than Random, by how much, at what cost, in a few lines."""
        return self._report.summary

    @cached_property
    def _report(self) -> Report:
        from lightning_ubs.report import Report

        return Report.of(self.records, self.monitor, self.margin, ResultsStore(self.results))

    def __str__(self) -> str:
        return self.verdict

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.records)} runs in {str(self.results)!r}>"

    def frame(self) -> Any:
        """One row per run, as a pandas DataFrame: names, fold, seed, metrics, epochs and seconds."""
        return optional_import("pandas").DataFrame([_row(record) for record in self.records])

    def report(self, **options: Any) -> Path:
        """Write the report, in ``report/`` of the results folder unless ``output`` says otherwise; return its page.

        It is about all runs of the folder, also those of other comparisons.

        Args:
            options: Those of `lightning_ubs.report.build_report`.
        """
        from lightning_ubs.report.report import DEFAULT_FORMATS, Report

        options = {"margin": self.margin} | options
        folder = options.pop("output", None) or self.results / "report"
        formats = options.pop("formats", DEFAULT_FORMATS)
        stored = {(record.key, record.label) for record in ResultsStore(self.results).records()}
        alone = stored == {(record.key, record.label) for record in self.records}
        known = alone and options == {"margin": self.margin}  # then all of it is computed, or will be for the verdict
        return (self._report if known else Report.of_folder(self.results, **options)).write(folder, formats)


def compare(
    module: Modules,
    data: Callable[..., Any],
    selections: Mapping[str, Selection] | Sequence[Selection] | Selection,
    seeds: int | Sequence[int] = 10,
    trainer: Mapping[str, Any] | None = None,
    monitor: str | None = None,
    mode: Mode = "max",
    results: str | Path = "results/compare",
    jobs: int | None = None,
    engine: Engine = "loky",
    folds: int | None = None,
    trace: bool = True,
    margin: float | None = None,
    controls: bool = False,
) -> Comparison:
    """Train your model on your data with several batch selections, and say which is better.

    All methods have the same initial weights, the same data and the same order of samples in the warm-up for each
    seed, so that their results are compared in pairs. Runs happen in processes; one that is in the results folder is
    not done again unless your code or settings changed.

    Args:
        module: A class or function, ``()`` or ``(datamodule)`` → LightningModule. It is called once per run. Or several
            by name, such as ``{"BCE": Net, "weighted": lambda: Net(pos_weight=...)}``: each is trained with each
            selection.
        data: A function, ``()``, ``(seed)`` or ``(fold, seed)`` → LightningDataModule, or loaders (train, val) or
            (train, val, test). It is called once per run.
        selections: A strategy or a whole ``BatchSelection(...)``, or several, by the name to display. Random is always
            added.
        seeds: How many (from 0), or which; each is a pair of runs for every method. Ten are usual, fewer are a first
            look. Let ``data`` take the seed: seeds on one split say nothing about another split.
        trainer: Arguments of ``lightning.Trainer``, such as ``{"max_epochs": 30}``.
        monitor: The value that the module logs and that decides the best epoch, such as ``"val_auc"``.
        mode: Whether it should be large (``"max"``) or small (``"min"``).
        results: Folder in which runs are kept.
        jobs: Processes at a time; None: one per processor with one thread each, or one alone if they would share a GPU.
        engine: ``"loky"``: processes here, ``"sequential"``: this one, ``"ray"`` or ``"dask"``: those of a cluster.
        folds: Every seed is run on folds 0 to ``folds`` - 1; None: data that take a fold get another with each seed.
        trace: Keep label correlations, uncertainty and selections of every sample, for the report's figures.
        margin: Differences in ``monitor``'s metric that do not matter: within it methods count as equal, and a cheaper
            training as no worse. None: 0.001, the smallest difference that tables of three decimals show.
        controls: Add for every selection the controls that emphasize nothing: its own probabilities dealt to random
            samples, and plain shuffling of as many samples where its epochs are shorter. The verdict then says whether
            they do as well.

    Raises:
        ConfigError: If something that was given cannot be used; the message says what to do.
        RunsFailed: If runs failed; those that finished are kept.
    """
    from lightning_ubs.report.verdict import checked_margin

    require_experiments()
    check_engine(engine)
    check_jobs(jobs)
    checked_margin(margin)
    monitored = _monitored(monitor, mode)
    store = ResultsStore(results)
    with isolate_rng():
        pairs = fold_seed_pairs(data, seeds, folds)
        named = with_controls(named_selections(selections)) if controls else named_selections(selections)
        runs = plan_from_objects(module, data, named, pairs, _settings(trainer), monitored, trace)
    outcome = run_grid(runs, store, jobs, engine)
    outcome.check()
    records = outcome.records
    # A run that was done under another name is called as it is now.
    renamed = [replace(records[run.key], label=run.identity.label) for run in runs]
    return Comparison(renamed, Path(results), monitored[0], margin)


def console_verdict(records: Sequence[RunRecord], monitor: str | None = None, margin: float | None = None) -> str:
    """The verdict in a few lines of text.

    Args:
        records: Runs of several methods, finished or failed.
        monitor: The logged value that decides; None: what the runs monitored.
        margin: Differences that do not matter; None: 0.001.
    """
    from lightning_ubs.report import console_verdict as told

    return told(records, monitor, margin)


def _monitored(monitor: str | None, mode: Mode) -> tuple[str, Mode]:
    if monitor is None:
        raise ConfigError("monitor has no value; say which logged value decides the best epoch: monitor='val_auc'.")
    if mode not in ("max", "min"):
        raise ConfigError(f"mode={mode!r} is unknown; use 'max' or 'min'.")
    if mode == "max" and by_name(monitor) is False:
        raise ConfigError(f"monitor={monitor!r} is better when it is small, but mode='max'; give mode='min'.")
    return monitor, mode


def _row(record: RunRecord) -> dict[str, Any]:
    names = {"data": record.data, "model": record.model, "selection": record.label}
    run = {"fold": record.fold, "seed": record.seed, record.monitor: record.monitored, "best_epoch": record.best_epoch}
    metrics = {f"{metric.stage}_{name}": metric.value for name, metric in record.metrics.items()}
    cost = {"epochs": record.epochs, "seconds": record.seconds, "samples_trained": record.samples_trained}
    return names | run | metrics | cost


def _settings(trainer: Any) -> dict[str, Any]:
    if trainer is not None and not isinstance(trainer, Mapping):
        raise ConfigError(
            f"trainer={type(trainer).__name__}(...) is an object; give the arguments of a Trainer, of which each run "
            'makes one of its own, such as trainer={"max_epochs": 30}.'
        )
    return dict(trainer or {})
