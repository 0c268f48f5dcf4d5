"""The runs of a results folder, told apart by method: which are compared, which are ablations or sweeps."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_ubs.experiment.store import SCHEMA, ResultsStore, StoreError

Array = np.ndarray[Any, np.dtype[np.float64]]
Unit = tuple[int, int]
REFERENCE = "ubs"
BASELINE = "random"
_MOST_DRAWN = 8
# The order of the paper's tables; a selection whose name begins like this takes that place.
_ORDER = ("random", "balance", "active", "recen", "hard")


class ReportError(ValueError):
    """The report cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Method:
    """A batch selection with its parameters: what one column of a table holds."""

    selection: str
    variant: str
    parameters: str
    label: str

    @property
    def values(self) -> dict[str, Any]:
        """The parameters as a dict."""
        return dict(json.loads(self.parameters))


@dataclass(frozen=True)
class Run:
    """One finished run."""

    key: str
    method: Method
    data: str
    model: str
    unit: Unit
    metrics: Mapping[str, float]
    curves: Mapping[str, Array]
    record: Mapping[str, Any] = field(repr=False)


class Results:
    """Finished runs by (method, data, model) and, within, by (fold, seed); failed runs; notes for the reader."""

    def __init__(self, records: Sequence[Mapping[str, Any]], store: ResultsStore) -> None:
        self.store = store
        self.notes: list[str] = []
        finished = {record["key"]: record for record in records if record["status"] == "ok"}
        failed = {record["key"]: record for record in records if record["key"] not in finished}
        self.failed = list(failed.values())
        methods = _methods(list(finished.values()))
        self.runs = [_run(record, methods[_identity(record)]) for record in finished.values()]
        self.methods = sorted(dict.fromkeys(run.method for run in self.runs), key=_place)
        self.datasets = list(dict.fromkeys(run.data for run in self.runs))
        self.models = list(dict.fromkeys(run.model for run in self.runs))
        self._cells: dict[tuple[Method, str, str], dict[Unit, Run]] = defaultdict(dict)
        doubles = 0
        for run in self.runs:
            cell = self._cells[run.method, run.data, run.model]
            doubles += run.unit in cell
            cell[run.unit] = run
        if doubles:
            self.notes.append(
                f"{doubles} run(s) repeat the data, model, method, fold and seed of another run with a different "
                "configuration; only the last of each is used. Keep different settings in different folders."
            )
        self.notes += _version_notes(self.runs)
        main = _main_methods(self.runs, self.methods)
        self.compared = main if len(main) > 1 else self.methods
        # A sweep alone fills a table well, but not a figure with a line for each of its configurations.
        self.drawn = self.compared if len(self.compared) <= _MOST_DRAWN else main
        self.reference = next((method for method in main if method.selection == REFERENCE), None)
        self.baseline = next((method for method in main if method.selection == BASELINE), None)

    def cell(self, method: Method, data: str, model: str) -> dict[Unit, Run]:
        """Runs of one cell of a table, by (fold, seed)."""
        return self._cells.get((method, data, model), {})

    def settings(self) -> list[tuple[str, str]]:
        """All (data, model) that have runs, in the order of appearance."""
        return list(dict.fromkeys((run.data, run.model) for run in self.runs))

    @property
    def swept(self) -> bool:
        """Whether only settings of one method are compared."""
        return len({(method.selection, method.variant) for method in self.compared}) == 1

    @property
    def competitors(self) -> list[Method]:
        """What the reference method is compared with: other methods, not other settings of itself."""
        own = self.reference
        if own is None:
            return []
        return [
            method for method in self.compared if (method.selection, method.variant) != (own.selection, own.variant)
        ]


def load_results(folder: Path) -> Results:
    """Read and check a results folder."""
    store = ResultsStore(folder)
    try:
        records = store.records()
    except StoreError as error:
        raise ReportError(str(error)) from error
    if not records:
        raise ReportError(
            f"there are no results in {str(folder)!r}; run `lightning-ubs compare` first, or give the folder that "
            "holds runs.jsonl"
        )
    unknown = Counter(repr(record.get("schema")) for record in records if record.get("schema") != SCHEMA)
    if unknown:
        kinds = ", ".join(f"{schema} ({count} runs)" for schema, count in unknown.items())
        raise ReportError(
            f"{str(store.path)!r} holds records of schema {kinds}, this version reads schema {SCHEMA}; "
            "make the report with the version that wrote them, or keep them in a folder of their own"
        )
    if all(record["status"] != "ok" for record in records):
        last = str(records[-1].get("error") or "no message").strip().splitlines()[-1]
        raise ReportError(
            f"none of the {len(records)} runs in {str(folder)!r} finished; the last failed with: {last}. "
            "Correct that and run `lightning-ubs compare` again"
        )
    return Results(records, store)


def _run(record: Mapping[str, Any], method: Method) -> Run:
    metrics = {name: _number(value) for name, value in (record.get("metrics") or {}).items()}
    curves = {
        name: np.array([_number(value) for value in values], dtype=float)
        for name, values in (record.get("curves") or {}).items()
        if values
    }
    length = len(curves.get("epoch", ()))
    return Run(
        key=record["key"],
        method=method,
        data=_clean(record["data"]),
        model=_clean(record["model"]),
        unit=(int(record["fold"]), int(record["seed"])),
        metrics=metrics,
        curves={name: values for name, values in curves.items() if len(values) == length},
        record=record,
    )


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _clean(text: Any) -> str:
    """Text without control characters, which neither XML nor a terminal can hold."""
    return re.sub(r"[\x00-\x1f\x7f]", "�", str(text))


def _identity(record: Mapping[str, Any]) -> tuple[str, str, str]:
    parameters = {
        _clean(name): float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in (record.get("parameters") or {}).items()
    }
    canonical = json.dumps(parameters, sort_keys=True, ensure_ascii=False)
    return _clean(record["selection"]), _clean(record.get("variant") or ""), canonical


def _methods(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], Method]:
    """One method per (selection, variant, parameters), with labels that no two of them share."""
    labels: dict[tuple[str, str, str], str] = {}
    for record in records:
        labels.setdefault(_identity(record), _clean(record.get("label") or record["selection"]))
    methods = {}
    for identity, label in labels.items():
        rivals = [other for other, name in labels.items() if name == label and other != identity]
        methods[identity] = Method(*identity, label=label + _difference(identity, rivals))
    return methods


def _difference(identity: tuple[str, str, str], rivals: Sequence[tuple[str, str, str]]) -> str:
    """What tells a method from others of the same label, in brackets; empty without rivals."""
    if not rivals:
        return ""
    own = json.loads(identity[2])
    others = [json.loads(rival[2]) for rival in rivals]
    parts = [
        f"{name}={_short(own.get(name))}"
        for name in sorted({*own, *(key for other in others for key in other)})
        if any(other.get(name) != own.get(name) for other in others)
    ]
    if any(rival[1] != identity[1] for rival in rivals):
        parts.insert(0, identity[1] or "full")
    if any(rival[0] != identity[0] for rival in rivals):
        parts.insert(0, identity[0])
    return f" ({', '.join(parts)})"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(method: Method) -> tuple[int, str, str]:
    places = [place for place, start in enumerate(_ORDER) if method.selection.startswith(start)]
    last = len(_ORDER) + (method.selection == REFERENCE)
    return (places[0] if places else last, method.variant, "" if "=" not in method.label else method.label)


def _main_methods(runs: Sequence[Run], methods: Sequence[Method]) -> list[Method]:
    """One method per selection: the plain one, else the one with most runs; ablations and sweeps are left out.

    The full method of an ablation (A) stands for its selection where nothing else does.
    """
    count = Counter(run.method for run in runs)
    main = []
    for selection in dict.fromkeys(method.selection for method in methods):
        own = [method for method in methods if method.selection == selection]
        usable = [method for method in own if not method.variant] or [m for m in own if m.variant == "A"]
        if usable:
            main.append(max(usable, key=lambda method: ("=" not in method.label, count[method])))
    return main


def _version_notes(runs: Sequence[Run]) -> list[str]:
    notes = []
    for package in ("lightning_ubs", "torch", "lightning", "python"):
        found = Counter(_clean((run.record.get("versions") or {}).get(package, "unknown")) for run in runs)
        if len(found) > 1:
            kinds = ", ".join(f"{version} ({count} runs)" for version, count in sorted(found.items()))
            notes.append(
                f"Results of several versions of {package} are mixed: {kinds}. Differences between methods may be "
                "differences between versions; run everything again with one version to be sure."
            )
    return notes
