"""A few items asked of the dataset itself, before any collate function: what their labels are.

A process of its own asks them, forked for the purpose, so that no random state, counter or open file of the training
moves. Whatever goes wrong there (a dataset that cannot be read in a worker, an item that raises or takes too long)
means that nothing was asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_ubs.reading.signatures import OTHER, distance, hold_classes, signatures
from lightning_ubs.reading.targets import LABEL_NAMES, shown_attributes

log = logging.getLogger(__name__)

Path = tuple[str | int, ...]

# Seconds for all items together.
_SECONDS = 20.0
# Bits that must differ between other samples, so that a few items tell something.
_TELLING = 5
# Labels as different as this, where so many bits could differ, are no noisy ones of the same samples.
_CLEARLY, _CLEARLY_TELLING = 0.75, 20
# Numbers of a part of an item that may be its labels; an image has more.
_SMALL = 2**14
_DEPTH, _PARTS = 4, 64
# Threads of an ended collective leave meanwhile; see selection/loader.py.
_REST = 0.01


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The parts of a batch or an item that hold numbers, with the way to each.

    >>> [path for path, _ in leaves({"x": torch.zeros(2), "more": (1, "text", [0, 1])})]
    [('x',), ('more', 0), ('more', 2)]
    """
    if isinstance(value, Tensor | np.ndarray | np.generic | int | float) or hasattr(type(value), "toarray"):
        yield path, value
        return
    if len(path) >= _DEPTH or isinstance(value, str | bytes):
        return
    if isinstance(value, Mapping):
        inner: list[tuple[str | int, Any]] = [(key, value[key]) for key in value if isinstance(key, str | int)]
    elif isinstance(value, list | tuple):
        if value and all(isinstance(one, int | float | np.number | np.bool_) for one in value):
            yield path, value
            return
        inner = list(enumerate(value))
    elif dataclasses.is_dataclass(value):
        inner = list(vars(value).items())
    else:
        inner = list(shown_attributes(value, LABEL_NAMES).items())
    for key, part in inner[:_PARTS]:
        yield from leaves(part, (*path, key))


def part_at(value: Any, path: Path) -> Any:
    """The part of a batch at the end of this way; None where the way leads nowhere."""
    for key in path:
        try:
            value = getattr(value, str(key)) if not isinstance(value, Mapping | list | tuple) else value[key]  # type: ignore[index]
        except (AttributeError, IndexError, KeyError):
            return None
    return value


def ask(dataset: Any, ids: Sequence[int]) -> list[dict[Path, np.ndarray]]:
    """The small numeric parts of the items of some samples; fewer than asked for where time is up or one raises."""
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return []
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        time.sleep(_REST)
    items: list[dict[Path, np.ndarray]] = []
    context = multiprocessing.get_context("fork")
    answers, end = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(dataset, list(ids), end), daemon=True)
    until = time.monotonic() + _SECONDS
    with _open_files_kept():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of forking beside threads; the child runs none of them
                process.start()
            end.close()
            while len(items) < len(ids) and answers.poll(max(0.0, until - time.monotonic())):
                items.append(answers.recv())
        except (AssertionError, EOFError, OSError) as error:  # no process may be started here, or it has ended
            log.debug("Items beyond %d could not be asked of the dataset: %s", len(items), error)
        finally:
            if process.pid is not None:
                process.kill()
                process.join()
            answers.close()
    return items


