"""What the tables of the results page share: the committed runs, grouped and paired, and numbers as printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from lightning_ubs.report.evidence import Difference, Evidence, paired_interval
from lightning_ubs.report.method import ordered
from lightning_ubs.report.results import Run, load_results
from lightning_ubs.report.training_cost import speed_ratio
from lightning_ubs.report.words import signed

RESULTS = Path(__file__).parent / "results"

Folds = dict[int, Run]
ByMethod = dict[str, Folds]
Trained = tuple[str, int]


@cache
def stored(name: str) -> Sequence[Run]:
    """The runs of a store in ``docs/results``; none where it is not there yet."""
    return load_results(RESULTS / name).runs if (RESULTS / name).exists() else []


def complete(runs: Iterable[Run]) -> dict[str, ByMethod]:
    """Data → method → fold → run, of the folds on which every method has been trained; methods as in reports."""
    runs = list(runs)
    found: dict[str, ByMethod] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        found[run.data][run.method.label][run.unit[0]] = run
    methods = list(dict.fromkeys(method.label for method in ordered(list({run.method for run in runs}))))
    folds = {
        data: set.intersection(*(set(by_method[method]) for method in methods)) for data, by_method in found.items()
    }
    return {
        data: {method: {fold: by_method[method][fold] for fold in sorted(folds[data])} for method in methods}
        for data, by_method in found.items()
        if folds[data]
    }


@cache
def savings() -> dict[str, dict[Trained, Folds]]:
    """Data → (method, epochs) → fold → run, of the folds on which every method has been trained."""
    found: dict[str, dict[Trained, Folds]] = defaultdict(lambda: defaultdict(dict))
    for run in stored("savings"):
        found[run.data][run.method.label, run.record.max_epochs or 0][run.unit[0]] = run
    trained = {key for runs in found.values() for key in runs}
    complete = {data: set.intersection(*(set(runs[key]) for key in trained)) for data, runs in found.items()}
    return {
        data: {key: {fold: run for fold, run in folds.items() if fold in complete[data]} for key, folds in runs.items()}
        for data, runs in found.items()
        if complete[data]
    }


def gains(runs: Folds, base: Folds, metric: str = "macro_auc") -> list[float]:
    """The difference on each fold that both have."""
    both = sorted(set(runs) & set(base))
    return [runs[fold].metrics[metric] - base[fold].metrics[metric] for fold in both]


def set_gains(
    by_data: Mapping[str, ByMethod], method: str, metric: str = "macro_auc", base: str = "Random"
) -> list[float]:
    """The mean gain over another method on each set."""
    return [float(np.mean(gains(runs[method], runs[base], metric))) for runs in by_data.values()]


def evidence(
    cells: Iterable[ByMethod], method: str, metric: str = "macro_auc", base: str = "Random", sign: int = 1
) -> Evidence:
    """The difference from another method by unit of evidence: a set where there are five or more, else a fold of a set.

    What one unit has several times, such as several models or budgets, is averaged.
    """
    return Evidence.of(
        Difference(
            run.dataset, str(fold), run.unit[1], sign * (run.metrics[metric] - other.metrics[metric]), run.setting
        )
        for runs in cells
        for fold, run in runs[method].items()
        if (other := runs[base].get(fold)) is not None
    )


def mean(runs: Folds, metric: str = "macro_auc") -> float:
    """The mean over the folds."""
    return float(np.mean([run.metrics[metric] for run in runs.values()]))


def counted(runs: Folds) -> str:
    """How many folds, in words."""
    return f"{len(runs)} fold{'s' * (len(runs) > 1)}"


def interval(found: Evidence | Sequence[float]) -> str:
    """Mean and 95 % interval, bold where it lies on one side of 0."""
    gain = found.interval() if isinstance(found, Evidence) else paired_interval(found)
    words = f"{signed(gain.mean)} ({signed(gain.low)} to {signed(gain.high)})"
    return f"**{words}**" if gain.excludes_zero else words


def speed(cells: Iterable[ByMethod], method: str, base: str = "Random") -> str:
    """Epochs to the validation score that both reach, as a ratio with its 95 % interval."""
    pairs = [(run, runs[base][fold]) for runs in cells for fold, run in runs[method].items() if fold in runs[base]]
    ratio = speed_ratio(pairs)
    assert ratio is not None
    return f"{ratio.value:.2f}{ratio.range}"


def plus_minus(values: Sequence[float]) -> str:
    """Mean, with half of its 95 % interval if there are several values."""
    gain = paired_interval(values)
    return signed(gain.mean) + (f" ± {(gain.high - gain.low) / 2:.4f}" if gain.pairs > 1 else "")


def bold_best(values: Sequence[float]) -> list[str]:
    """Numbers with four digits, the largest in bold."""
    printed = [f"{value:.4f}" for value in values]
    return [f"**{one}**" if one == max(printed) else one for one in printed]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
