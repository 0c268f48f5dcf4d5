"""How often the console claims something of methods that are equal, and how often it finds a true gain: simulated.

`python -m benchmarks.false_claims` does the same with a narrow error.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from equal_methods import EPOCHS, SIMULATIONS, SPREAD, budgets, false_claims, identical_curves, record, store

from lightning_ubs.report import console_verdict
from lightning_ubs.report.results import Results
from lightning_ubs.report.training_cost import measure_speed
from lightning_ubs.report.verdict import judge

TIMES = 80
# What 5 % give in so few stores in 99 of 100 cases; whether it is at most 7 %, the slow form says.
MOST = 0.12
SAVES = re.compile(r"\bsaves\b")


@pytest.mark.parametrize("name", SIMULATIONS)
def test_equal_methods_are_rarely_told_apart(name: str) -> None:
    assert false_claims(SIMULATIONS[name], TIMES) <= MOST


def test_the_order_of_runs_changes_no_word() -> None:
    random = np.random.default_rng(0)
    stores = {
        "datasets": store(random, methods=6, folds=2, datasets=6, gain=SPREAD),
        "losses": [
            replace(one, model=loss) for loss in ("zeta", "BCE") for one in store(random, methods=2, folds=3, gain=0.1)
        ],
        "budgets": budgets(random),
        "repeated": store(random, folds=3, seeds=2) + store(random, folds=3, seeds=2),
        "unequal": [one for one in store(random, methods=2, folds=6, seeds=2) if random.random() < 0.7],
    }
    for name, records in stores.items():
        told = console_verdict(records, "val_auc")
        for _ in range(3):
            random.shuffle(records)  # type: ignore[arg-type]
            assert console_verdict(records, "val_auc") == told, name


def test_as_many_runs_as_the_verdict_names_show_the_difference_it_names() -> None:
    """From pilots of eight folds; each names a number of its own, of which half a dozen or so is too few."""
    random, found, tried = np.random.default_rng(0), 0, 0
    while tried < TIMES:
        said = console_verdict(store(random, folds=8, gain=SPREAD / 2), "val_auc")
        named = re.search(r"about (\d+) runs would show ([\d.]+\d)", said)
        if named and int(named[1]) < 100:
            tried += 1
            again = store(random, folds=int(named[1]), gain=float(named[2]))
            found += "ubs is better than random" in console_verdict(again, "val_auc")
    assert 0.65 <= found / tried <= 0.95


@pytest.mark.parametrize("rising", [False, True])
def test_equal_methods_rarely_save_training_however_wide_the_margin(rising: bool) -> None:
    assert false_claims(lambda random: budgets(random, rising), TIMES, margin=0.02, words=SAVES) <= MOST


@pytest.mark.parametrize("split", ["folds", "seeds"])
def test_a_gain_of_two_standard_deviations_in_ten_runs_is_found(split: str) -> None:
    random, found = np.random.default_rng(0), 0
    for _ in range(TIMES):
        records = store(random, gain=2 * SPREAD, **{split: 10})
        found += "ubs is better than random in auc" in console_verdict(records, "val_auc")
    assert found / TIMES >= 0.8


def test_a_training_that_does_in_a_quarter_what_plain_shuffling_needs_all_of_it_for_is_found() -> None:
    random, found = np.random.default_rng(0), 0
    levels = {("random", 20): 0.70, ("random", 40): 0.75, ("random", 80): 0.80, ("ubs", 20): 0.81, ("ubs", 80): 0.81}
    for _ in range(50):
        records = [
            record(name, [level + random.normal(0, 0.003)], fold, budget=budget)
            for fold in range(5)
            for (name, budget), level in levels.items()
        ]
        found += SAVES.search(console_verdict(records, "val_auc", 0.01)) is not None
    assert found >= 40


def test_writing_every_run_three_times_changes_no_interval() -> None:
    for options in ({"folds": 5}, {"seeds": 5}, {"folds": 3, "datasets": 2}, {"folds": 2, "datasets": 6}):
        records = store(np.random.default_rng(0), **options)
        copies = [
            replace(one, key=f"{number:08x}{one.key[8:]}", model=f"net max_epochs={EPOCHS * 2**number}")
            for number, one in itertools.product(range(3), records)
        ]
        (once,), (thrice,) = judge(Results(records)), judge(Results(copies))
        assert vars(once.interval) == pytest.approx(vars(thrice.interval))


def test_the_speed_of_equal_methods_is_one() -> None:
    random, ratios = np.random.default_rng(0), []
    for _ in range(TIMES):
        results = Results(identical_curves(random))
        speed = measure_speed(results, *results.comparisons[0])
        assert speed is not None
        ratios.append(speed.epochs.value)
    assert np.exp(np.mean(np.log(ratios))) == pytest.approx(1.0, abs=0.02)