def _answer(dataset: Any, ids: Sequence[int], end: Connection) -> None:
    """Send the items, in the forked process, and end in silence where one raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # OpenMP may hang in a forked process
    with contextlib.suppress(Exception):
        for i in ids:
            end.send(_small_parts(dataset[i]))
    # Nothing that the training has registered for its own end may run here.
    os._exit(0)


def _small_parts(item: Any) -> dict[Path, np.ndarray]:
    """What may be labels, so that no image is sent."""
    found = {}
    for path, part in leaves(item):
        with contextlib.suppress(Exception):
            array = _as_array(part)
            if array.dtype.kind in "biuf":
                found[path] = array
    return found


def _as_array(part: Any) -> np.ndarray:
    size = part.numel() if isinstance(part, Tensor) else np.prod(getattr(part, "shape", ()), dtype=int)
    if size > _SMALL:
        return np.empty(0, dtype=object)
    if isinstance(part, Tensor):
        part = part.detach().to_dense() if part.layout is not torch.strided else part.detach()
        return np.array((part.float() if part.dtype is torch.bfloat16 else part).cpu().numpy())
    return np.array(part.toarray() if hasattr(part, "toarray") else part)


@contextlib.contextmanager
def _open_files_kept() -> Iterator[None]:
    """A forked process shares open files with this one, and reading there moves their positions: put them back."""
    places = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                places[int(name)] = os.lseek(int(name), 0, os.SEEK_CUR)
    try:
        yield
    finally:
        for file, place in places.items():
            with contextlib.suppress(OSError):
                if os.lseek(file, 0, os.SEEK_CUR) != place:
                    os.lseek(file, place, os.SEEK_SET)


class Asked(NamedTuple):
    """What items say of the rows of a batch.

    Attributes:
        asked: How many items were asked.
        same: True if the batch has the labels of the planned samples, False if it has those of others, None if the
            items do not tell.
        path: Where in an item its labels are.
    """

    asked: int
    same: bool | None
    path: Path = ()


def compare_with_items(dataset: Any, ids: Tensor, rows: Tensor, place: Path | None) -> Asked:
    """Whether the labels of a batch are those of the items that the dataset has for its planned ids.

    Args:
        dataset: The train dataset.
        ids: (b,) planned.
        rows: (b, q) labels or (b,) class indices of the batch, on the CPU.
        place: Where in the batch they are; an item whose collate function is the usual one has them there too.
    """
    classes = hold_classes(rows)
    found = signatures(rows, classes)
    chosen = _telling(found)
    items = ask(dataset, ids[chosen].tolist())
    chosen = chosen[: len(items)]
    width = rows.shape[1] if rows.ndim > 1 else 1
    away: Path | None = None
    paths = [path for path in items[0] if all(path in item for item in items)] if items else []
    for path in sorted(paths, key=lambda one: one != place):
        parts = [item[path] for item in items]
        expected = _as_rows(parts, width, classes)
        expected = _as_classes(parts, width, classes) if expected is None else expected
        between = None if expected is None else distance(found[chosen], expected, _TELLING)
        if expected is None or between is None:
            continue
        if between.share < OTHER:
            return Asked(len(items), True, path)
        if _are_among(expected, found) or (path == place and _is_far(found[chosen], expected)):
            away = away or path
    return Asked(len(items), None) if away is None else Asked(len(items), False, away)


def labels_in_items(dataset: Any, ids: Tensor) -> Tensor | None:
    """The labels that the items of some samples hold in a usual place, or second in a pair; None where they do not."""
    items = ask(dataset, ids.tolist())
    if not items or len(items) < len(ids):
        return None
    firsts = {path[0] for item in items for path in item if path}
    is_pair = firsts <= {0, 1} and 1 in firsts
    for path in [(name,) for name in LABEL_NAMES] + ([(1,)] if is_pair else []):
        parts = [item[path] for item in items if path in item]
        if len(parts) == len(items) and len({part.shape for part in parts}) == 1 and parts[0].ndim < 2:
            return torch.as_tensor(np.stack(parts))
    return None


def _are_among(expected: Tensor, found: Tensor) -> bool:
    """Whether every one of these labels is in the batch, as often as here, and they are no mere yes and no."""
    kinds, counts = torch.unique(expected, return_counts=True)
    return len(kinds) > 2 and bool(((found == kinds.unsqueeze(1)).sum(1) >= counts).all())


def _is_far(found: Tensor, expected: Tensor) -> bool:
    """Whether these cannot be noisy labels of the same samples."""
    between = distance(found, expected, _CLEARLY_TELLING)
    return between is not None and between.share >= _CLEARLY


def _telling(found: Tensor, most: int = 32) -> Tensor:
    """Places in the batch of samples that are as unlike each other as possible."""
    _, kind = torch.unique(found, return_inverse=True)
    seen: dict[int, int] = {}
    turn = []
    for one in kind.tolist():
        turn.append(seen.get(one, 0))
        seen[one] = turn[-1] + 1
    return torch.tensor(turn).argsort(stable=True)[:most].sort().values


def _as_rows(parts: list[np.ndarray], width: int, classes: bool) -> Tensor | None:
    """Signatures of parts that are a row of ``width`` labels, or one class index each."""
    if any(part.size != (1 if classes else width) for part in parts):
        return None
    return signatures(torch.as_tensor(np.stack([part.reshape(-1) for part in parts])), classes)


def _as_classes(parts: list[np.ndarray], width: int, classes: bool) -> Tensor | None:
    """Signatures of parts that list the labels of their sample."""
    if classes or any(
        part.dtype.kind not in "iu" or part.ndim > 1 or np.any((part < 0) | (part >= width)) for part in parts
    ):
        return None
    rows = torch.zeros(len(parts), width)
    for row, part in zip(rows, parts, strict=True):
        row[torch.as_tensor(part.reshape(-1).astype(np.int64))] = 1
    return signatures(rows)
