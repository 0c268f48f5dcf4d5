"""``lightning-ubs train`` and ``compare``: from what Hydra composed to a run folder, or to the runs of a grid."""

from __future__ import annotations

import logging
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_ubs._utils.extras import require_experiments
from lightning_ubs._utils.files import write_file
from lightning_ubs._utils.metric_names import TITLES
from lightning_ubs._utils.progress import span
from lightning_ubs.errors import ConfigError
from lightning_ubs.experiment.claims import Claims
from lightning_ubs.experiment.config import (
    GROUPS,
    check_run,
    check_types,
    compose_train,
    resolved,
    target_of,
    unknown_key,
)
from lightning_ubs.experiment.engine import check_engine, share_processors
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.from_config import Names, plan_from_config
from lightning_ubs.experiment.grid import at_a_time, prepare_folder, run_grid
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.run import Run
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.experiment.training import write_summary

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PACKAGE = Path(__file__).parents[1]


def compare_command(
    config: Mapping[str, Any], say: Callable[[str], None], conclude: Callable[[Sequence[RunRecord]], None]
) -> None:
    """Run whatever is missing from the results folder, and hand the finished runs to ``conclude``.

    Args:
        config: The resolved configuration of ``lightning-ubs compare``.
        say: Takes lines for the user.
        conclude: Says the verdict on the finished runs and writes the report.

    Raises:
        RunsFailed: At the end, if some runs failed.
    """
    require_experiments()
    check_engine(config["engine"])
    runs, store = expand_grid(config), ResultsStore(config["results"])
    if config["dry_run"]:
        for line in dry_run(runs, store, config["jobs"]):
            say(line)
        return
    outcome = run_grid(runs, store, config["jobs"], config["engine"])
    if outcome.finished:
        conclude(list(outcome.records.values()))
    outcome.check()


def dry_run(runs: Sequence[Run], store: ResultsStore, jobs: int | None) -> list[str]:
    """The runs, which of them are done, and how long the others will take, estimated from those."""
    done = {record.key: record for record in store.records() if record.finished}
    lines = [f"{'there' if run.key in done else 'to do'}  {run.identity.title}" for run in runs]
    todo = [run for run in runs if run.key not in done]
    count, _ = share_processors(at_a_time(jobs, todo), len(todo))
    lines.append(f"{len(runs)} runs, {len(runs) - len(todo)} already done, {len(todo)} to do, {count} at a time")
    known = [(record.data, record.model, record.seconds) for record in done.values() if record.seconds is not None]
    if todo and known:
        seconds = sum(_estimate(run, known) for run in todo) / count
        lines.append(f"about {span(seconds)}, estimated from the {len(known)} finished runs in {store.folder}")
    elif todo:
        lines.append("how long they take is unknown until one is finished")
    return lines


def _estimate(run: Run, known: Sequence[tuple[str, str, float]]) -> float:
    """Seconds of a run: the mean of those with its data and model, else with either, else of all."""
    data, model = run.identity.data, run.identity.model
    alike = (
        [seconds for one, other, seconds in known if (one, other) == (data, model)]
        or [seconds for one, other, seconds in known if data == one or model == other]
        or [seconds for *_, seconds in known]
    )
    return statistics.mean(alike)


def train_command(config: DictConfig, say: Callable[[str], None]) -> float:
    """Do one run in Hydra's output folder, and return the best value of its monitored metric.

    The folder gets ``config.yaml`` (resolved), ``metrics.json``, ``checkpoints/best.ckpt``, ``log/metrics.csv`` and
    ``trace.npz``. With ``results``, the run is added to that store, unless it is there already.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    plain = resolved(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]
    groups = [one for one in hydra_config.overrides.task if one.partition("=")[0] in GROUPS]
    defaults = compose_train(groups)
    for name, value in plain.items():
        if name not in defaults:
            raise unknown_key(name, value, defaults)
    check_types(plain, defaults)
    check_run(plain)
    run = plan_from_config(plain, _names(plain, hydra_config.runtime.choices))
    write_file(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)))
    if plain["results"] is None:
        record = _executed(run, folder, None, say)
    else:
        store = ResultsStore(plain["results"])
        prepare_folder(store)
        claims = Claims(store.folder.resolve())
        try:
            with claims.take(run.key) as claim:
                if claim is None:
                    raise ConfigError(
                        f"another process does this run now, for {str(store.folder)!r}; wait for it, or choose another "
                        "results folder."
                    )
                found = [one for one in store.records() if one.key == run.key and one.finished]
                if found:
                    say(f"this run is already in {store.folder}: best {found[-1].monitor} {found[-1].monitored:.4f}")
                    return found[-1].monitored
                record = _executed(run, folder, store, say)
                store.append(record)
        finally:
            claims.tidy()
    write_summary(record, folder)
    for line in result_lines(record):
        say(line)
    for warning in record.warnings:
        say(f"note: {warning}")
    say(f"run folder: {folder}")
    return record.monitored


def result_lines(record: RunRecord) -> list[str]:
    """What a run measured as a table, in the order of this package's metrics, and at which epoch."""
    stages = {metric.stage for metric in record.metrics.values()}
    head = ("metric", *("test" if stage == "test" else "validation" for stage in sorted(stages)), "better", "")
    rows = [head]
    known = list(TITLES)
    order = sorted(record.metrics, key=lambda name: known.index(name) if name in known else len(known))
    for name in order:
        metric = record.metrics[name]
        values = [f"{metric.value:.4f}" if metric.stage == stage else "" for stage in sorted(stages)]
        better = {True: "higher", False: "lower", None: ""}[metric.higher_is_better]
        rows.append((name, *values, better, TITLES.get(name, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    best = f"at the best validation epoch, {record.best_epoch} (from 0; {record.epochs} were trained)"
    return [*lines, f"{best}; the run took {span(record.seconds or 0)}"]


def _executed(run: Run, folder: Path, store: ResultsStore | None, say: Callable[[str], None]) -> RunRecord:
    try:
        with warnings.catch_warnings(), _own_words(say):
            return run.execute(folder, store)
    except Exception as error:
        if store is not None and not isinstance(error, ConfigError):
            store.append(run.failed(str(error) or type(error).__name__))
        raise


def _names(config: dict[str, Any], choices: Any) -> Names:
    """Names of groups: the user's own are called as they were chosen."""
    own = {group: str(choices.get(group)) if target_of(config[group]) else None for group in ("data", "model")}
    return Names(own["data"], own["model"])


@contextmanager
def _own_words(say: Callable[[str], None]) -> Iterator[None]:
    """Pass on what this package says while it trains, and leave out what Lightning says of itself."""

    def passes(record: logging.LogRecord) -> bool:
        if record.levelno > logging.INFO:
            return True
        if Path(record.pathname).is_relative_to(_PACKAGE):
            say(record.getMessage())
        return False

    for text in (".*does not have many workers.*", ".*LeafSpec.*", ".*available but not used.*", ".*litlogger.*"):
        warnings.filterwarnings("ignore", text)
    warnings.showwarning = lambda message, *_: say(f"warning: {' '.join(str(message).split())}")
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addFilter(passes)
    try:
        yield
    finally:
        logger.removeFilter(passes)
