"""What others do instead, side by side in one run: an epoch's order, an epoch of training, a resume in mid-epoch."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler, WeightedRandomSampler

from benchmarks.epochs import ARTS, BATCH, Rows
from benchmarks.measure import Row, clock, ratio, summary
from lightning_ubs import UBS, BatchSelection, Blocks, InfoBatch, SelectionSampler
from lightning_ubs.functional import draw_epoch
from lightning_ubs.functional.drawing import Replacement, epoch_generator
from lightning_ubs.selection.order import BlockOrder
from lightning_ubs.selection.plan import BatchLayout, EpochPlan

WAYS: tuple[Replacement, ...] = ("systematic", "batch", "full", "none")
# From here on ours is never slower than WeightedRandomSampler.
LARGE = 1_000_000
# Of a step's samples, what SelectiveBackprop keeps by default.
KEPT = 0.5


def peer_rows(repeats: int, quick: bool) -> Iterator[Row]:
    """Orders, trainings and resumes, each against what is used instead."""
    for n in (100_000, LARGE) if quick else (100_000, LARGE, 10 * LARGE):
        yield from _orders(n, repeats)
    if not quick:
        yield from _trainings(repeats)
    yield _resume(repeats)


def _orders(n: int, repeats: int) -> Iterator[Row]:
    """Making and reading the order of an epoch, as a loader does, over the same with ``WeightedRandomSampler``."""
    weights = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = range(n)
    orders: dict[str, Callable[[], Sampler[int]]] = {
        "WeightedRandomSampler": lambda: WeightedRandomSampler(weights, n),
        "RandomSampler": lambda: RandomSampler(samples),
        "DistributedSampler, one of one process": lambda: DistributedSampler(samples, 1, 0),  # type: ignore[arg-type]
    }
    orders |= {f"ours, {way}": partial(_drawn, weights, way) for way in WAYS}
    orders["ours, Blocks"] = lambda: _blocked(weights)
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    for repeat in range(repeats + 1):
        names = list(orders) if repeat % 2 else list(reversed(orders))
        for name in names:
            started = clock()
            deque(orders[name](), maxlen=0)
            if repeat > 0:  # the first round only warms up
                seconds[name].append(clock() - started)
    peer = seconds.pop("WeightedRandomSampler")
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, peer, strict=True)]
        bound = 1.0 if name.startswith("ours") and n >= LARGE else None
        yield summary(f"order of an epoch / WeightedRandomSampler's, n = {n:,}, {name}", ratios, bound, "the draw")


def _drawn(weights: Tensor, way: Replacement) -> Sampler[int]:
    n = len(weights)
    ids = draw_epoch(weights, BATCH, n, epoch_generator(0, 0), way)
    return _following(EpochPlan(0, ids, BatchLayout(n, BATCH)))


def _blocked(weights: Tensor) -> Sampler[int]:
    n = len(weights)
    return _following(BlockOrder(Blocks(), range(n)).plan(0, 0, BatchLayout(n, BATCH), weights, False))


def _following(plan: EpochPlan, first: int = 0) -> Sampler[int]:
    sampler = SelectionSampler(range(plan.layout.num_samples))
    sampler.follow_once(plan, first)
    sampler.bind(lambda: (plan, first), plan.layout)
    return sampler


class Net(L.LightningModule):
    """Two layers, as a user writes them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(ARTS.features, 256), nn.ReLU(), nn.Linear(256, ARTS.labels))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self.layers(batch[0]), batch[1])

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """One per sample."""
        return nn.functional.binary_cross_entropy_with_logits(self.layers(x), y, reduction="none").mean(1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Pruned(Dataset[Any]):
    """InfoBatch's rule as its authors' package has it: a wrapped dataset, its sampler, and a loss that updates it."""

    def __init__(self, data: Rows, prune: float = 0.5) -> None:
        self.data, self.prune = data, prune
        self.scores = torch.ones(len(data))
        self.weights = torch.ones(len(data))

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, ids: list[int]) -> Any:
        return torch.tensor(ids), self.data.__getitems__(ids)

    def __iter__(self) -> Iterator[int]:
        """The ids of the next epoch: samples above the mean loss, and a part of the others, which count more."""
        easy = self.scores < self.scores.mean()
        below = easy.nonzero().flatten()
        kept = below[torch.randperm(len(below))[: int((1 - self.prune) * len(below))]]
        self.weights = torch.ones(len(self)).index_fill_(0, kept, 1 / (1 - self.prune))
        ids = torch.cat([(~easy).nonzero().flatten(), kept])
        return iter(ids[torch.randperm(len(ids))].tolist())

    def update(self, ids: Tensor, losses: Tensor) -> Tensor:
        """Remember the losses, and weigh them."""
        self.scores[ids] = losses.detach()
        return (losses * self.weights[ids]).mean()


