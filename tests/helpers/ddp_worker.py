"""One process of several multi-process trainings, one after the other. Run by test_distributed.py."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import shard_checks
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from resume_tools import PlanCheck, Recorder, make_data, make_loader, make_selection, make_trainer, weights_of
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from lightning_ubs import SelectionError, SelectionSampler

# Seconds after which a process says where it stands, and ends; the jobs of one test take a fifth of them.
LIMIT = 240
STATE = ("uncertainty", "correlation", "weights", "probabilities")


class StateDigest(L.Callback):
    """Keeps U, C, w and P of every epoch, as this process holds them."""

    def __init__(self, selection):
        self.selection = selection
        self.epochs = []

    def on_train_epoch_start(self, trainer, pl_module):
        values = {key: getattr(self.selection, key) for key in STATE}
        self.epochs.append({key: None if v is None else v.clone() for key, v in values.items()})


class Cut(L.Callback):
    """Saves a checkpoint in mid-epoch and ends the run there."""

    def __init__(self, epoch, batch, path):
        self.moment, self.path = (epoch, batch), path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == self.moment:
            trainer.save_checkpoint(self.path)
            raise InterruptedError("cut")


class Sharded(Recorder):
    """The same model with its weights divided among the processes."""

    def configure_model(self):
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


class ReadsTheLoader(L.Callback):
    """Reads a train batch in mid-epoch and after validation, on the processes that ``ranks`` names.

    In mid-epoch that is after every batch, or after batch ``at`` alone: in Python 3.11.7 a fork may hang where gloo has
    threads (python/cpython#112275; 3 of some 20,000 forks), so readers with workers should not start many.
    """

    def __init__(self, ranks, at):
        self.ranks, self.at, self.reads = ranks, at, 0

    def read(self, trainer):
        if trainer.global_rank in self.ranks and trainer.train_dataloader is not None:
            next(iter(trainer.train_dataloader))
            self.reads += 1

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.at in (None, batch_idx):
            self.read(trainer)

    def on_train_epoch_end(self, trainer, *_):
        self.read(trainer)


class SaveAtEpochEnd(L.Callback):
    def __init__(self, epoch, path):
        self.epoch, self.path = epoch, path

    def on_train_epoch_end(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


class Fetches(Recorder):
    """Fetches its batches itself."""

    def training_step(self, dataloader_iter):
        batch, *_ = next(dataloader_iter)
        return super().training_step(batch, self.trainer.fit_loop.epoch_loop.batch_idx)


class Nested(Recorder):
    """Trains on one of several loaders."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["b"], batch_idx)


class Both(Recorder):
    """Trains on two loaders, each with a selection of its own."""

    def training_step(self, batch, batch_idx):
        other = self(batch["a"][0])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(other, batch["a"][1])
        return {"loss": super().training_step(batch["b"], batch_idx) + loss, "other": other, "own": self(batch["b"][0])}


class Tunable(Recorder):
    def __init__(self):
        super().__init__()
        self.lr = 0.05


class Drops(Recorder):
    """Drops units; each rank by random numbers of its own."""

    def __init__(self):
        super().__init__()
        self.net.append(torch.nn.Dropout(0.3))

    def on_train_start(self):
        if self.current_epoch == 0:
            torch.manual_seed(100 + self.global_rank)


class Moves(Recorder):
    """One rank trains on its rows in another order, but for the first batches."""

    def training_step(self, batch, batch_idx):
        moves = self.global_rank == 1 and self.current_epoch == 1 and batch_idx > 0
        return super().training_step([part.flip(0) for part in batch] if moves else batch, batch_idx)


MODULES = {
    "moves": Moves,
    "drops": Drops,
    "sharded": Sharded,
    "fetches": Fetches,
    "nested": Nested,
    "both": Both,
    "tunable": Tunable,
}


def make_train(job: dict[str, Any], world: int) -> Any:
    """The train loader that ``job`` names."""
    data = make_data(job.get("samples", 52), torch.float64)
    rank, kind, size = int(os.environ.get("RANK", "0")), job.get("loader", "plain"), job["batch_size"]
    if kind == "shard":
        n = len(data) // world
        data = TensorDataset(*(part[rank * n : (rank + 1) * n] for part in data.tensors))
    if kind == "hidden":
        data = Hidden(data)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, batch_size=size, shuffle=True, num_workers=job.get("workers", 0))
    if kind == "distributed":
        return DataLoader(data, size, sampler=DistributedSampler(data, num_replicas=world, rank=rank))
    if kind == "other_rank":
        return DataLoader(data, size, sampler=DistributedSampler(data, num_replicas=world, rank=1 - rank))
    if kind == "given":
        return DataLoader(Hidden(data), size, sampler=SelectionSampler(data))
    if kind in ("queue", "hidden_rows", "other_rows"):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(int(kind == "other_rows"))).tolist()
        items = [data[i] for i in order]
        return make_loader(Queue(items) if kind == "queue" else Hidden(items), size)
    if kind == "flips":
        return make_loader(Flips(data), size)
    if kind == "sorted_on_one":
        return make_loader(Hidden(data), size, collate_fn=sorting_collate if rank == 1 else None)
    if kind == "sorted":
        return make_loader(data, size, collate_fn=sorting_collate)
    loader = make_loader(data, size, job.get("workers", 0))
    if kind == "two":
        return {"a": make_loader(make_data(52, torch.float64), size), "b": loader}
    return {"a": [make_loader(make_data(8), 4)], "b": loader} if kind == "nested" else loader


