"""What the order of an epoch costs on data in chunks: the engine's own shuffle, a permutation of all samples, Blocks.

``python -m benchmarks.streams [--engines litdata streaming] [--samples 2000000] [--chunks 400] [--workers 2]
[--processes 2] [--folder FOLDER]`` writes the chunks, reads an epoch in each order with a cache of a tenth of them, and
prints, per order, chunks fetched into the cache, how often that is per chunk and epoch, and samples per second.
``--rounds R`` reads each order for ``--seconds`` instead, all in turn, R times, and prints rates over the engine's own
in the same round: by the clock, and by the processor time of all processes and workers.
``--plan N`` measures the plan of an epoch of N samples instead, without data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader

from lightning_ubs import Blocks
from lightning_ubs.selection.order import BlockOrder
from lightning_ubs.selection.plan import BatchLayout
from lightning_ubs.streams import IndexedDataset, indexed

ORDERS = ("own", "permutation", "blocks", "blocks per rank")
# So small that a tenth of the chunks is below 10 MiB: above, litdata's own reading with a shared cache came to a halt.
FEATURES, LABELS, BATCH = 8, 2, 256


def write(folder: Path, engine: str, samples: int, chunks: int) -> None:
    """Samples of 40 bytes, in chunks."""
    per_chunk = -(-samples // chunks)
    row = np.zeros(FEATURES + LABELS, dtype=np.float32)
    if engine == "litdata":
        from litdata.streaming.writer import BinaryWriter

        folder.mkdir(parents=True)
        writer = BinaryWriter(str(folder), chunk_size=per_chunk)
        for i in range(samples):
            row[0] = i
            writer[i] = {"x": row.copy()}
        writer.done()
        writer.merge(1)
        return
    from streaming import MDSWriter

    size = 300 + per_chunk * (4 * len(row) + 4)
    with MDSWriter(out=str(folder), columns={"x": f"ndarray:float32:{len(row)}"}, size_limit=size) as writer:
        for i in range(samples):
            row[0] = i
            writer.write({"x": row})


def open_dataset(source: Path, cache: Path, engine: str, own: bool, together: int) -> Any:
    """The engine's dataset with room for a tenth of the data, of which it shuffles ``together`` samples at a time."""
    size = sum(path.stat().st_size for path in source.iterdir())
    if engine == "litdata":
        from litdata import StreamingDataset
        from litdata.streaming.resolver import Dir

        cache.mkdir(exist_ok=True)
        place = Dir(path=str(cache), url=f"local:{source}")
        return StreamingDataset(place, max_cache_size=size // 10, shuffle=own, drop_last=own)
    import streaming

    limit = size // 10 + (source / "index.json").stat().st_size
    return streaming.StreamingDataset(
        remote=str(source),
        local=str(cache),
        cache_limit=limit,
        shuffle=own,
        shuffle_block_size=together,
        batch_size=BATCH,
    )


class Batches:
    """The batches of this rank, as a batch sampler."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return (batch.tolist() for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def loader_of(job: dict[str, Any], dataset: Any, rank: int) -> Any:
    """One epoch of this rank in the order that ``job`` names."""
    workers, world, order = job["workers"], job["world"], job["order"]
    if order == "own":
        if job["engine"] == "litdata":
            from litdata import StreamingDataLoader

            return StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers)
        return DataLoader(dataset, batch_size=BATCH, num_workers=workers)
    data: IndexedDataset = indexed(dataset)
    layout = BatchLayout(len(data), BATCH, world_size=world, rank=rank)
    bounds = [0, len(data)] if order == "permutation" else None
    blocks = Blocks(bounds=bounds, window=job["window"], per_rank=order == "blocks per rank")
    plan = BlockOrder(blocks, data).plan(0, 0, layout, None, False)
    return DataLoader(data, batch_sampler=Batches(plan), num_workers=workers)


def work(job: dict[str, Any]) -> None:
    """One process of one reading, until it is over or its seconds are."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    own = job["order"] == "own"
    dataset = open_dataset(Path(job["source"]), Path(job["cache"]), job["engine"], own, job["together"])
    loader = loader_of(job, dataset, rank)
    torch.distributed.barrier()
    started, count, before = time.perf_counter(), 0, used()
    for batch in loader:
        count += len(batch["x"])
        # Ranks go step by step together, as the gradients of a training make them.
        goes_on = torch.tensor(float(time.perf_counter() - started < job["seconds"]))
        torch.distributed.all_reduce(goes_on, torch.distributed.ReduceOp.MIN)
        if not goes_on:
            break
    seconds, processor = time.perf_counter() - started, used() - before
    print(json.dumps({"samples": count, "seconds": seconds, "processor": processor}), flush=True)
    os._exit(0)  # workers of a reading that is cut short need not be waited for


def used() -> float:
    """Processor seconds of this process and of its workers, living or dead."""
    own = psutil.Process()
    times = [own.cpu_times(), *(child.cpu_times() for child in own.children(recursive=True))]
    return float(sum(one.user + one.system for one in times) + times[0].children_user + times[0].children_system)


class Fetches:
    """Counts the chunks that appear in a folder, by looking at it again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.known, self.count = folder, dict[str, int](), 0

    def look(self) -> None:
        now = {}
        for entry in os.scandir(self.folder) if self.folder.exists() else ():
            if entry.name.endswith((".bin", ".mds")):
                now[entry.name] = entry.inode()
        self.count += sum(self.known.get(name) != inode for name, inode in now.items())
        self.known = now


def measure(source: Path, engine: str, order: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Fetched chunks and samples per second of all processes together; None where the engine failed."""
    cache = source.parent / f"cache-{order.replace(' ', '-')}"
    shutil.rmtree(cache, ignore_errors=True)
    job = {"source": str(source), "cache": str(cache), "engine": engine, "order": order, "world": options.processes}
    job |= {"workers": options.workers, "window": options.window}
    job["together"] = options.window * -(-options.samples // options.chunks)
    # A permutation opens so many chunks that an epoch of it would take hours; its rates show in a minute.
    job["seconds"] = options.seconds if order == "permutation" or options.rounds else math.inf
    world = str(options.processes)
    port = str(20000 + os.getpid() % 20000)
    common = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.streams", "--job", json.dumps(job)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(options.processes)
    ]
    fetches = Fetches(cache)
    while any(process.poll() is None for process in processes):
        fetches.look()
        time.sleep(0.02)
    outputs = [process.communicate()[0].splitlines() for process in processes]
    shutil.rmtree(cache, ignore_errors=True)
    if not all(outputs):
        return None
    results = [json.loads(lines[-1]) for lines in outputs]
    samples, seconds = sum(one["samples"] for one in results), max(one["seconds"] for one in results)
    processor = sum(one["processor"] for one in results)
    return {"samples": samples, "seconds": seconds, "processor": processor, "fetches": fetches.count}


def rates(source: Path, engine: str, options: argparse.Namespace) -> None:
    """Rates over those of the first order, in rounds of all orders in turn."""
    ratios: dict[str, list[tuple[float, float]]] = {order: [] for order in options.orders[1:]}
    for number in range(options.rounds):
        turn = options.orders if number % 2 else options.orders[::-1]
        seen = {order: measure(source, engine, order, options) for order in turn}
        peer = seen[options.orders[0]]
        for order, found in ratios.items():
            one = seen[order]
            if peer is not None and one is not None:
                share = one["samples"] / peer["samples"]
                by_clock, by_processor = (peer[unit] / one[unit] * share for unit in ("seconds", "processor"))
                found.append((by_clock, by_processor))
                print(f"{engine}, {order}: {by_clock:.2f} by the clock, {by_processor:.2f} by processor", flush=True)
    for order, found in ratios.items():
        clock, processor = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{engine}, {order} / {options.orders[0]}, {len(found)} rounds: {clock:.2f}, {processor:.2f}", flush=True)


def plan(samples: int) -> None:
    """Seconds and memory of the plan of an epoch, beside P."""

    def peak() -> float:
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024

    torch.set_num_threads(1)
    probabilities = torch.rand(samples, dtype=torch.float64)
    order = BlockOrder(Blocks(), range(samples))
    before, started = peak(), time.process_time()
    made = order.plan(0, 0, BatchLayout(samples, 1024), probabilities, False)
    ready = time.process_time() - started
    for k in range(len(made)):
        made[k]
    seconds = time.process_time() - started
    print(
        f"n = {samples:,}: {ready:.2f} s until the first batch, {seconds:.2f} s for the epoch (of one core), "
        f"{peak() - before:.1f} MB beside P"
    )


def main() -> None:
    """Write the chunks, read them in each order, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", nargs="+", default=["litdata", "streaming"])
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=0, help="compares rates in so many rounds")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="after which reading is cut short: a permutation, or in rounds"
    )
    parser.add_argument("--folder", type=Path, help="keeps the chunks for the next time")
    parser.add_argument("--plan", type=int)
    parser.add_argument("--job")
    options = parser.parse_args()
    if options.job:
        work(json.loads(options.job))
    if options.plan:
        plan(options.plan)
        return
    with tempfile.TemporaryDirectory() as temporary:
        for engine in options.engines:
            source = (options.folder or Path(temporary)) / engine / "source"
            if not source.exists():
                write(source, engine, options.samples, options.chunks)
            chunks = sum(path.suffix in (".bin", ".mds") for path in source.iterdir())
            print(f"{engine}: {options.samples:,} samples in {chunks} chunks", flush=True)
            if options.rounds:
                rates(source, engine, options)
                continue
            print(
                "| order | samples read | chunks fetched | fetched per chunk and epoch | samples/s |\n"
                "|---|---|---|---|---|"
            )
            for order in options.orders:
                seen = measure(source, engine, order, options)
                if seen is None:
                    print(f"| {order} | failed, see above | | | |", flush=True)
                    continue
                per_epoch = seen["fetches"] / chunks * options.samples / seen["samples"]
                rate = seen["samples"] / seen["seconds"]
                print(
                    f"| {order} | {seen['samples']:,} | {seen['fetches']} | {per_epoch:.2f} | {rate:,.0f} |", flush=True
                )


if __name__ == "__main__":
    main()
