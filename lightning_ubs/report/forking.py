"""One function over many items on all processors, where the system can fork; else one after the other."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 40

# What the children of a fork inherit: figures are made from closures, which cannot be sent to another process.
_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def map_in_order(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield ``function(item)`` for each item, in their order; few items stay in this process.

    >>> list(map_in_order(abs, [-1, 2]))
    [1, 2]
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if len(items) < _FEW or processors < 2 or not sys.platform.startswith("linux"):
        yield from map(function, items)
        return
    global _work
    _work = function, items
    try:
        with multiprocessing.get_context("fork").Pool(processors) as pool:
            yield from pool.imap(_do, range(len(items)), chunksize=4)
    finally:
        _work = None


def _do(index: int) -> Any:
    if _work is None:
        raise RuntimeError("there is no work in this process; it was not forked by map_in_order.")
    function, items = _work
    return function(items[index])
