"""How often the console's verdict claims something of methods that are equal: ``python -m benchmarks.false_claims``.

Writes the table of ``docs/how_the_verdict_is_made.md``; ``--times 2000`` takes a few minutes.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from equal_methods import SIMULATIONS, SPREAD, budgets, false_claims, store

from lightning_ubs.report import console_verdict

SAVES = re.compile(r"\bsaves\b")


def main() -> None:
    """Simulate, and print a row per kind of results: the share of claims and its standard error."""
    parser = argparse.ArgumentParser(description="False claims of the console's verdict between equal methods.")
    parser.add_argument("--times", type=int, default=2000, help="stores of each kind")
    times = parser.parse_args().times
    for name, simulation in SIMULATIONS.items():
        _say(name, false_claims(simulation, times), times)
    _say("three budgets, margin 0.02: saves", false_claims(budgets, times, 0.02, SAVES), times)
    for name, options in {"10 splits": {"folds": 10}, "10 seeds on one split": {"seeds": 10}}.items():
        random = np.random.default_rng(0)
        texts = (console_verdict(store(random, gain=2 * SPREAD, **options), "val_auc") for _ in range(times))
        _say(f"power, gain of 2 sd, {name}", sum(" is better than " in text for text in texts) / times, times)


def _say(name: str, share: float, times: int) -> None:
    error = math.sqrt(share * (1 - share) / times)
    sys.stdout.write(f"| {name} | {100 * share:.1f} % ± {100 * error:.1f} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
