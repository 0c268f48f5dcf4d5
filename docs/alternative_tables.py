"""Tables of what a user would do instead of selection: weigh the loss, stop early, resample by label.

``python docs/alternative_tables.py`` writes what plain shuffling chose into the configurations of the experiments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from stored_results import interval, stored, table

from lightning_ubs._utils.metric_names import THIRDS
from lightning_ubs.report.evidence import MIN_UNITS, Interval, holm_divisors
from lightning_ubs.report.metric import Metric
from lightning_ubs.report.results import Run
from lightning_ubs.report.verdict import DEFAULT_MARGIN, Gain, Verdict, gain_of
from lightning_ubs.report.words import signed

Cell = tuple[str, str]
"""A loss and a method."""
Place = tuple[str, int]
"""A set and a fold of it."""
Compared = Mapping[str, Sequence[tuple[Cell, Cell]]]
"""Rows of a table: what is compared with what; losses that share a row are averaged."""

PLAIN, CONTROL = "Random", "UBS, shuffled P"
LOSSES = {"bce": "BCE", "weighted": "weighted", "balanced": "balanced", "asymmetric": "asymmetric"}
GROUPS = {"BCE": ("bce",), "weighted or balanced": ("weighted", "balanced"), "asymmetric": ("asymmetric",)}
FIRST = "Class-aware"
BY_LABEL = ("Repeat factor", FIRST, "Class-aware, whole training")
BY_MODEL = ("UBS", "Loss", "D2ACE")
METHODS = (PLAIN, *BY_LABEL, *BY_MODEL, CONTROL)
NAMES = {PLAIN: "plain shuffling", FIRST: "label first", "Class-aware, whole training": "label throughout"}
AUC, PRECISION = Metric("macro_auc", "Macro-AUC", True), Metric("map", "macro average precision", True)
# Sets of few labels or samples, whose epochs are short, and how long each kind was trained to choose settings.
SMALL, SHORT_EPOCHS, LONG_EPOCHS = ("stackex_chess", "scene", "yeast", "enron", "cal500", "langlog"), 80, 40
LENGTHS, CONVERGED, LEAST = (20, 40, 80), 0.001, 10
RATES, FOLDS = (1e-3, 3e-3, 1e-2), 5
USUAL = {"alternatives": 40, "short": 10}
"""Epochs of the experiments where their configuration says nothing else."""
IN_CONFIGURATION = {"stackex_chess": "file"}


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
    """(Set, loss) → its setting, where all rates were tried.

    The rate is that of the best score; the epochs are the fewest of ``LENGTHS`` whose best score lies within
    ``CONVERGED`` of it. The short form has a quarter of them, at least ``LEAST``, and the rate that is best within
    them.
    """
    found = {}
    for (data, loss), curves in validation().items():
        if len(curves) < len(RATES):
            continue
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


def configured(experiment: str) -> str:
    """The part ``by_loss`` of the configuration of an experiment, as YAML."""
    lines = []
    for loss in LOSSES:
        lines.append(f"  {loss}:")
        for (data, of), one in chosen().items():
            rate, epochs = (one.short_rate, one.short_epochs) if experiment == "short" else (one.rate, one.epochs)
            if of == loss and rate is not None:
                given = f"model: {{lr: {rate:g}}}"
                if epochs != USUAL[experiment]:
                    given += f", trainer: {{max_epochs: {epochs}}}"
                name = IN_CONFIGURATION.get(data, data)
                lines.append(f"    {name}: {{{given}}}".ljust(79) + "# see above")
    return "\n".join(lines) + "\n"


def configure() -> None:
    """Write what was chosen into the configurations."""
    for experiment in USUAL:
        path = Path(__file__).parents[1] / "configs" / "experiment" / f"{experiment}.yaml"
        before, part, after = path.read_text(encoding="utf-8").partition("by_loss:")
        head, after = part + after[: after.index("\n") + 1], after[after.index("\nsweep:") + 1 :]
        path.write_text(before + head + configured(experiment) + after, encoding="utf-8")


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
    """(Loss, method) → (set, fold) → run, of sets with enough folds for a verdict."""
    found: dict[Cell, dict[Place, Run]] = defaultdict(dict)
    for run in stored(store):
        found[loss_of(run), run.method.name][run.data, run.unit[0]] = run
    return {cell: _enough(runs) for cell, runs in found.items() if _enough(runs)}


def _enough(runs: Mapping[Place, Run]) -> dict[Place, Run]:
    folds = Counter(data for data, _ in runs)
    return {place: run for place, run in runs.items() if folds[place[0]] >= MIN_UNITS}


def loss_of(run: Run) -> str:
    """The loss that its model was trained with."""
    return run.record.model.partition("loss=")[2].split(" ")[0] or "bce"


def pairs(store: str, compared: Iterable[tuple[Cell, Cell]], data: str | None = None) -> list[tuple[Run, Run]]:
    """Runs of both on the same set and fold."""
    found = []
    for first, second in ((trained(store).get(ours, {}), trained(store).get(theirs, {})) for ours, theirs in compared):
        both = sorted(first.keys() & second.keys())
        found += [(first[place], second[place]) for place in both if data in (None, place[0])]
    return found


def judged(store: str, compared: Compared, data: str | None = None) -> dict[str, Verdict]:
    """The verdict on each comparison in Macro-AUC, corrected for all of them; average precision beside it.

    Losses that share a row are models on one split: they are averaged, as in every verdict.
    """
    found: dict[str, list[Gain]] = {}
    for name, cells in compared.items():
        both = pairs(store, cells, data)
        gains = [gain for metric in (AUC, PRECISION) if (gain := gain_of(both, metric)) is not None]
        if gains:
            found[name] = gains
    divisors = holm_divisors([gains[0].evidence.p() for gains in found.values()])
    return {
        name: Verdict(
            ours=name,
            theirs="",
            gains=gains,
            interval=gains[0].evidence.interval(1 - 0.05 / divisor),
            comparisons=len(found),
            divisor=divisor,
            margin=DEFAULT_MARGIN,
        )
        for (name, gains), divisor in zip(found.items(), divisors, strict=True)
    }


def levels(store: str) -> str:
    """Test Macro-AUC and average precision on each set, and on how many folds."""
    cells = [(loss, method) for loss in LOSSES for method in METHODS if (loss, method) in trained(store)]
    sets = _sets(data for cell in cells for data, _ in trained(store)[cell])
    rows = [
        [f"{LOSSES[loss]}, {NAMES.get(method, method)}", *(_level(store, (loss, method), data) for data in sets)]
        for loss, method in cells
    ]
    return table(["Macro-AUC (average precision)", *sets], rows)


def run_there(store: str) -> str:
    """Which losses and methods were trained on which sets, and on how many folds."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    folds: dict[str, set[int]] = defaultdict(set)
    for (loss, method), runs in trained(store).items():
        for data in dict.fromkeys(data for data, _ in runs):
            found[data][loss].append(method)
            folds[data] |= {fold for where, fold in runs if where == data}
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for data in _sets(found):
        by_methods: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for loss in LOSSES:
            if loss in found[data]:
                by_methods[tuple(method for method in METHODS if method in found[data][loss])].append(LOSSES[loss])
        for methods, losses in by_methods.items():
            told = "all" if methods == METHODS else ", ".join(NAMES.get(method, method) for method in methods)
            alike["all" if len(losses) == len(LOSSES) else ", ".join(losses), told, str(len(folds[data]))].append(data)
    rows = [[", ".join(sets), *cells] for cells, sets in alike.items()]
    return table(["sets", "losses", "methods", "folds"], rows)


