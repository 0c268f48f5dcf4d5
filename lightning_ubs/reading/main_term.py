"""Which of the terms of a loss has the main predictions."""

from __future__ import annotations

from dataclasses import replace

from lightning_ubs.reading.loss_graph import LOG_SOFTMAX, LossTerm


def main_term(terms: list[LossTerm], num_labels: int | None) -> LossTerm | list[LossTerm]:
    """The term of the main predictions, or all that could be (none, or several).

    Terms that share one head count as one. Of several heads, that one is the main one which is multiplied less often
    on its way into the loss than all others, and by nothing smaller.
    """
    fitting = [term for term in terms if term.fits]
    fitting = [term for term in fitting if term.place.node != LOG_SOFTMAX] or fitting
    labels = [term.predictions.shape[1] for term in fitting]
    if num_labels in labels:
        fitting = [term for term, width in zip(fitting, labels, strict=True) if width == num_labels]
    elif num_labels is not None:
        # A single column amid many labels is a discriminator or the like.
        fitting = [term for term, width in zip(fitting, labels, strict=True) if width > 1]
    heads: dict[int, list[LossTerm]] = {}
    for term in fitting:
        heads.setdefault(term.origin, []).append(term)
    merged = [_merged(shared) for shared in heads.values()]
    if len(merged) == 1:
        return merged[0]
    merged.sort(key=lambda term: len(term.factors))
    clear = len(merged) > 1 and len(merged[0].factors) < len(merged[1].factors)
    return merged[0] if clear and all(merged[0].weight >= term.weight for term in merged) else merged


def _merged(shared: list[LossTerm]) -> LossTerm:
    """Terms with the same predictions as one, which has the targets of all of them."""
    first = shared[0]
    targets = tuple(target for term in shared for target in term.targets)
    return replace(first, targets=targets)
