"""What `memory="sharded"` takes per process: bytes kept, bytes on the wire, seconds of a refresh; and what follows.

Runs 1, 2 and 3 processes that talk over gloo. Seconds are processor time of one thread, so that other programs on the
machine do not enter, and neither does waiting for the network: bytes on the wire are counted instead.

    python -m benchmarks.sharded --samples 200000 --labels 80
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing

from benchmarks.measure import peak_bytes
from lightning_ubs import UBS
from lightning_ubs._utils.distributed import broadcast_from_rank_zero, gather_rows
from lightning_ubs.functional import draw_epoch, selection_probabilities
from lightning_ubs.functional.drawing import epoch_generator
from lightning_ubs.state import Shard
from lightning_ubs.strategies import TrainingSet, uncertainty

BATCH = 128  # per process


@dataclass(frozen=True)
class Measured:
    """Of one process; bytes are those that it receives.

    Attributes:
        state: bytes of remembered predictions.
        step_wire: bytes of a training step.
        refresh_wire: bytes of U → C → w → P.
        refresh: seconds of U → C → w of its own rows, where U is too large to be kept.
    """

    state: int
    step_wire: int
    refresh_wire: int
    refresh: float


@dataclass(frozen=True)
class Drawing:
    """What every process does for all samples, per sample.

    Attributes:
        probabilities: seconds of P.
        draw: seconds of the plan.
        peak: bytes that P and the plan take at most at a time, themselves among them.
    """

    probabilities: float
    draw: float
    peak: float


class Wire:
    """Counts the bytes that this process receives."""

    def __init__(self) -> None:
        self.received = 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count from here on."""
        world = dist.get_world_size()
        # A ring receives each sum once and each result once, but for its own share.
        shares: dict[str, Callable[..., float]] = {
            "all_gather": lambda parts, own: own.nbytes * (world - 1),
            "all_reduce": lambda values: 2 * values.nbytes * (world - 1) / world,
            "broadcast": lambda values, src: values.nbytes if world > 1 and dist.get_rank() != src else 0,
        }
        with patch.multiple(dist, **{name: partial(self._call, getattr(dist, name), shares[name]) for name in shares}):
            yield

    def _call(self, call: Callable[..., Any], share: Callable[..., float], *args: Any, **options: Any) -> Any:
        self.received += share(*args, **options)
        return call(*args, **options)


def measured_here(rank: int, world: int, options: argparse.Namespace, port: int, folder: str) -> None:
    """Measure as process ``rank`` of ``world``, and write the result."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    n, q = options.samples, options.labels
    strategy = UBS(window=options.window)
    strategy.reset(TrainingSet(n, history_dtype=getattr(torch, options.dtype)))
    strategy.shard = Shard(n, rank, world)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for ids in torch.split(torch.randperm(n, generator=generator), 8192):
            strategy.update(ids, torch.rand(len(ids), q, generator=generator))
    step, refresh, seconds = Wire(), Wire(), []
    with step.counting():
        gather_rows(torch.rand(BATCH, q), [BATCH] * world)
    for repeat in range(options.repeats):
        with refresh.counting(), patch.object(uncertainty, "SNAPSHOT_BYTES", 0):
            seconds.append(_seconds(strategy.measure))
            if repeat == 0:
                broadcast_from_rank_zero(strategy.probabilities(50.0), torch.device("cpu"))
                wire = int(refresh.received)
    memory: Any = strategy.memory
    found = Measured(memory.values.nbytes + memory.visits.nbytes, int(step.received), wire, min(seconds))
    Path(folder, f"{rank}.json").write_text(json.dumps(asdict(found)))
    dist.destroy_process_group()


def measured_drawing(n: int, repeats: int) -> Drawing:
    """Of P and the plan of ``n`` samples."""
    weights = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def probabilities() -> torch.Tensor:
        return selection_probabilities(weights, 50.0)

    def draw() -> torch.Tensor:
        return draw_epoch(probabilities(), 64 * BATCH, n, epoch_generator(0, 0), "batch")

    first, both = (min(_seconds(work) for _ in range(repeats)) for work in (probabilities, draw))
    return Drawing(first / n, (both - first) / n, peak_bytes(draw) / n)


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measured(world: int, options: argparse.Namespace) -> Measured:
    """Of the process that took most in each respect."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measured_here, (world, options, port, folder), nprocs=world)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return Measured(**{name: max(one[name] for one in found) for name in found[0]})


def extrapolated(
    base: Measured, drawing: Drawing, options: argparse.Namespace, n: int, q: int, world: int
) -> dict[str, float]:
    """What follows for n samples, q labels and ``world`` processes, everything but the counts being linear."""
    rows, cells = n / world, options.samples * options.labels
    k = UBS().bins - 1
    row_bytes = q * options.window * getattr(torch, options.dtype).itemsize + 8
    return {
        "rows kept per process, GB": rows * row_bytes / 1e9,
        "the same, replicated, GB": n * row_bytes / 1e9,
        "(n,) vectors (raw w, w, P, ids, counts of draws), GB": 5 * 8 * n / 1e9,
        "most while P and ids are made, GB": drawing.peak * n / 1e9,
        "received per step, MB": (world - 1) * BATCH * q * 4 / 1e6,
        "received per refresh (w, P), GB": 2 * 8 * n / 1e9,
        "received per refresh (counts), MB": 2 * (k * q) ** 2 * 8 / 1e6,
        "seconds of U, C, w": base.refresh * rows * q / cells,
        "seconds of P": drawing.probabilities * n,
        "seconds of drawing": drawing.draw * n,
    }


def main() -> None:
    """Print the table and the arithmetic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--labels", type=int, default=80)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--dtype", default="uint8", choices=["float32", "float16", "bfloat16", "uint8"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--draws", type=int, default=4_000_000, help="samples to draw an epoch of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {world: measured(world, options) for world in options.processes}
    for name in asdict(rows[options.processes[0]]):
        print(f"{name:>14}", *(f"{world} processes: {getattr(row, name):>12.6g}" for world, row in rows.items()))
    drawing = measured_drawing(options.draws, options.repeats)
    print(*(f"{name} per sample: {value:.4g}" for name, value in asdict(drawing).items()), sep=", ")
    print("\nn = 10^8, q = 80, 64 processes:")
    for name, value in extrapolated(rows[options.processes[0]], drawing, options, 10**8, 80, 64).items():
        print(f"{name:>55} {value:8.3g}")


if __name__ == "__main__":
    main()