def losses_compared() -> Compared:
    """Each loss against BCE, all with plain shuffling."""
    return {f"{LOSSES[loss]} − BCE": [((loss, PLAIN), ("bce", PLAIN))] for loss in LOSSES if loss != "bce"}


def selections_compared() -> Compared:
    """Each selection against plain shuffling, both with the same loss."""
    return {
        f"{name}: {NAMES.get(method, method)}": [((loss, method), (loss, PLAIN)) for loss in losses]
        for name, losses in GROUPS.items()
        for method in METHODS
        if method != PLAIN
    }


def knowledge_compared() -> Compared:
    """What the model knows against label frequencies alone, with the same loss; and UBS against its control."""
    against = [(method, FIRST) for method in BY_MODEL] + [("UBS", CONTROL)]
    return {
        f"{name}: {ours} − {NAMES.get(theirs, theirs)}": [((loss, ours), (loss, theirs)) for loss in losses]
        for name, losses in GROUPS.items()
        for ours, theirs in against
    }


def compared_table(store: str, compared: Callable[[], Compared]) -> str:
    """Gain in Macro-AUC on each set and over all of them, with the answer; average precision beside it."""
    over = judged(store, compared())
    sets = _sets(run.data for cells in compared().values() for run, _ in pairs(store, cells))
    by_set = {data: judged(store, compared(), data) for data in sets}
    rows = [
        [
            name,
            *(_on_set(by_set[data].get(name)) for data in sets),
            f"{verdict.answer}: {_bounds(verdict.interval)}",
            interval(verdict.gains[1].evidence),
        ]
        for name, verdict in over.items()
    ]
    return table(["Macro-AUC", *sets, "these sets", "macro average precision"], rows)