class Hidden(Dataset):
    """Shows neither labels nor features."""

    def __init__(self, items):
        self._items = items

    def __len__(self):
        return len(self._items)

    def __getitem__(self, i):
        return self._items[i]


class Queue(Hidden):
    """Its samples move on by one after half an epoch of each process, so that none is where it was."""

    asked = 0

    def __getitem__(self, i):
        self.asked += 1
        return self._items[(i + self.asked // (len(self) // 2)) % len(self)]


class Flips(Hidden):
    """Shows labels of which it changes some at each visit."""

    def __init__(self, items):
        super().__init__(items)
        self.targets = items.tensors[1]
        self._visits = [0] * len(items)

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        self._visits[i] += 1
        drawn = torch.Generator().manual_seed(1_000 * i + self._visits[i])  # whatever else draws random numbers
        return x, torch.where(torch.rand(len(y), generator=drawn) < 0.05, 1 - y, y)


def sorting_collate(items):
    return torch.utils.data.default_collate(sorted(items, key=lambda item: item[0][1].item()))


def run(job: dict[str, Any], world: int) -> None:
    """Train as ``job`` says, and write what this process saw."""
    if "check" in job:
        shard_checks.check(job)
        return
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    sharded = job.get("sharded", False)
    module = MODULES.get("sharded" if sharded else job.get("module"), Recorder)().double()
    selection = make_selection(job.get("name", "UBS"), job.get("strategy"), **job.get("selection", {}))
    digest = StateDigest(selection)
    checks = [] if job.get("without_check") else [PlanCheck(selection, job.get("key"))]
    callbacks = [] if job.get("without") else [selection, digest, *checks]
    callbacks += [Cut(*job["cut"], folder / "cut.ckpt")] if "cut" in job else []
    callbacks += [SaveAtEpochEnd(job["save_epoch"], folder / "end.ckpt")] if "save_epoch" in job else []
    if job.get("second"):
        callbacks.append(make_selection("RecencyBias", loader="a", outputs="other"))
    if job.get("finder"):
        callbacks.append(LearningRateFinder(num_training_steps=9, update_attr=False))
    reader = ReadsTheLoader(job.get("readers", []), job.get("read_at"))
    strategy = (
        ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo")
        if sharded
        else DDPStrategy(process_group_backend="gloo")
    )
    trainer = make_trainer(
        folder,
        [*callbacks, reader],
        devices=world,
        strategy=strategy if world > 1 else "auto",
        use_distributed_sampler=job.get("distributed_sampler", True),
        **{"max_epochs": 5} | job.get("trainer", {}),
    )
    failed = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, make_train(job, world), ckpt_path=job.get("resume"))
        except InterruptedError:
            return
        except SelectionError as error:
            failed = str(error)
    result = {
        "seen": module.seen,
        "epochs": digest.epochs,
        "weights": weights_of(module) if not sharded else torch.empty(0),
        "state": selection.state_dict(),
        "kept": list(selection.kept_ids),
        "warnings": [str(warning.message) for warning in caught],
        "failed": failed,
        "reads": reader.reads,
        "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
    }
    torch.save(result, folder / f"rank{int(os.environ.get('RANK', '0'))}.pt")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run(job, int(os.environ.get("WORLD_SIZE", "1")))
