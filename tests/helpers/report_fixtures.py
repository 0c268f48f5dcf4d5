"""Made-up results for testing the report: drawn from a seed, measured nowhere, true of nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs._utils.metric_names import THIRDS
from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.experiment.store import ResultsStore
from lightning_ubs.metrics import HIGHER_IS_BETTER

METHODS = {
    "random": ("Random", 0.0, {}),
    "balance": ("Balance", -0.002, {}),
    "active": ("Active", 0.003, {"window": 5}),
    "recent": ("Recent", 0.011, {"window": 5, "s0": 100.0}),
    "hard": ("Hard", 0.018, {"pressure": 8.0}),
    "ubs": ("UBS", 0.012, {"lambda1": 0.5, "window": 5, "s0": 100.0, "bins": 5}),
}
DATASETS = ("scene", "yeast", "Corel5k", "bibtex", "enron", "cal500")
LABELS = ("beach", "sunset", "fall foliage", "field", "mountain", "urban")
VERSIONS = {"lightning_ubs": "0.1.0", "torch": "2.6.0", "lightning": "2.5.0", "python": "3.11.9"}


def noise(*parts: object) -> np.random.Generator:
    """A generator keyed by names, so that no record depends on the order of making."""
    return np.random.default_rng(int(hashlib.sha256(repr(parts).encode()).hexdigest()[:12], 16))


def fake_run(
    data: str = "yeast",
    model: str = "clif",
    selection: str = "ubs",
    fold: int = 0,
    seed: int = 0,
    *,
    gain: float | None = None,
    epochs: int = 40,
    label: str | None = None,
    variant: str = "",
    parameters: dict[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """One record of the store; ``gain`` is the true advantage in Macro-AUC over Random.

    ``metrics`` among the changes may be plain numbers.
    """
    name, usual, usual_parameters = METHODS[selection]
    gain = usual if gain is None else gain
    parameters = {**usual_parameters, **(parameters or {})}
    setting, run = noise(data, model, fold, seed), noise(data, model, selection, variant, parameters, fold, seed)
    level = noise(data, model).uniform(0.66, 0.92) + setting.normal(0, 0.004)
    gain += noise(data, model, selection).normal(0, 0.003)
    score = level + gain + run.normal(0, 0.002)
    pace = 9.0 / (1 + 12 * max(gain, 0))
    steps = np.arange(epochs)
    validation = 0.5 + (score - 0.5) * (1 - np.exp(-(steps + 1) / pace)) + run.normal(0, 0.002, epochs)
    loss = 0.25 + 0.45 * np.exp(-(steps + 1) / pace) + run.normal(0, 0.003, epochs)
    seconds = noise(data, model, "time").uniform(0.4, 2.0)
    share = 0.0 if selection == "random" else seconds * 0.04
    selects = selection == "ubs"
    made: dict[str, Any] = {
        "key": fake_key(data, model, selection, variant, parameters, fold, seed, epochs),
        "status": "ok",
        "data": data,
        "model": model,
        "selection": selection,
        "label": label or name,
        "variant": variant,
        "parameters": parameters,
        "fold": fold,
        "seed": seed,
        "config_hash": "0" * 16,
        "metrics": {
            "macro_auc": score,
            "ranking_loss": 0.35 - 0.3 * score + run.normal(0, 0.0006),
            "hamming_loss": 0.25 - 0.15 * score + run.normal(0, 0.0006),
            "one_error": 0.3,
            "coverage": 4.2,
            "micro_f1": 0.6,
            "macro_f1": 0.4,
            "brier_score": 0.1,
            "calibration_error": 0.02,
            "map_rare": score - 0.4 + run.normal(0, 0.004),
            "map_medium": score - 0.3,
            "map_frequent": score - 0.2,
            "map": score - 0.3 + run.normal(0, 0.002),
        },
        "best_epoch": int(validation[:-1].argmax()),
        "max_epochs": epochs,
        "first_selected_epoch": None if selection == "random" else 5,
        "curves": {
            "epoch": steps.tolist(),
            "train_loss": loss.tolist(),
            "val_macro_auc": validation.tolist(),
            "epoch_seconds": (seconds + share + run.normal(0, 0.01, epochs)).tolist(),
            "selection_seconds": [share] * epochs,
            "samples": [1125 if (selection, data) == ("hard", "yeast") else 1500] * epochs,
            "pressure": [None] * 5 + [100 ** (1 - step / (epochs - 6)) for step in range(epochs - 5)],
            "effective_sample_size": [None] * epochs,
            "correlation_drift": [None] * 6 + (0.4 * np.exp(-steps[6:] / 8) + 0.02 * run.random(epochs - 6)).tolist()
            if selects
            else [None] * epochs,
        },
        "seconds": epochs * seconds,
        "shape": {"n": 1500, "d": 103, "q": len(LABELS), "batches": 12},
        "draws": dict.fromkeys(THIRDS, 1.0) if selection == "random" else {"rare": 1.5, "medium": 1.1, "frequent": 0.9},
        "versions": VERSIONS,
        "started": "2025-01-01T12:00:00",
        **changes,
    }
    made["metrics"] = {key: measured(key, value) for key, value in made["metrics"].items()}
    return RunRecord(**made)


def measured(key: str, value: Any) -> MetricValue:
    """A plain number as a metric of the test set with its usual direction."""
    if isinstance(value, MetricValue):
        return value
    return MetricValue(math.nan if value is None else value, HIGHER_IS_BETTER.get(key))


def fake_key(*parts: object) -> str:
    """Sixteen hexadecimal digits for anything."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def save(folder: Path, *records: RunRecord) -> ResultsStore:
    """A results folder with these records."""
    store = ResultsStore(folder)
    for record in records:
        store.append(record)
    return store


