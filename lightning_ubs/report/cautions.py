"""What a reader must know before believing the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from lightning_ubs.report.method import clean
from lightning_ubs.report.results import Results, Run
from lightning_ubs.report.verdict import DEFAULT_MARGIN
from lightning_ubs.report.words import count_of, join, runs_of

_MOST_NAMED = 5
#: Fewer pairs of runs, or fewer validation samples, are warned of.
MIN_PAIRS = 5
MIN_VALIDATION = 200
_EARLIER = 0.9
# What a run says of itself and is said above once for all runs, with their number.
_SAID_ABOVE = ("nothing was selected", "lies in the warm-up", "is defective as published")


def find_cautions(results: Results) -> list[str]:
    """Every warning that concerns the result, each a sentence or two with a hint."""
    found: list[str] = []
    for check in (
        _few_pairs,
        _small_validation,
        _nothing_selected,
        _best_in_warm_up,
        _not_converged,
        _defective,
        _versions,
        _repeated,
        _metrics,
    ):
        found += check(results)
    if results.failed:
        total = len(results.runs) + len(results.failed)
        found.append(
            f"{runs_of(len(results.failed), total)} failed and are in no table; start the same comparison again to "
            "repeat them."
        )
    own = Counter(
        clean(sentence)
        for run in results.runs
        for sentence in run.record.warnings
        if not any(phrase in sentence for phrase in _SAID_ABOVE)
    )
    found += [f"{sentence} ({runs_of(count, len(results.runs))})" for sentence, count in sorted(own.items())]
    return found


def _few_pairs(results: Results) -> Iterator[str]:
    pairs = [len(results.pairs(*methods)) for methods in results.comparisons]
    if pairs and min(pairs) < MIN_PAIRS:
        yield (
            f"Few pairs: {count_of(min(pairs), 'pair')} of runs can show large differences only. Use more seeds, each "
            "with its own split of the data, or more folds."
        )


def _small_validation(results: Results) -> Iterator[str]:
    sizes = [size for run in results.runs if (size := run.record.shape.get("val"))]
    if sizes and min(sizes) < MIN_VALIDATION:
        yield (
            f"A small validation set of {count_of(min(sizes), 'sample')} chooses the best epoch, so chance chooses "
            "with it. Hold out more samples for validation, or repeat over more splits."
        )


def _nothing_selected(results: Results) -> Iterator[str]:
    for label, runs in _by_method(results).items():
        idle = [run for run in runs if _selected_epochs(run) == 0]
        if idle:
            record = idle[0].record
            yield (
                f"Nothing was selected in {runs_of(len(idle), len(runs))} of {label}: training has {record.epochs} "
                f"epochs, and selection starts in epoch {record.first_selected_epoch}, counted from 0. Train longer "
                "(trainer.max_epochs) or shorten the warm-up (selection.warmup_epochs)."
            )


def _best_in_warm_up(results: Results) -> Iterator[str]:
    named = []
    for label, runs in _by_method(results).items():
        early = [run for run in runs if _selected_epochs(run) != 0 and _best_before_selection(run)]
        named += [f"{runs_of(len(early), len(runs))} of {label}"] if early else []
    if named:
        yield (
            f"The best epoch lies in the warm-up in {join(named, _MOST_NAMED)}: what was tested there has seen no "
            "selection. Train at a lower learning rate, or shorten the warm-up (selection.warmup_epochs)."
        )


def _not_converged(results: Results) -> Iterator[str]:
    named = _settings_with(results, _still_improves)
    if named:
        yield (
            f"Not converged: more steps would help more than selection. The best epoch is the last in {named}. Train "
            "longer (trainer.max_epochs)."
        )


def _defective(results: Results) -> Iterator[str]:
    from lightning_ubs.data import catalog
    from lightning_ubs.errors import DataError

    for data in sorted(results.datasets):
        try:
            defects = catalog.entry(data.split(" ")[0]).defects
        except DataError:  # a user's own dataset
            continue
        if defects:
            yield f"The dataset {data} is defective. {defects}"


def _versions(results: Results) -> Iterator[str]:
    for package in ("lightning_ubs", "torch", "lightning", "python"):
        found = Counter(clean(str(run.record.versions.get(package, "unknown"))) for run in results.runs)
        if len(found) > 1:
            kinds = ", ".join(f"{version} ({count} runs)" for version, count in sorted(found.items()))
            yield (
                f"Results of several versions of {package} are mixed: {kinds}. Differences between methods may be "
                "differences between versions; run everything again with one version to be sure."
            )


def _repeated(results: Results) -> Iterator[str]:
    if results.repeated:
        yield (
            f"{results.repeated} run(s) repeat the data, model, method, fold and seed of another run with a different "
            "configuration; only the last of each is used. Keep different settings in different folders."
        )


def _metrics(results: Results) -> Iterator[str]:
    untested = [metric.title for metric in results.metrics if metric.stage == "val"]
    if untested:
        yield (
            f"{join(untested)}: values are of the validation set in the best epoch, because no test step logged them; "
            "they are more favorable than on new data. Log them as test_NAME in test_step."
        )
    mixed = [metric.title for metric in results.metrics if len(_stages(results, metric.key)) > 1]
    if mixed:
        yield (
            f"{join(mixed)}: some runs have values of the test set, others of the validation set, and these are not "
            "compared with each other. Run everything again with one module."
        )
    if len(results.losses) > 1 and results.primary.key == "loss":
        yield (
            f"{join(results.losses)} are not compared with each other in loss, because it may be another one in each. "
            "Monitor a metric, such as val_auc."
        )
    unknown = [metric.title for metric in results.metrics if metric.higher_is_better is None]
    if unknown:
        yield (
            f"{join(unknown)}: which direction is good is unknown, so there are neither ranks nor a verdict. Log a "
            "torchmetrics metric that knows its direction, or monitor it with mode=max or mode=min."
        )
    monitors = Counter((run.record.monitor, run.record.mode) for run in results.runs)
    if len(monitors) > 1:
        kinds = ", ".join(f"{name} {mode} ({count} runs)" for (name, mode), count in sorted(monitors.items()))
        yield f"The best epoch was chosen in different ways: {kinds}. Run everything again with one monitor."


def _stages(results: Results, key: str) -> set[str]:
    return {run.record.metrics[key].stage for run in results.runs if key in run.record.metrics}


def _by_method(results: Results) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {method.label: [] for method in results.methods}
    for run in results.runs:
        found[run.method.label].append(run)
    return found


def _selected_epochs(run: Run) -> int | None:
    """Epochs that were trained on selected batches; None if unknown or if the method never selects."""
    first = run.record.first_selected_epoch
    return None if first is None or not run.record.epochs else max(0, run.record.epochs - first)


def _best_before_selection(run: Run) -> bool:
    first, best = run.record.first_selected_epoch, run.record.best_epoch
    return first is not None and best is not None and best < first


def _still_improves(run: Run) -> bool:
    """Whether the best epoch is the last, unless the curve is level there.

    It is level where the last tenth of the epochs brought no more than the usual margin: the best of many epochs that
    chance made equal is the last now and then.
    """
    epochs = run.curves.get("epoch", np.zeros(0))
    if epochs.size < 2 or run.record.best_epoch != epochs[-1]:
        return False
    scores = np.nan_to_num(run.scores, nan=-np.inf)
    before = scores[: max(1, int(_EARLIER * scores.size))]
    if scores.size != epochs.size or scores.argmax() != scores.size - 1:
        return True
    return bool(before.max() < scores[-1] - DEFAULT_MARGIN)


def _settings_with(results: Results, holds: Callable[[Run], bool]) -> str:
    """The data and models with runs for which ``holds``, with their numbers; empty if there is none."""
    total, hits = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for run in results.runs:
        total[run.data, run.model] += 1
        hits[run.data, run.model] += holds(run)
    named = [
        f"{runs_of(hits[setting], total[setting])} of {', '.join(setting)}"
        for setting in sorted(hits, key=lambda one: (-hits[one], one))
        if hits[setting]
    ]
    return join(named, _MOST_NAMED) if named else ""
