"""Measure everything and print the table: ``python -m benchmarks [--quick] [--only PART]``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.epochs import epoch_rows, grid_rows, step_rows, strategy_rows
from benchmarks.importing import import_rows
from benchmarks.kernels import correlation_rows, drawing_rows, growth_rows, refresh_rows
from benchmarks.measure import Row
from benchmarks.peers import peer_rows
from benchmarks.proof import proof_rows

PARTS = {
    "epoch": epoch_rows,
    "strategies": strategy_rows,
    "step": step_rows,
    "proof": proof_rows,
    "correlation": correlation_rows,
    "refresh": refresh_rows,
    "drawing": drawing_rows,
    "growth": growth_rows,
    "grid": grid_rows,
    "import": import_rows,
    "peers": peer_rows,
}


def main() -> int:
    """Print and write each number as it is measured, and fail if one is worse than its bound twice in a row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What selection costs, as ratios.")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for every change; five to ten minutes")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part instead of all")
    parser.add_argument("--repeats", type=int, default=5, help="alternating repeats of each ratio, at least 5")
    parser.add_argument("--threads", type=int, default=1, help="1 counts processor time, more the clock's")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/last.json"), help="where to write the numbers")
    args = parser.parse_args()
    if args.repeats < 5:
        parser.error(f"--repeats {args.repeats} is too few to tell noise from cost; use at least 5.")
    torch.set_num_threads(args.threads)
    print("| what | median | quartiles | at most | limited by |\n|---|---|---|---|---|", flush=True)
    rows: list[Row] = []
    for part in [args.only] if args.only else PARTS:
        found = list(_shown(PARTS[part](args.repeats, args.quick)))
        if any(_is_too_high(row, args.quick) for row in found):
            print(f"measuring {part} again, because noise comes in bursts:", flush=True)
            again = _shown(PARTS[part](args.repeats, args.quick))
            found = [min(pair, key=_excess) for pair in zip(found, again, strict=True)]
        rows += found
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    args.json.write_text(json.dumps({"quick": args.quick, **machine, "rows": [asdict(row) for row in rows]}, indent=1))
    slow = [row.name for row in rows if _is_too_high(row, args.quick)]
    if slow:
        print(f"worse than the bound by more than the noise: {'; '.join(slow)}.", file=sys.stderr)
    return 1 if slow else 0


def _shown(rows: Iterable[Row]) -> Iterator[Row]:
    """Each number, printed as it is measured."""
    for row in rows:
        print(_line(row), flush=True)
        yield row


def _is_too_high(row: Row, quick: bool) -> bool:
    """Whether the command fails for it; the short form, which runs on any machine, not for what machines differ by."""
    return row.is_above(row.machines if quick else 0.0)


def _excess(row: Row) -> float:
    """How far a number is above its bound."""
    return 0.0 if row.bound is None else row.low / row.bound


def _line(row: Row) -> str:
    bound = "" if row.bound is None else f"{row.bound:g}" + (" **missed**" if row.missed else "")
    return f"| {row.name} | {row.value:.3g} | {row.low:.3g} – {row.high:.3g} | {bound} | {row.limit} |"


if __name__ == "__main__":
    sys.exit(main())
