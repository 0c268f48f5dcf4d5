"""Warn of what differs between a checkpoint and the run that resumes from it."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lightning_ubs.selection.planner import Selector


def warn_if_arguments_changed(state: dict[str, Any], selector: Selector, seeds: tuple[int, int]) -> None:
    """Warn of a seed and of strategy arguments that differ from those of the checkpoint.

    Args:
        state: State of the checkpoint.
        selector: Selector of this run.
        seeds: Seeds of this run: the user's, and what follows from it beside other selections.
    """
    if state["seed"] not in seeds:
        rank_zero_warn(
            f"The checkpoint was written with seed={state['seed']}; it is kept instead of seed={seeds[0]}, so "
            "that the run continues exactly.",
            category=UserWarning,
        )
    if changed := selector.changed_arguments(state):
        told = ", ".join(f"{name}={here} (checkpoint: {there})" for name, (there, here) in changed.items())
        rank_zero_warn(
            f"{type(selector.strategy).__name__} continues with the arguments of this run where they differ from "
            f"the checkpoint's: {told}.",
            category=UserWarning,
        )


def warn_if_batch_size_changed(state: dict[str, Any], selector: Selector) -> None:
    """Warn where the steps of this run have another size than those of the checkpoint."""
    layout = selector.layout
    if layout is not None and state["global_batch_size"] not in (0, layout.global_batch_size):
        rank_zero_warn(
            f"The checkpoint was written with {state['global_batch_size']} samples per step over all processes, now "
            f"there are {layout.global_batch_size}: selection stays valid, but the order of samples differs.",
            category=UserWarning,
        )


def warn_if_batch_missing(state: dict[str, Any], epoch: int, batch: int, batches: int) -> None:
    """Warn where the batch before this first one was trained, but selection had not seen it when the state was taken.

    Args:
        state: State of the checkpoint.
        epoch: Epoch of the first batch after the resume.
        batch: Index of that batch.
        batches: Number of batches in an epoch.
    """
    before = (epoch, batch - 1) if batch > 0 else (epoch - 1, batches - 1)
    if state["epoch"] >= 0 and (state["epoch"], state["batch"]) == before:
        rank_zero_warn(
            "The checkpoint was written by a callback that comes before BatchSelection, which had not seen the last "
            "batch yet: every id stays right, but the predictions of that batch are missing. Put BatchSelection first "
            "in callbacks= to resume exactly.",
            category=UserWarning,
        )
