"""A run is a type: what one training run was, and what came of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lightning_ubs.errors import RecordError

SCHEMA = 2
"""Version of what :meth:`RunRecord.to_json` writes; :meth:`RunRecord.from_json` reads this one and those before it."""

Mode = Literal["max", "min"]
Stage = Literal["test", "val"]


@dataclass(frozen=True)
class MetricValue:
    """One metric of a finished run.

    Attributes:
        value: NaN if it could not be computed.
        higher_is_better: Which way is better; None if neither the user, the metric nor its name tells.
        stage: ``"test"``: of the test set, with the weights of the best validation epoch. ``"val"``: of the validation
            set in that epoch, because no test step logged this metric.
    """

    value: float
    higher_is_better: bool | None = None
    stage: Stage = "test"


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """Which run this is: what is known of it before it is done. Texts are free: a user's own names.

    Runs that share ``data``, ``model``, ``fold`` and ``seed`` are paired: same split, same initial weights.

    Attributes:
        key: 16 hexadecimal digits for everything that decides the outcome of this run.
        data: Name of the dataset, to display and to group by.
        model: Name of the model, to display and to group by.
        selection: Which method: a key of `lightning_ubs.methods`, or the name of a user's own class.
        fold: Which part of the data was held out, from 0.
        seed: Seeds the initial weights and all sampling.
        label: Name of the method to display, such as ``"UBS λ1=0.6"``.
        variant: Letter or name of an ablation of the paper (``"B"``, ``"Active_LC"``); empty for a method as it is.
        parameters: Settings of the method, which tell it from others of the same ``selection`` and ``variant``.
        config_hash: 16 hexadecimal digits for the whole configuration, names and places included.
        monitor: The logged name that decides the best epoch, such as ``"val_macro_auc"``.
        mode: Whether ``monitor`` should be large (``"max"``) or small (``"min"``).
    """

    key: str
    data: str
    model: str
    selection: str
    fold: int
    seed: int
    label: str = ""
    variant: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    config_hash: str = ""
    monitor: str = "val_macro_auc"
    mode: Mode = "max"

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_one_of("mode", self.mode, ("max", "min"))
        if not self.label:
            object.__setattr__(self, "label", self.selection)

    @property
    def title(self) -> str:
        """One line for people."""
        return f"{self.data} {self.model} {self.label} fold {self.fold} seed {self.seed}"

    def record(self, **outcome: Any) -> RunRecord:
        """The record of this run, with what came of it."""
        return RunRecord(**{one.name: getattr(self, one.name) for one in fields(RunIdentity)}, **outcome)


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunIdentity):
    """One run, finished or failed: its identity, and what came of it.

    Attributes:
        status: ``"ok"`` or ``"failed"``.
        error: Why a failed run failed, in a sentence; None if it finished.
        metrics: What was measured, by name without ``val_`` or ``test_``.
        best_epoch: Epoch of the best ``monitor``, from 0, the first of equals; None if there is none.
        max_epochs: Epochs that were asked for; None if unknown.
        first_selected_epoch: First epoch whose batches the method chose, from 0, even if training ended before it; None
            for a method that never does (Random), or if unknown.
        curves: One value per epoch under each name, None where there is none: ``epoch``, ``train_loss``, the name in
            ``monitor``, ``epoch_seconds`` (training and selection, no validation), ``selection_seconds`` (contained in
            it), ``samples`` (trained on in that epoch), ``pressure``, ``effective_sample_size``, ``correlation_drift``.
        seconds: Seconds of the whole run; None if it failed.
        shape: ``n`` training samples, ``d`` features, ``q`` labels, ``batches`` per epoch and ``val`` validation
            samples, as far as known.
        warnings: Sentences about this run that a reader of its result must see.
        versions: Versions of lightning_ubs, torch, lightning and python; and the machine.
        started: Time in ISO format.
        trace: Whether the store holds the arrays of this run.
        split: Digest of the training targets, which tells splits of the data apart; empty if unknown.
        draws: How often samples with ``rare``, ``medium`` and ``frequent`` labels were trained on against plain passes,
            warm-up included: the mean over a third of the labels, by how many training samples have them. Empty if
            unknown.
    """

    status: Literal["ok", "failed"]
    error: str | None = None
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    best_epoch: int | None = None
    max_epochs: int | None = None
    first_selected_epoch: int | None = None
    curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    seconds: float | None = None
    shape: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started: str = ""
    trace: bool = False
    split: str = ""
    draws: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_of("status", self.status, ("ok", "failed"))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.status == "ok"

    @property
    def epochs(self) -> int:
        """Epochs that were trained."""
        return len(self.curves.get("epoch", ()))

    @property
    def samples_trained(self) -> int | None:
        """Samples that gradients were computed for, over all epochs; None if unknown."""
        samples = self.curves.get("samples", ())
        return None if not samples or None in samples else int(sum(value or 0 for value in samples))

    @property
    def monitored(self) -> float:
        """The best value of ``monitor``: what a sweeper should maximize or minimize. NaN if there is none."""
        values = [value for value in self.curves.get(self.monitor, ()) if value is not None and math.isfinite(value)]
        return float((max if self.mode == "max" else min)(values, default=math.nan))

    @property
    def method(self) -> tuple[str, str, str]:
        """What tells this method from others: selection, variant, and parameters as JSON (1 and 1.0 are the same)."""
        return self.selection, self.variant, json.dumps(_canonical(self.parameters), sort_keys=True, ensure_ascii=False)

    def to_json(self) -> str:
        """One line of JSON. NumPy values become plain, NaN becomes null."""
        names = dict.fromkeys([*_FIRST, *(one.name for one in fields(self))])
        plain = {name: getattr(self, name) for name in names}
        plain["metrics"] = {name: vars(metric) for name, metric in self.metrics.items()}
        return json.dumps(_plain({"schema": SCHEMA} | plain), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> RunRecord:
        """The record that :meth:`to_json` wrote, in this version or one before.

        Raises:
            RecordError: If it is none, or one of a schema that this version does not know.

        >>> record = RunRecord(key="0" * 16, status="ok", data="yeast", model="mlp", selection="ubs", fold=0, seed=0)
        >>> RunRecord.from_json(record.to_json()) == record
        True
        """
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not isinstance(found.get("key"), str):
            raise RecordError("this is not the JSON of a run; delete it, or restore the file that it is in.")
        schema = found.pop("schema", None)
        if schema not in _READERS:
            raise RecordError(
                f"this run has schema {schema!r}, and this version reads {', '.join(map(str, _READERS))}; use the "
                "version of lightning-ubs that wrote it, or keep its results in a folder of their own."
            )
        return _READERS[schema](found)


_FIRST = (
    "key", "status", "data", "model", "selection", "fold", "seed", "label", "variant", "parameters", "error",
    "config_hash", "monitor", "mode", "metrics", "best_epoch", "max_epochs", "first_selected_epoch", "curves",
    "seconds", "shape", "warnings", "versions", "started", "trace", "split", "draws",
)  # fmt: skip
"""Fields in the order in which stores hold them; later ones follow."""


def check_key(key: object) -> None:
    """Refuse what is no key of a run."""
    if not (isinstance(key, str) and re.fullmatch(r"[0-9a-f]{16}", key)):
        raise RecordError(f"key={key!r} must be 16 hexadecimal digits; take the first 16 of a SHA-256 in hex.")


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RecordError(f"{name}={value!r} must be {' or '.join(map(repr, allowed))}; correct the record.")


def _read_current(found: dict[str, Any]) -> RunRecord:
    known = {one.name for one in fields(RunRecord)}
    unknown = sorted(set(found) - known)
    missing = [name for name in ("status", "data", "model", "selection", "fold", "seed") if name not in found]
    if unknown or missing:
        wrong = f"lacks {', '.join(missing)}" if missing else f"holds {unknown[0]!r}, which no run has"
        raise RecordError(f"the record of run {found['key']} {wrong}; delete it, and its run is done again.")
    metrics = {
        name: MetricValue(**metric | {"value": math.nan if metric["value"] is None else metric["value"]})
        for name, metric in found.get("metrics", {}).items()
    }
    return RunRecord(**found | {"metrics": metrics, "warnings": tuple(found.get("warnings", ()))})


def _read_first(found: dict[str, Any]) -> RunRecord:
    """Schema 1: Macro-AUC was the only monitor, and all metrics were those of the test set."""
    from lightning_ubs.metrics import HIGHER_IS_BETTER

    directions = HIGHER_IS_BETTER | {"macro_auc_half": True}
    metrics = {
        name: {"value": value, "higher_is_better": directions.get(name), "stage": "test"}
        for name, value in (found.get("metrics") or {}).items()
    }
    parameters = found.get("parameters") or {}
    start = parameters.get("start_epoch")
    first = parameters.get("warmup_epochs") if start is None else start
    first = {"random": None, "balance": 0}.get(str(found.get("selection")), first)
    given = {name: value for name, value in found.items() if value is not None}
    return _read_current(given | {"metrics": metrics, "first_selected_epoch": first})


_READERS = {1: _read_first, SCHEMA: _read_current}


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _plain(value: Any) -> Any:
    """``value`` as JSON can say it: plain numbers, no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and torch
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
