"""Tables that compare the methods: on the paper's sets, with its models, part by part and setting by setting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from stored_results import (
    ByMethod,
    Folds,
    bold_best,
    complete,
    evidence,
    gains,
    interval,
    mean,
    plus_minus,
    speed,
    stored,
    table,
)

from lightning_ubs.report.evidence import competition_ranks, exact_wilcoxon, holm

CONFIGS = Path(__file__).parents[1] / "configs" / "experiment"
PAPER_SETS = tuple(OmegaConf.load(CONFIGS / "paper_table.yaml").grid.data)
METRICS = (
    ("macro_auc", "Macro-AUC", 1),
    ("map", "Macro average precision", 1),
    ("ranking_loss", "Ranking loss", -1),
    ("hamming_loss", "Hamming loss", -1),
)
# At least 6,000 articles or web pages with 25 to 159 labels, most of them rare.
RARE_TEXTS = ("rcv1subset", "yahoo-", "bibtex")
# The learning rate of experiment=drawing.
FIXED_RATE = 3e-3
# As published, and repaired.
REPAIRED = {
    "rcv1subset1": "rcv1subset1_aligned",
    "rcv1subset2": "rcv1subset2_aligned",
    "rcv1subset3": "rcv1subset3_aligned",
    "LLOG-F": "langlog",
}

# Method and weight decay: what is compared in experiment=notebooks. The released baseline has no weight decay.
Trained = tuple[str, float]
RELEASED: Trained = ("Notebook Random", 0.0)
SHUFFLED: Trained = ("Random", 1e-4)
NOTEBOOKS: dict[str, tuple[Trained, Trained]] = {
    "released UBS − released Random": (("Notebook UBS", 1e-4), RELEASED),
    "UBS batch − released Random": (("UBS batch", 1e-4), RELEASED),
    "Random − released Random": (SHUFFLED, RELEASED),
    "UBS batch − Random": (("UBS batch", 1e-4), SHUFFLED),
    "released UBS − Random": (("Notebook UBS", 1e-4), SHUFFLED),
    "Random filled − Random": (("Random filled", 1e-4), SHUFFLED),
}
COMPARED = {trained for pair in NOTEBOOKS.values() for trained in pair}


def main_table() -> str:
    """Test Macro-AUC of every method on every set, the best in bold."""
    by_data = complete(stored("main_table"))
    methods = list(next(iter(by_data.values())))
    rows = [
        [data, str(len(runs["Random"])), *bold_best([mean(runs[method]) for method in methods])]
        for data, runs in by_data.items()
    ]
    return table(["Macro-AUC", "folds", *methods], rows)


def main_summary() -> str:
    """Each method against Random over the paper's sets, and its average rank among all."""
    by_data = {data: runs for data, runs in complete(stored("main_table")).items() if data in PAPER_SETS}
    methods = list(next(iter(by_data.values())))
    rows = []
    for metric, name, sign in METRICS:
        means = np.array([[mean(runs[method], metric) for method in methods] for runs in by_data.values()])
        ranks = np.mean([competition_ranks(row, sign > 0) for row in means], axis=0)
        rows.append([f"{name}: average rank", *(f"{rank:.2f}" for rank in ranks)])
        gain = (evidence(by_data.values(), method, metric, sign=sign) for method in methods[1:])
        rows.append([f"{name}: gain over Random", "–", *map(interval, gain)])
        p = holm([exact_wilcoxon(means[:, column], means[:, 0]) for column in range(1, len(methods))])
        rows.append([f"{name}: Wilcoxon's p, Holm", "–", *(f"{one:.3f}" for one in p)])
    return table([f"{len(by_data)} of the paper's 13 sets", *methods], rows)


def by_kind() -> str:
    """Each method against Random on large sets of texts with many rare labels, and on the other sets."""
    rows = []
    for name, by_data in kinds().items():
        methods = [method for method in next(iter(by_data.values())) if method != "Random"]
        for metric, words, _ in METRICS[:2]:
            cells = (interval(evidence(by_data.values(), method, metric)) for method in methods)
            rows.append([f"{name} ({len(by_data)} sets): {words}", *cells])
    return table(["gain over Random", *methods], rows)


def how_soon() -> str:
    """Epochs to the validation score that both reach, as a share of Random's."""
    rows = []
    for name, by_data in kinds().items():
        methods = [method for method in next(iter(by_data.values())) if method != "Random"]
        cells = [speed(by_data.values(), method) for method in methods]
        rows.append([f"{name} ({len(by_data)} sets)", *cells])
    cost = [_epoch_cost(complete(stored("main_table")), method) for method in methods]
    rows.append(["seconds of an epoch, against Random's", *(f"{one:.2f}" for one in cost)])
    return table(["epochs to the score that both reach, against Random", *methods], rows)


def kinds() -> dict[str, dict[str, ByMethod]]:
    """The sets by kind, defective ones left out."""
    sound = {data: runs for data, runs in complete(stored("main_table")).items() if data not in REPAIRED}
    return {
        name: {data: runs for data, runs in sound.items() if data.startswith(RARE_TEXTS) == kind}
        for name, kind in (("rcv1, yahoo, bibtex", True), ("the others", False))
    }


def speed_by_set() -> str:
    """The same on each set, with an interval over its folds."""
    by_data = complete(stored("main_table"))
    methods = [method for method in next(iter(by_data.values())) if method != "Random"]
    rows = [[data, *(speed([runs], method) for method in methods)] for data, runs in by_data.items()]
    return table(["epochs to the score that both reach, against Random", *methods], rows)


