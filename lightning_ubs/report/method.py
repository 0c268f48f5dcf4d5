"""Which methods there are, told apart by their settings, and what each is called."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_ubs.experiment.record import RunRecord
from lightning_ubs.methods import BASELINE, Look, find_method, looks, method_order

Identity = tuple[str, str, str, str]
_MODELS = ("mlp", "mpvae", "clif", "dela")
_PLAIN_LOSSES = ("bce", "plain", "default", "baseline", "unweighted")


@dataclass(frozen=True)
class Method:
    """A batch selection with its parameters: what one column of a table holds.

    Attributes:
        selection: Its name in the results.
        variant: Name of an ablation's variant.
        parameters: As JSON.
        label: Name in print.
        loss: The loss, or the module that was given by name, that it was trained with where there are several; it
            stands in the label.
    """

    selection: str
    variant: str
    parameters: str
    label: str
    loss: str = ""

    @property
    def name(self) -> str:
        """Its label without the loss."""
        return self.label.removesuffix(f" ({self.loss})") if self.loss else self.label

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
        return (self.key, self.loss) == (other.key, other.loss) and (
            self.variant == other.variant or {self.variant, other.variant} <= set(full)
        )


def identity_of(record: RunRecord, losses: Mapping[str, tuple[str, str]]) -> Identity:
    """What tells the method of this run from others; ``losses`` as `losses_of` gives them."""
    return *record.method, losses[clean(record.model)][1]


def distinct_methods(records: Sequence[RunRecord], losses: Mapping[str, tuple[str, str]]) -> dict[Identity, Method]:
    """One method per (selection, variant, parameters, loss), with labels that no two of them share."""
    labels: dict[Identity, str] = {}
    for record in records:
        labels.setdefault(identity_of(record, losses), clean(record.label))
    methods = {}
    for identity, label in labels.items():
        selection, variant, parameters, loss = identity
        rivals = [other for other, name in labels.items() if name == label and other[3] == loss and other != identity]
        label += _difference(identity, rivals) + (f" ({loss})" if loss else "")
        methods[identity] = Method(clean(selection), clean(variant), parameters, label, loss)
    return methods


def losses_of(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The models by name, each as what it has in common with others and its loss; that is empty where there is one.

    Models of this package have their loss among the values of a sweep; modules of the user's own are given by name.

    >>> losses_of(["mlp loss=bce", "mlp loss=weighted"])
    {'mlp loss=bce': ('mlp', 'bce'), 'mlp loss=weighted': ('mlp', 'weighted')}
    >>> losses_of(["BCE", "weighted"])
    {'BCE': ('BCE, weighted', 'BCE'), 'weighted': ('BCE, weighted', 'weighted')}
    >>> losses_of(["mlp", "clif"]), losses_of(["Net"])
    ({'mlp': ('mlp', ''), 'clif': ('clif', '')}, {'Net': ('Net', '')})
    """
    names = list(dict.fromkeys(names))
    parts = {name: _known_loss(name) for name in names if name.split(" ")[0] in _MODELS}
    own = [name for name in names if name not in parts]
    split = {name: _own_loss(name) for name in own}
    pairs = set(split.values())
    if len(pairs) < len({common for common, _ in pairs}) * len({loss for _, loss in pairs}):
        split = {name: ("", name) for name in own}  # words with "=" are part of the names
    every = ", ".join(loss_order(loss for _, loss in split.values()))
    parts |= {name: (f"{every} {common}".rstrip(), loss) for name, (common, loss) in split.items()}
    several: dict[str, set[str]] = defaultdict(set)
    for common, loss in parts.values():
        several[common].add(loss)
    return {name: parts[name] if len(several[parts[name][0]]) > 1 else (name, "") for name in names}


def loss_order(losses: Iterable[str]) -> list[str]:
    """The losses, each once, the one first that others are compared with: a plain one, else the first by name.

    The order of runs decides nothing, for runs end in any order.

    >>> loss_order(["focal", "weighted", "BCE", "focal"]), loss_order(["weighted", "asymmetric"])
    (['BCE', 'focal', 'weighted'], ['asymmetric', 'weighted'])
    """
    return sorted(set(losses), key=lambda one: (not one, one.lower() not in _PLAIN_LOSSES, one.lower(), one))


def _known_loss(name: str) -> tuple[str, str]:
    words = name.split(" ")
    losses = [word.removeprefix("loss=") for word in words if word.startswith("loss=")]
    return " ".join(word for word in words if not word.startswith("loss=")), losses[0] if losses else "bce"


def _own_loss(name: str) -> tuple[str, str]:
    swept = [word for word in name.split(" ") if "=" in word]
    plain = [word for word in name.split(" ") if "=" not in word]
    return (" ".join(swept), " ".join(plain)) if plain else ("", name)


def ordered(methods: Sequence[Method], losses: Sequence[str] = ()) -> list[Method]:
    """In the order of tables: the paper's methods, users' own, the paper's own; each before its variants and sweeps.

    Where there are several losses, all methods with the first come first.
    """
    found = sorted(methods, key=lambda one: (method_order(one.selection), one.variant, _swept(one), one.label))
    return sorted(found, key=lambda one: losses.index(one.loss)) if losses else found


def main_methods(methods: Sequence[Method], runs: Counter[Method]) -> list[Method]:
    """One method per selection: the plain one with the first loss, else the one with most runs.

    The full method of an ablation (A) stands for its selection where nothing else does. Of several kinds of plain
    shuffling it is the one without further settings, such as shorter epochs.
    """
    main = []
    for selection in dict.fromkeys(method.key for method in methods):
        own = [method for method in methods if method.key == selection]
        own = [method for method in own if method.loss == own[0].loss]
        usable = [method for method in own if not method.variant] or [one for one in own if one.variant == "A"]
        if usable:
            main.append(max(usable, key=lambda method: (-_changed(method), not _swept(method), runs[method])))
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


def _changed(method: Method) -> int:
    """How many settings of plain shuffling are not the usual ones; 0 for any other method."""
    names = ("epoch_size", "fill_last", "unbiased") if method.key == BASELINE else ()
    return sum(bool(method.values.get(name)) for name in names)


def _swept(method: Method) -> bool:
    """Whether the label names a value, as those of a sweep do."""
    return "=" in method.name


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
