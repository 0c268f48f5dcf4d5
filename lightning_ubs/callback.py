"""The Lightning callback: its arguments, its hooks, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_ubs._utils.checks import call_repr, check_choice, check_range
from lightning_ubs.errors import SelectionError
from lightning_ubs.functional.drawing import Replacement
from lightning_ubs.inspection import frame, outlook
from lightning_ubs.inspection.frame import KnownLabels
from lightning_ubs.reading import DatasetLabels, Ids, IdVerification, Outputs, StepReader, Targets
from lightning_ubs.selection._lightning import LoaderKey, callbacks_of, log_epoch
from lightning_ubs.selection.evaluation import EvaluationPass
from lightning_ubs.selection.options import (
    WARMUP,
    EpochSize,
    Memory,
    SaveState,
    Unbiased,
    chosen_dtype,
    chosen_end,
    chosen_memory,
    chosen_replacement,
    chosen_size,
    chosen_unbiased,
)
from lightning_ubs.selection.order import Blocks, chosen_order
from lightning_ubs.selection.plan import EpochPlan, loader_seed
from lightning_ubs.selection.planner import Selector
from lightning_ubs.selection.requirements import check_epochs_are_counted, check_trainer
from lightning_ubs.selection.session import FitSession
from lightning_ubs.selection.steps import TrainingSteps
from lightning_ubs.strategies import UBS, Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class BatchSelection(Callback):
    """Selection of the samples in the next mini-batches while a multi-label model trains.

    Attach it to a Trainer; module and dataset stay as they are. Warm-up epochs are shuffled passes. From then on, each
    epoch's batches are drawn at its start from probabilities that the strategy derives from the predictions so far.

    Everything after ``seed`` is given by name. The arguments say *what is selected* (``strategy`` to ``loader``), *how
    epochs are drawn* (``warmup_epochs`` to ``unbiased``), *where predictions are read* (``outputs`` to ``refresh``) and
    *what is kept* (``history_dtype`` to ``label_names``).

    Args:
        strategy: Decides the probabilities; :class:`UBS` by default.
        labels: The [samples, labels] matrix (``Balance``, ``HardImbalance``), if the dataset does not show it.
        features: The [samples, features] matrix (``HardImbalance``), if the dataset does not show it.
        loader: Which train loader to select from, where there are several.
        warmup_epochs: Shuffled epochs before the first selected one (γ); 5 by default.
        seed: Seed for all sampling. Global random state is only touched where a resume restores it.
        start_epoch: First selected epoch, counted from 0, instead of ``warmup_epochs``.
        end_epoch: Epoch, or share of all epochs as a float up to 1, from which the pressure is 1, or epochs are plain
            where the strategy has no falling pressure; defaults to the strategy's own value, or to the last.
        replacement: ``"systematic"`` draws each sample as often as P says, rounded up or down, ``"batch"`` without
            repeats inside a batch, ``"none"`` without repeats in an epoch, ``"full"`` with repeats anywhere. Defaults
            to the strategy's own way, or to ``"systematic"``.
        epoch_size: Samples per epoch, as a share in (0, 1] or a number; defaults to the strategy's own value, or
            to all samples. Every epoch has the same number of batches. Warm-up epochs continue through one shuffled
            pass.
        fill_last: Fill a short last batch of selected epochs, as the paper's code does, so that a selected epoch
            trains on more samples than a plain one.
        unbiased: Let the gradient of each sample count 1/(nP), so that its mean is that of plain shuffling. Every term
            of the loss with a row per sample is reweighted; weight penalties and the statistics of a batch norm are
            not. A loss of which a part has no row per sample is refused with the share of that part; ``"predictions"``
            accepts it and leaves that part as it is. ``"annealed"`` lets the exponent of the weights rise from 0 to 1
            over the selected epochs. Needs ``replacement="systematic"`` or ``"full"``. Defaults to the strategy's own
            value, or to False.
        outputs: Where the predictions are: a key of what ``training_step`` returns, ``"module:NAME"``,
            ``"module:NAME[PART]"``, a function ``(pl_module, outputs, batch) -> Tensor``, or None: ``probs`` or
            ``logits`` in what ``training_step`` returns, else what the loss was computed from. Whatever is read is
            proven by the loss, which falls when it moves toward the labels of the planned samples; what cannot be
            proven is refused, or announced as not verified.
        targets: Where the true labels of a batch are (``HardImbalance``): a key, a function, or None: what the loss was
            computed from, else the usual places of a batch.
        kind: What the predictions hold: ``"logits"``, ``"probs"``, ``"softmax"`` (logits of exclusive classes) or
            ``"log_probs"``; None to find it out.
        ids: What planned samples are verified by, in the first batches and the first of each epoch: a key or a
            function ``(batch) -> ids``; None for the labels, where the dataset shows them; False for nothing.
        refresh: An :class:`EvaluationPass` predicts all samples at the start of each epoch, instead of what training
            steps predict.
        history_dtype: ``"float32"`` (default), ``"float16"``, ``"bfloat16"`` or ``"uint8"`` (255 steps) for the
            history of predictions.
        device: Where they are kept; the module's device by default.
        memory: With several ranks, ``"replicated"`` keeps the full per-sample history on every rank, ``"sharded"``
            divides it among them; the same samples are selected.
        save_state: ``"full"`` makes a resume exact, dropout and augmentation included: worker processes are seeded for
            each batch, and the states of all random generators are saved (10 kB per rank); ``"selection"`` leaves
            generators alone, so that the same samples are drawn, but dropout differs; ``"weights"`` keeps checkpoints
            small and a resume valid.
        log_metrics: Log pressure, effective sample size and the like once per epoch.
        label_names: What the labels are called in frames and pictures; by default ``label_names`` of the datamodule or
            of the dataset, or the dataset's ``classes``.
        order: :class:`Blocks` for data that lie in chunks, shards or files: samples of a few blocks come together, so
            that each block is opened once. None for samples in any order.

    >>> BatchSelection(UBS(lambda1=0.6), warmup_epochs=3).start_epoch
    3
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        warmup_epochs: int | None = None,
        seed: int = 0,
        *,
        outputs: Outputs = None,
        targets: Targets = None,
        labels: Any = None,
        features: Any = None,
        replacement: Replacement | None = None,
        start_epoch: int | None = None,
        end_epoch: int | float | None = None,
        history_dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        log_metrics: bool = True,
        loader: LoaderKey | None = None,
        save_state: SaveState = "full",
        kind: str | None = None,
        ids: Ids = None,
        epoch_size: float | int | EpochSize | None = None,
        fill_last: bool = False,
        unbiased: Unbiased | None = None,
        memory: Memory = "replicated",
        refresh: EvaluationPass | None = None,
        label_names: Sequence[str] | None = None,
        order: Blocks | None = None,
    ) -> None:
        strategy = UBS() if strategy is None else strategy
        if not isinstance(strategy, Strategy):
            raise ValueError(f"strategy={strategy!r} is not a Strategy; pass one, such as UBS().")
        if start_epoch is not None and warmup_epochs is not None:
            raise ValueError(
                f"warmup_epochs={warmup_epochs} and start_epoch={start_epoch} both name the first selected epoch; give "
                "one of them."
            )
        # What the user said, beside attributes that show what it led to.
        self.given_arguments = {
            "warmup_epochs": warmup_epochs,
            "start_epoch": start_epoch,
            "replacement": replacement,
            "unbiased": unbiased,
            "epoch_size": epoch_size,
            "history_dtype": history_dtype,
        }
        warmup_epochs = WARMUP if warmup_epochs is None else warmup_epochs
        check_range("warmup_epochs", warmup_epochs, 0, whole=True)
        check_range("seed", seed, 0, whole=True)
        check_choice("save_state", save_state, ("full", "selection", "weights"))
        self.memory = chosen_memory(memory, strategy)
        self.strategy = strategy
        self.warmup_epochs = int(warmup_epochs)
        self.seed = int(seed)
        self.outputs, self.targets = outputs, targets
        self.labels, self.features = labels, features
        self.replacement = chosen_replacement(replacement, strategy)
        self.order = chosen_order(order, strategy, self.replacement)
        self.unbiased = chosen_unbiased(unbiased, strategy, self.replacement)
        self.start_epoch = strategy.default_start(self.warmup_epochs) if start_epoch is None else start_epoch
        check_range("start_epoch", self.start_epoch, 0, whole=True)
        self.end_epoch = chosen_end(end_epoch, self.start_epoch)
        self.history_dtype = chosen_dtype(history_dtype)
        self.device = device
        self.log_metrics = log_metrics
        self.loader = loader
        self.save_state = save_state
        self.epoch_size = chosen_size(epoch_size, strategy)
        if fill_last and self.replacement == "none":
            raise ValueError("fill_last=True needs repeated samples; use replacement='batch' or leave fill_last out.")
        self.fill_last = bool(fill_last)
        self._selector = Selector(
            strategy,
            self.seed,
            self.replacement,
            fill_last=self.fill_last,
            compact=save_state == "weights",
            blocks=self.order,
        )
        if refresh is not None and not isinstance(refresh, EvaluationPass):
            raise ValueError(f"refresh={refresh!r} is not an evaluation pass; use refresh=EvaluationPass() or None.")
        if refresh is not None and "predictions" not in strategy.needs:
            raise ValueError(
                f"refresh={refresh!r} is of no use to {strategy!r}, which reads no predictions; leave it out."
            )
        self.refresh = refresh
        self.kind, self.ids = kind, ids
        self.label_names = label_names
        self.known_labels = KnownLabels(label_names)
        reader = StepReader(outputs, targets, kind, device, "targets" in self.strategy.needs, ids)
        self._steps = TrainingSteps(self._selector, reader, IdVerification(ids), self.unbiased, refresh)
        self._key = super().state_key if loader is None else f"{super().state_key}[loader={loader!r}]"
        self._fit: FitSession | None = None
        self._random_states: dict[str, Any] | None = None
        self._only_evaluates = False
        self._seconds = 0.0  # that selection took on the host in this epoch

    def __repr__(self) -> str:
        return call_repr(self)

    @property
    @override
    def state_key(self) -> str:
        return self._key  # Lightning asks for it at every hook

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check trainer and other selections, and open a session of this fit."""
        self._close()
        self._only_evaluates = stage != "fit"
        if self._only_evaluates:
            return
        scheduled = self.end_epoch is None and (self.strategy.decays or self.unbiased == "annealed")
        check_trainer(trainer, needs_last_epoch=scheduled or isinstance(self.end_epoch, float))
        check_epochs_are_counted(trainer, self.epoch_size)
        self._check_others(trainer)
        self._fit = FitSession(self, trainer, self._selector, self._seed_beside_others(trainer))
        self._steps.begin_fit(self._fit, pl_module, continues=trainer.current_epoch > 0)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the session, and leave trainer, loader and module as they were found."""
        self._close()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the session, because Lightning skips ``teardown`` where a fit raised."""
        self._close()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fix the schedule, restore random generators, and plan the epoch that the trainer stands in."""
        if self.refresh is not None:
            self.refresh.check(pl_module)
        started = time.perf_counter()
        self._session.begin()
        self._seconds += time.perf_counter() - started

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure (U, C, w, P) and draw the epoch's plan, unless a resume has done so."""
        started, session = time.perf_counter(), self._session
        session.random.proceed()
        self._steps.begin_epoch(session.prepare())
        self._seconds += time.perf_counter() - started

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Verify that the batch holds the planned samples."""
        self._steps.begin(batch, batch_idx)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Read predictions and targets from the loss's graph, and reweight its rows."""
        self._steps.before_backward(loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop reweighting rows."""
        self._steps.after_backward()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Buffer the step's predictions for the strategy, and share random states for checkpoints."""
        started = time.perf_counter()
        self._steps.finish(outputs, batch, batch_idx)
        self._seconds += time.perf_counter() - started

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that validation has drawn its random numbers itself after a resume."""
        if self._fit is not None and not trainer.sanity_checking:
            self._fit.random.validated()

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Share random states for checkpoints that are written after a validation."""
        if self._fit is not None and not trainer.sanity_checking:
            self._fit.random.share()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse an epoch without usable predictions, and log what was selected."""
        self._steps.check_epoch()
        if self.log_metrics:
            several = sum(isinstance(callback, BatchSelection) for callback in callbacks_of(trainer)) > 1
            prefix = f"selection/{self.loader}/" if several else "selection/"
            # The only value in which processes differ.
            seconds = float(trainer.strategy.reduce(torch.tensor(self._seconds, device=pl_module.device)))
            metrics = self._selector.metrics(seconds)
            log_epoch(trainer, {f"{prefix}{name}": value for name, value in metrics.items()})
        self._seconds = 0.0
        self._session.random.share()

    @override
    def state_dict(self) -> dict[str, Any]:
        """State of the selection, and of random generators, as tensors and plain values; talks to no other rank."""
        own = {"kind": self._steps.reader.kind, "labels": self._steps.verification.state_dict()}
        states = self._random_states if self._fit is None else self._fit.random.state_dict()
        return self._selector.state_dict() | own | ({} if states is None else {"random": states})

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store a checkpoint; it is restored when the dataset is known. Outside of a fit, show what it holds."""
        if self._only_evaluates:
            return  # Trainer.test(ckpt_path=...) restores all callbacks, but what was selected stays as it is
        if self._fit is None:
            self._selector.load_to_look_at(state_dict)
            self._random_states = state_dict.get("random")
            self.known_labels.see(DatasetLabels(self.labels, range(self.strategy.num_samples)))
            return
        self._steps.reader.kind = state_dict["kind"]
        self._steps.verification.load_state_dict(state_dict.get("labels", {}))  # not in checkpoints of 0.1.0
        self._fit.load(state_dict)

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
        """Update the strategy with all steps so far: several of them are buffered and passed to it together.

        Everything here does so by itself. Call it before you read :attr:`strategy` in the middle of an epoch.
        """
        self._selector.settle()

    @property
    def kept_ids(self) -> range:
        """Ids of the samples whose history this rank keeps: all, unless ``memory="sharded"``."""
        return self.strategy.shard.ids

    @property
    def correlation(self) -> Tensor | None:
        """C, (q, q), at the start of this epoch."""
        return self.strategy.measured.correlation

    @property
    def weights(self) -> Tensor | None:
        """Weights w (n,) in [0, 1] at the start of this epoch."""
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
        """Sample ids of this epoch's batches: ``plan[k]`` on this rank."""
        return self._selector.plan

    @property
    def trained_ids(self) -> Tensor:
        """Ids of the samples trained on in this epoch so far, with repeats, over all ranks."""
        return self._selector.trained_ids()

    @property
    def importance_weights(self) -> Tensor | None:
        """What each sample of the current batch on this rank must count to undo its P, (b,) float32.

        1/(nP) in selected epochs (or its annealed power), 1 in plain ones; None where no batch is trained on. For use
        by hand in ``training_step``, with ``unbiased=False``; exact with ``replacement="systematic"`` or ``"full"``.
        """
        return self._steps.importance_weights

    @property
    def times_drawn(self) -> Tensor | None:
        """How often each sample was trained on so far, (n,) int32, over all ranks, warm-up included.

        None before the first fit, and after a resume from a checkpoint of release 0.1.0, which does not say.
        """
        return None if self._selector.draws is None else self._selector.draws.times

    @property
    def last_epoch_drawn(self) -> Tensor | None:
        """The epoch in which each sample was last trained on, (n,) int32, -1 for never; None as ``times_drawn``."""
        return None if self._selector.draws is None else self._selector.draws.last_epoch

    def history(self) -> tuple[Tensor, Tensor]:
        """The predictions that are kept: values (n, T, q) float32, oldest first, and counts (n,).

        The last ``counts[i]`` of the T predictions of sample i are valid; pending steps are included. With
        ``memory="sharded"`` it has the rows of the samples :attr:`kept_ids`.

        Raises:
            SelectionError: Before the first prediction, or with a strategy that keeps no window of predictions.
        """
        return frame.history(self)

    def to_frame(self, rows: Literal["samples", "labels"] = "samples") -> DataFrame:
        """What is known of each training sample, or of each label, as a pandas frame.

        It works while the Trainer fits, afterwards, and after :meth:`load_state_dict`. Columns that the strategy does
        not have are there and hold NaN, so that the frames of all strategies have the same columns:

        * ``id``: position in the train dataset.
        * ``weight``, ``probability``: w and P at the start of this epoch.
        * ``times_drawn``, ``last_epoch_drawn``: how often and when last it was trained on, warm-up included.
        * ``mean_uncertainty``: ``selection.uncertainty``, the mean over the labels.
        * ``fluctuation``: how much the predictions in its history move from one to the next, the mean over the labels.
        * ``latest_loss``: binary cross-entropy of its latest prediction, the mean over the labels, if these are known.
        * ``labels``: names of its true labels (numbers where there are no names), joined by ``"; "``.

        With ``memory="sharded"``, what is measured from predictions is NaN for the samples of other ranks.

        ``to_frame("labels")`` tells which labels were drawn, one row per label, warm-up included:

        * ``label``: its name, or number.
        * ``samples``: training samples that have it.
        * ``times_drawn``: how often these were trained on, all together.
        * ``plain_times_drawn``: how often as many draws of plain passes would have drawn them.
        * ``ratio``: the one divided by the other; above 1 for labels that selection prefers.

        A strategy of your own may add columns (:meth:`Strategy.sample_columns`). To write files:
        ``selection.to_frame().to_csv("samples.csv", index=False)``, or with the extra ``parquet``
        ``selection.to_frame().to_parquet("samples.parquet")``.

        Args:
            rows: ``"samples"`` or ``"labels"``.

        Raises:
            SelectionError: Before the first fit, or where the labels are asked for and not known.
        """
        check_choice("rows", rows, ("samples", "labels"))
        return frame.to_frame(self) if rows == "samples" else frame.to_label_frame(self)

    def plot_data_map(self, label: str | int | None = None) -> Figure:
        """A scatter plot of the samples: mean uncertainty over fluctuation, colored by the times drawn.

        Args:
            label: Show only the samples that have this label, by its name or number.

        Raises:
            SelectionError: Before the first measurement, or with a strategy that has no window of predictions.
        """
        return frame.plot_data_map(self, label)

    def plot_correlation(self) -> Figure:
        """A heat map of the label correlation C at the start of this epoch, with the names of up to 24 labels."""
        return frame.plot_correlation(self)

    def plot_schedule(
        self,
        max_epochs: int | None = None,
        n: int | None = None,
        batch_size: int | None = None,
        weights: Any = None,
    ) -> Figure:
        """Pressure, effective sample size and distinct share of each epoch.

        After a fit, what is not given is that of the fit, and the weights are its last ones. Before it, weights are
        supposed to be spread evenly over [0, 1]; where most samples weigh little, P is more uneven late than shown.
        The distinct share is the expected one.

        Args:
            max_epochs: Number of epochs of the training.
            n: Number of training samples.
            batch_size: Samples per batch on all ranks together; 64 before a fit.
            weights: Weights w (n,) to suppose instead, such as ``selection.weights`` of an earlier training.
        """
        return outlook.plot_schedule(self, max_epochs, n, batch_size, weights)

    @property
    def last_fit(self) -> outlook.LastFit | None:
        """What the present or the previous fit reported of its length; None before it."""
        selector = self._selector
        if selector.layout is None or selector.max_epochs is None:
            return None
        layout = selector.layout
        return outlook.LastFit(selector.max_epochs, layout.num_samples, layout.global_batch_size, selector.schedule)

    def suspicious_labels(self, top: int | float = 100) -> DataFrame:
        """The (sample, label) pairs that the model contradicts most persistently: candidates for label errors.

        The score is the mean distance between the given label and the predictions in the history: of the last T
        training passes (``UBS``, ``RecencyBias``) or of all of them (``ActiveBias``). The frame has the columns ``id``,
        ``label``, ``given``, ``mean_prediction`` and ``score``, the highest score first.

        These predictions come from training passes: the model has learned the label that it is asked about, and with
        more epochs it learns the wrong ones as well. With 5 % of all labels flipped at random and an MLP after 30
        epochs, 46 % of the top 5 % were flipped on yeast and 77 % on enron (AUROC 0.90 and 0.98; by chance 5 % and
        0.5). On the same predictions the ranking is that of cleanlab's per-class self-confidence, by construction;
        predictions of held-out samples, at the price of five trainings, found fewer (39 % and 72 %). Random flips are
        easier to find than the mistakes of people.

        Args:
            top: How many pairs, as a number or as a share below 1 of all pairs.

        Raises:
            SelectionError: If the labels are not known, or the strategy keeps no history of predictions.
        """
        return frame.suspicious_labels(self, top)

    def see_dataset(self, labels: DatasetLabels, dataset: Any) -> None:
        """Take note of the train dataset and of what it shows of its labels; the session calls it."""
        self.known_labels.see(labels, getattr(self._session.trainer, "datamodule", None), dataset)
        self._steps.see_dataset(labels)

    def predict_all(self, epoch: int, loader: DataLoader[Any]) -> None:
        """Update the strategy with predictions of all samples, as ``refresh`` says; the session calls it."""
        self._steps.evaluate(epoch, loader)

    def _check_others(self, trainer: Trainer) -> None:
        """Two of these callbacks must have their own loader and their own strategy."""
        others = [one for one in callbacks_of(trainer) if isinstance(one, BatchSelection) and one is not self]
        if any(other.loader == self.loader for other in others):
            raise SelectionError("there are two BatchSelection callbacks for one loader; keep one of them.")
        if any(other.strategy is self.strategy for other in others):
            raise SelectionError(
                "two BatchSelection callbacks share one strategy object, which would mix what it learns of two "
                "loaders; give each a strategy of its own."
            )

    def _seed_beside_others(self, trainer: Trainer) -> int:
        """The seed of this fit: with several selections each has its own, so that their samples are not paired."""
        alone = sum(isinstance(one, BatchSelection) for one in callbacks_of(trainer)) < 2
        return self.seed if alone or self.loader is None else loader_seed(self.seed, self.loader)

    def _close(self) -> None:
        """Leave trainer, loader and module as they were found."""
        self._only_evaluates = False
        if self._fit is not None:
            self._random_states = self._fit.random.state_dict()
            self._fit.close()
            self._fit = None
        self._steps.end_fit()

    @property
    def _session(self) -> FitSession:
        return self._steps.session
