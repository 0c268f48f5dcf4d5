"""Data in chunks on disk, and a training on them in a process of its own. Run by test_streams.py."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_ubs import UBS, BatchSelection, Blocks
from lightning_ubs.streams import indexed

N, CHUNK, FEATURES, LABELS = 400, 20, 7, 3


def sample(i: int) -> tuple[np.ndarray, np.ndarray]:
    """Feature 0 is the sample's own index."""
    generator = np.random.default_rng(i)
    x = generator.normal(size=FEATURES).astype(np.float32)
    y = (x[1 : LABELS + 1] + generator.normal(size=LABELS) > 0.3).astype(np.float32)
    x[0] = i
    return x, y


def write(folder: Path, engine: str, n: int = N, chunk: int = CHUNK) -> None:
    """The samples as chunks of litdata, or shards of mosaicml-streaming, or rows of a file."""
    folder.mkdir(parents=True)
    if engine == "memmap":
        np.save(folder / "rows.npy", np.stack([np.concatenate(sample(i)) for i in range(n)]))
        return
    if engine == "litdata":
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder), chunk_size=chunk)
        for i in range(n):
            x, y = sample(i)
            writer[i] = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
        writer.done()
        writer.merge(1)
        return
    from streaming import MDSWriter

    columns = {"x": f"ndarray:float32:{FEATURES}", "y": f"ndarray:float32:{LABELS}"}
    row = 4 * (FEATURES + LABELS) + 4
    with MDSWriter(out=str(folder), columns=columns, size_limit=200 + chunk * row) as writer:
        for i in range(n):
            x, y = sample(i)
            writer.write({"x": x, "y": y})


class Rows(Dataset[dict[str, Tensor]]):
    """Samples by index from a file that is mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.rows = np.load(path, mmap_mode="r")
        self.block_bounds = [*range(0, len(self.rows), CHUNK), len(self.rows)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = torch.from_numpy(self.rows[index].copy())
        return {"x": row[:FEATURES], "y": row[FEATURES:]}


def read(source: Path, cache: Path, engine: str, limit: int | None) -> Any:
    """The dataset by index, with a cache of ``limit`` bytes."""
    if engine == "memmap":
        return Rows(source / "rows.npy")
    if engine == "litdata":
        from litdata import StreamingDataset
        from litdata.streaming.resolver import Dir

        cache.mkdir(exist_ok=True)
        return indexed(StreamingDataset(Dir(path=str(cache), url=f"local:{source}"), max_cache_size=limit))
    import streaming

    return indexed(streaming.StreamingDataset(remote=str(source), local=str(cache), cache_limit=limit))


class Module(L.LightningModule):
    def __init__(self, log: Path | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(FEATURES - 1, LABELS)
        self.log_file, self.seconds = log, seconds
        self.seen: dict[tuple[int, int], list[int]] = {}

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        ids = batch["x"][:, 0].long().tolist()
        self.seen[self.current_epoch, batch_idx] = ids
        if self.log_file:
            with self.log_file.open("a") as file:
                file.write(json.dumps([self.current_epoch, batch_idx, ids]) + "\n")
        time.sleep(self.seconds)
        return torch.nn.functional.binary_cross_entropy_with_logits(self.net(batch["x"][:, 1:]), batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def train(dataset: Dataset[Any], folder: Path, **job: Any) -> Module:
    """A few epochs of UBS in block order."""
    order = Blocks(window=job.get("window", 3), per_rank=job.get("per_rank", False))
    selection = BatchSelection(UBS(), warmup_epochs=1, order=order)
    steps = ModelCheckpoint(folder, filename="last", every_n_train_steps=5, enable_version_counter=False)
    module = Module(job.get("log"), job.get("seconds", 0.0))
    trainer = L.Trainer(
        max_epochs=job.get("epochs", 3),
        accelerator="cpu",
        devices=job.get("world", 1),
        strategy="ddp" if job.get("world", 1) > 1 else "auto",
        callbacks=[selection, steps],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    loader = DataLoader(dataset, batch_size=job.get("batch", 16), num_workers=job.get("workers", 2))
    trainer.fit(module, loader, ckpt_path=job.get("ckpt"))
    return module


if __name__ == "__main__":
    torch.set_num_threads(1)
    job = json.loads(sys.argv[1])
    folder, rank = Path(job["folder"]), os.environ.get("RANK", "0")
    job["log"] = folder / f"seen{rank}.jsonl"
    dataset = read(Path(job["source"]), folder / "cache", job["engine"], job["limit"])
    module = train(dataset, folder, **{name: job[name] for name in job if name != "folder"})
    torch.save(module.net.state_dict(), folder / f"weights{rank}.pt")
