"""The one error that selection raises for what a user can put right."""

from __future__ import annotations


class SelectionError(ValueError):
    """Selection cannot go on as things are; the message ends with what to do."""
