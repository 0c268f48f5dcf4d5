"""All strategies of the table of methods, for tests that hold for each: a new row is tested by being there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lightning_ubs import RepeatFactor, Strategy
from lightning_ubs.methods import METHODS

KINDS: dict[str, type[Strategy]] = {
    row.strategy.__name__: row.strategy
    for row in METHODS
    if row.key != "shuffled"  # the control of another one
}

# In small data no label is rare by the default.
_ARGUMENTS = {RepeatFactor: {"threshold": 0.9}}


def all_strategies() -> dict[str, Callable[..., Strategy]]:
    """What makes each strategy, by the name of its class."""
    return {name: partial(kind, **_ARGUMENTS[kind]) if kind in _ARGUMENTS else kind for name, kind in KINDS.items()}
