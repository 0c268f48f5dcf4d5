"""Files that may be compressed: their format, and streams of them that count what they unpack to and show progress."""

from __future__ import annotations

import bz2
import gzip
import io
import logging
import lzma
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from lightning_ubs._utils.progress import passing_bar
from lightning_ubs.data.readers.budget import Budget
from lightning_ubs.errors import DataError

log = logging.getLogger(__name__)

LARGE_FILE = 20_000_000
"""Bytes from which reading shows progress."""

CHUNK = 2**20
"""Bytes that are asked for at a time, so that a size that a file only claims is never allocated."""


def require_file(path: Path, what: str = "") -> None:
    """Raise unless ``path`` is a regular file (or a link to one), and say what it is instead.

    Args:
        path: What the user gave.
        what: How the message begins; default: the path.
    """
    what = what or str(path)
    if len(what) > 300:
        what = f"{what[:200]}...{what[-60:]}"
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{what}: no such file; check the path.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{what}: this path cannot be used ({reason}); check the path.") from None
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket"}
    kind = kinds.get(stat.S_IFMT(mode), "device")
    raise DataError(f"{what}: this is a {kind}, not a file; give the path of a file.")


class _Counted(io.RawIOBase):
    """A stream whose bytes a budget counts."""

    def __init__(self, stream: IO[bytes], budget: Budget) -> None:
        self._stream, self._budget = stream, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(min(len(buffer), CHUNK))
        self._budget.unpack(len(data))
        buffer[: len(data)] = data
        return len(data)


def _decompressed(raw: IO[bytes]) -> IO[bytes]:
    magic = raw.read(8)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(raw)
    return raw


@contextmanager
def open_decompressed(path: Path, budget: Budget) -> Iterator[IO[bytes]]:
    """Return a file that may be compressed by gzip, bzip2 or xz as an open stream of its content."""
    with path.open("rb") as raw:
        yield io.BufferedReader(_Counted(_decompressed(raw), budget), CHUNK)


def first_bytes(path: Path) -> bytes:
    """Return how the decompressed content of a file begins."""
    with path.open("rb") as raw:
        return _decompressed(raw).read(4096)


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Return the next ``size`` bytes.

    Raises:
        ValueError: There are fewer.
    """
    if size < 0:
        raise ValueError("a negative length")
    parts, missing = [], size
    while missing:
        parts.append(stream.read(min(missing, CHUNK)))
        if not parts[-1]:
            raise ValueError("the file ends too early")
        missing -= len(parts[-1])
    return b"".join(parts)


@contextmanager
def text_lines(path: Path, budget: Budget) -> Iterator[Iterator[str]]:
    """Return the lines of a text file, plain or compressed; a large one shows its progress."""
    size = path.stat().st_size
    with path.open("rb") as raw:
        counted = io.BufferedReader(_Counted(_decompressed(raw), budget))
        text = io.TextIOWrapper(counted, encoding="utf-8-sig", errors="backslashreplace", newline=None)
        lines = _limited(text, budget)
        yield lines if size < LARGE_FILE else _reporting(lines, raw, path.name, size)


def _limited(text: io.TextIOWrapper, budget: Budget) -> Iterator[str]:
    limit = budget.line_limit
    while line := text.readline(limit):
        budget.line(len(line))
        yield line


def _reporting(lines: Iterator[str], raw: IO[bytes], name: str, size: int) -> Iterator[str]:
    every = 1000
    with passing_bar(f"reading {name}", size) as show:
        told = 0
        for number, line in enumerate(lines):
            if number % every == 0:
                done = raw.tell()
                if show is not None:
                    show(done)
                elif done * 10 // size > told:
                    told = done * 10 // size
                    log.info("reading %s: %d %%", name, 10 * told)
            yield line


Format = Literal["arff", "csv", "mat", "npz", "parquet", "rda", "svmlight"]
TEXT: tuple[Format, ...] = ("arff", "csv", "svmlight")

_BY_ENDING: dict[str, Format] = {
    ".arff": "arff", ".csv": "csv", ".tsv": "csv", ".svm": "svmlight", ".svmlight": "svmlight", ".libsvm": "svmlight",
}  # fmt: skip
_PACKED = (".gz", ".bz2", ".xz")
_PAIR = re.compile(rb"(?:[0-9]++|qid):[-+]?[0-9.]++(?:[eE][-+]?[0-9]++)?")
_LABELS = re.compile(rb"[-+0-9.eE,]++")


def bare_name(path: Path) -> str:
    """Return the name of a file without the ending of a compression.

    >>> bare_name(Path("data/yeast.arff.gz"))
    'yeast.arff'
    """
    name = path.name
    return name[: -len(path.suffix)] if path.suffix.lower() in _PACKED else name


def detect_format(path: Path) -> Format:
    """Return the format of a file.

    Raises:
        DataError: It is none of those that can be read.
    """
    head = first_bytes(path)
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"RDX", b"RDA", b"RDB")):
        return "rda"
    if head.startswith((b"\x89HDF", b"MATLAB 7.3")):
        raise DataError(f"{path.name}: MATLAB 7.3 (HDF5) files are not supported; save it again with -v7.")
    if head.startswith(b"MATLAB 5.0"):
        return "mat"
    lines = (line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines())
    first = next((line for line in lines if line and not line.startswith((b"%", b"#"))), b"")
    named = _BY_ENDING.get(Path(bare_name(path)).suffix.lower())
    if named == "arff" or first.lower().startswith((b"@relation", b"@attribute")):
        return "arff"
    if named is not None:
        return named
    if _is_svmlight(first, cut=b"\n" not in head):
        return "svmlight"
    raise DataError(
        f"{path.name}: this is not an ARFF, CSV, svmlight, Parquet, MATLAB, R (.rda) or .npz file; give one of these, "
        "complete and with its usual ending."
    )


def _is_svmlight(line: bytes, cut: bool) -> bool:
    """Return whether a line reads ``LABEL,... INDEX:VALUE ...``; the last word of a cut line does not count."""
    words = line.partition(b"#")[0].split()
    words = words[:-1] if cut and len(line) > 4000 else words
    pairs = words[1:] if words and _LABELS.fullmatch(words[0]) else words
    return bool(pairs) and all(_PAIR.fullmatch(word) for word in pairs)
