"""Where the predictions of a step are, as users are told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Place:
    """Where predictions are read.

    Args:
        source: what training_step returned, a user's function, what a module returned, or what the loss is made of.
        name: the key, the module's name (empty for the LightningModule itself), or the loss in words.
        part: which part of a module's output.
    """

    source: Literal["returned", "function", "module", "loss"]
    name: str = ""
    part: str = ""

    def __str__(self) -> str:
        if self.source == "module":
            where = f"the submodule {self.name!r}" if self.name else "the module's forward"
            return f"{where} (part {self.part})" if self.part else where
        return {
            "returned": f"training_step's {self.name!r}",
            "function": "the function given as outputs=",
            "loss": f"what the loss was computed from ({self.name})",
        }[self.source]
