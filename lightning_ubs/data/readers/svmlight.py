"""Formats svmlight and libsvm, multi-label: ``LABEL,LABEL INDEX:VALUE ...``, one line per sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import NAME, OBJECT, Budget
from lightning_ubs.data.readers.stream import open_decompressed
from lightning_ubs.data.types import MultiLabelData, numbered
from lightning_ubs.errors import DataError


class _Lines:
    """The lines of a file as scikit-learn asks for them; it knows which one is read, and counts what it becomes."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream, self._budget, self.number = stream, budget, 0

    def read(self) -> bytes:
        raise NotImplementedError("lines are asked for one by one")

    def __iter__(self) -> Iterator[bytes]:
        limit = self._budget.line_limit
        while line := self._stream.readline(limit):
            self.number += 1
            self._budget.line(len(line))
            # scikit-learn copies its buffers once at the end; labels are Python tuples of numbers.
            self._budget.hold(2 * (16 * line.count(b":") + 8) + OBJECT + 32 * line.count(b","))
            yield line


def read_svmlight(path: Path, budget: Budget) -> MultiLabelData:
    """Return the content of an svmlight file, its features sparse; labels are named by their numbers, ascending.

    Indices may begin at 0 or 1: where no index is 0, they begin at 1. A line may have no label; an empty
    line is no sample.
    """
    load = optional_import("sklearn.datasets").load_svmlight_file
    with open_decompressed(path, budget) as stream:
        lines = _Lines(stream, budget)
        try:
            features, found = load(lines, dtype=np.float64, multilabel=True, zero_based="auto")
        except (ValueError, OverflowError) as error:
            if isinstance(error, DataError):
                raise
            told = str(error).splitlines()[0][:120]
            raise DataError(f"{path.name}, line {lines.number}: {told}; write LABEL,LABEL INDEX:VALUE there.") from None
    names = sorted({label for row in found for label in row})
    if not names:
        raise DataError(f"{path.name}: no line has a label; write LABEL,LABEL before the first INDEX:VALUE.")
    n, d = features.shape
    budget.hold(n * len(names) + NAME * (d + len(names)) + 12 * features.nnz)
    position = {label: column for column, label in enumerate(names)}
    labels = np.zeros((n, len(names)), dtype=np.uint8)
    for row, own in enumerate(found):
        labels[row, [position[label] for label in own]] = 1
    with np.errstate(over="ignore"):
        features = features.astype(np.float32)
    features.sum_duplicates()
    features.eliminate_zeros()
    return MultiLabelData(features, labels, [f"{label:.15g}" for label in names], numbered("feature", d))