def by_frequency(store: str, loss: str = "weighted") -> str:
    """Average precision and draws by thirds of the labels with one loss, where its plain shuffling recorded them."""
    rows = []
    for data in _sets(data for runs in trained(store).values() for data, _ in runs):
        if not _recorded(store, (loss, PLAIN), data):
            continue
        for method in METHODS:
            runs = _recorded(store, (loss, method), data)
            if not runs:
                continue
            cells = [
                f"{np.mean([run.metrics[f'map_{third}'] for run in runs]):.4f} "
                f"({np.mean([run.record.draws[third] for run in runs]):.2f} ×)"
                for third in THIRDS
            ]
            folds = f", {len(runs)} folds" if len(runs) < FOLDS else ""
            rows.append([f"{data}: {NAMES.get(method, method)}{folds}", *cells])
    return table(["macro average precision (draws)", *(f"{third} labels" for third in THIRDS)], rows)


def _recorded(store: str, cell: Cell, data: str) -> list[Run]:
    """The runs of a cell on a set that recorded draws and precision by label frequency."""
    runs = [run for (where, _), run in trained(store).get(cell, {}).items() if where == data]
    return [run for run in runs if run.record.draws and "map_rare" in run.metrics]


def _on_set(verdict: Verdict | None) -> str:
    """Mean gain on one set, bold where the verdict on it is better or worse."""
    if verdict is None:
        return "–"
    gain = signed(verdict.interval.mean)
    return f"**{gain}**" if verdict.answer in ("better", "worse") else gain


def _bounds(found: Interval) -> str:
    return f"{signed(found.mean)} ({signed(found.low)} to {signed(found.high)})"


def _sets(run: Iterable[str]) -> list[str]:
    """These sets, in the order in which settings were chosen for them; others come last."""
    there = dict.fromkeys(run)
    known = [data for data in dict.fromkeys(data for data, _ in chosen()) if data in there]
    return known + [data for data in there if data not in known]


def _level(store: str, cell: Cell, data: str) -> str:
    runs = [run for (where, _), run in trained(store)[cell].items() if where == data]
    if not runs:
        return "–"
    score, precision = (float(np.mean([run.metrics[metric.key] for run in runs])) for metric in (AUC, PRECISION))
    return f"{score:.4f} ({precision:.4f})" + (f", {len(runs)} folds" if len(runs) < FOLDS else "")


def validation() -> dict[tuple[str, str], dict[float, np.ndarray]]:
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


ALTERNATIVE_TABLES: dict[str, Callable[[], str]] = {"alternatives_settings": settings}
for _store in ("short",):
    ALTERNATIVE_TABLES |= {
        f"{_store}_runs": partial(run_there, _store),
        f"{_store}_levels": partial(levels, _store),
        f"{_store}_losses": partial(compared_table, _store, losses_compared),
        f"{_store}_selections": partial(compared_table, _store, selections_compared),
        f"{_store}_knowledge": partial(compared_table, _store, knowledge_compared),
        f"{_store}_frequency": partial(by_frequency, _store),
    }

if stored("alternatives_clif"):
    ALTERNATIVE_TABLES |= {
        "clif_losses": partial(compared_table, "alternatives_clif", losses_compared),
        "clif_selections": partial(compared_table, "alternatives_clif", selections_compared),
    }

if __name__ == "__main__":
    configure()
