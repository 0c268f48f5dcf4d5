"""Tables of what a user would do instead of selection: weigh the loss, stop early, resample by label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from stored_results import interval, stored, table

from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Run
from lightning_ubs.report.statistics import holm_divisors
from lightning_ubs.report.verdict import DEFAULT_MARGIN, Gain, Verdict, gain_of
from lightning_ubs.report.words import signed

Cell = tuple[str, str]
"""A loss and a method."""
Place = tuple[str, int]
"""A set and a fold of it."""

PLAIN = "Random"
LOSSES = {"bce": "BCE", "weighted": "weighted", "balanced": "balanced", "asymmetric": "asymmetric"}
BY_LABEL = ("Repeat factor", "Class-aware", "Class-aware, whole training")
BY_MODEL = ("UBS", "Loss", "D2ACE")
NAMES = {"Random": "plain shuffling", "Class-aware": "Label first", "Class-aware, whole training": "Class-aware"}
AUC, PRECISION = Metric("macro_auc", "Macro-AUC", True), Metric("map", "macro average precision", True)
# Sets of few labels or samples, whose epochs are short, and how long each kind was trained to choose settings.
SMALL, SHORT_EPOCHS, LONG_EPOCHS = ("stackex_chess", "scene", "yeast", "enron", "cal500", "langlog"), 80, 40
LENGTHS, CONVERGED, LEAST = (20, 40, 80), 0.001, 10


@dataclass(frozen=True)
class Setting:
    """What was chosen for one loss on one set by plain shuffling's validation score on fold 0: rates and epochs.

    Attributes:
        rate: Learning rate of ``alternatives``.
        epochs: And its number of epochs; None where only the short form was tried.
        short_rate: Learning rate of ``short``.
        short_epochs: And its number of epochs.
        score: Best validation score at ``rate``, or at ``short_rate`` where there is no other.
    """

    rate: float | None
    epochs: int | None
    short_rate: float
    short_epochs: int
    score: float


@cache
def chosen() -> dict[tuple[str, str], Setting]:
    """(Set, loss) → its setting.

    The rate is that of the best score; the epochs are the fewest of ``LENGTHS`` whose best score lies within
    ``CONVERGED`` of it. The short form has a quarter of them, at least ``LEAST``, and the rate that is best within them.
    """
    found = {}
    for (data, loss), curves in _validation().items():
        limit = SHORT_EPOCHS if data in SMALL else LONG_EPOCHS
        cut = {rate: curve[:limit] for rate, curve in curves.items()}
        whole = min(len(curve) for curve in cut.values()) == limit
        rate = max(cut, key=lambda one: cut[one].max())
        best = cut[rate].max()
        epochs = next(length for length in LENGTHS if cut[rate][:length].max() >= best - CONVERGED)
        short = max(LEAST, epochs // 4) if whole else LEAST
        short_rate = max(cut, key=lambda one: cut[one][:short].max())
        found[data, loss] = Setting(
            rate if whole else None, epochs if whole else None, short_rate, short, float(best)
        )
    return found


def settings() -> str:
    """What was chosen for each set and loss."""
    sets = list(dict.fromkeys(data for data, _ in chosen()))
    head = ["lr × epochs; short: lr × epochs", *LOSSES.values()]
    rows = []
    for data in sets:
        cells = []
        for loss in LOSSES:
            one = chosen().get((data, loss))
            if one is None:
                cells.append("–")
            else:
                full = "–" if one.rate is None else f"{one.rate:g} × {one.epochs}"
                cells.append(f"{full}; {one.short_rate:g} × {one.short_epochs}")
        rows.append([data, *cells])
    return table(head, rows)


@cache
def trained(store: str) -> Mapping[Cell, Mapping[Place, Run]]:
    """(Loss, method) → (set, fold) → run."""
    found: dict[Cell, dict[Place, Run]] = defaultdict(dict)
    for run in stored(store):
        found[loss_of(run), run.method.label][run.data, run.unit[0]] = run
    return found


def loss_of(run: Run) -> str:
    """The loss that its model was trained with."""
    return run.model.partition("loss=")[2].split(" ")[0]


def pairs(store: str, ours: Cell, theirs: Cell, data: str | None = None) -> list[tuple[Run, Run]]:
    """Runs of both on the same set and fold."""
    first, second = (trained(store).get(cell, {}) for cell in (ours, theirs))
    return [(first[place], second[place]) for place in sorted(first.keys() & second.keys()) if data in (None, place[0])]


def judged(store: str, compared: Iterable[tuple[Cell, Cell]]) -> dict[tuple[Cell, Cell], Verdict]:
    """The verdict on each comparison in Macro-AUC, corrected for all of them; average precision beside it."""
    found: dict[tuple[Cell, Cell], list[Gain]] = {}
    for ours, theirs in compared:
        both = pairs(store, ours, theirs)
        gains = [gain for metric in (AUC, PRECISION) if (gain := gain_of(both, metric)) is not None]
        if gains:
            found[ours, theirs] = gains
    divisors = holm_divisors([gains[0].evidence.p() for gains in found.values()])
    return {
        (ours, theirs): Verdict(
            ours=" + ".join(ours),
            theirs=" + ".join(theirs),
            gains=gains,
            interval=gains[0].evidence.interval(1 - 0.05 / divisor),
            comparisons=len(found),
            divisor=divisor,
            margin=DEFAULT_MARGIN,
        )
        for ((ours, theirs), gains), divisor in zip(found.items(), divisors, strict=True)
    }


def losses_compared(store: str) -> list[tuple[Cell, Cell]]:
    """Each loss against BCE, all with plain shuffling."""
    return [((loss, PLAIN), ("bce", PLAIN)) for loss in LOSSES if loss != "bce"]


def selections_compared(store: str) -> list[tuple[Cell, Cell]]:
    """Each selection against plain shuffling, both with the same loss."""
    return [((loss, method), (loss, PLAIN)) for loss in LOSSES for method in (*BY_LABEL, *BY_MODEL)]


def knowledge_compared(store: str) -> list[tuple[Cell, Cell]]:
    """What the model knows against label frequencies alone, with the same loss."""
    return [
        ((loss, method), (loss, other)) for loss in LOSSES for method in BY_MODEL for other in ("Class-aware", "Repeat factor")
    ]


def compared_table(store: str, compared: Callable[[str], Sequence[tuple[Cell, Cell]]], named: Callable[[Cell, Cell], str]) -> str:
    """Gain in Macro-AUC on each set and over all, with the answer; average precision over all."""
    verdicts = judged(store, compared(store))
    sets = sets_of(store, verdicts)
    rows = []
    for (ours, theirs), verdict in verdicts.items():
        cells = [on_set(store, ours, theirs, data) for data in sets]
        over = f"{verdict.answer}: {signed(verdict.interval.mean)} ({signed(verdict.interval.low)} to {signed(verdict.interval.high)})"
        rows.append([named(ours, theirs), *cells, over, interval(verdict.gains[1].evidence)])
    return table(["Macro-AUC", *sets, "these sets", "macro average precision"], rows)


def sets_of(store: str, verdicts: Iterable[tuple[Cell, Cell]]) -> list[str]:
    """Sets on which any of these was run, as in the settings."""
    run = {one.data for ours, theirs in verdicts for one, _ in pairs(store, ours, theirs)}
    return [data for data in dict.fromkeys(data for data, _ in chosen()) if data in run]


def on_set(store: str, ours: Cell, theirs: Cell, data: str) -> str:
    """Mean gain on one set, bold where its own interval excludes 0."""
    gain = gain_of(pairs(store, ours, theirs, data), AUC)
    if gain is None:
        return "–"
    return f"**{signed(gain.interval.mean)}**" if gain.interval.excludes_zero else signed(gain.interval.mean)


def levels(store: str) -> str:
    """Test Macro-AUC and average precision of the plain forms and of what was added, set by set."""
    cells = [cell for cell in ((loss, method) for loss in LOSSES for method in (PLAIN, *BY_LABEL, *BY_MODEL)) if trained(store).get(cell)]
    sets = [data for data in dict.fromkeys(data for data, _ in chosen()) if any(place[0] == data for cell in cells for place in trained(store)[cell])]
    rows = []
    for loss, method in cells:
        row = [f"{LOSSES[loss]}, {NAMES.get(method, method)}"]
        for data in sets:
            runs = [run for (where, _), run in trained(store)[loss, method].items() if where == data]
            row.append(" ".join((f"{np.mean([run.metrics['macro_auc'] for run in runs]):.3f}", f"({np.mean([run.metrics['map'] for run in runs]):.3f})")) if runs else "–")
        rows.append(row)
    return table(["Macro-AUC (average precision)", *sets], rows)


def _validation() -> dict[tuple[str, str], dict[float, np.ndarray]]:
    """(Set, loss) → learning rate → validation Macro-AUC by epoch.

    BCE was tried by experiment=settings on all sets but one: the first epochs of a longer training are the same.
    """
    found: dict[tuple[str, str], dict[float, np.ndarray]] = defaultdict(dict)
    for run in stored("alternatives_settings"):
        loss, _, rate = run.model.removeprefix("mlp loss=").partition(" lr=")
        found[run.data, loss][float(rate)] = run.scores
    tried = dict.fromkeys(data for data, _ in found)
    for run in stored("settings"):
        rate = float(run.model.partition("lr=")[2])
        if run.data in tried and ("bce" in LOSSES) and rate in (1e-3, 3e-3, 1e-2):
            found[run.data, "bce"].setdefault(rate, run.scores)
    return found
