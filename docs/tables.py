"""Write the tables and pictures of README.md and of the pages of results: ``python docs/tables.py [--check]``.

A short table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, a long one is a file in
``docs/numbers`` that a page links to or shows; the words around them are written by hand.
Results come from the stores in ``docs/results``; costs from ``docs/results/epoch_cost.json``, which
``python -m benchmarks --only epoch --json docs/results/epoch_cost.json`` writes.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from alternative_tables import ALTERNATIVE_TABLES
from method_tables import METHOD_TABLES, gains_by_set
from model_tables import MODEL_TABLES
from pictures import BUDGETS, PICTURES, PLENTY, RARE, drawn, of_budget
from stored_results import (
    Folds,
    complete,
    counted,
    evidence,
    gains,
    interval,
    mean,
    plus_minus,
    savings,
    stored,
    table,
)
from stream_tables import STREAM_TABLES

from lightning_ubs.report.results import Run

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("results", "results_in_detail", "results_by_set", "results_models", "alternatives", "streams")
    ),
)
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
FILED = re.compile(r"(?:\]\(|^:file: )numbers/(\w+)\.csv", re.MULTILINE)

LONGEST = BUDGETS[-1]

# Numbers of epochs that experiment=main_table may train, and what a longer training may still gain.
LENGTHS, CONVERGED = (20, 40, 80, 160), 0.001


def savings_table() -> str:
    """Macro-AUC of each method after each number of epochs, and the gain over Random after the most."""
    rows = []
    for data, runs in savings().items():
        base = runs["Random", LONGEST]
        for method in dict.fromkeys(method for method, _ in runs):
            cells = [f"{mean(runs[method, budget]):.4f} ({_gain(runs[method, budget], base)})" for budget in BUDGETS]
            rows.append([f"{data}, {method}", counted(base), f"{_cost(runs[method, LONGEST], base):.2f}", *cells])
    return table(["Macro-AUC", "folds", "samples", *(f"{budget} epochs" for budget in BUDGETS)], rows)


def savings_equal() -> str:
    """Each method against Random with as many epochs, on sets with many rare labels and on one with plenty of samples.

    Three budgets on one fold are one unit of evidence, so they are shown one by one or averaged. On the latter set they
    are the same training to the last digit.
    """
    by_data = savings()
    rare = {budget: [of_budget(data, budget) for data in RARE] for budget in BUDGETS}
    plenty = [of_budget(PLENTY, LONGEST)]
    every = [runs for one in rare.values() for runs in one]
    shown = [*((runs, "macro_auc") for runs in rare.values()), (every, "map"), (plenty, "macro_auc")]
    rows = []
    for method in dict.fromkeys(method for method, _ in by_data[PLENTY] if method != "Random"):
        cells = [interval(evidence(runs, method, metric)) for runs, metric in shown]
        cost = float(np.mean([_cost(runs[method], runs["Random"]) for runs in [*every, *plenty]]))
        rows.append([method, f"{cost:.2f}", *cells])
    folds = len(plenty[0]["Random"])
    head = [
        "against Random, 95 % intervals",
        "samples",
        *(f"rare labels, Macro-AUC, {budget} epochs" for budget in BUDGETS),
        "macro average precision, mean of these",
        f"plenty of samples ({folds} folds): Macro-AUC",
    ]
    return table(head, rows)


def drawing() -> str:
    """Ways of drawing, each set's mean gain over Random, and over the sets."""
    return gains_by_set(complete(stored("drawing")))


def chosen_settings() -> dict[str, tuple[float, int]]:
    """Learning rate and epochs of each set, by Random's validation score on fold 0 alone.

    The rate is that of the best score; the epochs are the fewest of ``LENGTHS`` whose best score lies within
    ``CONVERGED`` of it.
    """
    chosen = {}
    for data, curves in _validation().items():
        rate = max(curves, key=lambda rate: curves[rate].max())
        best = curves[rate].max()
        lengths = [length for length in LENGTHS if curves[rate][:length].max() >= best - CONVERGED]
        chosen[data] = rate, lengths[0]
    return chosen


