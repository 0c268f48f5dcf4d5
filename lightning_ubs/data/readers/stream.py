"""Open a possibly compressed file, tell what it is by its first bytes, and report progress on large ones."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import logging
import lzma
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from lightning_ubs.data.types import DataError

log = logging.getLogger(__name__)

LARGE_FILE = 20_000_000
"""Bytes from which reading shows progress."""

Format = Literal["arff", "mat", "npz", "rda"]


def _decompressed(raw: IO[bytes]) -> Any:
    magic = raw.read(8)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    if magic.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(raw)
    return raw


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that may be compressed by gzip, bzip2 or xz."""
    with path.open("rb") as raw:
        yield _decompressed(raw)


def detect_format(path: Path) -> Format:
    """Tell the format by content, and by the name's ending only where the content says nothing."""
    with open_decompressed(path) as stream:
        head = stream.read(4096)
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith((b"RDX", b"RDA", b"RDB")):
        return "rda"
    if head.startswith((b"\x89HDF", b"MATLAB 7.3")):
        raise DataError(f"{path.name}: MATLAB 7.3 (HDF5) files are not read; save it again with -v7.")
    if head.startswith(b"MATLAB 5.0"):
        return "mat"
    lines = (line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").splitlines())
    first = next((line for line in lines if line and not line.startswith(b"%")), b"").lower()
    named_so = path.name.lower().endswith((".arff", ".arff.gz", ".arff.bz2"))
    if named_so or first.startswith((b"@relation", b"@attribute")):
        return "arff"
    raise DataError(
        f"{path.name}: neither ARFF, MATLAB, R (.rda) nor .npz; give one of these, complete and uncorrupted."
    )


@contextmanager
def text_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a text file, plain or compressed, as an iterator of lines; a large one shows its progress."""
    size = path.stat().st_size
    with path.open("rb") as raw:
        lines = io.TextIOWrapper(_decompressed(raw), encoding="utf-8-sig", errors="backslashreplace")
        yield lines if size < LARGE_FILE else _reporting(lines, raw, path.name, size)


def _reporting(lines: Iterator[str], raw: IO[bytes], name: str, size: int) -> Iterator[str]:
    every = 1000
    if sys.stderr.isatty():
        try:
            from rich.progress import Progress
        except ModuleNotFoundError:
            log.debug("rich is not installed: progress goes to the log")
        else:
            from rich.console import Console

            with Progress(console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task(f"reading {name}", total=size)
                for number, line in enumerate(lines):
                    if number % every == 0:
                        progress.update(task, completed=raw.tell())
                    yield line
            return
    told = 0
    for number, line in enumerate(lines):
        if number % every == 0 and raw.tell() * 10 // size > told:
            told = raw.tell() * 10 // size
            log.info("reading %s: %d %%", name, 10 * told)
        yield line
