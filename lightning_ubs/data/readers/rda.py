"""R data files with an object of the package mldr: R's binary serialization (``RDX2``, ``RDX3``), read as a stream.

R writes every zero of a sparse data frame. Each numeric vector is therefore reduced to its non-zero entries as it is
read, so that a file of gigabytes of zeros fits into little memory. Nothing in the file is evaluated.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightning_ubs._utils.extras import optional_import
from lightning_ubs.data.readers.budget import OBJECT, Budget
from lightning_ubs.data.readers.stream import CHUNK, open_decompressed, read_exactly
from lightning_ubs.data.types import Features, MultiLabelData, binary_labels
from lightning_ubs.errors import DataError

_EMPTY = (254, 253, 252, 251, 242, 241)  # NULL, the standard environments, missing and unbound values
_SYMBOL, _PAIRLIST, _CHARS, _LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST, _EXPRESSION = 1, 2, 9, 10, 13, 14, 16, 19, 20
_ALTREP, _REFERENCE = 238, 255
_INTEGER_NA = -(2**31)


class Numbers(NamedTuple):
    """A numeric vector by its non-zero entries; a missing one is NaN."""

    size: int
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Numbers:
        """Return a vector without its zeros.

        >>> Numbers.of(np.array([0.0, 2.5, 0.0])).dense()
        array([0. , 2.5, 0. ])
        """
        positions = np.flatnonzero(values).astype(np.int32)
        return cls(values.size, positions, values[positions].astype(np.float64))

    def dense(self) -> npt.NDArray[np.float64]:
        """Return the whole vector."""
        result = np.zeros(self.size)
        result[self.positions] = self.values
        return result


class RValue(NamedTuple):
    """An R object: numbers, a string, a list of strings, a list of objects, or tagged pairs; and its attributes."""

    value: Any
    attributes: dict[str, RValue]

    def members(self) -> list[tuple[str, RValue]]:
        """Return the names and values of an R list or data frame; none for other objects."""
        names = self.attributes.get("names")
        if names is None or not isinstance(self.value, list) or not isinstance(names.value, list):
            return []
        return list(zip(names.value, self.value, strict=True))


_NULL = RValue(None, {})


def read_variables(stream: IO[bytes], budget: Budget) -> dict[str, RValue]:
    """Return the variables of a decompressed ``.rda`` file.

    Args:
        stream: The file's content.
        budget: Counts what is allocated.

    Raises:
        ValueError: It is truncated, or holds something that is not data (a function, an environment).
    """
    if stream.read(5) not in (b"RDX2\n", b"RDX3\n") or stream.read(2) != b"X\n":
        raise ValueError("not a binary file of R's save()")
    reader = _Reader(stream, budget)
    version, _, _ = reader.integer(), reader.integer(), reader.integer()
    if version == 3:
        reader.take(reader.integer())  # the writer's encoding; strings carry their own
    return _tagged(reader.item())


def _tagged(pairs: RValue) -> dict[str, RValue]:
    return {tag: value for tag, value in pairs.value or [] if tag is not None}


class _Reader:
    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self.stream, self.budget = stream, budget
        self.references: list[RValue] = []

    def take(self, size: int) -> bytes:
        return read_exactly(self.stream, size)

    def numbers(self, size: int, dtype: str) -> Numbers:
        """Return a vector, read piece by piece so that neither its zeros nor a size that is only claimed are held."""
        if size < 0:
            raise ValueError("a negative length")
        positions, values, step = list[Any](), list[Any](), CHUNK // 8
        width = np.dtype(dtype).itemsize
        for start in range(0, size, step):
            part: Any = np.frombuffer(self.take(width * min(step, size - start)), dtype=dtype)
            if dtype == ">i4":
                part = np.where(part == _INTEGER_NA, np.nan, part)
            found = np.flatnonzero(part)
            self.budget.hold(2 * 12 * found.size)  # the pieces, and the whole that they become
            positions.append((found + start).astype(np.int32))
            values.append(part[found].astype(np.float64))
        if not positions:
            return Numbers.of(np.zeros(0))
        return Numbers(size, np.concatenate(positions), np.concatenate(values))

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def item(self, flags: int | None = None) -> RValue:
        flags = self.integer() if flags is None else flags
        kind, with_attributes = flags & 0xFF, bool(flags & 0x200)
        if kind in _EMPTY:
            return _NULL
        if kind == _REFERENCE:
            return self.references[(flags >> 8 or self.integer()) - 1]
        if kind == _SYMBOL:
            self.budget.hold(OBJECT)
            self.references.append(self.item())
            return self.references[-1]
        if kind == _PAIRLIST:
            self.budget.hold(OBJECT)
            return RValue(self.pairs(flags), {})
        if kind == _ALTREP:
            return self.compact()
        self.budget.hold(OBJECT)
        value = self.vector(kind)
        return RValue(value, _tagged(self.item()) if with_attributes else {})

    def vector(self, kind: int) -> Any:
        size = self.integer()
        if kind == _CHARS:
            return None if size == -1 else self.take(size).decode("utf-8", errors="backslashreplace")
        if kind in (_LOGICAL, _INTEGER):
            return self.numbers(size, ">i4")
        if kind == _REAL:
            return self.numbers(size, ">f8")
        if kind == _STRINGS:
            return [self.item().value for _ in range(size)]
        if kind in (_LIST, _EXPRESSION):
            return [self.item() for _ in range(size)]
        raise ValueError(f"R's object type {kind} is not data")

    def pairs(self, flags: int) -> list[tuple[str | None, RValue]]:
        found: list[tuple[str | None, RValue]] = []
        while flags & 0xFF == _PAIRLIST:
            if flags & 0x200:
                self.item()
            tag = self.item().value if flags & 0x400 else None
            self.budget.hold(OBJECT)
            found.append((tag, self.item()))
            flags = self.integer()
        if flags & 0xFF not in _EMPTY:
            found.append((None, self.item(flags)))
        return found

    def compact(self) -> RValue:
        """Return what R 3.5 and later writes in a short form: sequences and wrapped vectors."""
        info, state, attributes = self.item(), self.item(), self.item()
        name = info.value[0][1].value
        if name in ("compact_intseq", "compact_realseq"):
            size, start, step = state.value.dense()
            self.budget.hold(4 * 8 * max(0, int(size)))  # steps, multiples, and the result's two parts
            return RValue(Numbers.of(start + step * np.arange(int(size))), _tagged(attributes))
        first = state.value[0]
        wrapped = first if isinstance(first, RValue) else first[1]
        if name == "deferred_string":
            self.budget.hold((8 + OBJECT) * wrapped.value.size)
            return RValue([f"{number:.15g}" for number in wrapped.value.dense()], _tagged(attributes))
        if name.startswith("wrap_"):
            return RValue(wrapped.value, _tagged(attributes))
        raise ValueError(f"R's compact form {name!r} is not known")


SPARSE_BELOW = 0.3
"""R does not tell sparse from dense; a dataset with a smaller share of non-zero features becomes a CSR matrix."""

_MEASURES = (".labelcount", ".SCUMBLE")  # mldr appends these columns of its own to the data frame

Column = tuple[str, RValue]


def read_rda(path: Path, budget: Budget) -> MultiLabelData:
    """Return the first mldr object: a list with the data frames ``dataset`` and ``labels``.

    ``labels$index`` says which columns are labels, counted from 1. A factor is coded by level, from 0.
    """
    with open_decompressed(path, budget) as stream:
        variables = read_variables(stream, budget)
    for variable in variables.values():
        members = dict(variable.members())
        if {"dataset", "labels"} <= members.keys():
            return _from_mldr(members["dataset"], dict(members["labels"].members()), budget)
    raise DataError(f"{path.name}: no mldr object (a list with 'dataset' and 'labels') in it; save() one.")


def _from_mldr(dataset: RValue, labels: dict[str, RValue], budget: Budget) -> MultiLabelData:
    source = budget.source
    columns = [column for column in dataset.members() if column[0] not in _MEASURES]
    index = labels["index"].value if "index" in labels else None
    if not isinstance(index, Numbers) or index.size == 0:
        raise DataError(f"{source}: labels$index is missing; rebuild the object with mldr.")
    budget.hold(8 * index.size)
    positions = index.dense()
    if not (np.isin(positions, np.arange(1, len(columns) + 1)).all() and np.unique(positions).size == positions.size):
        raise DataError(f"{source}: labels$index does not fit the {len(columns)} columns; rebuild it with mldr.")
    chosen = positions.astype(np.int64) - 1
    kept = np.setdiff1d(np.arange(len(columns)), chosen)
    if kept.size == 0 or len({_vector(column, source).size for column in columns}) != 1:
        raise DataError(f"{source}: no features, or columns of unequal length; rebuild the object with mldr.")
    budget.hold(chosen.size * _vector(columns[0], source).size)
    return MultiLabelData(
        _features([columns[j] for j in kept], budget),
        np.stack([_label(columns[j], budget) for j in chosen], axis=1),
        [columns[j][0] for j in chosen],
        [columns[j][0] for j in kept],
    )


def _vector(column: Column, source: str) -> Numbers:
    name, content = column
    if not isinstance(content.value, Numbers):
        raise DataError(f"{source}: column {name[:60]!r} holds no numbers; remove it or make it a factor.")
    return content.value


def _coded(column: Column, budget: Budget) -> Numbers:
    """Return a column as numbers; a factor by its level, from 0."""
    vector = _vector(column, budget.source)
    if "levels" not in column[1].attributes:
        return vector
    budget.hold(28 * vector.size)
    return Numbers.of(vector.dense() - 1)


def _label(column: Column, budget: Budget) -> npt.NDArray[np.uint8]:
    name, content = column
    numbers, where = _coded(column, budget), f"{budget.source}, label {name[:60]!r}"
    budget.hold(8 * numbers.size)
    values = numbers.dense()
    if "levels" in content.attributes:
        try:
            levels = np.array([float(level) for level in content.attributes["levels"].value])
        except ValueError:
            raise DataError(f"{where}: its levels are not binary; recode it as 0 and 1.") from None
        values = levels[values.astype(np.int64)]
    return binary_labels(values[:, None], where)[:, 0]


def _features(columns: list[Column], budget: Budget) -> Features:
    numbers = [_coded(column, budget) for column in columns]
    n, ends = numbers[0].size, np.cumsum([0, *(column.positions.size for column in numbers)])
    sparse = ends[-1] < SPARSE_BELOW * n * len(columns)
    budget.hold(12 * int(ends[-1]) + (8 * n + 12 * int(ends[-1]) if sparse else 4 * n * len(columns)))
    with np.errstate(over="ignore"):
        values = np.concatenate([column.values for column in numbers]).astype(np.float32)
    rows = np.concatenate([column.positions for column in numbers])
    matrix = optional_import("scipy.sparse").csc_matrix((values, rows, ends), shape=(n, len(columns)))
    return matrix.tocsr() if sparse else matrix.toarray()
