"""What is reported when it is not clear what a step predicted: what was seen, and hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_ubs.errors import SelectionError
from lightning_ubs.reading.heads import Group, Head
from lightning_ubs.reading.modules import Seen
from lightning_ubs.reading.proof import PASSED

WAYS_OUT = (
    "return {'loss': loss, 'logits': logits} from training_step, or pass outputs='KEY' (a key of what it returns), "
    "outputs='module:NAME' (a submodule's output) or outputs=function(pl_module, outputs, batch), with kind='softmax' "
    "where they are logits of exclusive classes"
)


def several(groups: Sequence[Group]) -> SelectionError:
    """Refusal where more than one head may be the predictions."""
    names = ", ".join(group.heads[0].text for group in groups)
    if all(group.heads[0].place.source == "module" for group in groups):
        return SelectionError(f"several outputs of this step may be the predictions: {names}; {WAYS_OUT}.")
    return SelectionError(
        f"the loss is computed from several predictions ({names}) and which of them are the main ones is ambiguous; "
        f"{WAYS_OUT}."
    )


def not_pulled(groups: Sequence[Group]) -> SelectionError:
    """Refusal where the labels refute what may be the predictions."""
    return SelectionError(
        f"the loss does not pull what it is computed from ({'; '.join(map(str, groups))}; {PASSED} is needed) "
        "to the labels of the planned samples, so predictions would be credited to other samples or are none: keep "
        f"the order of the samples in training_step and the collate function, or {WAYS_OUT}; ids=False trains "
        "without this proof."
    )


def other_scale(group: Group) -> SelectionError:
    """Refusal of a module's output that the loss reads through neither its sigmoid nor its softmax."""
    head = group.heads[0]
    activation = "softmax" if head.exclusive else "sigmoid"
    return SelectionError(
        f"the loss pulls {head.text} to the labels, but not as a loss of their {activation} does: it reads them "
        "through something else, such as a temperature or another link, so that the probabilities of the model are "
        "not known; return them from training_step ({'loss': loss, 'probs': probs}), or pass kind="
        f"'{'softmax' if head.exclusive else 'logits'}' if their {activation} is what the model predicts all the same."
    )


def moved(group: Group) -> SelectionError:
    """Refusal where the labels moved what the loss compares with them."""
    return SelectionError(
        f"what the loss compares with the labels ({group.heads[0].text}) was moved by these labels before, as by a "
        "margin, so that it is not what the model predicts; return that from training_step "
        "({'loss': loss, 'probs': probs})."
    )


def masked(group: Group) -> SelectionError:
    """Refusal where the head is known, but not what it held."""
    return SelectionError(
        f"the predictions ({group.heads[0].text}) are masked or scaled sample by sample before the loss, and no module "
        f"returned them before that; {WAYS_OUT}."
    )


def mixed(where: str) -> SelectionError:
    """Refusal of predictions of several samples."""
    return SelectionError(
        f"{where}: the loss compares predictions with labels of several samples; an augmentation mixes samples "
        "(mixup, cutmix), or targets are soft for another reason. Let training_step return clean predictions "
        "besides ({'loss': loss, 'logits': clean}) and pass ids=False; ids=False alone is enough if each "
        "prediction still belongs to one sample."
    )


def other_rows(where: str, seen: int, rows: int) -> SelectionError:
    """Refusal of predictions of another number of samples."""
    views = (
        f" Where these are {seen // rows} views of each sample, return the predictions of one of them, one row per "
        f"sample: {{'loss': loss, 'logits': logits[:{rows}]}}."
    )
    return SelectionError(
        f"{where} gave predictions for {seen} samples, but the planned batch has {rows}; a collate function or "
        "training_step must not drop or add samples: keep all of them, or mask them in the loss."
        + (views if seen > rows and seen % rows == 0 else "")
    )


def nothing_found(
    rows: int,
    labels: int | None,
    heads: Sequence[Head],
    unfitting: Sequence[tuple[int, ...]],
    ran: Sequence[tuple[str, Seen]],
    is_compiled: bool,
    outputs: Any,
) -> SelectionError:
    """Refusal that says what was seen; where everything has another number of rows, that number is what is wrong.

    Args:
        rows: Number of samples of this rank.
        labels: Number of labels, if it is known.
        heads: What may be predictions of something else.
        unfitting: Shapes of what in the loss has no row per sample.
        ran: Modules that returned something, by name.
        is_compiled: Whether modules could not be watched.
        outputs: What training_step returned.
    """
    matrices: list[tuple[int, ...]] = [shape for shape in unfitting if len(shape) == 2]
    matrices += [tuple(f.tensor.shape) for _, seen in ran for f in seen.found if f.tensor.shape[1:] == (labels,)]
    counts = {shape[0] for shape in matrices if shape[0] != rows and labels in (None, shape[1])}
    if len(counts) == 1:
        return other_rows("this step", counts.pop(), rows)
    modules = ", ".join(f"{name or 'forward'} {seen.shapes}" for name, seen in ran)
    keys = sorted(map(str, outputs)) if isinstance(outputs, Mapping) else []
    known = "the number of labels is not known" if labels is None else f"there are {labels} labels"
    shapes = [list(shape) for shape in unfitting]
    shapes += [list(head.predictions.shape) for head in heads if head.predictions is not None]
    only = f" (only of {', '.join(map(str, shapes))})" if shapes else ""
    return SelectionError(
        f"no predictions were found in this step of {rows} samples: the graph of the loss has no cross-entropy, "
        f"sigmoid or softmax of them{only}, training_step returned the keys {keys}, "
        f"{'modules are compiled and cannot be watched' if is_compiled else f'modules gave: {modules or None}'}, and "
        f"{known}; {WAYS_OUT}."
    )
