"""Which methods there are, told apart by their settings, and what each is called."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.methods import Look, find_method, looks, method_order

Identity = tuple[str, str, str]


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

    @property
    def key(self) -> str:
        """Its key in the table of known methods, or its own name."""
        row = find_method(self.selection)
        return row.key if row is not None else self.selection

    def is_setting_of(self, other: Method) -> bool:
        """Whether the two are one method with different parameters."""
        full = ("", "A")
        return self.key == other.key and (self.variant == other.variant or {self.variant, other.variant} <= set(full))


def distinct_methods(records: Sequence[RunRecord]) -> dict[Identity, Method]:
    """One method per (selection, variant, parameters), with labels that no two of them share."""
    labels: dict[Identity, str] = {}
    for record in records:
        labels.setdefault(record.method, clean(record.label))
    methods = {}
    for identity, label in labels.items():
        rivals = [other for other, name in labels.items() if name == label and other != identity]
        selection, variant, parameters = identity
        methods[identity] = Method(clean(selection), clean(variant), parameters, label + _difference(identity, rivals))
    return methods


def ordered(methods: Sequence[Method]) -> list[Method]:
    """In the order of tables: the paper's methods, users' own, the paper's own; each before its variants and sweeps."""
    return sorted(methods, key=lambda one: (method_order(one.selection), one.variant, _swept(one), one.label))


def main_methods(methods: Sequence[Method], runs: Counter[Method]) -> list[Method]:
    """One method per selection: the plain one, else the one with most runs.

    The full method of an ablation (A) stands for its selection where nothing else does.
    """
    main = []
    for selection in dict.fromkeys(method.key for method in methods):
        own = [method for method in methods if method.key == selection]
        usable = [method for method in own if not method.variant] or [one for one in own if one.variant == "A"]
        if usable:
            main.append(max(usable, key=lambda method: (not _swept(method), runs[method])))
    return main


def method_looks(methods: Sequence[Method]) -> dict[Method, Look]:
    """How each is drawn; the first of a known selection has that selection's own look."""
    seen: Counter[str] = Counter()
    names = {}
    for method in methods:
        seen[method.key] += 1
        names[method] = method.key if seen[method.key] == 1 else method.label
    chosen = looks(names.values())
    return {method: chosen[name] for method, name in names.items()}


def clean(text: str) -> str:
    """Text without control characters, which neither XML nor a terminal can hold."""
    return re.sub(r"[\x00-\x1f\x7f]", "�", text)


def _swept(method: Method) -> bool:
    """Whether the label names a value, as those of a sweep do."""
    return "=" in method.label


def _difference(identity: Identity, rivals: Sequence[Identity]) -> str:
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
    return clean(f" ({', '.join(parts)})")


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