def settings() -> str:
    """Random's best validation score at each learning rate, and what was chosen by it."""
    chosen, rates = chosen_settings(), sorted({rate for curves in _validation().values() for rate in curves})
    rows = []
    for data, curves in _validation().items():
        rate, epochs = chosen[data]
        scores = [f"{curves[one].max():.4f}" if one in curves else "–" for one in rates]
        rows.append([data, *scores, f"{rate:g}", str(epochs), str(int(curves[rate][:epochs].argmax()) + 1)])
    head = [
        "Random, fold 0, validation Macro-AUC",
        *(f"lr {rate:g}" for rate in rates),
        "chosen",
        "epochs",
        "best epoch",
    ]
    return table(head, rows)


@cache
def _validation() -> dict[str, dict[float, np.ndarray]]:
    """Data → learning rate → validation Macro-AUC by epoch."""
    found: dict[str, dict[float, np.ndarray]] = defaultdict(dict)
    for run in stored("settings"):
        rate = float(run.record.model.partition("lr=")[2])
        found[run.data][rate] = np.asarray(run.record.curves[run.record.monitor], dtype=float)
    return found


def epoch_costs() -> str:
    """What an epoch with selection takes."""
    rows = json.loads((ROOT / "docs" / "results" / "epoch_cost.json").read_text())["rows"]
    return table(
        ["processor seconds", "median", "quartiles"],
        [[row["name"], f"{row['value']:.2f}", f"{row['low']:.2f} – {row['high']:.2f}"] for row in rows],
    )


def epoch_costs_in_short() -> str:
    """The same, of whole epochs with UBS, in a reader's words."""
    names = {
        "UBS epoch / plain, MLP, yahoo-Arts' shape": "MLP on 6,000 × 2,314 features, 25 labels",
        "UBS epoch / plain, MLP, yeast's size": "MLP on yeast's size, where an epoch takes 26 ms",
        "UBS epoch / plain, CLIF, yahoo-Arts' shape": "CLIF, a graph network, on the first",
    }
    rows = json.loads((ROOT / "docs" / "results" / "epoch_cost.json").read_text())["rows"]
    found = {row["name"]: f"{row['value']:.2f} × ({row['low']:.2f} to {row['high']:.2f})" for row in rows}
    return table(["an epoch with UBS", "median (quartiles)"], [[told, found[name]] for name, told in names.items()])


TABLES: Mapping[str, Callable[[], str]] = {
    "savings": savings_table,
    "savings_equal": savings_equal,
    "drawing": drawing,
    "settings": settings,
    "epoch_costs": epoch_costs,
    "epoch_costs_in_short": epoch_costs_in_short,
    **METHOD_TABLES,
    **MODEL_TABLES,
    **ALTERNATIVE_TABLES,
    **STREAM_TABLES,
}


def filled(text: str) -> str:
    """The page with its tables as they should be."""
    return MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


def as_csv(table: str) -> str:
    """A table in Markdown as CSV."""
    head, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def written() -> dict[Path, str]:
    """Every file with tables, and every picture, as it should be."""
    pages = {page: filled(page.read_text(encoding="utf-8")) for page in PAGES}
    names = {name for text in pages.values() for name in FILED.findall(text)}
    files = {ROOT / "docs" / "numbers" / f"{name}.csv": as_csv(TABLES[name]()) for name in sorted(names)}
    return pages | files | {ROOT / "docs" / f"{name}.svg": drawn(name) for name in PICTURES}


def main() -> str | None:
    """Write the tables and pictures, or say which files have others."""
    parser = argparse.ArgumentParser(description="Write the tables and pictures of README.md and the results.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is not up to date")
    check = parser.parse_args().check
    old = {
        path: text for path, text in written().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if check and old:
        names = " and ".join(path.name for path in old)
        return f"{names}: not up to date; run python docs/tables.py."
    for path, text in old.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return None


def _gain(runs: Folds, base: Folds) -> str:
    """Mean difference over the folds, with its 95 % interval if there are several."""
    return "–" if runs is base else plus_minus(gains(runs, base))


def _cost(runs: Folds, base: Folds) -> float:
    """Samples trained, as a share."""
    return float(np.mean([_samples(runs[fold]) / _samples(base[fold]) for fold in base]))


def _samples(run: Run) -> int:
    known = run.record.samples_trained
    assert known is not None, f"{run.key} does not say how many samples it trained on."
    return known


if __name__ == "__main__":
    sys.exit(main())
