"""``lightning-ubs compare``: a grid, or what it would do."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_ubs._utils.extras import require_experiments
from lightning_ubs.experiment.engine import share_processors
from lightning_ubs.experiment.expand import expand_grid
from lightning_ubs.experiment.grid import at_a_time, run_grid
from lightning_ubs.experiment.planned import PlannedRun
from lightning_ubs.experiment.progress import span
from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.experiment.store import ResultsStore


def compare_command(
    config: Mapping[str, Any], say: Callable[[str], None], conclude: Callable[[Sequence[RunRecord]], None]
) -> None:
    """Run whatever is missing from the results folder, and hand the finished runs to ``conclude``.

    Args:
        config: the resolved configuration of ``lightning-ubs compare``.
        say: takes lines for the user.
        conclude: says the verdict on the finished runs and writes the report.

    Raises:
        RunsFailed: at the end, if some runs failed.
    """
    require_experiments()
    runs, store = expand_grid(config), ResultsStore(config["results"])
    if config["dry_run"]:
        for line in dry_run(runs, store, config["jobs"]):
            say(line)
        return
    outcome = run_grid(runs, store, config["jobs"], config["engine"])
    if outcome.finished:
        conclude(_finished(runs, store))
    outcome.check()


def dry_run(runs: Sequence[PlannedRun], store: ResultsStore, jobs: int | None) -> list[str]:
    """The runs, which of them are done, and how long the others will take, estimated from those."""
    done = {record.key: record for record in store.records() if record.finished}
    lines = [f"{'there' if run.key in done else 'to do'}  {run.title}" for run in runs]
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


def _estimate(run: PlannedRun, known: Sequence[tuple[str, str, float]]) -> float:
    """Seconds of a run: the mean of those with its data and model, else with either, else of all."""
    data, model = run.identity["data"], run.identity["model"]
    alike = (
        [seconds for one, other, seconds in known if (one, other) == (data, model)]
        or [seconds for one, other, seconds in known if data == one or model == other]
        or [seconds for *_, seconds in known]
    )
    return statistics.mean(alike)


def _finished(runs: Sequence[PlannedRun], store: ResultsStore) -> list[RunRecord]:
    keys = {run.key for run in runs}
    return list({record.key: record for record in store.records() if record.key in keys and record.finished}.values())
