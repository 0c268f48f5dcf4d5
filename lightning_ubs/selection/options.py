"""How selected epochs are drawn and weighed: what the user says, or else what the strategy brings."""

from __future__ import annotations

from typing import Literal

from lightning_ubs._utils.checks import check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import check_replacement
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.strategies import Strategy

Unbiased = bool | Literal["annealed", "predictions"]

# Ways of drawing in which sample i comes mP_i times on average.
_EXACT = ("systematic", "full")


def chosen_replacement(given: Replacement | None, strategy: Strategy) -> Replacement:
    """How samples are drawn; ``"systematic"`` where neither the user nor the strategy says."""
    own = strategy.default_replacement
    replacement: Replacement = given or own or "systematic"
    check_replacement(replacement)
    if own is not None and replacement not in _EXACT:
        raise ValueError(
            f"replacement={replacement!r} does not go with {type(strategy).__name__}, which needs each sample to come "
            "as often as P says; use replacement='systematic' or 'full', or leave it out."
        )
    return replacement


def chosen_unbiased(given: Unbiased | None, strategy: Strategy, replacement: Replacement) -> Unbiased:
    """How far gradients are weighed against P."""
    unbiased = strategy.default_unbiased if given is None else given
    check_choice("unbiased", unbiased, (True, False, "annealed", "predictions"))
    if unbiased and replacement not in _EXACT:
        raise ValueError(
            f"unbiased={unbiased!r} needs each sample to come as often as P says, which replacement={replacement!r} "
            "does not keep exactly; use replacement='systematic' or 'full'."
        )
    return unbiased


def chosen_size(given: float | int | None, strategy: Strategy) -> float | int | None:
    """A share of the dataset (a float up to 1), or a number of samples; None for all."""
    value = strategy.default_epoch_size if given is None else given
    if value is None:
        return None
    check_range("epoch_size", value, 0)
    if value == 0 or (value > 1 and value % 1):
        raise ValueError(f"epoch_size={value!r} is out of range; use a share in (0, 1] or a whole number of samples.")
    return float(value) if value <= 1 else int(value)


def samples_per_epoch(size: float | int | None, num_samples: int) -> int | None:
    """What a share or number of samples means for n samples; None where it is all of them.

    >>> samples_per_epoch(0.5, 42)
    21
    """
    if size is None or size == 1:
        return None
    if size > num_samples:
        raise SelectionError(
            f"epoch_size={size} is more than the {num_samples} training samples; use at most {num_samples}, or a share "
            "in (0, 1]."
        )
    return max(1, round(size * num_samples)) if isinstance(size, float) else size
