"""What tests share: seeds, exact distributions of draws, and work and memory counted without a clock."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

# Seeds are fixed, so a right implementation never fails; a wrong one is off by far more than this.
IMPLAUSIBLE = 1e-4


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of the test's own."""
    return torch.Generator().manual_seed(seed)


def rows_of(drawn: torch.Tensor) -> list[tuple[int, ...]]:
    """A matrix of ids as hashable rows."""
    return [tuple(row) for row in drawn.tolist()]


def assert_distributed_as(outcomes: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> None:
    """Fail if so many outcomes cannot come from these chances; outcomes expected less than five times are pooled."""
    counts = Counter(outcomes)
    assert set(counts) <= {key for key, chance in expected.items() if chance > 0}
    common = [key for key, chance in expected.items() if chance * len(outcomes) >= 5]
    observed = [counts[key] for key in common]
    shares = [expected[key] * len(outcomes) for key in common]
    if (rest := len(outcomes) - sum(shares)) >= 5:
        observed, shares = [*observed, len(outcomes) - sum(observed)], [*shares, rest]
    shares_array = np.array(shares)
    assert stats.chisquare(observed, shares_array * sum(observed) / shares_array.sum()).pvalue > IMPLAUSIBLE


class _Work(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.cells = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        if not any(alias.alias_info and not alias.alias_info.is_write for alias in func._schema.returns):
            self.cells += sum(output.numel() for output in outputs if isinstance(output, torch.Tensor))
        return result


@contextmanager
def counted_work() -> Iterator[_Work]:
    """Count the numbers that tensor operations write, which is their cost without the noise of a clock."""
    with _Work() as work:
        yield work


@dataclass
class _Peak:
    bytes: int = 0


@contextmanager
def counted_memory() -> Iterator[_Peak]:
    """The most bytes taken at a time: from PyTorch's CPU allocator, and from Python's and NumPy's."""
    peak = _Peak()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        tracemalloc.start()
        yield peak
        other = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    changes = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]
    peak.bytes = other + max(itertools.accumulate(sizes, initial=0))
