"""Predictions where a user says that they are: returned by training_step, by a function, or by a submodule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.heads import Group, Place
from lightning_ubs.reading.modules import Found, ModuleWatch, find, module_part, submodule
from lightning_ubs.reading.predictions import Kind, as_rows, kind_by_origin, to_probabilities
from lightning_ubs.reading.proof import Proof, same_values
from lightning_ubs.reading.refusals import WAYS_OUT, not_pulled, other_rows

Outputs = str | Callable[[LightningModule, Any, Any], Tensor] | None


def named_place(asked: Outputs, module: LightningModule | None, outputs: Any) -> Place | None:
    """Where the user says, or returns, the predictions; None to take what is proven in the loss."""
    if callable(asked):
        return Place("function")
    if asked is not None:
        head, _, tail = asked.partition(":")
        if head == "module" and tail and module is not None:
            _, name, part = module_part(module, tail)
            return Place("module", name, part)
        return Place("returned", asked)
    for key in (Kind.PROBS, Kind.LOGITS):
        if isinstance(outputs, Mapping) and find(outputs.get(str(key))) is not None:
            return Place("returned", str(key))
    return None


def read_named(
    place: Place, asked: Outputs, module: LightningModule, watch: ModuleWatch, outputs: Any, batch: Any, first: bool
) -> Found:
    """What is at a place outside of the loss in this step.

    Args:
        place: What :func:`named_place` gave, or a module.
        asked: The user's ``outputs``.
        module: The module that is trained.
        watch: What modules returned.
        outputs: What training_step returned.
        batch: The batch that it was called with.
        first: Whether this is the first step; a function is looked after then.
    """
    many: list[Found | None] = []
    if callable(asked):
        many = [_call(asked, module, outputs, batch) if first else find(asked(module, outputs, batch))]
    elif place.source == "returned":
        if isinstance(outputs, Mapping) and place.name in outputs:
            many = [find(outputs[place.name])]
    else:
        target = submodule(module, place.name)
        seen = [seen for seen in watch.seen if seen.module is target and not seen.is_step_result]
        many = [_part(one.found, place.part) for one in seen]
        if seen and not any(many):
            raise SelectionError(
                f"no predictions: {place} gave {seen[0].shapes or 'no tensor'}, and which part holds them is not "
                f"said; use one of {[f'outputs={_asked(place, part)!r}' for part in seen[0].found]}."
            )
    found = [one for one in many if one is not None]
    if not found:
        raise SelectionError(f"no predictions: {place} {_missing(place, outputs)}; {WAYS_OUT}.")
    if len(found) > 1:
        # In several processes Lightning calls training_step through forward, so the loss is seen there too.
        found = [one for one in found if one.tensor.ndim > 0]
    if len(found) > 1:
        raise SelectionError(f"{place} gave predictions {len(found)} times in this step, not once; {WAYS_OUT}.")
    return found[0]


def as_matrix(tensor: Tensor, place: Place, rows: int) -> Tensor:
    """What a user named as (rows, q); refused if it has no row per sample."""
    # A squeezed batch of one sample has lost its first axis.
    matrix = as_rows(tensor.reshape(1, -1) if rows == 1 and tensor.ndim < 2 else tensor, rows)
    if matrix is not None:
        return matrix
    if tensor.ndim == 2 and tensor.is_floating_point():
        raise other_rows(str(place), len(tensor), rows)
    raise SelectionError(
        f"predictions must be floating-point [batch, labels], but {place} gave {list(tensor.shape)} of "
        f"{tensor.dtype}; {WAYS_OUT}."
    )


def matched(
    found: Found, tensor: Tensor, place: Place, groups: Sequence[Group], is_believed: Callable[[Group], bool]
) -> tuple[Kind | None, Group | None]:
    """What named predictions hold, and the head of the loss that they show; refused if the labels refute it.

    Args:
        found: Predictions as the user gave them.
        tensor: The same as (rows, q).
        place: Where they were found.
        groups: Heads of the loss.
        is_believed: Whether the user answers for the rows of a head.
    """
    for wanted in (Proof.PROVEN, Proof.OPEN, Proof.REFUTED):
        for group in groups:
            for head in group.heads if group.proof is wanted else ():
                if head.predictions is None or head.kind is None or head.predictions.shape != tensor.shape:
                    continue
                kind = same_values(tensor.detach(), head.predictions, head.kind)
                if kind is None:
                    if wanted is Proof.PROVEN:
                        _check_no_distortion(tensor.detach(), head.predictions, head.kind, place)
                    continue
                if wanted is Proof.REFUTED and not is_believed(group):
                    raise not_pulled([group])
                return kind, group
    if place.source == "returned" and place.name == Kind.PROBS:
        return Kind.PROBS, None  # refused where values say otherwise
    kind = found.kind or kind_by_origin(found.tensor)
    kinds = {head.kind for group in groups for head in group.heads}
    if kinds == {Kind.SOFTMAX} and kind in (None, Kind.LOGITS):
        return Kind.SOFTMAX, None
    if kind is None and place.source == "returned" and place.name == Kind.LOGITS:
        kind = Kind.LOGITS
    return kind, None


def check_called_probabilities(tensor: Tensor, place: Place, group: Group | None) -> None:
    """Refuse what is returned as ``probs`` and is none, unless the loss shows what it is."""
    shows = group is not None and not group.is_of_module
    if place.source != "returned" or place.name != Kind.PROBS or shows:
        return
    low, high = (float(end) for end in tensor.detach().float().nan_to_num(0.5, 0.5, 0.5).aminmax())
    if low < -1e-3 or high > 1 + 1e-3:
        raise SelectionError(
            f"{place} holds values from {low:.3g} to {high:.3g}, which are no probabilities, and the loss does not "
            "show what they are; return probabilities, return logits as 'logits', or pass kind='logits'."
        )


def _check_no_distortion(named: Tensor, proven: Tensor, kind: Kind, place: Place) -> None:
    """Refuse what is made of the proven predictions but does not show them: other rows, or rounded ones."""
    probs, _ = to_probabilities(proven.float(), kind)
    told = named.float()
    shown = to_probabilities(told, kind)[0]
    for values, true in ((told, proven.float()), (told, probs), (shown, probs)):
        for axis, name in enumerate(("samples", "labels")):
            is_sorted_alike = torch.allclose(values.sort(axis).values, true.sort(axis).values, atol=1e-5)
            if is_sorted_alike and not torch.allclose(values, true, atol=1e-4):
                raise SelectionError(
                    f"{place} holds the predictions of the loss in another order of the {name}, so they would be "
                    f"credited to other {name}; return them in the order in which the loss is computed."
                )
    if bool(((told == 0) | (told == 1)).all()) and torch.equal(told > 0.5, probs > 0.5):
        raise SelectionError(
            f"{place} holds nothing but 0 and 1, the predictions of the loss rounded, which hide how certain they are; "
            "return the probabilities or the logits themselves."
        )


def _call(asked: Callable[..., Any], module: LightningModule, outputs: Any, batch: Any) -> Found | None:
    """Call the user's function, which runs after the optimizer step, and see whether it uses weights."""
    with _WeightWatch() as watch:
        found = find(asked(module, outputs, batch))
    if watch.used:
        raise SelectionError(
            "the function given as outputs= computes with the module's weights, which the optimizer has changed "
            "since the loss was computed, so these are not the predictions of the step; let training_step return "
            "them ({'loss': loss, 'logits': logits}), or leave outputs= out to have them read from the loss."
        )
    return found


class _WeightWatch(TorchFunctionMode):
    """Watch that notices when a tensor is computed from parameters."""

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


def _asked(place: Place, part: Found) -> str:
    return f"module:{place.name}[{part.part}]"


def _missing(place: Place, outputs: Any) -> str:
    """Why there is nothing at a place in this step."""
    if place.source == "function":
        return "returned no tensor"
    if place.source == "returned":
        keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
        return f"is not there: training_step returned no tensor under that key, only {keys}"
    return "was not called in training_step or gave no tensor"