def fake_trace(labels: Sequence[str] = LABELS, samples: int = 1500) -> dict[str, Any]:
    """Arrays as a run of UBS leaves them."""
    random, q = noise("trace", samples), len(labels)
    first = random.gamma(2, 0.05, (q, q))
    first = (first + first.T) / 2
    last = first * random.uniform(0.2, 1.2, (q, q))
    last = (last + last.T) / 2
    for matrix in (first, last):
        np.fill_diagonal(matrix, 1)
    uncertainty = random.beta(2, 4, samples)
    fluctuation = np.clip(0.5 * uncertainty * random.gamma(4, 0.25, samples), 0, 1)
    return {
        "correlation_epochs": np.array([5, 39]),
        "correlations": np.stack([first, last]).astype(np.float32),
        "mean_uncertainty": uncertainty,
        "fluctuation": fluctuation,
        "times_selected": random.poisson(np.exp(1.2 + 2.5 * uncertainty)),
        "labels": (random.random((samples, q)) < 0.3).astype(np.uint8),
        "label_names": np.array(labels),
        "sample_rows": np.arange(samples)[::-1] + 100,
    }


def full_results(folder: Path, folds: int = 3, models: Sequence[str] = ("clif", "mlp")) -> ResultsStore:
    """Everything the report can show: a grid of six methods, an ablation, sweeps, traces, a failed run."""
    store = ResultsStore(folder)
    for data in DATASETS:
        for model in models:
            for fold in range(folds):
                for selection in METHODS:
                    traced = selection == "ubs" and fold == 0 and data == "yeast"
                    record = fake_run(data, model, selection, fold, trace=traced)
                    if traced:
                        store.write_trace(record.key, **fake_trace())
                    store.append(record)
    for fold in range(folds):
        for variant, gain, parameters in (
            ("A", 0.012, {}),
            ("B", 0.004, {"lambda1": 0.0}),
            ("C", 0.008, {"lambda1": 1.0}),
            ("D", 0.007, {"correlation": None}),
        ):
            store.append(fake_run(fold=fold, gain=gain, variant=variant, label=variant, parameters=parameters))
        store.append(fake_run("yeast", "clif", "active", fold, gain=0.005, variant="Active_LC", label="Active_LC"))
        store.append(fake_run("yeast", "clif", "recent", fold, gain=0.009, variant="Recent_LC", label="Recent_LC"))
        for value in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
            gain = 0.012 - 0.02 * (value - 0.5) ** 2
            store.append(fake_run(fold=fold, gain=gain, label=f"UBS λ1={value}", parameters={"lambda1": value}))
        for pressure in (10.0, 64.0, 100.0, 200.0):
            for window in (3, 5, 7, 9):
                if (pressure, window) != (100.0, 5):
                    gain = 0.012 - 0.004 * abs(math.log10(pressure / 100)) - 0.001 * abs(window - 5)
                    label = f"UBS s0={pressure:g} T={window}"
                    store.append(
                        fake_run(fold=fold, gain=gain, label=label, parameters={"s0": pressure, "window": window})
                    )
    store.append(
        fake_run("mediamill", status="failed", error="MemoryError: cannot allocate 96 GiB", metrics={}, curves={})
    )
    return store
