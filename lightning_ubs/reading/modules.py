"""What modules return during a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.predictions import Kind


@dataclass(frozen=True)
class Found:
    """A tensor that may be the predictions, what it is known to hold, and which part of an output it was."""

    tensor: Tensor
    kind: Kind | None = None
    part: str = ""


@dataclass(frozen=True)
class Seen:
    """One output of a module: the parts that may be predictions, and the shapes of all."""

    module: Module
    found: tuple[Found, ...]
    shapes: str
    is_step_result: bool


class ModuleWatch:
    """Record of what modules return between :meth:`start` and :meth:`stop`, in the order in which they finish.

    Nothing is left on a module outside these two. While a step is watched as a whole, one hook of torch's own sees
    every module; a single module that is watched carries a hook, of which a copy or a pickle of the module takes an
    empty one.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._handle: RemovableHandle | None = None

    def start(self, module: Module | None, named: bool = False) -> None:
        """Watch one module, or all if none is given; ``named`` if a part of its output is asked for by name."""
        self.forget()
        hook = _Hook(self.seen, named)
        self._handle = register_module_forward_hook(hook) if module is None else module.register_forward_hook(hook)

    def stop(self) -> None:
        """What runs from here on (backward, a recomputed forward) is no prediction."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def forget(self) -> None:
        """Keep nothing of the step."""
        self.stop()
        self.seen = []


class _Hook:
    """A forward hook without a closure, so that a module that carries it can be copied and pickled."""

    def __init__(self, seen: list[Seen] | None = None, named: bool = False) -> None:
        self._seen, self._named = seen, named

    def __call__(self, module: Module, inputs: Any, output: Any) -> None:
        # While a graph is being compiled or exported there is nothing to record.
        if self._seen is None or torch.compiler.is_compiling():
            return
        every = tuple(parts(output, self._named))
        # Feature maps are not kept alive: predictions have at most two axes that are longer than one.
        small = tuple(part for part in every if sum(size != 1 for size in part.tensor.shape) <= 2)
        shapes = ", ".join(str(list(part.tensor.shape)) for part in every)
        # In several processes Lightning calls training_step through forward, so its result is seen there too.
        result = hasattr(module, "training_step") and isinstance(output, Mapping) and "loss" in output
        self._seen.append(Seen(module, small, shapes, result))

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _Hook, ()


def find(value: Any) -> Found | None:
    """The predictions in a tensor, or in a mapping, named tuple or model output with ``probs`` or ``logits``."""
    if isinstance(value, Tensor):
        return Found(value)
    for kind in (Kind.PROBS, Kind.LOGITS):
        inner = value.get(str(kind)) if isinstance(value, Mapping) else getattr(value, str(kind), None)
        if isinstance(inner, Tensor):
            return Found(inner, kind, str(kind))
    return None


def parts(value: Any, every: bool = False) -> Iterator[Found]:
    """Every tensor of an output: the predictions by name if there are some, else all parts of a tuple, list or dict.

    With ``every``, the other parts as well.
    """
    if (found := find(value)) is not None and not (every and found.part):
        yield found
    elif isinstance(value, Mapping):
        kinds = {str(kind): kind for kind in (Kind.PROBS, Kind.LOGITS)}
        yield from (
            Found(inner, kinds.get(str(key)), str(key)) for key, inner in value.items() if isinstance(inner, Tensor)
        )
    elif isinstance(value, list | tuple):
        yield from (Found(inner, part=str(i)) for i, inner in enumerate(value) if isinstance(inner, Tensor))


def names_of(module: LightningModule) -> dict[Module, str]:
    """The name of each submodule; the module's own is empty."""
    return {part: name for name, part in module.named_modules()}


def module_part(module: LightningModule, asked: str) -> tuple[Module, str, str]:
    """(module, its name, part of its output) of ``"net"``, ``"net[logits]"``, ``"net[0]"`` or ``"net.logits"``."""
    name, bracket, part = asked.removesuffix("]").partition("[")
    if bracket:
        return submodule(module, name), name, part
    try:
        return module.get_submodule(asked), asked, ""
    except AttributeError:
        name, _, part = asked.rpartition(".")
    try:
        return module.get_submodule(name) if name else submodule(module, asked), name, part
    except AttributeError:
        return submodule(module, asked), asked, ""


def submodule(module: LightningModule, name: str) -> Module:
    """The part that a user named."""
    try:
        return module.get_submodule(name)
    except AttributeError:
        known = [child for child, _ in module.named_children()]
        raise SelectionError(
            f"outputs='module:{name}' names no submodule of {type(module).__name__}; use one of its parts, such as "
            f"{known}."
        ) from None


def is_loss_or_metric(module: Module) -> bool:
    """Whether a module returns a loss or a metric rather than predictions."""
    return "loss" in type(module).__module__ or "torchmetrics" in type(module).__module__


def is_compiled(module: LightningModule) -> bool:
    """Whether a part of it is compiled: a hook would be compiled too, and what is inside cannot be seen."""
    if hasattr(module.training_step, "_torchdynamo_orig_callable"):
        return True
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )
