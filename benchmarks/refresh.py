"""How long an epoch's refresh takes for large data: U, C, w, P and the plan, on random predictions.

python benchmarks/refresh.py --samples 1000000 --labels 80
"""

from __future__ import annotations

import argparse
import time

import torch

from lightning_ubs import UBS
from lightning_ubs.functional import draw_plan
from lightning_ubs.sampling import epoch_generator


def main() -> None:
    """Fill the history, refresh once, and print seconds and bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--labels", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    args = parser.parse_args()
    strategy = UBS()
    strategy.history_dtype = getattr(torch, args.dtype)
    strategy.reset(args.samples)
    for visit in range(2):
        for ids in torch.split(torch.randperm(args.samples), 100_000):
            strategy.update(ids, torch.rand(len(ids), args.labels))
        print(f"visit {visit + 1} of every sample is stored", flush=True)
    started = time.perf_counter()
    strategy.measure()
    probabilities = strategy.probabilities(pressure=50.0)
    measured = time.perf_counter()
    batches = -(-args.samples // args.batch_size)
    draw_plan(probabilities, args.batch_size, batches, epoch_generator(0, 0))
    drawn = time.perf_counter()
    memory, _ = strategy.footprint(args.labels)
    print(
        f"n {args.samples}, q {args.labels}, {args.dtype}, {torch.get_num_threads()} threads: U → C → w → P "
        f"{measured - started:.1f} s, plan {drawn - measured:.1f} s, {memory / 1e6:.0f} MB kept"
    )


if __name__ == "__main__":
    main()
