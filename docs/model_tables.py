"""Tables of what was run with the paper's own models: CLIF, DELA and MPVAE."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from method_tables import METRICS
from scipy.stats import kendalltau
from stored_results import (
    ByMethod,
    bold_best,
    complete,
    counted,
    evidence,
    gains,
    interval,
    mean,
    plus_minus,
    set_gains,
    speed,
    stored,
    table,
)

import lightning_ubs.report
from lightning_ubs.report.evidence import competition_ranks
from lightning_ubs.report.results import Run
from lightning_ubs.report.words import signed

PRINTED = Path(lightning_ubs.report.__file__).parent / "paper_tables.csv"
NAMES = {"clif": "CLIF", "dela": "DELA", "mpvae": "MPVAE"}
# A best epoch among so many last ones suggests that training had not converged.
LAST = 5


def by_model(runs: Iterable[Run]) -> dict[str, dict[str, ByMethod]]:
    """Model → data → method → fold → run, of the folds on which every method has been trained."""
    runs = list(runs)
    found = {model: complete(run for run in runs if run.model == model) for model in NAMES}
    return {model: by_data for model, by_data in found.items() if by_data}


def paper_models() -> str:
    """Test Macro-AUC of every method with each model on each set, and what the paper prints."""
    models = by_model(stored("paper_models"))
    methods = _methods(models)
    printed = _printed("Macro-AUC")
    rows = []
    for model, by_data in models.items():
        for data, runs in by_data.items():
            values = bold_best([mean(runs[method]) for method in methods])
            theirs = (printed.get((NAMES[model], data, method), "–") for method in ("Random", "Ours"))
            rows.append([f"{NAMES[model]}, {data}", str(len(runs["Random"])), *values, *theirs])
    return table(["Macro-AUC", "folds", *methods, "Random, printed", "UBS, printed"], rows)


def paper_models_summary() -> str:
    """Average rank, gain over Random and whether training had converged: by model, and over all cells."""
    models = by_model(stored("paper_models"))
    methods = _methods(models)
    cells = {f"{model} {data}": runs for model, by_data in models.items() for data, runs in by_data.items()}
    parts = {f"{NAMES[model]}, {len(by_data)} sets": by_data for model, by_data in models.items()}
    rows = []
    for name, part in parts.items():
        gain = (signed(float(np.mean(set_gains(part, method)))) for method in methods[1:])
        rows += [[f"{name}: gain in Macro-AUC", "–", *gain], _ranks(name, part, methods)]
    name = f"all {len(cells)} cells"
    for metric, words, sign in METRICS:
        gain = (interval(evidence(cells.values(), method, metric, sign=sign)) for method in methods[1:])
        rows.append([f"{name}: gain in {words}", "–", *gain])
    rows.append(_ranks(name, cells, methods))
    for name, part in parts.items():
        rows.append(
            [f"{name}: best epoch among the last {LAST}", *(_late(_all_runs(part, [method])) for method in methods)]
        )
    return table(["the paper's settings", *methods], rows)


def three_times() -> str:
    """Macro-AUC and rank of every method after 100 and 300 epochs on the same folds, and how far the orders agree."""
    short, long = _with_more_epochs()
    methods = _names(long)
    rows = []
    for cell, runs in long.items():
        means = [[mean(found[cell][method]) for method in methods] for found in (short, long)]
        agreement = f"{kendalltau(*means).statistic:.2f}"
        name = f"{cell}, {counted(runs['Random'])}"
        for epochs, found, tau in ((100, short, "–"), (300, long, agreement)):
            rows.append([f"{name}: {epochs} epochs", *_ordered(found[cell], methods), tau])
    head = [*methods, "UBS batch − Random", "UBS − Random", f"best among the last {LAST}", "τ"]
    return table(["Macro-AUC (rank)", *head], rows)


def three_times_summary() -> str:
    """Gain over Random and average rank after 100 and 300 epochs over all models and sets."""
    both = _with_more_epochs()
    methods = _names(both[0])
    rows = []
    for epochs, cells in zip((100, 300), both, strict=True):
        gained = (interval(evidence(cells.values(), method)) for method in methods[1:])
        rows.append([f"{epochs} epochs: gain in Macro-AUC", "–", *gained])
    for epochs, cells in zip((100, 300), both, strict=True):
        rows.append(_ranks(f"{epochs} epochs", cells, methods))
    return table([f"all {len(both[0])} cells", *methods], rows)


def _with_more_epochs() -> tuple[dict[str, ByMethod], dict[str, ByMethod]]:
    """Model and data → method → fold → run after 100 and after 300 epochs, of the folds that have both."""
    short, long = by_model(stored("paper_models")), by_model(stored("three_times"))
    before, after = {}, {}
    for model, by_data in long.items():
        for data, runs in by_data.items():
            cell = f"{NAMES[model]}, {data}"
            after[cell] = runs
            before[cell] = {
                method: {fold: short[model][data][method][fold] for fold in folds} for method, folds in runs.items()
            }
    return before, after


def _ordered(runs: ByMethod, methods: list[str]) -> list[str]:
    means = [mean(runs[method]) for method in methods]
    ranked = zip(means, competition_ranks(np.array(means), True), strict=True)
    gained = (plus_minus(gains(runs[method], runs["Random"])) for method in ("UBS batch", "UBS"))
    return [*(f"{one:.4f} ({rank})" for one, rank in ranked), *gained, _late(_all_runs({"": runs}))]


def _ranks(name: str, cells: dict[str, ByMethod], methods: list[str]) -> list[str]:
    means = [[mean(runs[method]) for method in methods] for runs in cells.values()]
    ranks = np.mean([competition_ranks(np.array(row), True) for row in means], axis=0)
    return [f"{name}: average rank in Macro-AUC", *(f"{rank:.2f}" for rank in ranks)]


def authors_rate() -> str:
    """UBS against Random at the paper's learning rate and at those of the models' own authors."""
    slow, own = by_model(stored("paper_models")), by_model(stored("authors_rate"))
    cells = {
        f"{NAMES[model]}, {data}": (slow[model][data], runs)
        for model, by_data in own.items()
        for data, runs in by_data.items()
    }
    rows = [[name, *(cell for runs in both for cell in _rate_cells(runs))] for name, both in cells.items()]
    total = [f"all {len(cells)} cells"]
    for one in zip(*cells.values(), strict=True):
        named = dict(zip(cells, one, strict=True))
        gained = (interval(evidence(named.values(), method)) for method in ("UBS batch", "UBS"))
        total += ["–", *gained, _late(_all_runs(named, ["Random"]))]
    head = ["Random", "UBS batch − Random", "UBS − Random", f"Random's best among the last {LAST}"]
    heads = (f"{words}, {rate}" for rate in ("1e-4", "authors' rate") for words in head)
    return table(["Macro-AUC", *heads], [*rows, total])


def _rate_cells(runs: ByMethod) -> list[str]:
    base = runs["Random"]
    gained = (plus_minus(gains(runs[method], base)) for method in ("UBS batch", "UBS"))
    return [f"{mean(base):.4f}", *gained, _late(base.values())]


def text_sets() -> str:
    """UBS against Random with CLIF on sets of texts, and what the paper prints."""
    by_data = by_model(stored("text_sets"))["clif"]
    printed = _printed("Macro-AUC")
    rows = []
    for data, runs in by_data.items():
        base = runs["Random"]
        gained = (
            plus_minus(gains(runs[method], base, metric))
            for metric in ("macro_auc", "map")
            for method in ("UBS batch", "UBS")
        )
        theirs = (printed.get(("CLIF", data, method), "–") for method in ("Random", "Ours"))
        late = _late(_all_runs({data: runs}))
        rows.append([f"{data}, {counted(base)}", f"{mean(base):.4f}", *gained, late, *theirs])
    head = [f"{method} − Random{words}" for words in ("", ", average precision") for method in ("UBS batch", "UBS")]
    return table(
        ["Macro-AUC, CLIF", "Random", *head, f"best among the last {LAST}", "Random, printed", "UBS, printed"], rows
    )


def yahoo_arts() -> str:
    """How soon UBS reaches Random's best validation score on yahoo-Arts with CLIF, and the test scores."""
    (runs,) = by_model(stored("yahoo_arts"))["clif"].values()
    base = runs["Random"]
    rows = [
        [
            method,
            f"{mean(folds):.4f}",
            *("–" if method == "Random" else plus_minus(gains(folds, base, metric)) for metric in ("macro_auc", "map")),
            "–" if method == "Random" else speed([runs], method),
        ]
        for method, folds in runs.items()
    ]
    head = ["yahoo-Arts1, CLIF", "Macro-AUC", "− Random", "macro average precision − Random"]
    return table([*head, "epochs to the score that both reach, against Random"], rows)


def _methods(models: dict[str, dict[str, ByMethod]]) -> list[str]:
    return _names(next(iter(models.values())))


def _names(cells: dict[str, ByMethod]) -> list[str]:
    """The methods, which are the same in every cell."""
    return list(next(iter(cells.values())))


def _printed(metric: str) -> dict[tuple[str, str, str], str]:
    """(Model, data, method) → value, as the paper prints them."""
    with open(PRINTED, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == metric]
    return {(row["model"], row["dataset"], row["method"]): row["value"] for row in rows}


def _all_runs(by_data: dict[str, ByMethod], methods: Iterable[str] | None = None) -> list[Run]:
    """Every run, or those of some methods."""
    return [run for runs in by_data.values() for method in methods or runs for run in runs[method].values()]


def _late(runs: Iterable[Run]) -> str:
    """How many runs have their best epoch among the last."""
    ends = [(run.record.best_epoch or 0) >= (run.record.max_epochs or 0) - LAST for run in runs]
    return f"{sum(ends)} of {len(ends)}"


MODEL_TABLES: dict[str, Callable[[], str]] = {
    "paper_models": paper_models,
    "paper_models_summary": paper_models_summary,
    "three_times": three_times,
    "three_times_summary": three_times_summary,
    "authors_rate": authors_rate,
    "text_sets": text_sets,
    "yahoo_arts": yahoo_arts,
}
