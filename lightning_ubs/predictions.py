"""Finding the per-label predictions of a training step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from lightning_ubs.errors import SelectionError
from lightning_ubs.targets import default_targets

log = logging.getLogger(__name__)

Kind = Literal["probs", "logits"]
Outputs = str | Callable[[LightningModule, Any, Any], Tensor] | None

# Rounding may carry a probability this far out of [0, 1].
TOLERANCE = 1e-4

_WAYS_OUT = (
    "return {'loss': loss, 'logits': logits} from training_step, or pass outputs='KEY' (a key of what it returns), "
    "outputs='module:NAME' (a submodule's output) or outputs=function(pl_module, outputs, batch)"
)

# Autograd nodes that change neither the values nor what they mean, and those that tell it.
_TRANSPARENT = ("ToCopy", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Clone", "Alias", "Contiguous", "T")
_PROBABILITY_NODES = ("Sigmoid", "Softmax")
_LOGIT_NODES = ("Addmm", "Mm", "Linear", "Convolution", "Bmm", "LogSigmoid")


class Found(NamedTuple):
    """A tensor that may be the predictions, and what it is known to hold."""

    tensor: Tensor
    kind: Kind | None


class PredictionSource:
    """Reads the predictions of a step, as [batch, labels], from where the first batch showed them to be.

    Args:
        outputs: a key of what ``training_step`` returns, ``"module:NAME"``, a function, or None to look for them.
    """

    def __init__(self, outputs: Outputs = None) -> None:
        self.outputs = outputs
        self.kind: Kind | Tensor | None = None
        self._place: str | None = None
        self._capturing = False
        self._captured: dict[str, list[Found]] = {}
        self._hooks: dict[str, RemovableHandle] = {}

    def attach(self, module: LightningModule) -> None:
        """Watch the modules whose outputs may be predictions."""
        self.detach()
        self.kind = None
        if isinstance(self.outputs, str) and self.outputs.startswith("module:"):
            self._watch(self.outputs, _submodule(module, self.outputs.removeprefix("module:")))
        elif self.outputs is None:
            self._watch("forward", module)
            for name, child in module.named_children():
                if not _is_loss_or_metric(child):
                    self._watch(f"module:{name}", child)

    def detach(self) -> None:
        """Stop watching, and forget where the predictions were; what they hold is still known."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks, self._captured, self._place, self._capturing = {}, {}, None, False

    def start_step(self) -> None:
        """A training step begins."""
        self._captured = {}
        self._capturing = True

    def stop_step(self) -> None:
        """What runs from here on (backward, a recomputed forward) is no prediction."""
        self._capturing = False

    def read(self, module: LightningModule, outputs: Any, batch: Any, rows: int) -> Tensor:
        """Predictions of the step as they came, (rows, q), detached float32."""
        self.stop_step()
        candidates = self._candidates(module, outputs, batch)
        if self._place is None:
            self._place = self._choose(candidates, outputs, batch, rows)
            self._settle(candidates[self._place][0])
        found = candidates.get(self._place, [])
        if len(found) > 1:
            # In several processes Lightning calls training_step through forward, so its result is seen there too.
            found = [f for f in found if _is_matrix(f.tensor)]
        if len(found) != 1:
            raise SelectionError(
                f"predictions were first found in {_name(self._place)}, which gave {len(found)} in this step instead "
                f"of one; {_WAYS_OUT}."
            )
        self._captured = {}
        return _checked(found[0].tensor, rows, _name(self._place))

    def probabilities(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities (b, q), and which rows (b,) can be used; the others hold some number in [0, 1].

        Whether ``raw`` holds logits is decided at the first call and kept. Nothing here waits for the device.
        """
        if self.kind is None:
            self.kind = ((raw < 0) | (raw > 1)).any()
        if isinstance(self.kind, Tensor):
            self.kind = self.kind.to(raw.device)
            probs = torch.where(self.kind, raw.sigmoid(), raw)
            usable = raw.isfinite().all(1) & (self.kind | _in_unit_interval(raw))
        elif self.kind == "logits":
            probs, usable = raw.sigmoid(), raw.isfinite().all(1)
        else:
            probs, usable = raw, _in_unit_interval(raw)
        return probs.nan_to_num(nan=0.5).clamp_(0, 1), usable

    def resolve_kind(self) -> Kind | None:
        """What the predictions hold, in words; may wait for the device once."""
        if isinstance(self.kind, Tensor):
            self.kind = "logits" if bool(self.kind) else "probs"
            log.info("The predictions in %s look like %s and are read so from now on.", self._where, self.kind)
        return self.kind

    @property
    def _where(self) -> str:
        return "the batch" if self._place is None else _name(self._place)

    def _watch(self, name: str, module: Module) -> None:
        def hook(_module: Module, _inputs: Any, output: Any) -> None:
            if self._capturing and (found := _find(output)) is not None:
                # Where predictions come from is read off the graph once; after that nothing should keep it alive.
                kept = found if self._place is None else Found(found.tensor.detach(), found.kind)
                self._captured.setdefault(name, []).append(kept)

        self._hooks[name] = module.register_forward_hook(hook)

    def _candidates(self, module: LightningModule, outputs: Any, batch: Any) -> dict[str, list[Found]]:
        """Everything that may be the predictions, by the name of its place."""
        if callable(self.outputs):
            found = _find(self.outputs(module, outputs, batch))
            return {"function": [found] if found else []}
        places = dict(self._captured)
        if isinstance(outputs, Mapping):
            keys = ("probs", "logits") if self.outputs is None else (self.outputs,)
            for key in keys:
                if key in outputs and (found := _find(outputs[key])) is not None:
                    kind: Kind | None = "probs" if key == "probs" else "logits" if key == "logits" else found.kind
                    places[f"returned:{key}"] = [Found(found.tensor, kind)]
        return places

    def _choose(self, candidates: dict[str, list[Found]], outputs: Any, batch: Any, rows: int) -> str:
        """The place of the predictions, from what the first batch showed."""
        if self.outputs is not None:
            return self._named_place(candidates, outputs)
        for key in ("returned:probs", "returned:logits"):
            if key in candidates:
                return key
        labels = _label_count(batch)
        # If nothing has as many rows as the batch, the count itself is what is wrong, and is said later.
        fitting = _fitting(candidates, labels, rows) or _fitting(candidates, labels)
        if fitting.get("forward"):
            fitting = {"forward": fitting["forward"]}
        if not fitting:
            self._raise_not_found(candidates, outputs, rows)
        if len(fitting) > 1 or any(len(found) > 1 for found in fitting.values()):
            several = ", ".join(f"{_name(name)} ({len(found)}×)" for name, found in fitting.items())
            raise SelectionError(f"several outputs of this step may be the predictions: {several}; {_WAYS_OUT}.")
        return next(iter(fitting))

    def _named_place(self, candidates: dict[str, list[Found]], outputs: Any) -> str:
        if callable(self.outputs):
            place, missing = "function", "the function given as outputs= returned no tensor"
        elif str(self.outputs).startswith("module:"):
            place, missing = str(self.outputs), f"{self.outputs!r} was not called in training_step or gave no tensor"
        else:
            keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
            place = f"returned:{self.outputs}"
            missing = f"training_step returned no tensor under {self.outputs!r}, only {keys}"
        if not candidates.get(place):
            raise SelectionError(f"no predictions: {missing}; {_WAYS_OUT}.")
        return place

    def _raise_not_found(self, candidates: dict[str, list[Found]], outputs: Any, rows: int) -> None:
        seen = [f"{_name(name)} {tuple(f.tensor.shape)}" for name, found in candidates.items() for f in found]
        keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
        raise SelectionError(
            f"no predictions of shape [{rows}, labels] were found in this step (training_step returned the keys "
            f"{keys}, modules gave: {', '.join(seen) or 'nothing'}); {_WAYS_OUT}."
        )

    def _settle(self, found: Found) -> None:
        """Fix what the predictions hold if that is known without looking at them, and drop the other watchers."""
        if self.kind is None:
            self.kind = found.kind or _kind_by_origin(found.tensor)
            if self.kind is not None:
                log.info("Predictions are read from %s as %s.", self._where, self.kind)
        for name in [name for name in self._hooks if name != self._place]:
            self._hooks.pop(name).remove()


def _find(value: Any) -> Found | None:
    """The predictions in a tensor, or in a mapping, named tuple or model output with ``probs`` or ``logits``."""
    if isinstance(value, Tensor):
        return Found(value, None)
    kinds: tuple[Kind, ...] = ("probs", "logits")
    for kind in kinds:
        inner = value.get(kind) if isinstance(value, Mapping) else getattr(value, kind, None)
        if isinstance(inner, Tensor):
            return Found(inner, kind)
    return None


def _kind_by_origin(tensor: Tensor) -> Kind | None:
    """What the last operation says: the result of a sigmoid is a probability, that of a linear layer is not."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0]
        if name in _PROBABILITY_NODES:
            return "probs"
        if name in _LOGIT_NODES:
            return "logits"
        if name not in _TRANSPARENT or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return None


def _checked(tensor: Tensor, rows: int, where: str) -> Tensor:
    if not _is_matrix(tensor):
        raise SelectionError(
            f"predictions must be floating-point [batch, labels], but {where} gave {list(tensor.shape)} of "
            f"{tensor.dtype}; {_WAYS_OUT}."
        )
    if len(tensor) != rows:
        raise SelectionError(
            f"{where} gave predictions for {len(tensor)} samples, but the planned batch has {rows}; a collate function "
            "or training_step must not drop or add samples: keep all of them, or mask them in the loss."
        )
    return tensor.detach().float()


def _in_unit_interval(raw: Tensor) -> Tensor:
    low, high = raw.aminmax(dim=1)
    return (low >= -TOLERANCE) & (high <= 1 + TOLERANCE)


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.ndim == 2 and tensor.is_floating_point()


def _fitting(candidates: dict[str, list[Found]], labels: int | None, rows: int | None = None) -> dict[str, list[Found]]:
    """The candidates that are matrices with as many rows and columns as are known."""

    def fits(tensor: Tensor) -> bool:
        return _is_matrix(tensor) and labels in (None, tensor.shape[1]) and rows in (None, tensor.shape[0])

    fitting = {name: [f for f in found if fits(f.tensor)] for name, found in candidates.items()}
    return {name: found for name, found in fitting.items() if found}


def _label_count(batch: Any) -> int | None:
    """Number of labels, where the batch shows its true labels in a usual place."""
    targets = default_targets(batch)
    return targets.shape[1] if targets is not None and targets.ndim == 2 else None


def _submodule(module: LightningModule, name: str) -> Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = [child for child, _ in module.named_children()]
        raise SelectionError(
            f"outputs='module:{name}' names no submodule of {type(module).__name__}; use one of its parts, such as "
            f"{known}."
        ) from None


def _is_loss_or_metric(module: Module) -> bool:
    return "loss" in type(module).__module__ or "torchmetrics" in type(module).__module__


def _name(place: str) -> str:
    """A place, as a user would say it."""
    head, _, tail = place.partition(":")
    return {
        "forward": "the module's forward",
        "function": "the function given as outputs=",
        "module": f"the submodule {tail!r}",
        "returned": f"training_step's {tail!r}",
    }[head]
