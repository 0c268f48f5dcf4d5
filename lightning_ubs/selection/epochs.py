"""Which ids an epoch consists of."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import check_replacement, fill_last_batch, repeats_in_rows, shuffled_pass
from lightning_ubs.functional.batches import rows_with_repeats
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.selection.plan import BatchLayout, EpochPlan, epoch_generator
from lightning_ubs.strategies import Strategy


class EpochDraws:
    """Draws the ids of an epoch: a pure function of (seed, epoch, layout, P).

    Args:
        seed: of every draw.
        replacement: how samples are drawn in selected epochs.
        fill_last: fill a short last batch of selected epochs.
    """

    def __init__(self, seed: int, replacement: Replacement, fill_last: bool = False) -> None:
        check_replacement(replacement)
        self.seed = seed
        self.replacement = replacement
        self.fill_last = fill_last

    def selected(self, epoch: int, layout: BatchLayout, strategy: Strategy, probabilities: Tensor) -> Tensor:
        """The ids of a selected epoch: as many samples as in a plain one, unless the last batch is filled."""
        generator, size = epoch_generator(self.seed, epoch), layout.global_batch_size
        fill = self.fill_last or strategy.fill_last
        if strategy.only_shuffles:
            ids = self.plain(epoch, layout, strategy)
            return fill_last_batch(ids, size, layout.num_samples, generator) if fill else ids
        count = layout.full_draws if fill else layout.num_draws
        return strategy.draw(probabilities, size, count, generator, self.replacement)

    def plain(self, epoch: int, layout: BatchLayout, strategy: Strategy) -> Tensor:
        """The ids of a plain epoch: a shuffled pass, or the next part of one where epochs are shorter."""
        n, count = layout.num_samples, layout.num_draws
        if layout.epoch_samples is None:
            return self._pass(n, count, epoch, strategy)
        first = epoch * count
        passes = range(first // n, (first + count - 1) // n + 1)
        ids = torch.cat([self._pass(n, n, number, strategy) for number in passes])
        return ids[first - passes.start * n :][:count]

    def _pass(self, num_samples: int, count: int, number: int, strategy: Strategy) -> Tensor:
        if strategy.in_file_order:
            return torch.arange(count)
        return shuffled_pass(num_samples, count, epoch_generator(self.seed, number))

    def visits(self, plan: EpochPlan) -> Tensor:
        """The plan's ids, where a sample that comes twice in a batch counts once: repeats become the spare id n."""
        if self.replacement in ("batch", "none") and plan.layout.epoch_samples is None:
            return plan.ids
        size, spare = plan.layout.global_batch_size, plan.layout.num_samples
        # What fills the last row is no repeat.
        rows = torch.cat([plan.ids, spare + torch.arange(-len(plan.ids) % size)]).view(-1, size)
        if len(rows_with_repeats(rows)) == 0:
            return plan.ids
        return torch.where(repeats_in_rows(rows), spare, rows).flatten()[: len(plan.ids)]


def drawable(probabilities: Tensor, num_samples: int, strategy: Strategy) -> Tensor:
    """P as (n,) float64 on the CPU, if an epoch can be drawn from it."""
    probabilities = probabilities.detach().to("cpu", torch.float64)
    valid = probabilities.shape == (num_samples,) and bool(
        probabilities.isfinite().all() and (probabilities >= 0).all() and probabilities.sum() > 0
    )
    if not valid:
        raise SelectionError(
            f"{type(strategy).__name__} returned probabilities that are not {num_samples} finite numbers of at least 0 "
            "with a positive sum; check what its update was given."
        )
    return probabilities
