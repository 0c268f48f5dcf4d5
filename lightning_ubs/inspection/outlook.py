"""What each epoch will look like, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lightning_ubs._utils.checks import check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import effective_sample_size
from lightning_ubs.inspection import pictures as plots
from lightning_ubs.selection.options import samples_per_epoch
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.selection.planner import Schedule, Selector

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_ubs.inspection.views import SelectionViews


@dataclass(frozen=True)
class EpochOutlook:
    """What is expected of one epoch.

    Attributes:
        epoch: counted from 0.
        selected: whether its batches are selected, rather than a shuffled pass.
        pressure: s_t.
        effective_sample_size: 1/ΣP².
        distinct_share: distinct samples of the epoch, as a share of all samples.
    """

    epoch: int
    selected: bool
    pressure: float
    effective_sample_size: float
    distinct_share: float


def epoch_outlooks(
    selection: SelectionViews, max_epochs: int, n: int, batch_size: int = 64, weights: Any = None
) -> list[EpochOutlook]:
    """One outlook per epoch; arguments as those of :meth:`BatchSelection.plot_schedule`."""
    for name, value in (("max_epochs", max_epochs), ("n", n), ("batch_size", batch_size)):
        check_range(name, value, 1, whole=True)
    supposed = torch.linspace(0, 1, n, dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
    if supposed.shape != (n,) or not bool(((supposed >= 0) & (supposed <= 1)).all()):
        raise ValueError(
            f"weights have shape {list(supposed.shape)} or values outside [0, 1]; pass {n} weights in [0, 1], such as "
            "the selection.weights of an earlier training."
        )
    strategy = selection.strategy.with_weights(supposed.cpu())
    selector = Selector(strategy, selection.seed, selection.replacement, fill_last=selection.fill_last)
    selector.schedule = Schedule.of(strategy, selection.start_epoch, selection.end_epoch, max_epochs)
    layout = BatchLayout(n, min(batch_size, n), epoch_samples=samples_per_epoch(selection.epoch_size, n))
    selector.lay_out(layout)
    found = []
    for epoch in range(max_epochs):
        if not selector.selects(epoch):
            found.append(EpochOutlook(epoch, False, 1.0, float(n), layout.num_draws / n))
            continue
        strategy.progress = selector.schedule.progress(epoch)
        pressure = strategy.pressure_at(epoch, selector.schedule.start, selector.schedule.end)
        probabilities = strategy.probabilities(pressure)
        if probabilities.shape != (n,):
            raise SelectionError(
                f"{strategy!r} cannot tell P from weights alone, so its epochs cannot be foreseen; let its "
                "probabilities() follow from self.measured.weights, or override with_weights()."
            )
        distinct = strategy.expected_distinct(probabilities, selector.request(epoch)) / n
        found.append(EpochOutlook(epoch, True, pressure, effective_sample_size(probabilities), distinct))
    return found


def plot_schedule(
    selection: SelectionViews, max_epochs: int, n: int, batch_size: int = 64, weights: Any = None
) -> Figure:
    """Three curves over the epochs; see :meth:`BatchSelection.plot_schedule`."""
    outlooks = epoch_outlooks(selection, max_epochs, n, batch_size, weights)
    return plots.plot_schedule(
        [one.epoch for one in outlooks],
        {
            "Pressure": [one.pressure for one in outlooks],
            "Effective sample size": [one.effective_sample_size for one in outlooks],
            "Distinct samples, share": [one.distinct_share for one in outlooks],
        },
        selected=[one.selected for one in outlooks],
        title=f"{type(selection.strategy).__name__}, {n:,} samples",
    )
