"""Finding the per-label predictions of a training step, and reading them there from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.loss_reader import LossReader
from lightning_ubs.reading.modules import (
    Found,
    ModuleWatch,
    find,
    is_compiled,
    is_loss_or_metric,
    names_of,
    submodule,
)
from lightning_ubs.reading.place import Place
from lightning_ubs.reading.predictions import Kind, kind_by_origin
from lightning_ubs.reading.shapes import as_rows

Outputs = str | Callable[[LightningModule, Any, Any], Tensor] | None

WAYS_OUT = (
    "return {'loss': loss, 'logits': logits} from training_step, or pass outputs='KEY' (a key of what it returns), "
    "outputs='module:NAME' (a submodule's output) or outputs=function(pl_module, outputs, batch)"
)


class PredictionSource:
    """Reads the predictions of a step, as (batch, labels), from where the first batch showed them to be.

    In this order: where ``outputs`` says; ``probs`` or ``logits`` in what ``training_step`` returns; what the loss was
    computed from; what modules returned, if the number of labels is known.

    Args:
        outputs: a key of what ``training_step`` returns, ``"module:NAME"``, a function, or None to look for them.
        kind: what they hold; None to find it out.
    """

    def __init__(self, outputs: Outputs = None, kind: Kind | None = None) -> None:
        self.outputs = outputs
        self.given = kind
        self.kind = kind
        self.loss = LossReader()
        self.place: Place | None = None
        self._module: LightningModule | None = None
        self._watch = ModuleWatch()

    def attach(self, module: LightningModule) -> None:
        """A fit begins: look for the predictions anew."""
        self.detach()
        self.kind = self.given
        self._module = module

    def detach(self) -> None:
        """Forget where the predictions were; what they hold is still known."""
        self.loss.forget()
        self._watch.forget()
        self.place = self._module = None

    def start_step(self) -> None:
        """A training step begins."""
        self.forget_step()
        module = self._module
        if module is None:
            return
        if isinstance(self.outputs, str) and self.outputs.startswith("module:"):
            self._watch.start(submodule(module, self.outputs.removeprefix("module:")))
        elif self.place is not None and self.place.source == "module":
            self._watch.start(submodule(module, self.place.name))
        elif self.place is None and self.outputs is None and not is_compiled(module):
            self._watch.start(None)

    def forget_step(self) -> None:
        """Keep nothing of the step."""
        self._watch.forget()
        self.loss.forget_step()

    def before_backward(self, loss: Tensor, rows: int, for_targets: bool, anew: bool) -> None:
        """Read the loss where its predictions, or with ``for_targets`` its targets, are wanted."""
        self._watch.stop()
        if self.place is None or self.place.source == "loss" or for_targets:
            self.loss.read(loss, rows, anew)

    def read(
        self, module: LightningModule, outputs: Any, batch: Any, rows: int, label_count: Callable[[], int | None]
    ) -> Tensor:
        """Predictions of the step as they came, (rows, q), detached float32.

        Args:
            module: the user's module.
            outputs: what training_step returned.
            batch: the batch.
            rows: number of samples.
            label_count: gives the number of labels if the batch shows it.
        """
        self._watch.stop()
        first = self.place is None
        if self.place is None:
            self.place = self._choose(outputs, rows, label_count)
        found = self._found(self.place, module, outputs, batch, first)
        tensor = self._checked(found.tensor, self.place, rows)
        if first:
            self.loss.settle(tensor.shape[1])
            self.kind = self.given or self._kind(found, tensor) or self.kind
        return tensor.detach().float()

    def _choose(self, outputs: Any, rows: int, label_count: Callable[[], int | None]) -> Place:
        """The place of the predictions, from what the first batch showed."""
        if callable(self.outputs):
            return Place("function")
        if self.outputs is not None:
            head, _, tail = self.outputs.partition(":")
            return Place("module", tail) if head == "module" and tail else Place("returned", self.outputs)
        for key in ("probs", "logits"):
            if isinstance(outputs, Mapping) and find(outputs.get(key)) is not None:
                return Place("returned", key)
        if self.loss.heads:
            raise SelectionError(
                f"the loss is computed from several predictions ({', '.join(self.loss.heads)}) and which of them "
                f"are the main ones is ambiguous; {WAYS_OUT}."
            )
        if self.loss.term is not None:
            return Place("loss", str(self.loss.term.place))
        return self._choose_module(outputs, rows, self.loss.num_labels or label_count())

    def _choose_module(self, outputs: Any, rows: int, labels: int | None) -> Place:
        """The outermost module that returned one matrix with as many columns as there are labels."""
        if labels is None:
            self._raise_not_found(outputs, rows, None)
        names, levels = self._names(), dict[int, dict[int, Place]]()
        for seen in self._watch.seen:
            if seen.module not in names or seen.is_step_result or is_loss_or_metric(seen.module):
                continue
            name = names[seen.module]
            for found in seen.found:
                matrix = as_rows(found.tensor, rows)
                if matrix is not None and matrix.shape[1] == labels:
                    level = levels.setdefault(name.count(".") + 1 if name else 0, {})
                    level[id(found.tensor)] = Place("module", name, found.part)
        if not levels:
            self._raise_not_found(outputs, rows, labels)
        outermost = list(levels[min(levels)].values())
        if len(outermost) > 1:
            several = ", ".join(f"{place} [{rows}, {labels}]" for place in outermost)
            raise SelectionError(f"several outputs of this step may be the predictions: {several}; {WAYS_OUT}.")
        return outermost[0]

    def _found(self, place: Place, module: LightningModule, outputs: Any, batch: Any, first: bool) -> Found:
        """What is at the place in this step."""
        many: list[Found | None] = []
        if place.source == "function":
            many = [self._call(module, outputs, batch, first)]
        elif place.source == "returned":
            if isinstance(outputs, Mapping) and place.name in outputs:
                many = [find(outputs[place.name])]
        elif place.source == "module":
            target = submodule(module, place.name)
            seen = [seen for seen in self._watch.seen if seen.module is target and not seen.is_step_result]
            many = [_part(one.found, place.part) for one in seen]
        elif self.loss.term is not None:
            many = [Found(self.loss.term.predictions, self.loss.term.kind)]
        found = [one for one in many if one is not None]
        if not found:
            raise SelectionError(f"no predictions: {place} {self._missing(place, outputs)}; {WAYS_OUT}.")
        if len(found) > 1:
            # In several processes Lightning calls training_step through forward, so the loss is seen there too.
            found = [one for one in found if one.tensor.ndim > 0]
        if len(found) > 1:
            raise SelectionError(f"{place} gave predictions {len(found)} times in this step, not once; {WAYS_OUT}.")
        return found[0]

    def _missing(self, place: Place, outputs: Any) -> str:
        """Why there is nothing at the place in this step."""
        if place.source == "function":
            return "returned no tensor"
        if place.source == "returned":
            keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
            return f"is not there: training_step returned no tensor under that key, only {keys}"
        if place.source == "module":
            return "was not called in training_step or gave no tensor"
        heads = ", ".join(self.loss.heads)
        return f"was not found in this step's loss{f', only {heads}' if heads else ''}"

    def _call(self, module: LightningModule, outputs: Any, batch: Any, first: bool) -> Found | None:
        """Call the user's function, which runs after the optimiser step; the first time, its use of weights is seen."""
        assert callable(self.outputs)
        if not first:
            return find(self.outputs(module, outputs, batch))
        with _WeightWatch() as watch:
            found = find(self.outputs(module, outputs, batch))
        if watch.used:
            raise SelectionError(
                "the function given as outputs= computes with the module's weights, which the optimiser has changed "
                "since the loss was computed, so these are not the predictions of the step; let training_step return "
                "them ({'loss': loss, 'logits': logits}), or leave outputs= out to have them read from the loss."
            )
        return found

    def _checked(self, tensor: Tensor, place: Place, rows: int) -> Tensor:
        matrix = as_rows(tensor, rows)
        if matrix is not None:
            return matrix
        if tensor.ndim == 2 and tensor.is_floating_point():
            raise _other_rows(str(place), len(tensor), rows)
        raise SelectionError(
            f"predictions must be floating-point [batch, labels], but {place} gave {list(tensor.shape)} of "
            f"{tensor.dtype}; {WAYS_OUT}."
        )

    def _kind(self, found: Found, tensor: Tensor) -> Kind | None:
        """What the predictions hold, as far as their name, their origin or the loss tells."""
        kind = found.kind or kind_by_origin(found.tensor)
        term = self.loss.term
        exclusive = term is not None and term.kind is Kind.SOFTMAX and term.predictions.shape == tensor.shape
        return Kind.SOFTMAX if exclusive and kind in (None, Kind.LOGITS) else kind

    def _names(self) -> dict[Module, str]:
        return {} if self._module is None else names_of(self._module)

    def _raise_not_found(self, outputs: Any, rows: int, labels: int | None) -> NoReturn:
        """Say what was seen; where everything has another number of rows, that number is what is wrong."""
        names = self._names()
        ran = [(names[seen.module], seen) for seen in self._watch.seen if seen.module in names]
        matrices: list[tuple[int, ...]] = [shape for shape in self.loss.unfitting if len(shape) == 2]
        matrices += [tuple(f.tensor.shape) for _, s in ran for f in s.found if f.tensor.shape[1:] == (labels,)]
        counts = {shape[0] for shape in matrices if shape[0] != rows and labels in (None, shape[1])}
        if len(counts) == 1:
            raise _other_rows("this step", counts.pop(), rows)
        compiled = self._module is not None and is_compiled(self._module)
        modules = ", ".join(f"{name or 'forward'} {seen.shapes}" for name, seen in ran)
        keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
        known = "the number of labels is not known" if labels is None else f"there are {labels} labels"
        raise SelectionError(
            f"no predictions were found in this step of {rows} samples: the graph of the loss has no binary or "
            f"multi-class cross-entropy of them{_shapes(self.loss.unfitting)}, training_step returned the keys {keys}, "
            f"{'modules are compiled and cannot be watched' if compiled else f'modules gave: {modules or None}'}, and "
            f"{known}; {WAYS_OUT}."
        )


class _WeightWatch(TorchFunctionMode):
    """Notices when a tensor is computed from parameters."""

    used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [*args, *(kwargs or {}).values()]
        if isinstance(result, Tensor) and any(isinstance(value, Parameter) for value in given):
            self.used = True
        return result


def _part(found: tuple[Found, ...], name: str) -> Found | None:
    """The named part of an output, or its only one."""
    named = [part for part in found if part.part == name] if name else list(found)
    return named[0] if len(named) == 1 else None


def _other_rows(where: str, seen: int, rows: int) -> SelectionError:
    return SelectionError(
        f"{where} gave predictions for {seen} samples, but the planned batch has {rows}; a collate function or "
        "training_step must not drop or add samples: keep all of them, or mask them in the loss."
    )


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return f" (only of {', '.join(str(list(shape)) for shape in shapes)})" if shapes else ""
