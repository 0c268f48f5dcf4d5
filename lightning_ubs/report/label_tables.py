"""What each method does to rare and frequent labels, and to decisions and probabilities, beside the judged metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightning_ubs._utils.known_metrics import THIRDS
from lightning_ubs.report.method import Method
from lightning_ubs.report.results import Results, Run

PRECISION = tuple(f"map_{third}" for third in THIRDS)
DRAWS = tuple(f"draws_{third}" for third in THIRDS)
DECISIONS = ("micro_f1", "macro_f1", "brier_score", "calibration_error")
COLUMNS = (*PRECISION, *DRAWS, *DECISIONS)
"""Columns of the table: average precision and draws by thirds of the labels, then decisions and probabilities."""


@dataclass(frozen=True)
class LabelRow:
    """One method.

    Attributes:
        method: Which.
        runs: On how many folds and seeds, those of all methods of its block.
        values: Mean by column; NaN where it was not recorded.
    """

    method: Method
    runs: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class LabelBlock:
    """The methods on one set with one model."""

    data: str
    model: str
    rows: Sequence[LabelRow]
    left_out: int
    """Runs that recorded none of it: those of earlier releases, and of models that log other metrics."""


def find_label_blocks(results: Results) -> list[LabelBlock]:
    """A block per data and model whose runs recorded draws or average precision by label frequency."""
    found = []
    for data, model in results.settings():
        cells = {method: results.cell(method, data, model) for method in results.methods}
        told = {
            method: known
            for method, runs in cells.items()
            if (known := {unit: values for unit, run in runs.items() if (values := _values(run))})
        }
        shared = set.intersection(*(set(runs) for runs in told.values())) if told else set()
        rows = [
            LabelRow(method, len(units), {name: _mean([runs[unit][name] for unit in units]) for name in COLUMNS})
            for method, runs in told.items()
            for units in [sorted(shared or runs)]
        ]
        if rows:
            recorded = sum(map(len, told.values()))
            found.append(LabelBlock(data, model, rows, sum(map(len, cells.values())) - recorded))
    return found


def _values(run: Run) -> dict[str, float]:
    """What a run recorded of the columns; empty if nothing by label frequency."""
    draws = {f"draws_{third}": float(value) for third, value in run.record.draws.items()}
    if not draws and not any(name in run.metrics for name in PRECISION):
        return {}
    return {name: draws.get(name, run.metrics.get(name, math.nan)) for name in COLUMNS}


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan
