"""How many bytes a file may unpack to and fill: a small file must not take all memory, nor minutes."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_ubs.errors import DataError

MAX_BYTES = 4 * 2**30
"""What a file may unpack to, and what its arrays may fill, unless the user says more."""

VARIABLE = "LIGHTNING_UBS_MAX_BYTES"

# Time stays linear in the file's size because, by default, so is the limit. R's published files unpack to 582 times
# their size; a text is parsed some twenty times more slowly, and compresses less.
_START = {"binary": 64 * 2**20, "text": 16 * 2**20}
_GROWTH = {"binary": 1000, "text": 100}

_LINE = 100
"""A line, however short, takes as much time as so many bytes."""

OBJECT = 200
"""Bytes that a small Python object with its parts fills."""

NAME = 80
"""Bytes that the name of a column fills."""


class Budget:
    """Count of what one file unpacks to and what is allocated for it, which refuses it past the limit.

    Args:
        source: The file's name, for the message.
        limit: Bytes that it may unpack to.
        memory: Bytes that may be allocated for it; None takes ``limit``.

    >>> budget = Budget("small.npz", 100)
    >>> budget.unpack(60)
    >>> budget.hold(60)
    >>> budget.unpack(60)
    Traceback (most recent call last):
    ...
    lightning_ubs.errors.DataError: small.npz: reading it takes more than 100 bytes, ...
    """

    def __init__(self, source: str, limit: int, memory: int | None = None) -> None:
        self.source, self.limit = source, limit
        self.memory = limit if memory is None else memory
        self._unpacked = self._held = 0

    @classmethod
    def of(cls, path: Path, max_bytes: int | None = None, kind: str = "binary") -> Budget:
        """Return the budget of a file.

        Args:
            path: The file.
            max_bytes: The limit; None takes that of the environment variable LIGHTNING_UBS_MAX_BYTES, and without
                one 4 GiB or, for a small file, a large multiple of its size.
            kind: ``"binary"``, or ``"text"``, whose multiple is smaller because it takes longer to parse.
        """
        given = asked(max_bytes)
        if given is not None:
            return cls(path.name, given)
        size = path.stat().st_size
        limit, memory = (min(MAX_BYTES, _START[key] + _GROWTH[key] * size) for key in (kind, "binary"))
        return cls(path.name, limit, memory)

    def unpack(self, size: int) -> None:
        """Count bytes that were read from the file, after decompression."""
        self._unpacked += size
        if self._unpacked > self.limit:
            self._refuse("reading it takes", self.limit)

    def hold(self, size: int) -> None:
        """Count bytes that are about to be allocated."""
        self._held += size
        if self._held > self.memory:
            self._refuse("reading it takes", self.memory)

    @property
    def line_limit(self) -> int:
        """Characters that a line may have: its cells are some sixty times larger while it is parsed."""
        return max(2**20, self.limit // 64)

    def line(self, length: int) -> None:
        """Count the time that a line takes, and refuse one that reached :attr:`line_limit`."""
        if length >= self.line_limit:
            self._refuse(f"parsing a line of {length:,} characters takes", self.limit)
        self.unpack(_LINE)

    def _refuse(self, what: str, limit: int) -> None:
        raise DataError(
            f"{self.source}: {what} more than {limit:,} bytes, the limit for this file; if you trust it, raise "
            f"the limit with max_bytes=NUMBER (`data convert` takes it too) or {VARIABLE}=NUMBER."
        )


def asked(max_bytes: int | str | None) -> int | None:
    """Return the limit that the user gave by argument or environment variable, checked; None where there is none."""
    name, value = ("max_bytes", max_bytes) if max_bytes is not None else (VARIABLE, os.environ.get(VARIABLE) or None)
    if value is None:
        return None
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1 or isinstance(value, float | bool):
        raise DataError(f"{name}={value} must be a whole number of bytes, at least 1, such as {name}={MAX_BYTES}.")
    return number
