"""What the loss of each training step was computed from."""

from __future__ import annotations

from torch import Tensor

from lightning_ubs.reading.loss_graph import LossTerm, TermPlace, follow, search
from lightning_ubs.reading.main_term import main_term


class LossReader:
    """Reads predictions and targets from the loss of a step, once per step.

    A step may have several backward passes. The first one that shows predictions for the known number of labels
    counts, so the second pass of SAM does not, nor does a discriminator's.

    Attributes:
        num_labels: q, if the dataset, a checkpoint or an earlier step tells.
        term: what was found in this step.
        heads: the predictions of this step, in words, if it cannot be told which of them are the main ones.
        unfitting: shapes of predictions of this step that have no row per sample.
    """

    def __init__(self) -> None:
        self.num_labels: int | None = None
        self._place: TermPlace | None = None
        self._is_settled = self._is_barren = False
        self.forget_step()

    def forget(self) -> None:
        """Look for the predictions anew."""
        self.num_labels, self._place = None, None
        self._is_settled = self._is_barren = False
        self.forget_step()

    def forget_step(self) -> None:
        """Keep nothing of the step."""
        self.term: LossTerm | None = None
        self.heads: list[str] = []
        self.unfitting: list[tuple[int, ...]] = []

    def settle(self, num_labels: int) -> None:
        """From now on accept nothing but predictions for this many labels, and search no loss that shows none."""
        self.num_labels, self._is_settled = num_labels, True
        self._is_barren = self.term is None

    def read(self, loss: Tensor, rows: int, anew: bool) -> None:
        """Read the loss of a backward pass, while its graph exists.

        Args:
            loss: the loss.
            rows: number of samples in the batch.
            anew: search the whole graph rather than look where the term was before.
        """
        if (self._is_barren and not anew) or (self.term is not None and _width(self.term) == self.num_labels):
            return
        term = None if anew or self._place is None else follow(loss, rows, self._place)
        if term is None or _width(term) != self.num_labels:
            term = self._search(loss, rows)
        if term is None:
            return
        if _width(term) == self.num_labels or (self.term is None and not self._is_settled):
            self.term, self._place = term, term.place
            self.heads = self.heads if self.num_labels is None else []
        elif self.term is not None and self.num_labels is None and _width(term) != _width(self.term):
            self.heads += [str(self.term), str(term)]

    def _search(self, loss: Tensor, rows: int) -> LossTerm | None:
        terms = search(loss, rows)
        self.unfitting += [tuple(term.predictions.shape) for term in terms if not term.fits]
        main = main_term(terms, self.num_labels)
        if isinstance(main, LossTerm):
            return main
        self.heads += [str(term) for term in main]
        return None


def _width(term: LossTerm) -> int:
    return term.predictions.shape[1]
