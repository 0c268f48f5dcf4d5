"""Ratios, growth and bytes, each with its spread."""

from __future__ import annotations

import itertools
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One number of the table.

    Attributes:
        name: what was measured, against what.
        value: the median.
        low: lower quartile.
        high: upper quartile.
        bound: at most this, or None where the number only informs.
        limit: what keeps the number from being smaller.
        machines: by which share of the bound the number differs from one machine to another.
    """

    name: str
    value: float
    low: float
    high: float
    bound: float | None
    limit: str
    machines: float = 0.1

    @property
    def missed(self) -> bool:
        """Worse than the bound by more than the noise of one run: even the lower quartile is above it."""
        return self.is_above(0.0)

    def is_above(self, tolerance: float) -> bool:
        """Whether even the lower quartile is above the bound by this share of it, such as 0.1."""
        return self.bound is not None and self.low > self.bound * (1 + tolerance)


def ratio(name: str, work: Work, beside: Work, repeats: int, bound: float | None = None, limit: str = "") -> Row:
    """Seconds of ``work`` over those of ``beside``, run in turn so that a busy machine slows both."""
    work(), beside()
    ratios = []
    for repeat in range(repeats):
        pair = [work, beside]
        seconds = {id(one): _seconds(one) for one in (pair if repeat % 2 else reversed(pair))}
        ratios.append(seconds[id(work)] / seconds[id(beside)])
    return summary(name, ratios, bound, limit)


def growth(name: str, work_of: Callable[[int], Work], sizes: Sequence[int], repeats: int, bound: float | None) -> Row:
    """The exponent e of seconds ~ size^e, from the smallest to the largest size."""
    works = [work_of(size) for size in (sizes[0], sizes[-1])]
    for work in works:
        work()
    exponents = []
    for _ in range(repeats):
        small, large = (_seconds(work) for work in works)
        exponents.append(math.log(large / small) / math.log(sizes[-1] / sizes[0]))
    return summary(name, exponents, bound, f"{sizes[0]} to {sizes[-1]}")


def exact(name: str, value: float, bound: float | None, limit: str) -> Row:
    """A number that has no noise, such as bytes."""
    return Row(name, value, value, value, bound, limit, machines=0.0)


def peak_bytes(work: Work) -> int:
    """The most bytes that ``work`` took at a time: from PyTorch's CPU allocator, and from Python's and NumPy's."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        tracemalloc.start()
        work()
        other = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    changes = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]
    return other + int(max(itertools.accumulate(sizes, initial=0)))


def summary(name: str, values: Sequence[float], bound: float | None, limit: str) -> Row:
    """Median and quartiles of repeated measurements."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Row(name, middle, low, high, bound, limit)


def clock() -> float:
    """Seconds of processor time with one thread, which others on the machine do not add to; else of the clock."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def _seconds(work: Work) -> float:
    started = clock()
    work()
    return clock() - started
