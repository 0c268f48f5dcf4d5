"""What a selection shows: the numbers of this epoch, frames and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.inspection import frame as inspect
from lightning_ubs.inspection import label_errors
from lightning_ubs.inspection import outlook as schedule
from lightning_ubs.inspection.known_labels import KnownLabels
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.selection.plan import EpochPlan
from lightning_ubs.selection.planner import Selector
from lightning_ubs.selection.steps import TrainingSteps
from lightning_ubs.strategies import Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class SelectionViews:
    """Everything that can be asked of a :class:`BatchSelection`; asking changes nothing."""

    strategy: Strategy
    seed: int
    replacement: Replacement
    start_epoch: int
    end_epoch: int | float | None
    epoch_size: float | int | None
    fill_last: bool
    refresh: EvaluationPass | None
    known_labels: KnownLabels
    _selector: Selector
    _steps: TrainingSteps

    @property
    def uncertainty(self) -> Tensor | None:
        """U, (n, q) float32, at the start of this epoch; None in the first.

        With ``memory="sharded"`` it has the rows of the samples :attr:`kept_ids`.

        It is computed from the predictions known now where it was not kept: after a resume in mid-epoch, or where it
        takes more than 256 MiB.
        """
        measured = self.strategy.measured
        if measured.uncertainty is None and measured.weights is not None:
            self.settle()
            return self.strategy.current_uncertainty()
        return measured.uncertainty

    def settle(self) -> None:
        """Let the strategy learn what all steps so far have shown: it learns several of them together.

        Everything here does so by itself. Call it before you read :attr:`strategy` in the middle of an epoch.
        """
        self._selector.settle()

    @property
    def kept_ids(self) -> range:
        """Ids of the samples whose predictions this process remembers: all, unless ``memory="sharded"``."""
        return self.strategy.shard.ids

    @property
    def correlation(self) -> Tensor | None:
        """C, (q, q), at the start of this epoch."""
        return self.strategy.measured.correlation

    @property
    def weights(self) -> Tensor | None:
        """w, (n,) in [0, 1], at the start of this epoch."""
        return self.strategy.measured.weights

    @property
    def probabilities(self) -> Tensor | None:
        """P, (n,) float64, from which this epoch's batches are drawn; uniform in the warm-up."""
        return self._selector.probabilities

    @property
    def pressure(self) -> float:
        """Selection pressure s_t of this epoch; 1 in the warm-up."""
        return self._selector.pressure

    @property
    def plan(self) -> EpochPlan | None:
        """Sample ids of this epoch's batches: ``plan[k]`` on this process."""
        return self._selector.plan

    @property
    def trained_ids(self) -> Tensor:
        """Ids of the samples trained on in this epoch so far, with repeats, over all processes."""
        return self._selector.trained_ids()

    @property
    def importance_weights(self) -> Tensor | None:
        """What each sample of the current batch on this process must count to undo its P, (b,) float32.

        1/(nP) in selected epochs (or its annealed power), 1 in plain ones; None where no batch is trained on. For use
        by hand in ``training_step``, with ``unbiased=False``; exact with ``replacement="systematic"`` or ``"full"``.
        """
        return self._steps.importance_weights

    @property
    def times_drawn(self) -> Tensor | None:
        """How often each sample was trained on so far, (n,) int32, over all processes, warm-up included.

        None before the first fit, and after a resume from a checkpoint of release 0.1.0, which does not say.
        """
        return None if self._selector.draws is None else self._selector.draws.times

    @property
    def last_epoch_drawn(self) -> Tensor | None:
        """The epoch in which each sample was last trained on, (n,) int32, -1 for never; None as ``times_drawn``."""
        return None if self._selector.draws is None else self._selector.draws.last_epoch

    def to_frame(self) -> DataFrame:
        """What is known of each training sample, one row per sample, as a pandas frame.

        It works while the Trainer fits, afterwards, and after :meth:`load_state_dict`. Columns that the strategy does
        not have are there and hold NaN, so that the frames of all strategies have the same columns:

        * ``id``: position in the train dataset.
        * ``weight``, ``probability``: w and P at the start of this epoch.
        * ``times_drawn``, ``last_epoch_drawn``: how often and when last it was trained on, warm-up included.
        * ``mean_uncertainty``: ``selection.uncertainty``, the mean over the labels.
        * ``fluctuation``: how much its remembered predictions move from one to the next, the mean over the labels.
        * ``latest_loss``: binary cross-entropy of its latest prediction, the mean over the labels, if these are known.
        * ``labels``: names of its true labels (numbers where there are no names), joined by ``"; "``.

        With ``memory="sharded"``, what is measured from predictions is NaN for the samples of other processes.

        A strategy of your own may add columns (:meth:`Strategy.sample_columns`). To write files:
        ``selection.to_frame().to_csv("samples.csv", index=False)``, or with the extra ``parquet``
        ``selection.to_frame().to_parquet("samples.parquet")``.

        Raises:
            SelectionError: before the first fit.
        """
        return inspect.to_frame(self)

    def plot_data_map(self, label: str | int | None = None) -> Figure:
        """A scatter plot of the samples: mean uncertainty over fluctuation, colored by the times drawn.

        Args:
            label: show only the samples that have this label, by its name or number.

        Raises:
            SelectionError: before the first measurement, or with a strategy that has no window of predictions.
        """
        return inspect.plot_data_map(self, label)

    def plot_correlation(self) -> Figure:
        """A heat map of the label correlation C at the start of this epoch, with the names of up to 24 labels."""
        return inspect.plot_correlation(self)

    def plot_schedule(self, max_epochs: int, n: int, batch_size: int = 64, weights: Any = None) -> Figure:
        """Pressure, effective sample size and distinct share of each epoch, before any training.

        Weights are not known before the training, so they are supposed to be spread evenly over [0, 1]; where most
        samples weigh little, P is more uneven late than shown. The distinct share is the expected one.

        Args:
            max_epochs: epochs of the training.
            n: training samples.
            batch_size: of all processes together.
            weights: w (n,) to suppose instead, such as ``selection.weights`` of an earlier training.
        """
        return schedule.plot_schedule(self, max_epochs, n, batch_size, weights)

    def suspicious_labels(self, top: int | float = 100) -> DataFrame:
        """The (sample, label) pairs that the model contradicts most persistently: candidates for label errors.

        The score is the mean distance between the given label and the remembered predictions: of the last T training
        passes (``UBS``, ``RecencyBias``) or of all of them (``ActiveBias``). The frame has the columns ``id``,
        ``label``, ``given``, ``mean_prediction`` and ``score``, the highest score first.

        These predictions come from training passes: the model has learned the label that it is asked about, and with
        more epochs it learns the wrong ones as well. With 5 % of all labels flipped at random and an MLP after 30
        epochs, 46 % of the top 5 % were flipped on yeast and 77 % on enron (AUROC 0.90 and 0.98; by chance 5 % and
        0.5). On the same predictions the ranking is that of cleanlab's per-class self-confidence, by construction;
        predictions of held-out samples, at the price of five trainings, found fewer (39 % and 72 %). Random flips are
        easier to find than the mistakes of people.

        Args:
            top: how many pairs, as a number or as a share below 1 of all pairs.

        Raises:
            SelectionError: if the labels are not known, or the strategy remembers no predictions.
        """
        return label_errors.suspicious_labels(self, top)
