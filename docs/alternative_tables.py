"""Tables of what a user would do instead of selection: weigh the loss, stop early, resample by label."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

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

PLAIN, CONTROL = "Random", "UBS, shuffled P"
LOSSES = {"bce": "BCE", "weighted": "weighted", "balanced": "balanced", "asymmetric": "asymmetric"}
BY_LABEL = ("Repeat factor", "Class-aware", "Class-aware, whole training")
BY_MODEL = ("UBS", "Loss", "D2ACE")
METHODS = (PLAIN, *BY_LABEL, *BY_MODEL, CONTROL)
NAMES = {"Random": "plain shuffling", "Class-aware": "label first", "Class-aware, whole training": "label throughout"}
AUC, PRECISION = Metric("macro_auc", "Macro-AUC", True), Metric("map", "macro average precision", True)
# Sets of few labels or samples, whose epochs are short, and how long each kind was trained to choose settings.
SMALL, SHORT_EPOCHS, LONG_EPOCHS = ("stackex_chess", "scene", "yeast", "enron", "cal500", "langlog"), 80, 40
LENGTHS, CONVERGED, LEAST = (20, 40, 80), 0.001, 10
RATES, FOLDS = (1e-3, 3e-3, 1e-2), 5


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
    ``CONVERGED`` of it. The short form has a quarter of them, at least ``LEAST``, and the rate that is best within
    them.
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
        found[data, loss] = Setting(rate if whole else None, epochs if whole else None, short_rate, short, float(best))
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
    return run.model.partition("loss=")[2].split(" ")[0] or "bce"


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


def levels(store: str) -> str:
    """Test Macro-AUC and average precision on each set, and on how many folds."""
    cells = [(loss, method) for loss in LOSSES for method in METHODS if trained(store).get((loss, method))]
    sets = _sets(data for cell in cells for data, _ in trained(store)[cell])
    rows = [
        [f"{LOSSES[loss]}, {NAMES.get(method, method)}", *(_level(store, (loss, method), data) for data in sets)]
        for loss, method in cells
    ]
    return table(["Macro-AUC (average precision)", *sets], rows)


def losses(store: str) -> str:
    """Each loss against BCE, all with plain shuffling."""
    compared = [((loss, PLAIN), ("bce", PLAIN)) for loss in LOSSES if loss != "bce"]
    return _compared(store, compared, lambda ours, theirs: f"{LOSSES[ours[0]]} − BCE")


def selections(store: str) -> str:
    """Each selection against plain shuffling, both with the same loss."""
    compared = [((loss, method), (loss, PLAIN)) for loss in LOSSES for method in METHODS if method != PLAIN]
    return _compared(store, compared, lambda ours, theirs: f"{LOSSES[ours[0]]}: {NAMES.get(ours[1], ours[1])}")


def knowledge(store: str) -> str:
    """What the model knows against label frequencies alone, with the same loss; and UBS against its control."""
    compared = [
        ((loss, method), (loss, other)) for loss in LOSSES for method in BY_MODEL for other in ("Class-aware", CONTROL)
        if other != CONTROL or method == "UBS"
    ]  # fmt: skip
    return _compared(
        store,
        compared,
        lambda ours, theirs: f"{LOSSES[ours[0]]}: {NAMES.get(ours[1], ours[1])} − {NAMES.get(theirs[1], theirs[1])}",
    )


def _compared(store: str, compared: Sequence[tuple[Cell, Cell]], named: Callable[[Cell, Cell], str]) -> str:
    """Gain in Macro-AUC on each set and over all of them, with the answer; average precision beside it."""
    verdicts = judged(store, compared)
    sets = _sets(run.data for ours, theirs in verdicts for run, _ in pairs(store, ours, theirs))
    rows = [
        [
            named(ours, theirs),
            *(_on_set(store, ours, theirs, data) for data in sets),
            f"{verdict.answer}: {_corrected(verdict)}",
            interval(verdict.gains[1].evidence),
        ]
        for (ours, theirs), verdict in verdicts.items()
    ]
    return table(["Macro-AUC", *sets, "these sets", "macro average precision"], rows)


def _corrected(verdict: Verdict) -> str:
    found = verdict.interval
    return f"{signed(found.mean)} ({signed(found.low)} to {signed(found.high)})"


def _sets(run: Iterable[str]) -> list[str]:
    """These sets, in the order of the experiments."""
    there = set(run)
    return [data for data in dict.fromkeys(data for data, _ in chosen()) if data in there]


def _level(store: str, cell: Cell, data: str) -> str:
    runs = [run for (where, _), run in trained(store)[cell].items() if where == data]
    if not runs:
        return "–"
    score, precision = (float(np.mean([run.metrics[metric.key] for run in runs])) for metric in (AUC, PRECISION))
    return f"{score:.4f} ({precision:.4f})" + (f", {len(runs)} folds" if len(runs) < FOLDS else "")


def _on_set(store: str, ours: Cell, theirs: Cell, data: str) -> str:
    """Mean gain on one set, bold where its own interval excludes 0."""
    gain = gain_of(pairs(store, ours, theirs, data), AUC)
    if gain is None:
        return "–"
    return f"**{signed(gain.interval.mean)}**" if gain.interval.excludes_zero else signed(gain.interval.mean)


def _validation() -> dict[tuple[str, str], dict[float, np.ndarray]]:
    """(Set, loss) → learning rate → validation Macro-AUC by epoch.

    BCE was tried by experiment=settings on the paper's sets: the first epochs of a longer training are the same.
    """
    found: dict[tuple[str, str], dict[float, np.ndarray]] = defaultdict(dict)
    runs = list(stored("alternatives_settings"))
    for data in dict.fromkeys(run.data for run in runs):
        for run in (*runs, *stored("settings")):
            rate = float(run.model.partition("lr=")[2])
            if run.data == data and rate in RATES:
                found[data, loss_of(run)].setdefault(rate, run.scores)
    return found


ALTERNATIVE_TABLES: dict[str, Callable[[], str]] = {
    "alternatives_settings": settings,
    **{
        f"{store}_{made.__name__}": partial(made, store)
        for store in ("short", "alternatives")
        for made in (levels, losses, selections, knowledge)
    },
}
