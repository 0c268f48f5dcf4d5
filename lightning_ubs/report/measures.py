"""The metrics the report prints, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A test metric: its key in the results, its name in print, its good direction."""

    key: str
    title: str
    higher_is_better: bool

    @property
    def sign(self) -> int:
        """+1 or −1: times a difference, this is a gain."""
        return 1 if self.higher_is_better else -1

    @property
    def arrow(self) -> str:
        """The good direction as a sign."""
        return "↑" if self.higher_is_better else "↓"


MACRO_AUC = Measure("macro_auc", "Macro-AUC", True)
RANKING_LOSS = Measure("ranking_loss", "Ranking loss", False)
HAMMING_LOSS = Measure("hamming_loss", "Hamming loss", False)
MEASURES = (MACRO_AUC, RANKING_LOSS, HAMMING_LOSS)
