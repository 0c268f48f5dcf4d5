"""Whose state a checkpoint holds, and whether it can be continued."""

from __future__ import annotations

from typing import Any

from lightning_ubs._utils.arguments import constructor_arguments
from lightning_ubs.errors import SelectionError
from lightning_ubs.strategies import Strategy

STATE_VERSION = 1


def plain_arguments(strategy: Strategy) -> dict[str, str]:
    """The strategy's arguments as text, for a checkpoint."""
    arguments = constructor_arguments(strategy).items()
    return {name: repr(value) for name, value in arguments if value is None or isinstance(value, int | float | str)}


def check_state(state: dict[str, Any], strategy: Strategy) -> None:
    """Refuse a state of another release, another strategy or another dataset."""
    if state.get("version") != STATE_VERSION:
        raise SelectionError(
            f"the checkpoint's selection state has version {state.get('version')}, this release reads {STATE_VERSION}; "
            "resume with the release that wrote it, or train from scratch."
        )
    name = type(strategy).__name__
    if state["strategy"] != name:
        raise SelectionError(
            f"the checkpoint was written with the strategy {state['strategy']}, but this run uses {name}; resume with "
            "the same strategy, or train from scratch."
        )
    if state["num_samples"] not in (0, strategy.num_samples):
        raise SelectionError(
            f"the checkpoint was written for {state['num_samples']} training samples, but this run has "
            f"{strategy.num_samples}; resume on the same dataset, or train from scratch."
        )
