"""One process of several multi-process trainings, one after the other. Run by test_distributed.py."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from resume_tools import Recorder, make_data, make_loader, make_selection, make_trainer, weights_of
from torch.distributed.fsdp import fully_shard

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


def run(job: dict[str, Any], world: int) -> None:
    """Train as ``job`` says, and write what this process saw."""
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    module = (Sharded if job.get("sharded") else Recorder)().double()
    selection = make_selection(job.get("name", "UBS"))
    digest = StateDigest(selection)
    cut = [Cut(*job["cut"], folder / "cut.ckpt")] if "cut" in job else []
    sharded = job.get("sharded", False)
    strategy = (
        ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, process_group_backend="gloo")
        if sharded
        else DDPStrategy(process_group_backend="gloo")
    )
    trainer = make_trainer(
        folder,
        [selection, digest, *cut],
        max_epochs=job.get("max_epochs", 5),
        devices=world,
        strategy=strategy if world > 1 else "auto",
        use_distributed_sampler=job.get("distributed_sampler", True),
    )
    data = make_data(job.get("samples", 52), torch.float64)
    loader = make_loader(data, job["batch_size"], job.get("workers", 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, loader, ckpt_path=job.get("resume"))
        except InterruptedError:
            return
    result = {
        "seen": module.seen,
        "epochs": digest.epochs,
        "weights": weights_of(module) if not sharded else torch.empty(0),
        "state": selection.state_dict(),
        "warnings": [str(warning.message) for warning in caught],
    }
    torch.save(result, folder / f"rank{trainer.global_rank}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        run(job, int(os.environ.get("WORLD_SIZE", "1")))
