"""Whole epochs, single steps and a grid: what selection costs beside the training itself."""

from __future__ import annotations

import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import Row, clock, ratio, summary
from lightning_ubs import (
    UBS,
    ActiveBias,
    Balance,
    BatchSelection,
    HardImbalance,
    InfoBatch,
    LossBias,
    Random,
    RecencyBias,
    compare,
)
from lightning_ubs.models import build_model
from lightning_ubs.strategies import TrainingSet

Callbacks = Callable[[], Sequence[L.Callback]]
BATCH = 128
_OTHERS = (Random, Balance, ActiveBias, RecencyBias, HardImbalance, LossBias, InfoBatch)


@dataclass(frozen=True)
class Shape:
    """The size of a training set."""

    samples: int
    features: int
    labels: int


ARTS = Shape(5987, 2314, 25)
YEAST = Shape(1934, 103, 14)


class Rows(Dataset):
    """Whole batches by index, so that loading does not hide what selection costs."""

    def __init__(self, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)
        self.features = (torch.rand(shape.samples, shape.features, generator=generator) < 0.03).float()
        self.labels = (torch.rand(shape.samples, shape.labels, generator=generator) < 0.07).float()

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]

    def __getitems__(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        return self.features[ids], self.labels[ids]


class EpochClock(L.Callback):
    """Seconds of each epoch, from last batch to last batch, of its steps, and what selection says it took of them."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.steps: list[float] = []
        self.selection: list[float] = []
        self._before = 0.0

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        if "selection/seconds" in trainer.callback_metrics:
            self.selection.append(float(trainer.callback_metrics["selection/seconds"]))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        now = clock()
        if batch_idx > 0:
            self.steps.append(now - self._before)
        self._before = now
        if batch_idx == trainer.num_training_batches - 1:
            self.ends.append(now)


def epoch_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """An epoch with UBS against plain Lightning, and half an epoch against a whole one."""
    arts, yeast = Rows(ARTS), Rows(YEAST)
    fixed = "one refresh, one draw and the log per epoch; one copy of the predictions per step"
    for name, data, bound in (("yahoo-Arts' shape", arts, 1.06), ("yeast's size", yeast, 1.15)):
        row = _epochs(f"UBS epoch / plain, MLP, {name}", "mlp", data, _with(UBS), _plain, repeats, bound, fixed)
        # The second bound is missed since predictions are proven in each epoch: 1.22. The short form guards against
        # more than that.
        yield replace(row, machines=0.25) if data is yeast else row
    if quick:
        return
    rounds = max(repeats, 9)
    yield _epochs("UBS epoch / plain, CLIF, yahoo-Arts' shape", "clif", arts, _with(UBS), _plain, rounds, None, fixed)
    yield _own_share("1 + UBS's own clock / epoch, CLIF", UBS, "clif", arts, rounds, 1.02, fixed)
    yield _epochs(
        "half an epoch / a whole one, UBS, CLIF",
        "clif",
        arts,
        lambda: [BatchSelection(UBS(), warmup_epochs=1, epoch_size=0.5)],
        _with(UBS),
        repeats,
        0.55,
        "half the steps; the refresh stays",
    )


def strategy_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """An epoch with each other strategy against plain Lightning; with CLIF, where noise is larger, by its own clock."""
    arts, yeast, fixed = Rows(ARTS), Rows(YEAST), "what the strategy remembers and draws"
    for kind in _OTHERS[:1] if quick else _OTHERS:
        name = kind.__name__
        yield _epochs(
            f"{name} epoch / plain, MLP, yahoo-Arts' shape", "mlp", arts, _with(kind), _plain, repeats, None, fixed
        )
        if quick:
            return
        yield _epochs(
            f"{name} epoch / plain, MLP, yeast's size", "mlp", yeast, _with(kind), _plain, repeats, None, fixed
        )
        yield _own_share(f"1 + {name}'s own clock / epoch, CLIF", kind, "clif", arts, repeats, None, fixed)


def step_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """A step against one with an empty callback; its update of the memory against a list per sample and label.

    Such lists are what the released code keeps.
    """
    yield _epochs(
        "step with UBS / with an empty callback, MLP, yeast's size",
        "mlp",
        Rows(YEAST),
        _with(UBS),
        lambda: [L.Callback()],
        repeats,
        None,
        "one copy of the predictions",
        of="step",
    )
    batches = 20 if quick else 100
    for labels in (14, 159):
        yield ratio(
            f"update / lists in Python, b 128, q {labels}",
            _updates(labels, batches),
            _appends(labels, batches),
            repeats,
            None,
            "one indexed write",
        )


def grid_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """Seconds of a grid on one process per core against the seconds that its runs report, shared among the cores."""
    shares = []
    jobs, seeds = 2, 4 if quick else 12
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            done = compare(
                module=lambda: build_model("mlp", YEAST.features, YEAST.labels),
                data=_loaders,
                selections={"UBS": UBS()},
                seeds=seeds,
                trainer={"max_epochs": 10},
                monitor="val_macro_auc",
                results=folder,
                jobs=jobs,
            )
            wall = time.perf_counter() - started
        shares.append(wall / (sum(record.seconds for record in done.records) / jobs))
    yield summary(
        f"grid of {2 * seeds} runs / its runs' own seconds, {jobs} processes", shares, None, "starting the processes"
    )


def _epochs(
    name: str,
    model: str,
    data: Rows,
    ours: Callbacks,
    theirs: Callbacks,
    repeats: int,
    bound: float | None,
    limit: str,
    of: Literal["epoch", "step"] = "epoch",
) -> Row:
    """The fastest selected epoch, or median step, of one training over that of another, the two trainings in turn."""
    ratios = []
    for repeat in range(repeats):
        pair = [ours, theirs]
        seconds = {id(one): getattr(_train(model, data, one), of) for one in (pair if repeat % 2 else reversed(pair))}
        ratios.append(seconds[id(ours)] / seconds[id(theirs)])
    return summary(name, ratios, bound, limit)


def _own_share(
    name: str, kind: Callable[[], object], model: str, data: Rows, repeats: int, bound: float | None, limit: str
) -> Row:
    shares = []
    for _ in range(repeats):
        trained = _train(model, data, _with(kind))
        shares.append(1 + trained.selection / trained.epoch)
    return summary(name, shares, bound, limit)


@dataclass(frozen=True)
class _Trained:
    epoch: float
    step: float
    selection: float


def _train(model: str, data: Rows, callbacks: Callbacks) -> _Trained:
    """The fastest selected epoch, the one that nothing disturbed; more epochs where they are short, as noise is not."""
    count = 3 if model == "clif" else 40_000 // len(data)
    L.seed_everything(0, verbose=False)
    timed = EpochClock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = L.Trainer(
            max_epochs=count + 2,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[*callbacks(), timed],
        )
        features, labels = data.features.shape[1], data.labels.shape[1]
        trainer.fit(build_model(model, features, labels), DataLoader(data, BATCH, shuffle=True, collate_fn=_as_it_is))
    epochs = [after - before for before, after in itertools.pairwise(timed.ends)]
    selection = min(timed.selection[1:]) if timed.selection else 0.0
    return _Trained(min(epochs[1:]), statistics.median(timed.steps), selection)


def _plain() -> Sequence[L.Callback]:
    return []


def _with(kind: Callable[[], object]) -> Callbacks:
    return lambda: [BatchSelection(kind(), warmup_epochs=1)]  # type: ignore[arg-type]


def _batches(labels: int, count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randperm(10_000, generator=generator)[:BATCH], torch.rand(BATCH, labels, generator=generator))
        for _ in range(count)
    ]


def _updates(labels: int, count: int) -> Callable[[], None]:
    strategy, batches = UBS(), _batches(labels, count)
    strategy.reset(TrainingSet(10_000))

    def work() -> None:
        for ids, predictions in batches:
            strategy.update(ids, predictions)

    return work


def _appends(labels: int, count: int) -> Callable[[], None]:
    batches = _batches(labels, count)

    def work() -> None:
        kept: dict[tuple[int, int], list[float]] = defaultdict(list)
        for ids, predictions in batches:
            for row, sample in enumerate(ids):
                for label in range(labels):
                    kept[int(sample), label].append(predictions[row, label].item())

    return work


def _loaders(seed: int) -> dict[str, DataLoader]:
    data = Rows(YEAST)
    stages = ("train", "val", "test")
    return {stage: DataLoader(data, BATCH, shuffle=stage == "train", collate_fn=_as_it_is) for stage in stages}


def _as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch
