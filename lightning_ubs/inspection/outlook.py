"""What each epoch will look like, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from lightning_ubs._utils.checks import check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional import effective_sample_size
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.inspection import pictures as plots
from lightning_ubs.selection.options import EpochSize, Size, default_warmup, samples_per_epoch
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.selection.planner import Schedule, Selector
from lightning_ubs.strategies import Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Scheduled(Protocol):
    """What is asked of a :class:`BatchSelection`."""

    strategy: Strategy
    seed: int
    replacement: Replacement
    given_arguments: dict[str, Any]
    end_epoch: int | float | None
    epoch_size: Size
    fill_last: bool

    @property
    def last_fit(self) -> LastFit | None:
        """What a fit reported of its length."""

    @property
    def weights(self) -> Tensor | None:
        """The sample weights w, (n,)."""


@dataclass(frozen=True)
class LastFit:
    """What a preview needs to know of a fit.

    Attributes:
        max_epochs: Epochs that are trained.
        num_samples: Training samples.
        batch_size: Samples per batch on all ranks together.
        schedule: Which epochs are selected.
    """

    max_epochs: int
    num_samples: int
    batch_size: int
    schedule: Schedule


@dataclass(frozen=True)
class EpochOutlook:
    """What is expected of one epoch.

    Attributes:
        epoch: Counted from 0.
        selected: Whether its batches are selected, rather than a shuffled pass.
        pressure: Selection pressure s_t.
        effective_sample_size: 1/ΣP².
        distinct_share: Distinct samples of the epoch, as a share of all samples.
    """

    epoch: int
    selected: bool
    pressure: float
    effective_sample_size: float
    distinct_share: float


def epoch_outlooks(
    selection: Scheduled,
    max_epochs: int | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    weights: Any = None,
) -> list[EpochOutlook]:
    """One outlook per epoch; arguments as those of :meth:`BatchSelection.plot_schedule`."""
    fit = selection.last_fit
    if fit is None and (max_epochs is None or n is None):
        missing = " and ".join(name for name, value in (("max_epochs", max_epochs), ("n", n)) if value is None)
        raise SelectionError(
            f"before a fit, plot_schedule cannot know {missing}; pass plot_schedule(max_epochs=..., n=...), or call it "
            "after Trainer.fit."
        )
    if fit is not None:
        as_trained = max_epochs in (None, fit.max_epochs)
        max_epochs = fit.max_epochs if max_epochs is None else max_epochs
        if weights is None and n in (None, fit.num_samples):
            weights = selection.weights
        n = fit.num_samples if n is None else n
        batch_size = fit.batch_size if batch_size is None else batch_size
    assert max_epochs is not None
    assert n is not None
    batch_size = 64 if batch_size is None else batch_size
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
    if fit is not None and as_trained:
        selector.schedule = fit.schedule
    else:
        start = _first_selected(selection, strategy, max_epochs)
        selector.schedule = Schedule.of(strategy, start, selection.end_epoch, max_epochs)
    size = selection.epoch_size
    layout = BatchLayout(n, min(batch_size, n), epoch_samples=samples_per_epoch(size, n))
    selector.lay_out(layout, size if isinstance(size, EpochSize) else None, max_epochs)
    return [_outlook(selector, epoch) for epoch in range(max_epochs)]


def _first_selected(selection: Scheduled, strategy: Strategy, max_epochs: int) -> int:
    """The first selected epoch of a training of so many epochs."""
    start: int | None = selection.given_arguments["start_epoch"]
    warmup: int | None = selection.given_arguments["warmup_epochs"]
    if start is not None:
        return start
    return strategy.default_start(default_warmup(max_epochs) if warmup is None else warmup)


def _outlook(selector: Selector, epoch: int) -> EpochOutlook:
    strategy, schedule, layout = selector.strategy, selector.schedule, selector.layout_of(epoch)
    n = layout.num_samples
    if not selector.selects(epoch):
        return EpochOutlook(epoch, False, 1.0, float(n), layout.num_draws / n)
    strategy.progress = schedule.progress(epoch)
    pressure = strategy.pressure_at(epoch, schedule.start, schedule.end)
    probabilities = strategy.probabilities(pressure)
    if probabilities.shape != (n,):
        raise SelectionError(
            f"{strategy!r} cannot tell P from weights alone, so its epochs cannot be foreseen; let its "
            "probabilities() follow from self.measured.weights, or override with_weights()."
        )
    distinct = strategy.expected_distinct(probabilities, selector.request(epoch)) / n
    return EpochOutlook(epoch, True, pressure, effective_sample_size(probabilities), distinct)


def plot_schedule(
    selection: Scheduled,
    max_epochs: int | None = None,
    n: int | None = None,
    batch_size: int | None = None,
    weights: Any = None,
) -> Figure:
    """Three curves over the epochs; see :meth:`BatchSelection.plot_schedule`."""
    outlooks = epoch_outlooks(selection, max_epochs, n, batch_size, weights)
    samples = n or (selection.last_fit.num_samples if selection.last_fit else 0)
    return plots.plot_schedule(
        [one.epoch for one in outlooks],
        {
            "Pressure": [one.pressure for one in outlooks],
            "Effective sample size": [one.effective_sample_size for one in outlooks],
            "Distinct samples, share": [one.distinct_share for one in outlooks],
        },
        selected=[one.selected for one in outlooks],
        title=f"{type(selection.strategy).__name__}, {samples:,} samples",
    )