def defects() -> str:
    """UBS against Random on the defective sets and on their repaired forms."""
    by_data = complete(stored("main_table"))
    rows = []
    for data in [name for pair in REPAIRED.items() for name in pair]:
        if data in by_data:
            runs = by_data[data]
            gain = (plus_minus(gains(runs[method], runs["Random"])) for method in ("UBS batch", "UBS"))
            kind = "as published" if data in REPAIRED else "repaired"
            rows.append([f"{data} ({kind})", f"{mean(runs['Random']):.4f}", *gain])
    return table(["Macro-AUC", "Random", "UBS batch − Random", "UBS − Random"], rows)


def ablation() -> str:
    """What each part is worth: the gain over Random by set."""
    return gains_by_set(complete(stored("ablation_mlp")))


def gains_by_set(by_data: dict[str, ByMethod]) -> str:
    """Each set's mean gain over Random, and that over the sets."""
    methods = [method for method in next(iter(by_data.values())) if method != "Random"]
    rows = [
        [data, *(plus_minus(gains(runs[method], runs["Random"])) for method in methods)]
        for data, runs in by_data.items()
    ]
    for metric, name in (("macro_auc", "mean of the sets"), ("map", "the same, macro average precision")):
        rows.append([f"**{name}**", *(interval(evidence(by_data.values(), method, metric)) for method in methods)])
    return table(["Macro-AUC against Random", *methods], rows)


def sensitivity() -> str:
    """Each setting of UBS against Random and against the defaults, over the sets."""
    random = [run for run in stored("ablation_mlp") if run.method.label == "Random"]
    by_data = complete([*random, *stored("sensitivity")])
    rows = []
    for method in next(iter(by_data.values())):
        if method != "Random":
            default = "–" if method == "UBS" else interval(evidence(by_data.values(), method, base="UBS"))
            rows.append(
                [method, *(interval(evidence(by_data.values(), method, one)) for one in ("macro_auc", "map")), default]
            )
    folds = min(len(runs["UBS"]) for runs in by_data.values())
    head = [f"{len(by_data)} sets, {folds} folds", "Macro-AUC − Random", "macro average precision − Random"]
    return table([*head, "Macro-AUC − UBS"], rows)


def learning_rate() -> str:
    """UBS against Random at 3e-3 and at the rate chosen for Random, where that is another one."""
    chosen = complete(stored("main_table"))
    rows = []
    for data, fixed in complete(stored("drawing")).items():
        rate = OmegaConf.load(CONFIGS / "main_table.yaml").by_data.get(data, {}).get("model", {}).get("lr")
        if data in chosen and rate != FIXED_RATE:
            cells = (
                cell
                for runs in (fixed, chosen[data])
                for cell in (f"{mean(runs['Random']):.4f}", plus_minus(gains(runs["UBS"], runs["Random"])))
            )
            rows.append([f"{data}, {rate:g}", *cells])
    head = ["Macro-AUC", "Random, 3e-3", "UBS − Random, 3e-3", "Random, chosen", "UBS − Random, chosen"]
    return table(head, rows)


def notebooks() -> str:
    """How large "the gain" is against the released notebooks' baseline, and what it consists of."""
    rows = []
    for model, by_data in released_runs().items():
        cells = [
            [gains(found[ours], found[theirs]) for ours, theirs in NOTEBOOKS.values()] for found in by_data.values()
        ]
        rows += [[f"{model}, {data}", *map(plus_minus, row)] for data, row in zip(by_data, cells, strict=True)]
        means = np.array([[np.mean(cell) for cell in row] for row in cells])
        rows.append([f"**{model}, mean of the sets**", *(interval(column.tolist()) for column in means.T)])
    return table(["Macro-AUC", *NOTEBOOKS], rows)


def released_runs() -> dict[str, dict[str, dict[Trained, Folds]]]:
    """Model → data → (method, weight decay) → fold → run, of the sets on which all that is compared was trained.

    With CLIF only what is compared was run, so each method has one weight decay there; Random and UBS as they should be
    are those of experiment=paper_models.
    """
    found: dict[str, dict[str, dict[Trained, Folds]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for run in stored("released_notebooks"):
        model, _, decay = run.model.partition(" weight_decay=")
        found[model][run.data][run.method.label, float(decay)][run.unit[0]] = run
    for run in (*stored("paper_models"), *stored("released_notebooks_clif")):
        if run.model == "clif":
            decay = next((decay for label, decay in COMPARED if label == run.method.label), None)
            if decay is not None:
                found["clif"][run.data][run.method.label, decay][run.unit[0]] = run
    return {
        model: {data: dict(runs) for data, runs in by_data.items() if set(runs) >= COMPARED}
        for model, by_data in found.items()
        if any(set(runs) >= COMPARED for runs in by_data.values())
    }


def _epoch_cost(by_data: dict[str, ByMethod], method: str) -> float:
    """Median over all runs of the median seconds of an epoch over those of Random's on the same fold."""
    ratios = [
        np.median(run.curves["epoch_seconds"]) / np.median(runs["Random"][fold].curves["epoch_seconds"])
        for runs in by_data.values()
        for fold, run in runs[method].items()
    ]
    return float(np.median(ratios))


METHOD_TABLES: dict[str, Callable[[], str]] = {
    "main_table": main_table,
    "main_summary": main_summary,
    "by_kind": by_kind,
    "how_soon": how_soon,
    "speed_by_set": speed_by_set,
    "defects": defects,
    "ablation": ablation,
    "learning_rate": learning_rate,
    "notebooks": notebooks,
    "sensitivity": sensitivity,
}