class ByHand(Net):
    """Trained with InfoBatch as its package asks for: a loss without reduction, given to the dataset."""

    def __init__(self, pruned: Pruned) -> None:
        super().__init__()
        self.pruned = pruned

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, (x, y) = batch
        return self.pruned.update(ids, self.losses(x, y))


class SelectiveBackprop(Net):
    """A forward pass of the whole batch first, to find the samples that are then trained on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        with torch.no_grad():
            losses = self.losses(x, y)
        rank = losses.argsort().argsort().double() / len(losses)
        kept = torch.multinomial(rank + 1e-9, max(1, int(KEPT * len(losses))))
        return self.losses(x[kept], y[kept]).mean()


def _trainings(repeats: int) -> Iterator[Row]:
    """The fastest epoch of each way to choose samples, over that of plain training with the same net."""
    data = Rows(ARTS)

    def shuffled() -> DataLoader[Any]:
        return DataLoader(data, BATCH, shuffle=True, collate_fn=_whole)

    def by_hand() -> float:
        pruned = Pruned(data)
        loader = DataLoader(pruned, BATCH, sampler=pruned, collate_fn=_whole)  # type: ignore[arg-type]
        return _trained(lambda: ByHand(pruned), [], loader)

    ways: dict[str, Callable[[], float]] = {
        "InfoBatch's rule by hand": by_hand,
        "InfoBatch(original=True)": lambda: _trained(
            Net, [BatchSelection(InfoBatch(original=True), warmup_epochs=1)], shuffled()
        ),
        "an extra forward pass, SelectiveBackprop": lambda: _trained(SelectiveBackprop, [], shuffled()),
        "UBS": lambda: _trained(Net, [BatchSelection(UBS(), warmup_epochs=1)], shuffled()),
    }
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        peer = _trained(Net, [], shuffled())
        for name, way in ways.items():
            ratios[name].append(way() / peer)
    for name, found in ratios.items():
        yield summary(f"epoch / plain, two layers, yahoo-Arts' shape, {name}", found, None, "samples trained on")


def _trained(module: Callable[[], Net], callbacks: Sequence[L.Callback], loader: Any) -> float:
    """Seconds of the fastest epoch but the first two, and but the last two, which InfoBatch leaves whole."""
    timed = EpochEnds()
    L.seed_everything(0, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("lightning.pytorch", "lightning_ubs"):
            logging.getLogger(name).setLevel(logging.ERROR)
        trainer = L.Trainer(
            max_epochs=9,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[*callbacks, timed],
        )
        trainer.fit(module(), loader)
    return min(after - before for before, after in itertools.pairwise(timed.ends[1:-2]))


class EpochEnds(L.Callback):
    """When each epoch ended, however many batches it had."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ends.append(clock())


def _resume(repeats: int) -> Row:
    """The first batch after a resume in mid-epoch, its order drawn, over reading and dropping the batches before it."""
    data = Rows(replace(ARTS, samples=10 * ARTS.samples, features=ARTS.features // 10))
    n = len(data)
    weights = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    middle = n // BATCH // 2

    def ours() -> object:
        ids = draw_epoch(weights, BATCH, n, epoch_generator(0, 0), "systematic")
        sampler = _following(EpochPlan(0, ids, BatchLayout(n, BATCH)), middle)
        return next(iter(DataLoader(data, BATCH, sampler=sampler, collate_fn=_whole)))

    def skipping() -> object:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(data, BATCH, shuffle=True, generator=generator, collate_fn=_whole)
        return next(itertools.islice(loader, middle, None))

    name = f"first batch after a resume in the middle of {n:,} samples / skipping the batches before it"
    return ratio(name, ours, skipping, repeats, 1.0, "the draw")


def _whole(batch: Any) -> Any:
    return batch
