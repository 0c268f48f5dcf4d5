"""Simulated results of methods that are equal, or that differ by a known gain: records without any training."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lightning_ubs.experiment.record import MetricValue, RunRecord
from lightning_ubs.report import console_verdict

Simulation = Callable[[np.random.Generator], list[RunRecord]]
#: Words that claim something of a method.
CLAIMS = re.compile(r"\b(better|worse|equal|faster|slower|saves)\b")
SPREAD = 0.01
EPOCHS = 20
METHODS = ("ubs", "active", "recent", "hard", "loss", "balance")
_numbers = itertools.count()


def record(
    selection: str,
    metrics: Sequence[float],
    fold: int = 0,
    seed: int = 0,
    data: str = "mine",
    budget: int = EPOCHS,
    curve: Sequence[float] | None = None,
    samples: int = 100,
) -> RunRecord:
    """One run with these values of ``auc``, ``m1``, ``m2`` and so on."""
    names = ["auc", *(f"m{number}" for number in range(1, len(metrics)))]
    scores = [0.5] * (budget - 1) + [0.8] if curve is None else list(curve)
    return RunRecord(
        key=f"{next(_numbers):016x}",
        status="ok",
        data=data,
        model="net" if budget == EPOCHS else f"net max_epochs={budget}",
        selection=selection,
        fold=fold,
        seed=seed,
        monitor="val_auc",
        metrics={name: MetricValue(float(value), True) for name, value in zip(names, metrics, strict=True)},
        best_epoch=int(np.argmax(scores)),
        max_epochs=budget,
        curves={"epoch": list(range(budget)), "val_auc": scores, "samples": [samples] * budget},
    )


def store(
    random: np.random.Generator,
    methods: int = 1,
    metrics: int = 1,
    folds: int = 1,
    seeds: int = 1,
    datasets: int = 1,
    gain: float = 0.0,
    between_splits: float = 0.0,
    between_datasets: float = 0.0,
) -> list[RunRecord]:
    """Random and other methods on each dataset, fold and seed; the difference of two runs has the spread ``SPREAD``.

    Args:
        random: Generator.
        methods: How many besides Random.
        metrics: How many.
        folds: How many.
        seeds: How many on each fold.
        datasets: How many.
        gain: True gain of every method over Random in the first metric.
        between_splits: Standard deviation between splits of what a method happens to gain there; its mean is 0.
        between_datasets: The same between datasets.
    """
    found = []
    own = SPREAD / np.sqrt(2)
    for data in range(datasets):
        on_data = random.normal(0, between_datasets, methods + 1) if between_datasets else np.zeros(methods + 1)
        for fold in range(folds):
            on_split = random.normal(0, between_splits, methods + 1) if between_splits else np.zeros(methods + 1)
            for seed in range(seeds):
                for number, name in enumerate(("random", *METHODS[:methods])):
                    values = 0.8 + random.normal(0, own, metrics)
                    values[0] += (on_data[number] + on_split[number] + gain) * (number > 0)
                    found.append(record(name, values, fold, seed, f"data{data}"))
    return found


def false_claims(
    simulation: Simulation, times: int, margin: float | None = None, words: re.Pattern[str] = CLAIMS, seed: int = 0
) -> float:
    """Share of simulated stores of which the console's text claims anything."""
    random = np.random.default_rng(seed)
    texts = (console_verdict(simulation(random), "val_auc", margin) for _ in range(times))
    return sum(words.search(text) is not None for text in texts) / times


def copies_of_budgets(random: np.random.Generator) -> list[RunRecord]:
    """Five folds, each trained with three budgets that come to the same best epoch."""
    found = []
    for fold in range(5):
        for name in ("random", "ubs"):
            value = 0.8 + random.normal(0, SPREAD)
            for budget in (20, 40, 80):
                found.append(record(name, [value], fold, budget=budget))
    return found


def budgets(random: np.random.Generator, rising: bool = False) -> list[RunRecord]:
    """Two methods with three budgets each on five folds; ``rising``: longer trainings get further, both alike."""
    found = []
    for fold, name, budget in itertools.product(range(5), ("random", "ubs", "active"), (20, 40, 80)):
        level = 0.8 - (0.4 / budget if rising else 0.0)
        found.append(record(name, [level + random.normal(0, SPREAD)], fold, budget=budget))
    return found


def identical_curves(random: np.random.Generator) -> list[RunRecord]:
    """Two methods with noisy validation curves of one and the same law, on ten folds."""
    rise = 0.8 - 0.3 * np.exp(-np.arange(EPOCHS) / 6)
    return [
        record(name, [0.8 + random.normal(0, SPREAD)], fold, curve=rise + random.normal(0, 0.01, EPOCHS))
        for fold in range(10)
        for name in ("random", "ubs")
    ]


def accuracies(random: np.random.Generator) -> list[RunRecord]:
    """Two methods on three folds, scored by accuracies in percent of fifty samples."""
    return [
        record(name, [100 * round(50 * (0.8 + random.normal(0, SPREAD))) / 50], fold)
        for fold in range(3)
        for name in ("random", "ubs")
    ]


def losses(random: np.random.Generator) -> list[RunRecord]:
    """Three methods, each trained with two losses on five folds."""
    return [
        replace(record(name, [0.8 + random.normal(0, SPREAD)], fold), model=loss)
        for fold, name, loss in itertools.product(range(5), ("random", "ubs", "active"), ("BCE", "focal"))
    ]


SIMULATIONS: dict[str, Simulation] = {
    "5 seeds": lambda random: store(random, seeds=5),
    "5 folds": lambda random: store(random, folds=5),
    "10 folds": lambda random: store(random, folds=10),
    "5 selections": lambda random: store(random, methods=5, folds=5),
    "5 selections, 5 seeds": lambda random: store(random, methods=5, seeds=5),
    "4 metrics": lambda random: store(random, metrics=4, folds=5),
    "6 selections, 4 metrics": lambda random: store(random, methods=6, metrics=4, folds=5),
    "copies of budgets": copies_of_budgets,
    "5 seeds on one split": lambda random: store(random, seeds=5, between_splits=SPREAD / 2),
    "20 seeds on one split": lambda random: store(random, seeds=20, between_splits=SPREAD / 2),
    "5 folds, 10 seeds": lambda random: store(random, folds=5, seeds=10, between_splits=SPREAD),
    "2 folds, 10 seeds": lambda random: store(random, folds=2, seeds=10, between_splits=SPREAD / 2),
    "2 datasets": lambda random: store(random, folds=5, datasets=2, between_datasets=SPREAD / 2),
    "4 datasets": lambda random: store(random, folds=5, datasets=4, between_datasets=SPREAD / 2),
    "6 datasets": lambda random: store(random, folds=5, datasets=6, between_datasets=SPREAD),
    "accuracies of 50 samples": accuracies,
    "3 selections, 2 losses": losses,
    "identical curves": identical_curves,
    "three budgets": budgets,
    "three budgets, rising": lambda random: budgets(random, rising=True),
}
