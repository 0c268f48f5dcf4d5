"""Files: the one atomic write and the one lock, what a failed write means, the user's cache, SHA-256 once per file."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

_WRITE_PROBLEMS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the file would be larger than this file system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "you have no permission to write there",
    errno.EPERM: "you have no permission to write there",
    errno.EIO: "the disk reports an error",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "part of the path is a file, not a folder",
}
_CLOCK_STEP = 0.05
"""Seconds within which a file system may give two changes of a file the same time."""

_digests: dict[tuple[object, ...], str] = {}


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Return a binary stream whose content becomes the file ``path`` when the block ends without an error.

    A reader sees the old file or the whole new one, and nothing else is left in the folder. The file is on the disk
    when the block ends. Its permissions are those that the user's umask gives to any new file.

    Args:
        path: The file to write; its folder must exist.

    Raises:
        OSError: The folder cannot be written; see :func:`write_problem`.
    """
    path = Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    # Not tempfile.mkstemp, which makes files that nobody else in a shared folder can read.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a whole file at once, text as UTF-8; see :func:`atomic_write`."""
    with atomic_write(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def _sync_folder(folder: Path) -> None:
    """Make the new name of a file durable; some systems cannot open folders, and some file systems cannot sync them."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def lock_file(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock while the block lasts, and tell whether it is held; the system frees it when its owner dies.

    Args:
        path: The file that stands for the lock; it is made, with its folder, and removed at the end.
        wait: False gives up at once if another process holds it.
    """
    lock = FileLock(path)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=wait)
        except Timeout:
            yield False
            return
        except FileNotFoundError:  # another process has just tidied the folder away
            continue
        break
    try:
        yield True
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()
        lock.release()


def write_problem(error: BaseException, folder: str | os.PathLike[str]) -> str | None:
    """Return what a failed write means and which folder it concerns, or None if ``error`` is not about files.

    The error may be wrapped: its causes are searched for the first ``OSError`` with a number.

    >>> write_problem(OSError(errno.ENOSPC, "No space left on device", "a", None, "b"), "results/mine")
    "the disk is full: 'results/mine' cannot be written; free some space there or choose another folder."
    """
    seen: BaseException | None = error
    while seen is not None and not (isinstance(seen, OSError) and seen.errno is not None):
        seen = seen.__cause__ or seen.__context__
    if not isinstance(seen, OSError) or seen.errno is None:
        return None
    reason = _WRITE_PROBLEMS.get(seen.errno, (seen.strerror or type(seen).__name__).lower())
    space = seen.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space there or choose another folder" if space else "choose another folder"
    return f"{reason}: {os.fspath(folder)!r} cannot be written; {hint}."


def user_cache() -> Path:
    """Return this package's folder in the user's cache; the environment variable LIGHTNING_UBS_CACHE replaces it."""
    chosen = os.environ.get("LIGHTNING_UBS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning-ubs"


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; an unchanged file is read once per process."""
    path = Path(path)
    identity = _identity(path)
    if identity not in _digests:
        started = time.time()
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        # A file that changed just now may change again without a new time.
        if started - path.stat().st_ctime < _CLOCK_STEP or _identity(path) != identity:
            return digest
        _digests[identity] = digest
    return _digests[identity]


def remember_sha256(path: str | os.PathLike[str], digest: str) -> None:
    """Keep the SHA-256 of a file that was computed while it was written, so that it is not read again."""
    _digests[_identity(Path(path))] = digest


def _identity(path: Path) -> tuple[object, ...]:
    state = path.stat()
    return os.path.abspath(path), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def size_text(num_bytes: float) -> str:
    """A number of bytes in the unit that fits.

    >>> size_text(12), size_text(504), size_text(12_345), size_text(4.5e9)
    ('12 B', '504 B', '12.3 kB', '4.5 GB')
    """
    units = ["B", "kB", "MB", "GB", "TB"]
    while num_bytes >= 999.5 and len(units) > 1:
        num_bytes, units = num_bytes / 1000, units[1:]
    return f"{num_bytes:.0f} B" if units[0] == "B" else f"{num_bytes:.1f} {units[0]}"
